"""The models of the GPU benchmark, with inputs and a reference: ``build`` makes bundles on a machine with no GPU.

    python -m benchmarks.gpu.models build -o build/gpu --arch sm_90a [--models bert,resnet50]

Architectures are those of transformers and of the onnx package, at full size. Weights are random, drawn from a short
sequence that repeats with a prime period: a bundle then compresses to a small file that is quick to copy, while every
row of a matrix differs. ``NAME.npz`` holds inputs and what onnxruntime or torch computes from them on the CPU in fp32.
"""

from __future__ import annotations

import argparse
import lzma
import shutil
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import torch
import transformers
from onnx import numpy_helper
from torch import nn

import packager
from benchmarks.gpu.torch_models import Encoder

PERIOD = 65521
ROWS = 61
# A fast preset, with a dictionary that holds what repeats.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 1 << 25}]
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Made:
    """A model file, inputs by name, the outputs that are expected of them, and the dims to build it with."""

    path: Path
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]
    dims: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def repeating(count: int, name: str) -> np.ndarray:
    """Return ``count`` numbers of mean 0 and deviation 1 that repeat with ``PERIOD``, from a place that ``name`` says.

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


class Hidden(nn.Module):
    """A transformers model whose only output is its last hidden state."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the last hidden state."""
        return self.model(tokens).last_hidden_state


def export(
    module: nn.Module, example: torch.Tensor, path: Path, batch: tuple[int, int] | None = None, *others: torch.Tensor
) -> Made:
    """Export with torch.export, the batch of all inputs bounded if asked for."""
    examples = (example, *others)
    dynamic = tuple({0: torch.export.Dim("n", min=batch[0], max=batch[1])} for _ in examples) if batch else None
    with torch.no_grad():
        program = torch.export.export(module, examples, dynamic_shapes=dynamic)
        expected = module(*examples)
    torch.export.save(program, path)
    names = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    return Made(path, dict(zip(names, (e.numpy() for e in examples), strict=True)), {"": expected.numpy()})


def batched(batch: int) -> str:
    """Return what a model's name says of a batch: nothing of one."""
    return "" if batch == 1 else f"_b{batch}"


def bert(
    folder: Path, *, layers: int = 12, batch: int = 1, length: int = 128, bounds: tuple[int, int] | None = None
) -> Made:
    """BERT-base without its pooler."""
    config = transformers.BertConfig(num_hidden_layers=layers, attn_implementation="eager")
    model = transformers.BertModel(config, add_pooling_layer=False)
    tokens = torch.from_numpy(np.random.default_rng(1).integers(0, config.vocab_size, (batch, length)))
    name = f"bert{'' if layers == 12 else layers}{'_n' if bounds else batched(batch)}"
    return export(Encoder(randomize(model)), tokens, folder / f"{name}.pt2", bounds)


def bert_tiny(folder: Path) -> Made:
    """Two small layers of BERT, for tools that slow a kernel down a thousandfold."""
    config = transformers.BertConfig(
        vocab_size=1000,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=256,
        attn_implementation="eager",
    )
    model = transformers.BertModel(config, add_pooling_layer=False)
    tokens = torch.from_numpy(np.random.default_rng(8).integers(0, 1000, (2, 32)))
    return export(Encoder(randomize(model)), tokens, folder / "bert_tiny.pt2")


def bert_pad(folder: Path) -> Made:
    """Two layers of BERT-base on sentences of 1 to 128 tokens, the rest of which is padding that a mask hides."""
    config = transformers.BertConfig(num_hidden_layers=2, attn_implementation="eager")
    model = randomize(transformers.BertModel(config, add_pooling_layer=False))
    rng = np.random.default_rng(9)
    tokens = torch.from_numpy(rng.integers(0, config.vocab_size, (8, 128)))
    lengths = torch.from_numpy(rng.integers(1, 129, (8, 1)))
    mask = (torch.arange(128).unsqueeze(0) < lengths).to(torch.int64)
    return export(Padded(model), tokens, folder / "bert_pad.pt2", None, mask)


