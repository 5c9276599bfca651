"""Recurrent layers in one launch, run on the host, beside numpy in float64; and which layers are taken."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cutlass_kernel_builder import build_simt

from packager.backends.cutlass.recurrent.kernels import kernel_for
from packager.backends.cutlass.recurrent.problem import ORDER

pytestmark = pytest.mark.slow


class Problem(ctypes.Structure):
    """``pk_recurrent_t``."""

    _fields_ = (
        [(name, ctypes.c_void_p) for name in ("x", "w", "bias", "h", "c", "y")]
        + [(name, ctypes.c_int64) for name in ("steps", "batch", "hidden", "directions")]
        + [("place", ctypes.c_int64 * 4)]
        + [(name, ctypes.c_int64) for name in ("reverse", "final_h", "final_c")]
    )


@dataclass(frozen=True)
class Case:
    """A layer of random numbers; ``gates`` is their order in the weights."""

    cell: str = "lstm"
    gates: str = "iofc"
    hidden: int = 16
    steps: int = 5
    batch: int = 8
    reverse: tuple[bool, ...] = (False,)
    states: bool = False
    finals: str = ""
    bias: bool = False
    kind: str = "float16"


CASES = {
    "lstm": Case(),
    "one step of one row": Case(steps=1, batch=1, finals="hc"),
    "no steps": Case(steps=0, states=True, finals="hc"),
    "rows of three blocks": Case(batch=19, states=True),
    "odd units": Case(hidden=35, batch=3, states=True, finals="c"),
    "both directions": Case(hidden=40, reverse=(False, True), states=True, finals="hc"),
    "backwards, other gates": Case(gates="ifco", reverse=(True,), finals="h"),
    "a cluster": Case(hidden=130, steps=4, batch=9, states=True, finals="hc"),
    "gru": Case("gru", "rzh", bias=True, finals="h"),
    "gru of both directions": Case("gru", "zrh", hidden=37, batch=5, reverse=(False, True), states=True, finals="h"),
    "gru of a cluster": Case("gru", "zrh", hidden=136, steps=3, batch=2, bias=True),
    "bfloat16": Case(kind="bfloat16", states=True, finals="hc"),
}


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return build_simt("recurrent", tmp_path_factory.mktemp("simt")).layer


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def wanted(case: Case, x: Any, w: Any, bias: Any, states: Any) -> Any:
    """Return what the layer computes, in float64 but for the hidden state, which is rounded."""
    directions, hidden = len(case.reverse), case.hidden
    y = np.zeros((case.steps + len(case.finals), case.batch, directions, hidden))
    for d, backwards in enumerate(case.reverse):
        h, c = (state[d].astype(np.float64) for state in states)
        for step in range(case.steps)[:: -1 if backwards else 1]:
            product = (h.astype(x.dtype).astype(np.float64) @ w[d].astype(np.float64).T).reshape(case.batch, -1, hidden)
            p = {gate: product[:, i] for i, gate in enumerate(case.gates)}
            g = {gate: x[step, :, d, i].astype(np.float64) for i, gate in enumerate(case.gates)}
            if case.cell == "gru":
                z, r = sigmoid(g["z"] + p["z"]), sigmoid(g["r"] + p["r"])
                h = (1 - z) * np.tanh(g["h"] + r * (p["h"] + bias[d])) + z * h
            else:
                i, f, o = (sigmoid(g[gate] + p[gate]) for gate in "ifo")
                c = f * c + i * np.tanh(g["c"] + p["c"])
                h = o * np.tanh(c)
            y[step, :, d] = h
        for place, name in enumerate(case.finals):
            y[case.steps + place, :, d] = {"h": h, "c": c}[name]
    return y


@pytest.mark.parametrize("name", CASES)
def test_a_layer_is_that_of_numpy(layer: Any, name: str) -> None:
    case = CASES[name]
    rng = np.random.default_rng(0)
    dtype = np.float16 if case.kind == "float16" else ml_dtypes.bfloat16
    directions, hidden, gates = len(case.reverse), case.hidden, len(case.gates)
    kernel = kernel_for(case.kind, case.cell, hidden)
    assert kernel is not None
    order = [case.gates.index(gate) for gate in ORDER[case.cell]]

    def made(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(dtype)

    x = made(case.steps, case.batch, directions, gates, hidden)
    w = (made(directions, gates * hidden, hidden).astype(np.float32) / np.sqrt(hidden)).astype(dtype)
    bias = made(directions, hidden) * dtype(case.bias)
    states = [made(directions, case.batch, hidden) * dtype(case.states) for _ in range(2)]
    y = np.full((case.steps + len(case.finals), case.batch, directions, hidden), np.nan, dtype)
    room = np.empty(kernel.pack(w, order).nbytes + 16, np.uint8)
    packed = room[-room.ctypes.data % 16 :][: kernel.pack(w, order).nbytes]
    packed[:] = kernel.pack(w, order).reshape(-1).view(np.uint8)
    problem = Problem(x.ctypes.data, packed.ctypes.data, y=y.ctypes.data, steps=case.steps, batch=case.batch)
    problem.hidden, problem.directions = hidden, directions
    problem.place[: len(order)] = order
    problem.bias = bias.ctypes.data if case.bias else 0
    problem.h, problem.c = (state.ctypes.data if case.states else 0 for state in states)
    problem.reverse = sum(1 << d for d, backwards in enumerate(case.reverse) if backwards)
    problem.final_h, problem.final_c = case.finals.find("h"), case.finals.find("c")
    form = (case.kind == "bfloat16", case.cell == "gru", kernel.units, kernel.depth, kernel.blocks)
    assert layer(ctypes.byref(problem), *map(int, form)) == 0
    tolerance = 2e-3 if case.kind == "float16" else 2e-2
    np.testing.assert_allclose(y.astype(np.float64), wanted(case, x, w, bias, states), rtol=0, atol=tolerance)
    problem.w += 2
    assert layer(ctypes.byref(problem), *map(int, form)) == -1
