"""The GPU benchmark's models in torch: modules of the same architecture and precision, with random weights."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Run = Callable[[], object]
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def plain(name: str) -> str:
    """Return a model's name without its batch (``bert_b8``) and without the backend that the bundle has."""
    return re.sub(r"_b[0-9]+(?=_|$)", "", name.removesuffix("_cutlass"))


class Encoder(torch.nn.Module):
    """Embeddings and layers of a BertModel; its own forward builds masks that are all ones here."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.embeddings, self.encoder = model.embeddings, model.encoder

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return hidden states [n, length, 768] for int64 ids [n, length]."""
        positions = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        hidden = self.embeddings(tokens, torch.zeros_like(tokens), positions)
        return self.encoder(hidden).last_hidden_state


def has_module(name: str) -> bool:
    """Return whether torch runs a model; the small ones are for checks."""
    return re.fullmatch(r"(bert|bert2|bert_n|minilm|vit|gpt2|resnet50)(_fp16|_bf16)?", plain(name)) is not None


def torch_module(name: str, device: str = "cuda") -> torch.nn.Module:
    """Return a module of a model's architecture, random weights, in evaluation mode on the device."""
    import transformers

    name = plain(name)
    if name.startswith("resnet50"):
        import torchvision

        module: Any = torchvision.models.resnet50().to(memory_format=torch.channels_last)
    elif name.startswith("vit"):
        module = transformers.ViTModel(transformers.ViTConfig(), add_pooling_layer=False)
    elif name.startswith("gpt2"):
        module = transformers.GPT2Model(transformers.GPT2Config(use_cache=False))
    else:
        sizes = {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536} if name == "minilm" else {}
        layers = {"num_hidden_layers": 2} if name.startswith(("bert2", "bert_n")) else {}
        module = Encoder(transformers.BertModel(transformers.BertConfig(**sizes, **layers), add_pooling_layer=False))
    module = module.eval().to(device)
    return module.to(DTYPES.get(name[-4:], torch.float32))


def torch_input(name: str, array: np.ndarray, device: str = "cuda") -> torch.Tensor:
    """Return a host array as a model's module takes it."""
    name = plain(name)
    given = torch.from_numpy(array).to(device)
    if given.is_floating_point():
        given = given.to(DTYPES.get(name[-4:], torch.float32))
    return given.to(memory_format=torch.channels_last) if name.startswith("resnet50") else given


def torch_runs(name: str, array: np.ndarray, *, compiled: bool) -> dict[str, Run]:
    """Return how to run each form of a model in torch."""
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
    return graph.replay
