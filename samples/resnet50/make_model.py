"""Make full-size ONNX models with random weights from the onnx package's "light" models.

    python samples/resnet50/make_model.py -o resnet50.onnx
    python samples/resnet50/make_model.py --model light_vgg19 -o vgg19.onnx

The onnx package ships nine well-known image classifiers with weights replaced by ConstantOfShape nodes. Here every
parameter becomes an initializer with seeded random values: the graph, shapes and work of the trained network. Values
are scaled so that activations neither vanish nor explode, and the output depends on every layer. Equal names and seeds
give equal bytes.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from collections import defaultdict
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
from numpy.typing import NDArray
from onnx import NodeProto, numpy_helper

LIGHT_MODELS = Path(onnx.backend.test.__file__).parent / "data" / "light"
MODEL_NAMES = (
    "light_bvlc_alexnet",
    "light_densenet121",
    "light_inception_v1",
    "light_inception_v2",
    "light_resnet50",
    "light_shufflenet",
    "light_squeezenet",
    "light_vgg19",
    "light_zfnet512",
)
# Scale of the last batch normalization of a residual branch: activations grow by a tenth per block, not by half.
RESIDUAL_GAIN = 0.3
# Scale of the layer before the final softmax: logits have deviation 2, so no class gets all the probability.
# A convolution's output is first averaged over the image, which reduces its deviation.
CLASSIFIER_GAIN = {"Gemm": 0.4, "Conv": 2.0}

Uses = dict[str, list[tuple[NodeProto, int]]]


def make_light_model(name: str = "light_resnet50", seed: int = 0) -> onnx.ModelProto:
    """Return one of ``MODEL_NAMES`` with random float32 weights.

    Raises ValueError for another name, FileNotFoundError if the installed onnx does not ship the light models.
    """
    if name not in MODEL_NAMES:
        raise ValueError(f"unknown model {name!r}; one of {', '.join(MODEL_NAMES)}")
    source = LIGHT_MODELS / f"{name}.onnx"
    if not source.is_file():
        raise FileNotFoundError(f"onnx {onnx.__version__} does not ship {source.name}; 1.23 does")
    model = onnx.load(source)
    graph = model.graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}

    # Parameters are the outputs of ConstantOfShape, and the few initializers that the light model kept.
    constants = [node for node in graph.node if node.op_type == "ConstantOfShape"]
    shapes = {node.output[0]: tuple(int(extent) for extent in stored[node.input[0]]) for node in constants}
    shapes |= {key: value.shape for key, value in stored.items() if value.dtype == np.float32}
    nodes = [node for node in graph.node if node.op_type != "ConstantOfShape"]

    uses: Uses = defaultdict(list)
    for node in nodes:
        for index, tensor in enumerate(node.input):
            uses[tensor].append((node, index))
    parameters = {
        key: draw(uses, stored, key, shape, np.random.default_rng([seed, zlib.crc32(key.encode())]))
        for key, shape in shapes.items()
        if uses[key]
    }
    integers = {key: value for key, value in stored.items() if key not in shapes and uses[key]}

    # Since IR version 4 initializers need not be inputs; here all were.
    inputs = [value for value in graph.input if value.name not in stored]
    initializers = [numpy_helper.from_array(value, key) for key, value in sorted((parameters | integers).items())]
    for field, kept in ((graph.node, nodes), (graph.input, inputs), (graph.initializer, initializers)):
        del field[:]
        field.extend(kept)
    graph.name = name
    model.ir_version = 4
    onnx.checker.check_model(model)
    return model


def draw(
    uses: Uses, stored: dict[str, NDArray], key: str, shape: tuple[int, ...], random: np.random.Generator
) -> NDArray[np.float32]:
    """Draw random values for parameter ``key``, scaled for the operator that uses it."""
    node, index = uses[key][0]
    effective = shape
    if node.op_type == "Reshape":
        effective = tuple(int(extent) for extent in stored[node.input[1]])
    if node.op_type in ("Reshape", "Unsqueeze"):
        node, index = uses[node.output[0]][0]

    role = (node.op_type, index)
    if role in (("Conv", 1), ("Gemm", 1)):
        transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
        fan_in = np.prod(effective[1:]) if node.op_type == "Conv" or transposed else effective[0]
        gain = CLASSIFIER_GAIN[node.op_type] if reaches_softmax(uses, node) else 1.0
        return normal(random, shape, gain * np.sqrt(2.0 / fan_in))
    if role in (("Conv", 2), ("Gemm", 2), ("Add", 1), ("BatchNormalization", 2), ("BatchNormalization", 3)):
        return normal(random, shape, 0.1)
    if role in (("BatchNormalization", 1), ("Mul", 1)):
        return uniform(random, shape, 0.8, 1.2) * np.float32(residual_gain(uses, node))
    if role == ("BatchNormalization", 4):
        return uniform(random, shape, 0.8, 1.2)
    raise ValueError(f"parameter {key!r} is input {index} of {node.op_type}, which no rule covers")


def normal(random: np.random.Generator, shape: tuple[int, ...], deviation: float) -> NDArray[np.float32]:
    """Return float32 [shape] of mean zero."""
    return random.standard_normal(shape, dtype=np.float32) * np.float32(deviation)


def uniform(random: np.random.Generator, shape: tuple[int, ...], low: float, high: float) -> NDArray[np.float32]:
    """Return float32 [shape] in low..high."""
    return np.float32(low) + random.random(shape, dtype=np.float32) * np.float32(high - low)


def reaches_softmax(uses: Uses, node: NodeProto) -> bool:
    """Whether only layers without weights are between this one and the final softmax."""
    while following := uses[node.output[0]]:
        node = following[0][0]
        if node.op_type == "Softmax":
            return True
        if node.op_type not in ("Relu", "GlobalAveragePool", "AveragePool", "Reshape", "Dropout"):
            return False
    return False


def residual_gain(uses: Uses, node: NodeProto) -> float:
    """Return the factor that keeps a sum of residual branches as large as its addends."""
    following = uses[node.output[0]]
    if not following or following[0][0].op_type != "Sum":
        return 1.0
    addends = following[0][0].input
    projected = all(len(uses[addend]) == 1 for addend in addends)  # an identity shortcut also feeds the branch
    return float(1 / np.sqrt(len(addends))) if projected else RESIDUAL_GAIN


def main() -> int:
    """Write the model given on the command line."""
    parser = argparse.ArgumentParser(description="Make a full-size ONNX model with random weights.")
    parser.add_argument("--model", choices=MODEL_NAMES, default="light_resnet50", help="default: light_resnet50")
    parser.add_argument("--seed", type=int, default=0, help="of the weights; default: 0")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the .onnx file to write")
    arguments = parser.parse_args()
    try:
        onnx.save(make_light_model(arguments.model, arguments.seed), arguments.output)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"wrote {arguments.output}, {arguments.output.stat().st_size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
