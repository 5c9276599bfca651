"""Whole models, by seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.conformance.random_onnx import session
from tests.conformance.random_onnx.growth import Growth, RejectedError, Value
from tests.conformance.random_onnx.operators import (  # noqa: F401  (they register what they write)
    elementwise,
    indexing,
    movement,
    quantized,
    recurrent,
    reductions,
    resampling,
    spatial,
)
from tests.conformance.random_onnx.registry import WRITERS, schema

OPSETS = (7, 23)
MAX_NODES = 12
ATTEMPTS = 60


@dataclass(frozen=True)
class RandomModel:
    """A model, its inputs, and what onnxruntime computes."""

    model: onnx.ModelProto
    inputs: dict[str, np.ndarray[Any, Any]]
    outputs: tuple[np.ndarray[Any, Any], ...]
    coarse: tuple[float, ...]  # what each output may be off by


def random_model(seed: int, attempt: int = 0) -> RandomModel:
    """Return the model of a seed; one in four has special values among its inputs."""
    rng = np.random.default_rng([seed, 20 + attempt])
    special = seed % 4 == 3
    while True:
        opset = int(rng.integers(OPSETS[0], OPSETS[1] + 1))
        growth = Growth(rng, opset, special)
        grow(growth, growth.integer(1, MAX_NODES))
        try:
            return finish(growth)
        except RejectedError:  # nothing grew, or onnxruntime takes the nodes but not the whole
            continue


def grow(g: Growth, count: int) -> None:
    """Draw so many operators; what onnxruntime refuses leaves no trace."""
    names = sorted(name for name in WRITERS if schema(name, g.opset) is not None)
    done = 0
    for _ in range(ATTEMPTS):
        if done == count:
            break
        parts = (g.nodes, g.initializers, g.inputs, g.values)
        lengths = [len(part) for part in parts]
        values = list(g.values)
        name = g.choose(names)
        try:
            WRITERS[name](g, name)
            done += 1
        except RejectedError:
            for part, length in zip(parts, lengths, strict=True):
                del part[length:]  # type: ignore[attr-defined]
            g.values[:] = values


def finish(g: Growth) -> RandomModel:
    """Choose outputs, write the model and run it."""
    made = {name for node in g.nodes if node.op_type != "Constant" for name in node.output}
    taken = {name for node in g.nodes for name in node.input}
    results = [v for v in g.values if v.name in made]
    chosen = [v for v in results if v.name not in taken or g.chance(0.2)]
    if g.inputs and g.chance(0.08):
        chosen.append(g.choose(g.inputs))  # an input that is an output, too
    if not any(v.name in made for v in chosen):
        raise RejectedError("no result")
    outputs = [g.node("Cast", [v], to=TensorProto.FLOAT)[0] if v.dtype in session.CARRIED else v for v in chosen]
    model = helper.make_model(
        helper.make_graph(g.nodes, "random", [_info(v) for v in g.inputs], [_info(v) for v in outputs], g.initializers),
        opset_imports=[helper.make_opsetid("", g.opset)],
        ir_version=session.ir_version(g.opset),
    )
    inputs = {v.name: v.array for v in g.inputs}
    return RandomModel(
        model, inputs, tuple(session.run(session.session(model), inputs)), tuple(v.coarse for v in outputs)
    )


def _info(value: Value) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(
        value.name, helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype)), value.shape
    )
