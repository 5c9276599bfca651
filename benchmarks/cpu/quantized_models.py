"""Quantize models to ONNX's QDQ format by onnxruntime's own tool.

Weights are int8, symmetric and per channel, activations uint8 with a zero point of their own; ranges come from random
inputs, as the weights are random too.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx.version_converter

from benchmarks.harness.pairs import Arrays

OPSET = 17


def quantize(source: Path, target: Path, inputs: Arrays) -> None:
    """Write the QDQ form of a float32 model of static shapes; ``inputs``, and permuted ones, calibrate it."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    permuted = {name: np.random.default_rng(2).permuted(array, axis=-1) for name, array in inputs.items()}
    feeds = iter([inputs, permuted])

    class Reader(CalibrationDataReader):
        def get_next(self) -> Arrays | None:
            return next(feeds, None)

    logging.getLogger().setLevel(logging.ERROR)  # the tool advises to do what is done here
    with tempfile.TemporaryDirectory() as folder:
        current, prepared = Path(folder) / "current.onnx", Path(folder) / "prepared.onnx"
        onnx.save(_current(onnx.load(source)), current)
        quant_pre_process(current, prepared, skip_symbolic_shape=True)
        types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
        quantize_static(prepared, target, Reader(), quant_format=QuantFormat.QDQ, per_channel=True, **types)


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
