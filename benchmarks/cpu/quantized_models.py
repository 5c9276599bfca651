"""Quantized models in ONNX's QDQ format, made by onnxruntime's own tool from the models of the CPU benchmark.

Weights are int8, symmetric and per channel, activations uint8 with a zero point of their own; ranges come from random
inputs, as the weights are random too.

    python -m benchmarks.cpu.quantized_models resnet50 --output resnet50_qdq.onnx
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.version_converter

CALIBRATION_RUNS = 2
OPSET = 17


def quantize(source: Path, target: Path, *, signed: bool = False, runs: int = CALIBRATION_RUNS) -> Path:
    """Write the QDQ form of a float32 model of static shapes; with ``signed`` activations are int8 too."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    logging.getLogger().setLevel(logging.ERROR)  # the tool advises to do what is done here
    with tempfile.TemporaryDirectory() as folder:
        current, prepared = Path(folder) / "current.onnx", Path(folder) / "prepared.onnx"
        onnx.save(_current(onnx.load(source)), current)
        quant_pre_process(current, prepared, skip_symbolic_shape=True)
        quantize_static(
            prepared,
            target,
            _reader(prepared, runs),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QInt8 if signed else QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
    return target


def _current(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model as one would export it today: scales per channel need version 13, and the tool knows no Sum."""
    if model.opset_import[0].version < OPSET:
        model = onnx.version_converter.convert_version(model, OPSET)
    model.ir_version = max(model.ir_version, 8)
    for node in model.graph.node:
        if node.op_type == "Sum" and len(node.input) == 2:
            node.op_type = "Add"
    initialized = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in initialized]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    return model


def _reader(path: Path, runs: int):  # a class of onnxruntime, which is imported late
    from onnxruntime.quantization import CalibrationDataReader

    from benchmarks.cpu.models import _inputs

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            first = _inputs(path)
            rng = np.random.default_rng(2)
            feeds = [first] + [{name: rng.permuted(array, axis=-1) for name, array in first.items()}] * (runs - 1)
            self.feeds: Iterator[dict[str, np.ndarray]] = iter(feeds)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.feeds, None)

    return Reader()


def make_quantized(name: str, folder: Path, batch: int = 1) -> Path:
    """Return the QDQ form of a model of ``cpu/models.py``; made in ``folder`` unless it is there."""
    from benchmarks.cpu.models import MODELS

    target = folder / f"{name}_qdq_b{batch}.onnx"
    if not target.exists():
        with tempfile.TemporaryDirectory() as scratch:
            source = Path(scratch) / "float.onnx"
            MODELS[name](source, batch)
            unfinished = quantize(source, Path(scratch) / "quantized.onnx")
            target.write_bytes(unfinished.read_bytes())
    return target


def quantized_resnet50(folder: Path, batch: int = 1) -> Path:
    """Return ResNet-50 in QDQ form."""
    return make_quantized("resnet50", folder, batch)


def main() -> None:
    """Write one model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="of cpu/models.py: resnet50, mobilenet_v2, minilm, ...")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = make_quantized(options.model, Path(folder), options.batch)
        options.output.write_bytes(made.read_bytes())


if __name__ == "__main__":
    main()
