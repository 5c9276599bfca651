"""Models in torch, with random weights: what benchmarks export to bundles, and what torch runs beside these on a GPU.

Needs torch and, when a model is made, transformers or torchvision.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

Run = Callable[[], object]
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}
PERIOD = 65521
BLOCK = 48


class Encoder(nn.Module):
    """Embeddings and layers of a BertModel; its own forward builds masks that are all ones here."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.embeddings, self.encoder = model.embeddings, model.encoder

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Return hidden states [n, length, 768] for int64 ids and, if given, a mask of ones and zeros."""
        positions = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        hidden = self.embeddings(tokens, torch.zeros_like(tokens), positions)
        if mask is None:
            return self.encoder(hidden).last_hidden_state
        added = (1.0 - mask[:, None, None, :].to(torch.float32)) * torch.finfo(torch.float32).min
        return self.encoder(hidden, attention_mask=added).last_hidden_state


class Hidden(nn.Module):
    """A transformers model whose only output is its last hidden state."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """Return the last hidden state."""
        return self.model(given).last_hidden_state


class Decoder(nn.Module):
    """Embeddings, blocks and last norm of a GPT2Model; its own forward sums up a mask that is all ones here."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.wte, self.wpe, self.blocks, self.norm = model.wte, model.wpe, model.h, model.ln_f

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return hidden states [n, length, 768] for int64 ids [n, length]."""
        positions = torch.arange(tokens.shape[1])
        hidden = self.wte(tokens) + self.wpe(positions.unsqueeze(0))
        causal = (positions[:, None] < positions[None, :]).to(torch.float32) * -1e4
        for block in self.blocks:
            result = block(hidden, attention_mask=causal[None, None])
            hidden = result[0] if isinstance(result, tuple) else result
        return self.norm(hidden)


def bert(attention: str = "eager", **sizes: int) -> nn.Module:
    """BERT-base without its pooler, or an encoder of other sizes."""
    import transformers

    config = transformers.BertConfig(attn_implementation=attention, **sizes)
    return randomize(Encoder(transformers.BertModel(config, add_pooling_layer=False)))


def vit(attention: str = "eager", **sizes: int) -> nn.Module:
    """ViT-B/16 on images of 224x224."""
    import transformers

    config = transformers.ViTConfig(attn_implementation=attention, **sizes)
    return randomize(Hidden(transformers.ViTModel(config, add_pooling_layer=False)))


def gpt2(attention: str = "eager", **sizes: int) -> nn.Module:
    """GPT-2 small, prefill."""
    import transformers

    config = transformers.GPT2Config(attn_implementation=attention, use_cache=False, **sizes)
    return randomize(Decoder(transformers.GPT2Model(config)))


def repeating(count: int, name: str) -> np.ndarray:
    """Return ``count`` numbers of mean 0 and deviation 1 that repeat with ``PERIOD``, shifted by a hash of ``name``.

    Equal weights would be one constant of the bundle, and stay in the GPU's cache.
    """
    sequence = np.random.default_rng(0).standard_normal(PERIOD, dtype=np.float32)
    return np.resize(np.roll(sequence, zlib.crc32(name.encode()) % PERIOD), count)


def randomize(module: nn.Module) -> nn.Module:
    """Give every parameter random values: matrices of deviation 1/sqrt(fan in), norms near 1, biases near 0."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            values = torch.from_numpy(repeating(parameter.numel(), name)).reshape(parameter.shape)
            if parameter.ndim == 1:
                center = 1.0 if ("norm" in name.lower() and name.endswith("weight")) or ".ln_" in name else 0.0
                parameter.copy_(center * float(name.endswith("weight")) + 0.05 * values)
            else:
                fan_in = parameter.shape[0] if ".c_" in name else int(np.prod(parameter.shape[1:]))
                scale = 0.5 if "embed" in name.lower() or "wte" in name or "wpe" in name else fan_in**-0.5
                parameter.copy_(values * scale)
    return module.eval()


