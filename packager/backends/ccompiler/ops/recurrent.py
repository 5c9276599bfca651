"""Recurrent layers: all steps of a block of rows in one call, products by the tiles of dense, gates where the sums are.

Weights are packed so that panels of all gates of 16 hidden columns are neighbors: the sums of a few such groups are a
small buffer on the stack, which the cell reads. Steps depend on each other, so that threads get rows, or a direction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from packager.backends.ccompiler.core.expressions import CTYPES, literal
from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.machine import COLUMNS, KINDS
from packager.backends.ccompiler.core.operations import CannotRender, Operation, Use
from packager.backends.ccompiler.core.shapes import Extent, c_text, product
from packager.backends.ccompiler.core.stages import Stage
from packager.backends.ccompiler.gemm.blocks import GAP, Blocks, even_size
from packager.backends.ccompiler.gemm.loop_nest import pad
from packager.backends.ccompiler.gemm.tiles import registers_of, tiles_of
from packager.backends.ccompiler.ops.elementwise import add_elementwise
from packager.graph.recurrences.recurrent import Activation, Recurrent, description_of

if TYPE_CHECKING:
    from packager.bundle.arrays import Array

# Panels whose sums are computed together.
PANELS = 8
# Rows of a block by the bytes of a direction's weights, which each block reads in every step: few where the first-level
# cache holds these; as many as multiply a vector as often as the second level takes to give one; and more where weights
# come from memory. A small batch is two blocks, or one that threads may share in parts of PART rows: each reads all
# weights, so that a thread that gets several multiplies them at once.
ROWS = ((1 << 15, 4), (1 << 22, 8))
MOST_ROWS = 28
LEAST_ROWS = 4
PART = 2

# C of activations of ``v``, with their parameters.
ACTIVATIONS = {
    "Sigmoid": "pk_sigmoid_f32({v})",
    "Tanh": "pk_tanh_f32({v})",
    "Relu": "0 > {v} ? 0 : {v}",  # NaN stays NaN
    "Affine": "{a} * {v} + {b}",
    "LeakyRelu": "{v} < 0 ? {a} * {v} : {v}",
    "ThresholdedRelu": "{v} > {a} ? {v} : 0",
    "ScaledTanh": "{a} * pk_tanh_f32({b} * {v})",
    "HardSigmoid": "pk_max_f32(pk_min_f32({a} * {v} + {b}, 1), 0)",
    "Elu": "{v} < 0 ? {a} * (pk_exp_f32({v}) - 1) : {v}",
    "Softsign": "{v} / (1 + pk_abs_f32({v}))",
    "Softplus": "pk_log_f32(1 + pk_exp_f32(-pk_abs_f32({v}))) + ({v} > 0 ? {v} : 0)",
}


@dataclass(frozen=True)
class _Phase:
    """A product with the weights of ``gates``, and the cell's C for each direction; ``source`` is the operand."""

    gates: str
    source: str
    cells: Sequence[Sequence[str]]


