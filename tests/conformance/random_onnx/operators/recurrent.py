"""Recurrent operators and attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.conformance.random_onnx.growth import Growth
from tests.conformance.random_onnx.registry import writes

ACTIVATIONS = ("Tanh", "Sigmoid", "Relu", "Softsign", "Softplus")
GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}


@writes(*GATES)
def recurrent(g: Growth, op: str) -> None:
    """All directions; lengths, initial states, biases, peepholes, clipping and other activations at times."""
    steps, batch, size, hidden = (g.integer(1, 4) for _ in range(4))
    direction = g.choose((None, "forward", "reverse", "bidirectional"))
    both = 2 if direction == "bidirectional" else 1
    dtype = g.choose(("float32", "float32", "float64"))

    def weight(*shape: int) -> Any:
        array = (g.rng.integers(-8, 9, shape) / 8).astype(dtype)
        return g.fresh(array, constant=0.7)

    gates = GATES[op]
    x = g.value([dtype], shape=(steps, batch, size))
    operands = [x, weight(both, gates * hidden, size), weight(both, gates * hidden, hidden)]
    operands.append(weight(both, 2 * gates * hidden) if g.chance(0.6) else None)
    lengths = g.rng.integers(1, steps + 1, batch).astype(np.int32)
    operands.append(g.fresh(lengths, constant=0.5) if g.chance(0.3) else None)
    operands.append(weight(both, batch, hidden) if g.chance(0.4) else None)
    if op == "LSTM":
        operands.append(weight(both, batch, hidden) if g.chance(0.4) else None)
        operands.append(weight(both, 3 * hidden) if g.chance(0.3) else None)
    attributes: dict[str, Any] = {"direction": direction, "hidden_size": hidden}
    if g.chance(0.2):
        attributes["clip"] = g.real(1, 3)
    if g.chance(0.25):
        each = {"RNN": 1, "LSTM": 3, "GRU": 2}[op]
        attributes["activations"] = [g.choose(ACTIVATIONS) for _ in range(each * both)]
    if op == "GRU":
        attributes["linear_before_reset"] = g.choose((None, 0, 1))
    if op == "LSTM" and g.chance(0.1):
        attributes["input_forget"] = 1
    keep = [True, True, True] if op == "LSTM" else [True, True]
    if g.chance(0.3):
        keep[g.integer(0, len(keep) - 1)] = False
    if not any(keep[1:]) and g.chance(0.5):
        keep = keep[:1]
    g.node(op, operands, keep, **attributes)


@writes("Attention")
def attention(g: Growth, op: str) -> None:
    """Grouped or not, causal or not, with a mask or without."""
    batch, queries, keys, size = g.integer(1, 2), g.integer(1, 5), g.integer(1, 5), g.choose((2, 4, 8))
    groups, each = g.integer(1, 2), g.integer(1, 2)
    q = g.value(["float32"], shape=(batch, groups * each, queries, size))
    k, v = (g.value(["float32"], shape=(batch, groups, keys, size)) for _ in range(2))
    mask = None
    if g.chance(0.4):
        shape = (queries, keys)
        mask = g.value(["float32"], shape=shape)
    options = {"is_causal": (0, 1), "scale": (0.5,), "softcap": (2.0,)}
    g.node(op, [q, k, v, mask], **{name: g.choose((None, *values)) for name, values in options.items()})


@writes("RotaryEmbedding")
def rotary_embedding(g: Growth, op: str) -> None:
    """Interleaved or not, by positions or without."""
    batch, heads, steps, half = g.integer(1, 2), g.integer(1, 3), g.integer(1, 4), g.integer(1, 4)
    x = g.value(["float32"], shape=(batch, heads, steps, 2 * half))
    if g.chance(0.5):
        tables = [g.value(["float32"], shape=(7, half)) for _ in range(2)]
        at = g.rng.integers(0, 7, (batch, steps)).astype(np.int64)
        g.node(op, [x, *tables, g.fresh(at, constant=0.5)], interleaved=g.choose((None, 0, 1)))
        return
    tables = [g.value(["float32"], shape=(batch, steps, half)) for _ in range(2)]
    g.node(op, [x, *tables], interleaved=g.choose((None, 0, 1)))
