"""Recurrent layers of the ccompiler backend against numpy: cells, directions, lengths, odd sizes, other machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from ccompiler_runner import Runner, partition, variable
from test_ccompiler_families import symbol
from tvm.relax import op

from packager.backends.ccompiler.core.machine import Machine
from packager.graph.recurrences.recurrent import GATES, Activation, Recurrent, RecurrentOperands, recurrent

pytestmark = pytest.mark.slow

SIGMOID, TANH = Activation("Sigmoid"), Activation("Tanh")
USUAL = {"rnn": (TANH,), "gru": (SIGMOID, TANH), "lstm": (SIGMOID, TANH, TANH)}
FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Tanh": np.tanh,
    "Relu": lambda x: np.maximum(x, 0),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Softplus": lambda x: np.log1p(np.exp(x)),
    "Affine": lambda x: 0.5 * x + 0.25,
    "Elu": lambda x: np.where(x < 0, 0.5 * np.expm1(x), x),
    "ThresholdedRelu": lambda x: np.where(x > 0.5, x, 0),
    "HardSigmoid": lambda x: np.clip(0.5 * x + 0.25, 0, 1),
    "LeakyRelu": lambda x: np.where(x < 0, 0.5 * x, x),
    "ScaledTanh": lambda x: 0.5 * np.tanh(0.25 * x),
}
MACHINES = {
    "aarch64": (Machine(16, 32, "aarch64"), "ccompiler -march=x86-64-v2"),
    "sse2": (Machine(16, 16, "sse2"), "ccompiler -march=x86-64-v2"),
    "avx512": (Machine(64, 32, "avx512"), "ccompiler -march=x86-64-v4"),
}


def usual(cell: str, *, directions: int = 1, **changes: Any) -> Recurrent:
    """Return the description of a layer with ONNX's order of gates and default activations."""
    reverse = (False, True)[:directions]
    return replace(Recurrent(cell, GATES[cell], reverse, (USUAL[cell],) * directions), **changes)


def step(d: Recurrent, number: int, x: np.ndarray, r: np.ndarray, states: list[np.ndarray], more: Any) -> list[Any]:
    """Return the states after a step of a direction; ``x`` is [batch, rows]."""
    acts = [FUNCTIONS[a.name] for a in d.activations[number]]
    h, hidden = states[0], r.shape[1]
    low = -np.inf if d.clip is None else -d.clip

    def gate(data: np.ndarray, name: str) -> np.ndarray:
        index = d.gates.index(name)
        return data[..., index * hidden : (index + 1) * hidden]

    def act(index: int, value: np.ndarray) -> np.ndarray:
        return acts[index](np.clip(value, low, -low))

    product = h @ r.T
    if d.cell == "rnn":
        return [act(0, x + product)]
    if d.cell == "gru":
        z, reset = (act(0, gate(x, g) + gate(product, g)) for g in "zr")
        bias = more["hidden_bias"][number] if "hidden_bias" in more else 0
        weights = r[d.gates.index("h") * hidden :][:hidden]
        inner = reset * (gate(product, "h") + bias) if d.reset_after else (reset * h) @ weights.T
        return [(1 - z) * act(1, gate(x, "h") + inner) + z * h]
    peeps = more["peepholes"][number].reshape(3, hidden) if "peepholes" in more else np.zeros((3, hidden))
    c, total = states[1], x + product
    i = act(0, gate(total, "i") + peeps[0] * c)
    f = 1 - i if d.coupled else act(0, gate(total, "f") + peeps[2] * c)
    new = f * c + i * act(1, gate(total, "c"))
    return [act(0, gate(total, "o") + peeps[1] * new) * acts[2](new), new]


def wanted(d: Recurrent, x: np.ndarray, weights: np.ndarray, more: dict[str, np.ndarray]) -> np.ndarray:
    """Return the result of a layer in float64."""
    steps, batch, _ = x.shape
    directions, rows, hidden = weights.shape
    out = np.zeros((steps + len(d.finals), batch, directions, hidden))
    lengths = more.get("lengths", np.full(batch, steps))
    for number in range(directions):
        states = [
            more[n][number].astype("f8") if n in more else np.zeros((batch, hidden)) for n in ("initial_h", "initial_c")
        ]
        order = range(steps)[::-1] if d.reverse[number] else range(steps)
        for t in order:
            own = x[t, :, number * rows : (number + 1) * rows].astype("f8")
            new = step(d, number, own, weights[number].astype("f8"), states, more)
            inside = (t < lengths)[:, None]
            out[t, :, number] = np.where(inside, new[0], 0)
            states = [np.where(inside, a, b) for a, b in zip(new, states, strict=False)] + states[len(new) :]
        for place, name in enumerate(d.finals):
            out[steps + place, :, number] = states["hc".index(name)]
    return out.reshape(*out.shape[:2], -1)