def add_recurrent(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the functions of a stage to its group. Raises CannotRender."""
    description = description_of(anchor.attributes)
    x, weights, *others = anchor.uses
    operands = dict(zip(description.operands, others, strict=True))
    result = anchor.result
    steps, batch, _ = x.shape
    directions, _, hidden = weights.shape
    kind = KINDS[weights.tensor.dtype]
    width = -(-hidden // COLUMNS) * COLUMNS
    pitch = width + GAP
    size = even_rows(batch, len(description.gates) * width * hidden * 4)
    parted = isinstance(batch, int) and size == batch > PART
    blocks = Blocks(1, batch, PART if parted else size)
    draft = group.function("recurrent")
    values: dict[str, Any] = {
        "x": draft.tensor(x.tensor, False),
        "y": draft.tensor(result, True),
        "widens": result.dtype == "float16",
        "stored": CTYPES[result.dtype].stored,
        "states": draft.workspace(group.workspace(product((directions, 2, batch, pitch))), "float", True),
        "cell_states": "",
        "scaled": "",
        **dict.fromkeys(("initial_h", "initial_c", "lengths", "peepholes", "hidden_bias"), ""),
        **{name: draft.tensor(use.tensor, False) for name, use in operands.items() if name in RUN_TIME},
        "kind": kind,
        "steps": c_text(steps),
        "batch": c_text(batch),
        "directions": directions,
        "hidden": hidden,
        "width": width,
        "pitch": pitch,
        "gates": len(description.gates),
        "row_width": directions * len(description.gates) * hidden,
        "blocks": c_text(blocks.count),
        "rows": blocks.size,
        "parted": parted,
        "block": size,
        "tile_rows": registers_of(group.machine, kind.name).rows,
        "reverse": "direction" if directions > 1 else str(int(description.reverse[0])),
        "finals": description.finals,
    }
    for name in ("peepholes", "hidden_bias"):
        if name in operands:
            values[name] = draft.packed(_padded(operands[name], hidden, group), "float")
    if description.cell == "lstm":
        values["cell_states"] = draft.workspace(group.workspace(product((directions, batch, pitch))), "float", True)
    phases = _phases(description)
    if len(phases) > 1:  # the update gate, and the state times the reset gate
        values["scaled"] = draft.workspace(group.workspace(product((directions, 2, batch, pitch))), "float", True)
    tiles = set()
    made: list[dict[str, Any]] = []
    widest = 0
    for phase in phases:
        count = len(phase.gates)
        band = PANELS // count * COLUMNS if PANELS % count == 0 else PANELS * COLUMNS // 2
        packed = draft.packed(_packed(weights, phase.gates, description.gates, group), kind.weight)
        for columns in {min(band, width), width % band or band}:
            heights = (None if parted else blocks.counts) or tuple(range(1, size + 1))
            wanted = tiles_of(group.machine, kind, heights, columns * count, band * count)
            tiles |= {replace(tile, near=True) for tile in wanted}
        made.append(
            {
                **{"w": packed, "count": count, "band": band, "source": phase.source, "cells": phase.cells},
                "places": [description.gates.index(gate) for gate in phase.gates],
                "names": set(re.findall(r"\w+", " ".join(line for cell in phase.cells for line in cell))),
            }
        )
        widest = max(widest, band * count)
    values |= {"phases": made, "pitch_of_sums": widest + GAP}
    values["pointers"] = [
        ("old", "const float", "now + r * pitch + at"),
        ("to", "float", "next + r * pitch + at"),
        ("cell", "float", "cells + r * pitch + at"),
        ("update", "float", "updates + r * pitch + at"),
        ("scaled", "float", "scaled_rows + r * pitch + at"),
        ("peep", "const float", f"{values['peepholes']} + direction * 3 * width + at"),
        ("bias", "const float", f"{values['hidden_bias']} + direction * width + at"),
    ]
    extent = product((directions, blocks.count))
    depth = product((directions, len(description.gates), width, hidden))
    draft.finish("ops/recurrent", extent, values, frozenset(tiles), depth)
    if stage.after:
        rest = Stage(None, (), stage.after, stage.rows, stage.inner, tuple(t for t in stage.stored if t != result))
        add_elementwise(rest, group)


RUN_TIME = ("initial_h", "initial_c", "lengths")


def even_rows(batch: Extent, nbytes: int) -> int:
    """Return the rows of a block for weights of this size."""
    most = next((rows for limit, rows in ROWS if nbytes <= limit), MOST_ROWS)
    return even_size(batch, max(LEAST_ROWS, min(most, batch // 2))) if isinstance(batch, int) else most


def _constant(use: Use, group: GroupDraft) -> int:
    argument = use.tensor.argument
    if argument is None or argument not in group.graph.constants:
        raise CannotRender("a recurrent layer whose weights are no constants")
    return argument


def _packed(weights: Use, gates: str, order: str, group: GroupDraft) -> int:
    """Pack the weights of some gates: [directions][columns / 16][gates][hidden][16]; return the index."""
    directions, _, hidden = (int(extent) for extent in weights.shape)
    taken = [order.index(gate) for gate in gates]

    def pack(array: Array) -> Array:
        parts = np.asarray(array).reshape(directions, len(order), hidden, hidden)[:, taken]
        padded = pad(parts, (1, 1, COLUMNS, 1))
        split = padded.reshape(directions, len(taken), -1, COLUMNS, hidden)
        return np.ascontiguousarray(split.transpose(0, 2, 1, 4, 3))

    places = "".join(map(str, taken))
    return group.packing(_constant(weights, group), f"recurrent{len(order)}g{places}n{COLUMNS}", pack)


def _padded(use: Use, hidden: int, group: GroupDraft) -> int:
    """Pack vectors of hidden columns as float32, each with zeros up to a multiple of 16."""

    def pack(array: Array) -> Array:
        rows = np.asarray(array).reshape(-1, hidden).astype(np.float32)
        return pad(rows, (1, COLUMNS))

    return group.packing(_constant(use, group), f"rows{hidden}n{COLUMNS}", pack)


def _phases(description: Recurrent) -> list[_Phase]:
    """Return the products of a step, in order."""
    if description.cell == "gru" and not description.reset_after:
        return [
            _Phase("zr", "now", [_gates(description, d) for d in range(description.directions)]),
            _Phase("h", "scaled", [_hidden(description, d) for d in range(description.directions)]),
        ]
    write: Callable[[Recurrent, int], list[str]] = {"rnn": _rnn, "gru": _gru, "lstm": _lstm}[description.cell]
    gates = {"rnn": "h", "gru": "zrh", "lstm": "iofc"}[description.cell]
    return [_Phase(gates, "now", [write(description, d) for d in range(description.directions)])]


def _activated(activation: Activation, value: str, clip: float | None) -> list[str]:
    """Return C statements that apply an activation to a variable."""
    parameters = {name: literal(getattr(activation, long), "float32") for name, long in (("a", "alpha"), ("b", "beta"))}
    text = ACTIVATIONS[activation.name].format(v=value, **parameters)
    return [*_clipped(value, clip), f"{value} = {text};"]


def _clipped(value: str, clip: float | None) -> list[str]:
    if clip is None:
        return []
    low, high = literal(-clip, "float32"), literal(clip, "float32")
    return [f"{value} = pk_max_f32(pk_min_f32({value}, {high}), {low});"]


def _gate(description: Recurrent, gate: str, among: str) -> str:
    """Return C for the sum of a gate: its part of the input product, and of the sums of gates ``among``."""
    return f"from[{description.gates.index(gate)} * apart + j] + sum[{among.index(gate) * COLUMNS} + j]"


def _rnn(description: Recurrent, direction: int) -> list[str]:
    (activation,) = description.activations[direction]
    return [
        f"float h = {_gate(description, 'h', 'h')};",
        *_activated(activation, "h", description.clip),
        "to[j] = h;",
    ]


def _gates(description: Recurrent, direction: int) -> list[str]:
    """The first phase of a GRU: the update gate, and the state times the reset gate."""
    lines = []
    for gate in "zr":
        lines.append(f"float {gate} = {_gate(description, gate, 'zr')};")
        lines += _activated(description.activations[direction][0], gate, description.clip)
    return [*lines, "update[j] = z;", "scaled[j] = r * old[j];"]


def _hidden(description: Recurrent, direction: int) -> list[str]:
    """The second phase of a GRU."""
    return [
        f"float h = {_gate(description, 'h', 'h')};",
        *_activated(description.activations[direction][1], "h", description.clip),
        "const float z = update[j];",
        "to[j] = (1 - z) * h + z * old[j];",
    ]


def _gru(description: Recurrent, direction: int) -> list[str]:
    """A GRU whose reset gate multiplies the product."""
    inner = f"sum[{2 * COLUMNS} + j]"
    if "hidden_bias" in description.operands:
        inner = f"({inner} + bias[j])"
    lines = []
    for gate in "zr":
        lines.append(f"float {gate} = {_gate(description, gate, 'zrh')};")
        lines += _activated(description.activations[direction][0], gate, description.clip)
    lines.append(f"float h = from[{description.gates.index('h')} * apart + j] + r * {inner};")
    lines += _activated(description.activations[direction][1], "h", description.clip)
    return [*lines, "to[j] = (1 - z) * h + z * old[j];"]


def _lstm(description: Recurrent, direction: int) -> list[str]:
    gates, state, output = description.activations[direction]
    peeps = {"i": 0, "o": 1, "f": 2} if "peepholes" in description.operands else {}
    lines = ["const float before = cell[j];"]

    def gate(name: str, activation: Activation, memory: str) -> None:
        peep = f" + peep[{peeps[name]} * {{}} + j] * {memory}" if name in peeps else ""
        lines.append(f"float {name} = {_gate(description, name, 'iofc')}{peep.format('width')};")
        lines.extend(_activated(activation, name, description.clip))

    gate("i", gates, "before")
    if description.coupled:
        lines.append("const float f = 1 - i;")
    else:
        gate("f", gates, "before")
    gate("c", state, "before")
    lines.append("float after = f * before + i * c;")
    gate("o", gates, "after")
    lines.append("cell[j] = after;")
    lines.extend(_activated(output, "after", None))
    return [*lines, "to[j] = o * after;"]
