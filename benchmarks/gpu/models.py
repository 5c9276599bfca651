"""Make the models of the GPU benchmark, with inputs and references, and bundles of them, on a machine with no GPU.

    python -m benchmarks.gpu.models -o build/gpu [--arch sm_90a] [--models bert,resnet50]

Architectures are those of transformers and of the onnx package, at full size. Weights are random, drawn from a short
sequence that repeats with a prime period: a bundle then compresses to a small file that is quick to copy, while every
row of a matrix differs. ``NAME.npz`` holds inputs and what onnxruntime or torch computes from them on the CPU in fp32.
Models with dims have several sizes of inputs.
"""

from __future__ import annotations

import argparse
import lzma
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import torch
from onnx import numpy_helper
from torch import nn

import packager
from benchmarks.bundle.decoder_model import shape_of, write_decoder
from benchmarks.cpu.models import MLP, mlp_weights, parsed, random
from benchmarks.gpu import torch_models
from benchmarks.gpu.torch_models import MINILM
from benchmarks.harness.measure import ROOT
from benchmarks.harness.pairs import Pairs, save_pairs
from benchmarks.zoo.models import ZOO, instance
from benchmarks.zoo.models import export as write

ROWS = 61
ENCODER = """encoder (float[n,seq,64] x) => (float[n,seq,64] y) {
  k = MatMul(x, a)  t = Transpose<perm = [0, 2, 1]>(k)  s = MatMul(x, t)  p = Softmax(s)  m = MatMul(p, x)
  y = MatMul(m, b)
}"""
HALVES = """halves (float[1,8,h,h] x) => (float[1,8,h,h] y) {
  d = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)  c = Conv<pads = [1, 1, 1, 1]>(d, w)
  u = Resize<mode = "nearest">(c, , scales)  y = Add(x, u)
}"""
VOCABULARY = {"bert": 30522, "gpt2": 50257}
# A fast preset, with a dictionary that holds what repeats.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 1 << 25}]


@dataclass(frozen=True)
class Made:
    """A model file, pairs of inputs and of the outputs that are expected of them, and the dims to build it with."""

    path: Path
    pairs: Pairs
    dims: Mapping[str, Any] = field(default_factory=dict)


def export(module: nn.Module, path: Path, *examples: torch.Tensor, bounds: tuple[int, int] | None = None) -> Made:
    """Export with torch.export, the batch of all inputs bounded if asked for."""
    dynamic = tuple({0: torch.export.Dim("n", min=bounds[0], max=bounds[1])} for _ in examples) if bounds else None
    with torch.no_grad():
        program = torch.export.export(module, examples, dynamic_shapes=dynamic)
        expected = module(*examples)
    torch.export.save(program, path)
    names = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    inputs = dict(zip(names, (example.numpy() for example in examples), strict=True))
    return Made(path, [(inputs, {"": expected.numpy()})])


def tokens(batch: int, length: int = 128, vocabulary: int = VOCABULARY["bert"]) -> torch.Tensor:
    """Return random tokens."""
    return torch.from_numpy(np.random.default_rng(1).integers(0, vocabulary, (batch, length)))


def batched(name: str, batch: int) -> str:
    """Return the file name of a model with a batch."""
    return name if batch == 1 else f"{name}_b{batch}"


def bert(folder: Path, *, layers: int = 12, batch: int = 1, bounds: tuple[int, int] | None = None) -> Made:
    """BERT-base without its pooler."""
    name = f"bert{'' if layers == 12 else layers}"
    name = f"{name}_n" if bounds else batched(name, batch)
    module = torch_models.bert(num_hidden_layers=layers)
    return export(module, folder / f"{name}.pt2", tokens(batch), bounds=bounds)