class Padded(nn.Module):
    """A BertModel whose mask, int64 ones and zeros [n, length], comes as the second input."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return hidden states [n, length, 768] for int64 ids [n, length]."""
        hidden = self.model.embeddings(tokens)
        hidden_mask = (1.0 - mask[:, None, None, :].to(torch.float32)) * torch.finfo(torch.float32).min
        return self.model.encoder(hidden, attention_mask=hidden_mask).last_hidden_state


def vit(folder: Path, batch: int = 1) -> Made:
    """ViT-B/16 on images of 224x224."""
    config = transformers.ViTConfig(attn_implementation="eager")
    model = transformers.ViTModel(config, add_pooling_layer=False)
    image = torch.from_numpy(np.random.default_rng(2).standard_normal((batch, 3, 224, 224), dtype=np.float32))
    return export(Hidden(randomize(model)), image, folder / f"vit{batched(batch)}.pt2")


def gpt2(folder: Path) -> Made:
    """GPT-2 small, prefill of 128 tokens."""
    config = transformers.GPT2Config(attn_implementation="eager", use_cache=False)
    model = transformers.GPT2Model(config)
    tokens = torch.from_numpy(np.random.default_rng(3).integers(0, config.vocab_size, (1, 128)))
    return export(Decoder(randomize(model)), tokens, folder / "gpt2.pt2")


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


def minilm(folder: Path) -> Made:
    """The encoder of MiniLM-L6 on 1 to 8 sentences of 128 tokens."""
    config = transformers.BertConfig(
        hidden_size=384,
        num_hidden_layers=6,
        intermediate_size=1536,
        num_attention_heads=12,
        attn_implementation="eager",
    )
    model = transformers.BertModel(config, add_pooling_layer=False)
    tokens = torch.from_numpy(np.random.default_rng(4).integers(0, config.vocab_size, (4, 128)))
    return export(Encoder(randomize(model)), tokens, folder / "minilm.pt2", (1, 8))


