"""Make the noise gate: ``python samples/custom_op/make_model.py gate.onnx``.

``signal`` float32 [n, 256] -> ``gated`` float32 [n, 256], the low-pass filtered signal, attenuated at low levels, and
``peak`` float32 [n]. Two of the operators are from filters.toml.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SAMPLES = 256
FLOOR = -60.0  # dB
THRESHOLD = -20.0  # dB: the level at which the gate is half open


def low_pass(cutoff: float, q: float = math.sqrt(0.5)) -> np.ndarray:
    """Return b0, b1, b2, a1, a2 of a low-pass filter, float32 [5]; ``cutoff`` is a fraction of the sampling rate.

    Source: Bristow-Johnson, "Cookbook formulae for audio EQ biquad filter coefficients", LPF.
    """
    w = 2 * math.pi * cutoff
    alpha = math.sin(w) / (2 * q)
    b = np.array([1 - math.cos(w), 2 - 2 * math.cos(w), 1 - math.cos(w)]) / 2
    a = np.array([-2 * math.cos(w), 1 - alpha])
    return (np.concatenate([b, a]) / (1 + alpha)).astype(np.float32)


def make_model() -> onnx.ModelProto:
    """Return the model."""
    nodes = [
        helper.make_node("Biquad", ["signal", "coefficients"], ["low"], name="filter", domain="com.example"),
        helper.make_node("Level", ["low"], ["level", "peak"], name="meter", domain="com.example", floor=FLOOR),
        helper.make_node("Sub", ["level", "threshold"], ["above"]),
        helper.make_node("Sigmoid", ["above"], ["open"]),
        helper.make_node("Unsqueeze", ["open", "axis"], ["gain"]),
        helper.make_node("Mul", ["low", "gain"], ["gated"]),
    ]
    weights = {
        "coefficients": low_pass(0.1),
        "threshold": np.array([THRESHOLD], np.float32),
        "axis": np.array([1], np.int64),
    }
    graph = helper.make_graph(
        nodes,
        "gate",
        [helper.make_tensor_value_info("signal", TensorProto.FLOAT, ["n", SAMPLES])],
        [
            helper.make_tensor_value_info("gated", TensorProto.FLOAT, ["n", SAMPLES]),
            helper.make_tensor_value_info("peak", TensorProto.FLOAT, ["n"]),
        ],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8, producer_name="samples/custom_op")


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(make_model().SerializeToString())
