"""The models of the CPU benchmark: one ONNX file for each batch, which all engines that read ONNX share, and a pair.

Architectures are those of the onnx package, of transformers and, for MobileNetV2, of ``cpu/torch_models.py``, at full
size. Weights are random. ``NAME.npz`` beside a model holds inputs and what onnxruntime computes from them.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

from benchmarks.harness.measure import ROOT
from benchmarks.harness.pairs import Arrays, load_pairs, save_pairs
from benchmarks.harness.turns import Model

if TYPE_CHECKING:
    import torch

SAMPLES = ROOT / "samples"
OPSET = 17
MLP = "{ a = Gemm(x, w1, b1) r = Relu(a) y = Gemm(r, w2, b2) }"
TOKENS = 128  # in a sentence, of a vocabulary that all text models have
VOCABULARY = 30522


def make(name: str, batch: int, folder: Path) -> Model:
    """Return one of ``MODELS``; made in ``folder`` unless it is there."""
    path = folder / f"{name}_b{batch}.onnx"
    pair = path.with_suffix(".npz")
    if not pair.exists():
        folder.mkdir(parents=True, exist_ok=True)
        MODELS[name](path, batch)
        inputs = make_inputs(path)
        save_pairs(pair, [(inputs, _reference(path, inputs))])
    return Model(name, batch, path, *load_pairs(pair)[0])


def make_inputs(path: Path) -> Arrays:
    """Return random inputs: images of mean 0, tokens."""
    graph = onnx.load(path, load_external_data=False).graph
    initialized = {tensor.name for tensor in graph.initializer}
    rng = np.random.default_rng(1)
    arrays = {}
    for value in graph.input:
        if value.name not in initialized:
            shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            is_float = value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
            arrays[value.name] = (
                rng.standard_normal(shape, dtype=np.float32) if is_float else rng.integers(0, VOCABULARY, shape)
            )
    return arrays


def _reference(path: Path, inputs: Arrays) -> Arrays:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def _light(name: str) -> Callable[[Path, int], None]:
    """A model of the onnx package. Its reshapes have the batch in their shapes."""

    def write(path: Path, batch: int) -> None:
        sys.path.insert(0, str(SAMPLES / "resnet50"))
        model = importlib.import_module("make_model").make_light_model(f"light_{name}")
        graph = model.graph
        for value in (*graph.input, *graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = batch
        stored = {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            if node.op_type == "Reshape" and node.input[0] not in stored:
                shape = numpy_helper.to_array(stored[node.input[1]]).copy()
                shape[0] = batch
                stored[node.input[1]].CopyFrom(numpy_helper.from_array(shape, node.input[1]))
        del graph.value_info[:]
        onnx.save(onnx.shape_inference.infer_shapes(model), path)

    return write


def _exported(name: str) -> Callable[[Path, int], None]:
    """A model of ``cpu/torch_models.py``, by the older exporter, which needs no package beyond torch."""

    def write(path: Path, batch: int) -> None:
        import torch

        from benchmarks.cpu.torch_models import MODULES

        module = MODULES[name]("eager")
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module, (example(name, batch),), path, dynamo=False, opset_version=OPSET,
                input_names=["input"], output_names=["output"],
            )  # fmt: skip

    return write


def example(name: str, batch: int) -> torch.Tensor:
    """Return an input of the shape that a model of ``cpu/torch_models.py`` takes."""
    import torch

    if name in ("mobilenet_v2", "vit"):
        return torch.zeros(batch, 3, 224, 224)
    return torch.ones(batch, TOKENS, dtype=torch.int64)


def _digits(path: Path, batch: int) -> None:
    """The digits sample, whose batch is open in the file."""
    model = onnx.load(SAMPLES / "digits" / "digits.onnx")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    onnx.save(model, path)


def random(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return numbers of mean 0 and deviation 1."""
    return rng.standard_normal(shape, dtype=np.float32)


def parsed(text: str, weights: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """Return a model in ONNX's text form, with weights."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {OPSET}]> {text}')
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return model


def _relu(path: Path, batch: int) -> None:
    """One operator on 16 floats."""
    onnx.save(parsed(f"relu (float[{batch},16] x) => (float[{batch},16] y) {{ y = Relu(x) }}", {}), path)


def mlp_weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return the weights of a perceptron of 64-128-10."""
    shapes = {"w1": (64, 128), "b1": (128,), "w2": (128, 10), "b2": (10,)}
    return {name: random(rng, *shape) / 8 for name, shape in shapes.items()}


def _mlp(path: Path, batch: int) -> None:
    """64-128-10 on four rows for each of the batch."""
    text = f"mlp (float[{4 * batch},64] x) => (float[{4 * batch},10] y) {MLP}"
    onnx.save(parsed(text, mlp_weights(np.random.default_rng(7))), path)


def _quantized_resnet50(path: Path, batch: int) -> None:
    from benchmarks.cpu.quantized_models import quantize

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "float.onnx"
        MODELS["resnet50"](source, batch)
        quantize(source, path, make_inputs(source))


MODELS: dict[str, Callable[[Path, int], None]] = {
    "relu": _relu,
    "mlp": _mlp,
    "digits": _digits,
    "squeezenet": _light("squeezenet"),
    "shufflenet": _light("shufflenet"),
    "mobilenet_v2": _exported("mobilenet_v2"),
    "inception_v1": _light("inception_v1"),
    "densenet121": _light("densenet121"),
    "resnet50": _light("resnet50"),
    "minilm": _exported("minilm"),
    "bert": _exported("bert"),
    "gpt2": _exported("gpt2"),
    "vit": _exported("vit"),
    "resnet50_qdq": _quantized_resnet50,
}
COMPARED = [name for name in MODELS if name != "relu"]
SMALL = ("mlp", "digits")
QUANTIZED = ("resnet50_qdq",)
