"""Unroll ``Loop`` and ``Scan`` with a static trip count.

ONNX operators Loop (versions 1 to 25) and Scan (9 to 25). A Loop's condition must be static too: true, or computed from
the iteration number and constants. Other loops are kept, and reported as unsupported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from packager.frontends.onnx.graph.expand_functions import renamed_node
from packager.frontends.onnx.graph.fold_constants import Constants
from packager.frontends.onnx.graph.infer_shapes import Inferred
from packager.frontends.onnx.graph.nodes import (
    attributes_of,
    evaluator,
    is_standard,
    rewrite_nodes,
    standard_version,
    title_of,
)

# The most nodes of an unrolled loop.
MAX_NODES = 20_000


@dataclass(frozen=True)
class _Steps:
    """A loop to unroll: its body, states, and scan outputs."""

    node: onnx.NodeProto
    body: onnx.GraphProto
    states: tuple[str, ...]  # initial values
    first: int  # index of the first state among the body's outputs
    collected: tuple[tuple[int, bool], ...]  # axis of each scan output, and whether it is reversed


def unroll_loops(model: onnx.ModelProto, inferred: Inferred, constants: Constants) -> bool:
    """Unroll loops with a static trip count; return whether there were any."""
    opset = standard_version(model) or onnx.defs.onnx_opset_version()

    def unrolled(index: int, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        prefix = f"{title_of(node)}.{index}."
        if is_standard(node, "Loop"):
            return _unrolled_loop(model, node, prefix, opset, constants)
        return _unrolled_scan(node, prefix, opset, inferred, constants) if is_standard(node, "Scan") else None

    return rewrite_nodes(model.graph, unrolled)


def _unrolled_loop(
    model: onnx.ModelProto, node: onnx.NodeProto, prefix: str, opset: int, constants: Constants
) -> list[onnx.NodeProto] | None:
    body, (most, start) = attributes_of(node)["body"], node.input[:2]
    if (start and start not in constants) or (most and most not in constants):
        return None
    limit = int(constants.array(most).reshape(-1)[0]) if most else MAX_NODES
    going = bool(constants.array(start).reshape(-1)[0]) if start else True
    states = tuple(node.input[2:])
    loop = _Steps(node, body, states, 1, ((0, False),) * (len(body.output) - 1 - len(states)))
    decide = _condition(model, body, constants)
    if decide is None:
        return None
    count = 0
    while going and count < limit:
        if count * max(1, len(body.node)) > MAX_NODES:
            return None
        going = decide(count, going)
        count += 1
    if count == 0 and loop.collected:
        return None  # the extents of scan outputs are unknown
    rows = []
    for step in range(count):
        number, flag = f"{prefix}{step}.number", f"{prefix}{step}.condition"
        constants.add(number, np.asarray(step, np.int64), None)
        constants.add(flag, np.asarray(True), None)
        rows.append([number, flag])
    return list(_steps(loop, rows, prefix, opset, constants))


def _condition(model: onnx.ModelProto, body: onnx.GraphProto, constants: Constants) -> Any:
    """Return (iteration, condition) -> whether another iteration follows; None if the condition depends on data."""
    wanted, needed = {body.output[0].name}, []
    own = {tensor.name: tensor for tensor in body.initializer}
    for node in reversed(body.node):
        if wanted & set(node.output):
            needed.append(node)
            wanted.update(name for name in node.input if name)
    produced = {name for node in needed for name in node.output}
    number, flag = body.input[0].name, body.input[1].name
    leaves = wanted - produced - {number, flag}
    if not all(name in own or name in constants for name in leaves):
        return None
    feeds = {name: numpy_helper.to_array(own[name]) if name in own else constants.array(name) for name in leaves}
    condition = evaluator(model, needed[::-1], (*leaves, number, flag), [body.output[0].name])

    def decide(step: int, going: bool) -> bool:
        given = {**feeds, number: np.asarray(step, np.int64), flag: np.asarray(going)}
        return bool(np.asarray(condition.run(None, given)[0]).reshape(-1)[0])

    return decide


def _unrolled_scan(
    node: onnx.NodeProto, prefix: str, opset: int, inferred: Inferred, constants: Constants
) -> list[onnx.NodeProto] | None:
    if opset < 9:
        return None
    attributes = attributes_of(node)
    body, scanned = attributes["body"], attributes["num_scan_inputs"]
    states, inputs = tuple(node.input[: len(node.input) - scanned]), node.input[len(node.input) - scanned :]
    outputs = len(body.output) - len(states)
    axes = attributes.get("scan_input_axes", [0] * scanned)
    backwards = attributes.get("scan_input_directions", [0] * scanned)
    collected = zip(
        attributes.get("scan_output_axes", [0] * outputs),
        attributes.get("scan_output_directions", [0] * outputs),
        strict=True,
    )
    extents = [inferred.extents.get(name) for name in inputs]
    if not inputs or any(extent is None for extent in extents):
        return None
    count = (extents[0] or ())[axes[0]]
    if not isinstance(count, int) or not 0 < count * max(1, len(body.node)) <= MAX_NODES:
        return None
    loop = _Steps(node, body, states, 0, tuple((axis, bool(reverse)) for axis, reverse in collected))
    slices: list[onnx.NodeProto] = []
    rows = []
    for step in range(count):
        row = []
        for number, (name, axis, reverse) in enumerate(zip(inputs, axes, backwards, strict=True)):
            index, part = f"{prefix}{step}.index{number}", f"{prefix}{step}.slice{number}"
            constants.add(index, np.asarray(count - 1 - step if reverse else step, np.int64), None)
            slices.append(onnx.helper.make_node("Gather", [name, index], [part], name=node.name, axis=axis))
            row.append(part)
        rows.append(row)
    return [*slices, *_steps(loop, rows, prefix, opset, constants)]


def _steps(
    loop: _Steps, rows: Sequence[Sequence[str]], prefix: str, opset: int, constants: Constants
) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of all iterations. ``rows`` holds the body inputs other than states, per iteration."""
    states, parts = list(loop.states), [list[str]() for _ in loop.collected]
    body = loop.body
    own = {name for node in body.node for name in node.output} | {tensor.name for tensor in body.initializer}
    for step, row in enumerate(rows):
        inputs = [*row, *states] if loop.first else [*states, *row]
        names = {value.name: name for value, name in zip(body.input, inputs, strict=True)}
        names |= {name: f"{prefix}{step}.{name}" for name in own}
        for tensor in body.initializer:
            constants.add(names[tensor.name], numpy_helper.to_array(tensor), None)
        for node in body.node:
            yield renamed_node(node, partial(_named, names), None, loop.node.name or node.name)
        results = [_named(names, value.name) for value in body.output][loop.first :]
        states = results[: len(states)]
        for part, result in zip(parts, results[len(states) :], strict=True):
            part.append(result)
    for name, state in zip(loop.node.output, states, strict=False):
        if name:
            yield onnx.helper.make_node("Identity", [state], [name], name=loop.node.name)
    for (axis, reverse), part, name in zip(loop.collected, parts, loop.node.output[len(states) :], strict=False):
        if name:
            yield from _stacked(part[::-1] if reverse else part, name, axis, loop.node.name, opset, constants)


def _named(names: Mapping[str, str], name: str) -> str:
    """Return the name of a body value in an iteration; values from outside of the body keep their names."""
    return names.get(name, name)


def _stacked(
    parts: Sequence[str], name: str, axis: int, title: str, opset: int, constants: Constants
) -> Iterator[onnx.NodeProto]:
    """Yield nodes that stack tensors along a new axis."""
    wide = []
    axes = f"{name}.axes"
    if opset >= 13:
        constants.add(axes, np.asarray([axis], np.int64), None)
    for number, part in enumerate(parts):
        wide.append(f"{name}.{number}")
        if opset >= 13:
            yield onnx.helper.make_node("Unsqueeze", [part, axes], [wide[-1]], name=title)
        else:
            yield onnx.helper.make_node("Unsqueeze", [part], [wide[-1]], name=title, axes=[axis])
    yield onnx.helper.make_node("Concat", wide, [name], name=title, axis=axis)