def check(
    d: Recurrent,
    hidden: int,
    tmp_path: Path,
    *operands: str,
    sizes: tuple[tuple[int, int], ...] = ((1, 1), (5, 3), (3, 9)),
    dtype: str = "float32",
    machine: str = "",
    symbolic: bool = True,
) -> None:
    """Compare a layer with operands of these names for numbers of steps and rows."""
    rng = np.random.default_rng(3)
    directions, rows = d.directions, len(d.gates) * hidden
    steps, batch = (symbol("t"), symbol("b")) if symbolic else sizes[0]
    shapes = {
        "x": (steps, batch, directions * rows),
        "weights": (directions, rows, hidden),
        "initial_h": (directions, batch, hidden),
        "initial_c": (directions, batch, hidden),
        "lengths": (batch,),
        "peepholes": (directions, 3 * hidden),
        "hidden_bias": (directions, hidden),
    }
    names = ["x", "weights", *(name for name in shapes if name in operands)]
    arguments = [variable(n, shapes[n], "int32" if n == "lengths" else dtype) for n in names]
    constants = [i for i, n in enumerate(names) if n in ("weights", "peepholes", "hidden_bias")]
    described = replace(d, operands=tuple(names[2:]))

    def body(emit: Any, *given: Any) -> Any:
        return emit(recurrent(RecurrentOperands(**dict(zip(names, given, strict=True))), d))

    chosen, target = MACHINES.get(machine, (None, "ccompiler"))
    run = Runner(partition(arguments, body, constants), tmp_path, target, machine=chosen)
    for t, b in sizes:
        values: dict[str, np.ndarray] = {}
        for name in names:
            sizes_of = [{"t": t, "b": b}.get(str(e), e) for e in shapes[name]]
            if name == "lengths":
                values[name] = rng.integers(0, t + 1, sizes_of).astype(np.int32)
            else:
                values[name] = (rng.standard_normal(sizes_of) / np.sqrt(hidden if name == "weights" else 1)).astype(
                    dtype
                )
        got = run(*values.values())
        x, weights, more = (
            values["x"],
            values["weights"],
            {n: v for n, v in values.items() if n not in ("x", "weights")},
        )
        tolerance = 1e-2 if dtype == "float16" else 2e-6
        np.testing.assert_allclose(got.astype("f8"), wanted(described, x, weights, more), rtol=0, atol=tolerance)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("hidden", [1, 7, 16, 40, 130])
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_cells(cell: str, hidden: int, tmp_path: Path) -> None:
    check(
        usual(cell, directions=2, finals="hc"[: 2 if cell == "lstm" else 1]), hidden, tmp_path, "initial_h", "lengths"
    )


@pytest.mark.sampled(3, every_value=False)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_cells_on_other_machines(cell: str, machine: str, tmp_path: Path) -> None:
    check(usual(cell), 36, tmp_path, machine=machine)


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_half_precision(cell: str, tmp_path: Path) -> None:
    check(usual(cell, directions=2, finals="h"), 20, tmp_path, "initial_h", "lengths", dtype="float16")


def test_reset_gate_after_the_product(tmp_path: Path) -> None:
    layer = usual("gru", reset_after=True, gates="rzh")
    check(layer, 20, tmp_path / "bias", "hidden_bias", "lengths")
    check(layer, 20, tmp_path / "plain", symbolic=False, sizes=((4, 6),))


def test_peepholes_clipping_and_coupled_gates(tmp_path: Path) -> None:
    layer = usual("lstm", gates="ifco", clip=0.3, finals="c")
    check(layer, 20, tmp_path / "peepholes", "peepholes", "initial_c")
    check(replace(layer, coupled=True, reverse=(True,)), 20, tmp_path / "coupled", symbolic=False, sizes=((4, 30),))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_activations(name: str, tmp_path: Path) -> None:
    layer = usual("rnn", directions=2, activations=((Activation(name, 0.5, 0.25),), (TANH,)))
    check(layer, 20, tmp_path)


def test_what_follows_is_computed_after_it(tmp_path: Path) -> None:
    x, w = variable("x", (symbol("t"), 2, 16)), variable("w", (1, 16, 16))

    def body(emit: Any, x: Any, w: Any) -> Any:
        made = emit(recurrent(RecurrentOperands(x, w), usual("rnn")))
        return emit(op.nn.relu(emit(op.add(made, x))))

    run = Runner(partition([x, w], body, [1]), tmp_path)
    rng = np.random.default_rng(3)
    data, weights = (rng.standard_normal(s).astype(np.float32) / 4 for s in ((5, 2, 16), (1, 16, 16)))
    np.testing.assert_allclose(
        run(data, weights), np.maximum(wanted(usual("rnn"), data, weights, {}) + data, 0), atol=2e-6
    )


@pytest.mark.parametrize("batch", [3, 4, 7])
def test_threads_share_a_small_batch(batch: int, tmp_path: Path) -> None:
    """One call for all rows, calls for a part each and calls across both directions give equal bits."""
    layer = usual("lstm", directions=2, finals="h")
    x, w = variable("x", (5, batch, 2 * 80)), variable("w", (2, 80, 20))
    run = Runner(
        partition([x, w], lambda emit, *given: emit(recurrent(RecurrentOperands(*given), layer)), [1]), tmp_path
    )
    rng = np.random.default_rng(3)
    data, weights = (rng.standard_normal(shape).astype(np.float32) / 4 for shape in ((5, batch, 160), (2, 80, 20)))
    found = []
    for run.split in (1, 2, 3, 8):
        found.append(run(data, weights))
        np.testing.assert_array_equal(found[-1], found[0])
    np.testing.assert_allclose(found[0], wanted(layer, data, weights, {}), rtol=0, atol=2e-6)