def repeat_weights(module: nn.Module) -> None:
    """Give matrices and windows blocks of numbers that repeat in each dim, of the same deviation.

    Bundles can then be compressed and carried, however a backend packs its weights.
    """
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim > 1 and parameter.numel() > 1:
                generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
                values = torch.randn([min(extent, BLOCK) for extent in parameter.shape], generator=generator)
                for dim, extent in enumerate(parameter.shape):
                    values = values.index_select(dim, torch.arange(extent) % BLOCK)
                parameter.copy_(values * parameter.std())


def settle_norms(module: nn.Module, inputs: Mapping[str, torch.Tensor]) -> None:
    """Give batch normalizations the statistics of what they get where that varies more than they expect.

    Otherwise the results of deep nets of random weights leave the range of halves.
    """

    def settle(norm: nn.modules.batchnorm._BatchNorm, given: tuple[torch.Tensor, ...]) -> None:
        axes = [0, *range(2, given[0].ndim)]
        variance = given[0].var(axes, correction=0)
        wide = variance > norm.running_var
        norm.running_mean.copy_(torch.where(wide, given[0].mean(axes), norm.running_mean))
        norm.running_var.copy_(torch.where(wide, variance, norm.running_var))

    norms = [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    hooks = [norm.register_forward_pre_hook(settle) for norm in norms]
    if norms:
        with torch.no_grad():
            module(*inputs.values())
    for hook in hooks:
        hook.remove()


def plain(name: str) -> str:
    """Return a model's name without its batch (``bert_b8``) and without the backend that the bundle has."""
    return re.sub(r"_b[0-9]+(?=_|$)", "", name.removesuffix("_cutlass"))


def has_module(name: str) -> bool:
    """Return whether torch runs a model; the small ones are for checks."""
    return re.fullmatch(r"(bert|bert2|bert_n|minilm|vit|gpt2|resnet50)(_fp16|_bf16)?", plain(name)) is not None


def torch_module(name: str) -> nn.Module:
    """Return a module of a model's architecture on the GPU, with torch's own attention."""
    name = plain(name)
    module: Any
    if name.startswith("resnet50"):
        import torchvision

        module = torchvision.models.resnet50().to(memory_format=torch.channels_last)
    elif name.startswith("vit"):
        module = vit("sdpa")
    elif name.startswith("gpt2"):
        import transformers

        module = Hidden(transformers.GPT2Model(transformers.GPT2Config(use_cache=False)))
    else:
        sizes = MINILM if name.startswith("minilm") else {}
        module = bert("sdpa", **sizes | ({"num_hidden_layers": 2} if name.startswith(("bert2", "bert_n")) else {}))
    return module.eval().cuda().to(DTYPES.get(name[-4:], torch.float32))


def torch_input(name: str, array: np.ndarray) -> torch.Tensor:
    """Return a host array as a model's module takes it."""
    given = torch.from_numpy(array).cuda()
    if given.is_floating_point():
        given = given.to(DTYPES.get(plain(name)[-4:], torch.float32))
    return given.to(memory_format=torch.channels_last) if name.startswith("resnet50") else given


def torch_runs(name: str, array: np.ndarray, *, compiled: bool) -> dict[str, Run]:
    """Return the ways to run a model in torch."""
    module, given = torch_module(name), torch_input(name, array)
    runs: dict[str, Run] = {"torch eager": lambda: module(given)}
    runs["torch eager, graph"] = captured(lambda: module(given))
    if compiled:
        start = time.perf_counter()
        fast = torch.compile(module)
        fast(given)
        torch.cuda.synchronize()
        print(f"  torch.compile took {time.perf_counter() - start:.1f} s", flush=True)
        runs["torch.compile"] = lambda: fast(given)
        runs["torch.compile, graph"] = captured(lambda: fast(given))
    return runs


def captured(run: Run) -> Run:
    """Return the replay of a run that was captured as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return partial(_replay, graph, run)


def _replay(graph: torch.cuda.CUDAGraph, _run: Run) -> None:
    """Replay a graph of a run, that has to live as long: its module's buffers are read in place."""
    graph.replay()