def resnet50(folder: Path, batch: int = 1) -> Made:
    """ResNet-50 of the onnx package."""
    sys.path.insert(0, str(ROOT / "samples" / "resnet50"))
    from make_model import make_light_model

    model = make_light_model("light_resnet50")
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32 and array.ndim > 1:  # rows repeat, since a build permutes what is in a row ...
            tensor.CopyFrom(numpy_helper.from_array(np.resize(array[:ROWS], array.shape), tensor.name))
        elif array.dtype == np.float32 and array.mean() > 0.2:  # ... and scales rows, by batch norms
            tensor.CopyFrom(numpy_helper.from_array(np.full_like(array, array.mean()), tensor.name))
        elif array.dtype == np.int64 and array.tolist() == [1, 2048]:  # what the pooled features are reshaped to
            tensor.CopyFrom(numpy_helper.from_array(np.array([batch, 2048]), tensor.name))
    for value in (*model.graph.input[:1], *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    path = folder / f"resnet50{batched(batch)}.onnx"
    onnx.save(model, path)
    image = np.random.default_rng(5).standard_normal((batch, 3, 224, 224), dtype=np.float32)
    return referenced(path, {model.graph.input[0].name: image})


def digits(folder: Path) -> Made:
    """The digits sample: 1 to 64 images of 8x8."""
    path = shutil.copy(ROOT / "samples" / "digits" / "digits.onnx", folder / "digits.onnx")
    model = onnx.load(path)
    shape = [d.dim_value or 16 for d in model.graph.input[0].type.tensor_type.shape.dim]
    images = np.random.default_rng(6).random(shape, dtype=np.float32)
    made = referenced(Path(path), {model.graph.input[0].name: images})
    return Made(made.path, made.inputs, made.outputs, {"n": (1, 64)})


def mlp(folder: Path) -> Made:
    """Two dense layers over 64 features, for the tests of tensors and streams."""
    rng = np.random.default_rng(7)
    shapes = {"w1": (64, 128), "b1": (128,), "w2": (128, 10), "b2": (10,)}
    weights = [numpy_helper.from_array(rng.standard_normal(s, dtype=np.float32) / 8, n) for n, s in shapes.items()]
    text = (
        '<ir_version: 8, opset_import: ["": 17]> mlp (float[n,64] x) => (float[n,10] y)'
        " { a = Gemm(x, w1, b1) r = Relu(a) y = Gemm(r, w2, b2) }"
    )
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(weights)
    onnx.save(model, folder / "mlp.onnx")
    made = referenced(folder / "mlp.onnx", {"x": rng.standard_normal((8, 64), dtype=np.float32)})
    return Made(made.path, made.inputs, made.outputs, {"n": (1, 64)})


def referenced(path: Path, inputs: Mapping[str, np.ndarray]) -> Made:
    """Return an ONNX model with what onnxruntime computes."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return Made(path, inputs, dict(zip(names, session.run(names, dict(inputs)), strict=True)))


MODELS: dict[str, Callable[[Path], Made]] = {
    "digits": digits,
    "mlp": mlp,
    "minilm": minilm,
    "resnet50": resnet50,
    "bert": bert,
    "bert_tiny": bert_tiny,
    "bert2": lambda folder: bert(folder, layers=2),
    "bert_pad": bert_pad,
    "bert_n": lambda folder: bert(folder, layers=2, batch=3, bounds=(1, 8)),
    "vit": vit,
    "gpt2": gpt2,
}
# Of these there are batches, too: bert_b8.
BATCHES: dict[str, Callable[..., Made]] = {"bert": bert, "vit": vit, "resnet50": resnet50}


def make(name: str, folder: Path) -> Made:
    """Make a model by its name."""
    base, _, batch = name.partition("_b")
    return BATCHES[base](folder, batch=int(batch)) if batch.isdigit() else MODELS[name](folder)


def build(name: str, folder: Path, arch: str, precision: str | None, backends: Sequence[str]) -> None:
    """Make one model and its bundle; leaves ``NAME.so.xz`` and ``NAME.npz``."""
    models = folder.parent / f"{folder.name}_models"
    models.mkdir(parents=True, exist_ok=True)
    folder.mkdir(exist_ok=True)
    made = make(name, models)
    stem = "_".join([name, *([precision] if precision else []), *backends])
    options = {} if precision is None else {"precision": precision}
    bundle = packager.build(
        made.path,
        models / f"{stem}.so",
        targets=[f"cuda -arch={arch}", *backends],
        dims=made.dims,
        weights="embedded",
        progress=lambda stage: print(f"  {stage}", file=sys.stderr),
        **options,
    )
    names = [spec.name for spec in packager.inspect(bundle).manifest.outputs]
    outputs = dict(zip(names, made.outputs.values(), strict=True))
    arrays = {f"input:{k}": v for k, v in made.inputs.items()} | {f"output:{k}": v for k, v in outputs.items()}
    np.savez_compressed(folder / f"{stem}.npz", **arrays)
    with bundle.open("rb") as source, lzma.open(folder / f"{stem}.so.xz", "wb", filters=FILTERS) as target:
        shutil.copyfileobj(source, target, 1 << 24)


def main() -> int:
    """Build what the command line asks for."""
    parser = argparse.ArgumentParser(description="Make models, bundles and references for the GPU benchmark.")
    parser.add_argument("command", choices=["build"])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--backend", action="append", default=[], help="a backend beside cuda: cutlass")
    parser.add_argument("--precision", default=None, choices=["fp16", "bf16"])
    arguments = parser.parse_args()
    for name in arguments.models.split(","):
        print(name, file=sys.stderr)
        build(name, arguments.output, arguments.arch, arguments.precision, arguments.backend)
    return 0


if __name__ == "__main__":
    sys.exit(main())