def bert_tiny(folder: Path) -> Made:
    """Two small layers of BERT, for tools that slow a kernel down a thousandfold."""
    sizes = {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    module = torch_models.bert(**sizes, intermediate_size=256)
    return export(module, folder / "bert_tiny.pt2", tokens(2, 32, 1000))


def bert_pad(folder: Path) -> Made:
    """Two layers of BERT-base on sentences of 1 to 128 tokens, the rest of which is padding that a mask hides."""
    lengths = torch.from_numpy(np.random.default_rng(9).integers(1, 129, (8, 1)))
    mask = (torch.arange(128).unsqueeze(0) < lengths).to(torch.int64)
    return export(torch_models.bert(num_hidden_layers=2), folder / "bert_pad.pt2", tokens(8), mask)


def minilm(folder: Path) -> Made:
    """The encoder of MiniLM-L6 on 1 to 8 sentences of 128 tokens."""
    return export(torch_models.bert(**MINILM), folder / "minilm.pt2", tokens(4), bounds=(1, 8))


def images(batch: int) -> np.ndarray:
    """Return random images of 224x224."""
    return np.random.default_rng(2).standard_normal((batch, 3, 224, 224), dtype=np.float32)


def vit(folder: Path, batch: int = 1) -> Made:
    """ViT-B/16 on images of 224x224."""
    return export(torch_models.vit(), folder / f"{batched('vit', batch)}.pt2", torch.from_numpy(images(batch)))


def gpt2(folder: Path) -> Made:
    """GPT-2 small, prefill of 128 tokens."""
    return export(torch_models.gpt2(), folder / "gpt2.pt2", tokens(1, 128, VOCABULARY["gpt2"]))


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
        elif array.dtype == np.int64 and array.tolist() == [1, 2048]:  # the shape of the pooled features
            tensor.CopyFrom(numpy_helper.from_array(np.array([batch, 2048]), tensor.name))
    for value in (*model.graph.input[:1], *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    return referenced(folder / f"{batched('resnet50', batch)}.onnx", model, images(batch))


def digits(folder: Path) -> Made:
    """The digits sample: 1 to 64 images of 8x8."""
    model = onnx.load(ROOT / "samples" / "digits" / "digits.onnx")
    shape = [dim.dim_value or 16 for dim in model.graph.input[0].type.tensor_type.shape.dim]
    given = np.random.default_rng(6).random(shape, dtype=np.float32)
    return referenced(folder / "digits.onnx", model, given, n=(1, 64))


def mlp(folder: Path) -> Made:
    """Two dense layers over 64 features, for the tests of tensors and streams."""
    rng = np.random.default_rng(7)
    model = parsed(f"mlp (float[n,64] x) => (float[n,10] y) {MLP}", mlp_weights(rng))
    return referenced(folder / "mlp.onnx", model, random(rng, 8, 64), n=(1, 64))


def encoder(folder: Path) -> Made:
    """Attention over a batch and a length, in buckets."""
    rng = np.random.default_rng(0)
    model = parsed(ENCODER, {"a": random(rng, 64, 64) / 16, "b": random(rng, 64, 64) / 16})
    inputs = [random(rng, n, seq, 64) for seq in (32, 64, 128) for n in (1, 3, 4)]
    return referenced(folder / "encoder.onnx", model, *inputs, n=(1, 4), seq=packager.Buckets(32, 64, 128))


def halves(folder: Path) -> Made:
    """A network whose extents are halved and doubled."""
    rng = np.random.default_rng(0)
    scales = np.array([1, 1, 2, 2], np.float32)
    model = parsed(HALVES, {"w": random(rng, 8, 8, 3, 3) / 8, "scales": scales})
    return referenced(folder / "halves.onnx", model, *(random(rng, 1, 8, h, h) for h in (16, 2, 30, 64)), h=(2, 64))


def large(folder: Path) -> Made:
    """A decoder with more than 2 GiB of weights in the file."""
    return referenced(write_decoder(folder, shape_of(2.4)), None, np.array([5, 16383, 77, 0]))


def steps(folder: Path) -> Made:
    """A model of states, RWKV: several hundred short kernels, each of which reads what the one before has written."""
    module, inputs = instance(ZOO["rwkv"])
    write(module, inputs, folder / "steps.onnx")
    return referenced(folder / "steps.onnx", None, *(tensor.numpy() for tensor in inputs.values()))


def referenced(path: Path, model: onnx.ModelProto | None, *given: np.ndarray, **dims: Any) -> Made:
    """Write an ONNX model, unless it is there, and return it with what onnxruntime computes."""
    import onnxruntime

    if model is not None:
        onnx.save(model, path)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_prepacking", "1")  # which takes the memory of the weights again
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    feeds = [{session.get_inputs()[0].name: array} for array in given]
    return Made(path, [(each, dict(zip(names, session.run(names, each), strict=True))) for each in feeds], dims)


MODELS: dict[str, Callable[[Path], Made]] = {
    "digits": digits,
    "mlp": mlp,
    "minilm": minilm,
    "resnet50": resnet50,
    "bert": bert,
    "bert_tiny": bert_tiny,
    "bert2": partial(bert, layers=2),
    "bert_pad": bert_pad,
    "bert_n": partial(bert, layers=2, batch=3, bounds=(1, 8)),
    "vit": vit,
    "gpt2": gpt2,
    "encoder": encoder,
    "halves": halves,
    "steps": steps,
    "large": large,
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
    bundle = packager.build(
        made.path,
        models / f"{stem}.so",
        targets=[f"cuda -arch={arch}", *backends],
        dims=made.dims,
        precision=precision,
        weights="embedded",
        progress=lambda stage: print(f"  {stage}", file=sys.stderr),
    )
    names = [spec.name for spec in packager.inspect(bundle).manifest.outputs]
    pairs = [(inputs, dict(zip(names, outputs.values(), strict=True))) for inputs, outputs in made.pairs]
    save_pairs(folder / f"{stem}.npz", pairs)
    with bundle.open("rb") as source, lzma.open(folder / f"{stem}.so.xz", "wb", filters=FILTERS) as target:
        shutil.copyfileobj(source, target, 1 << 24)


def main() -> int:
    """Build what the command line asks for."""
    parser = argparse.ArgumentParser(description="Make models, bundles and references for the GPU benchmark.")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--models", default=",".join(name for name in MODELS if name != "large"))
    parser.add_argument("--backend", action="append", default=[], help="a backend beside cuda: cutlass")
    parser.add_argument("--precision", default=None, choices=["fp16", "bf16"])
    arguments = parser.parse_args()
    for name in arguments.models.split(","):
        print(name, file=sys.stderr)
        build(name, arguments.output, arguments.arch, arguments.precision, arguments.backend)
    return 0


if __name__ == "__main__":
    sys.exit(main())
