"""Give a ``Loop`` that counts up to a limit in its condition a trip count, as TensorFlow's ``while`` loops do.

Of ``while i < limit: ...; i += 1`` the number of iterations is known before it runs. ONNX operator Loop (version 25).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from packager.frontends.onnx.graph.fold_constants import Constants
from packager.frontends.onnx.graph.infer_shapes import Inferred
from packager.frontends.onnx.graph.nodes import is_standard, rewrite_nodes, title_of

UNLIMITED = 2**31 - 1  # trip counts from here on are no limit
# Whether the smaller operand is the first, and whether the operands may be equal.
COMPARISONS = {
    "Less": (True, False),
    "LessOrEqual": (True, True),
    "Greater": (False, False),
    "GreaterOrEqual": (False, True),
}
INTEGERS = {TensorProto.INT32, TensorProto.INT64}


@dataclass(frozen=True)
class _Count:
    """After iteration k, from 0 on, a loop goes on if ``start`` + k + ``ahead`` is less than ``limit``.

    ``start`` is a value outside, 0 if it is empty. ``is_all`` says that nothing else ends the loop.
    """

    start: str
    ahead: int
    limit: str
    is_all: bool


def count_loops(graph: onnx.GraphProto, inferred: Inferred, constants: Constants) -> bool:
    """Give loops trip counts; return whether any got one."""

    def counted(index: int, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        if not is_standard(node, "Loop") or _limited(node, constants):
            return None
        body = next(attribute.g for attribute in node.attribute if attribute.name == "body")
        count = _Reader(node, body, constants).count()
        if count is None or not all(
            inferred.types.get(name) in INTEGERS for name in (count.start, count.limit) if name
        ):
            return None
        prefix = f"{title_of(node)}.{index}.trip"
        nodes = list(_trip(count, prefix, node.name, constants))
        node.input[0] = nodes[-1].output[0]
        if count.is_all:
            body.node.append(helper.make_node("Identity", [body.input[1].name], [f"{prefix}.goes"]))
            body.output[0].name = f"{prefix}.goes"
        return [*nodes, node]

    return rewrite_nodes(graph, counted)


def _limited(node: onnx.NodeProto, constants: Constants) -> bool:
    """Whether a loop has a trip count already."""
    most = node.input[0] if node.input else ""
    return bool(most) and not (most in constants and int(constants.array(most).reshape(-1)[0]) >= UNLIMITED)


def _trip(count: _Count, prefix: str, title: str, constants: Constants) -> Iterator[onnx.NodeProto]:
    """Yield nodes that compute the number of iterations if there is one: at least 1."""
    last = f"{prefix}.limit"
    yield helper.make_node("Cast", [count.limit], [last], name=title, to=TensorProto.INT64)
    if count.start:
        start, last = f"{prefix}.start", f"{prefix}.difference"
        yield helper.make_node("Cast", [count.start], [start], name=title, to=TensorProto.INT64)
        yield helper.make_node("Sub", [f"{prefix}.limit", start], [last], name=title)
    more, one = f"{prefix}.more", f"{prefix}.one"
    constants.add(more, np.asarray(1 - count.ahead, np.int64), None)
    constants.add(one, np.asarray(1, np.int64), None)
    yield helper.make_node("Add", [last, more], [f"{prefix}.sum"], name=title)
    yield helper.make_node("Max", [f"{prefix}.sum", one], [f"{prefix}.count"], name=title)


class _Reader:
    """Reads the condition in the body of a loop."""

    def __init__(self, node: onnx.NodeProto, body: onnx.GraphProto, constants: Constants) -> None:
        self.constants = constants
        self.made = {name: part for part in body.node for name in part.output}
        self.own = {tensor.name: numpy_helper.to_array(tensor) for tensor in body.initializer}
        self.number = body.input[0].name
        self.condition = body.output[0].name
        before = [value.name for value in body.input[2:]]
        after = [value.name for value in body.output[1 : len(before) + 1]]
        self.initial = dict(zip(before, node.input[2:], strict=False))
        self.next = dict(zip(before, after, strict=False))

    def count(self) -> _Count | None:
        """Return how the loop counts, or None."""
        waiting, is_all = [self._same(self.condition)], True
        while waiting:
            made = self.made.get(waiting.pop())
            if made is None:
                continue
            if is_standard(made, "And"):
                waiting += map(self._same, made.input)
                is_all = False
            elif is_standard(made, *COMPARISONS):
                is_first, may_equal = COMPARISONS[made.op_type]
                value, limit = made.input if is_first else reversed(made.input)
                counter, outside = self._counter(self._same(value)), self._outside(self._same(limit))
                if counter is not None and outside is not None:
                    return _Count(counter[0], counter[1] - may_equal, outside, is_all)
        return None

    def _same(self, name: str) -> str:
        """Return the value that a value is, or is cast from."""
        while (made := self.made.get(name)) is not None and is_standard(made, "Identity", "Cast"):
            name = made.input[0]
        return name

    def _counter(self, name: str) -> tuple[str, int] | None:
        """Return the start of a value that grows by 1 each iteration, and how far it is ahead in the first."""
        state, ahead = self._one_less(name), 1
        if state is None:
            state, ahead = name, 0
        if state == self.number:
            return "", ahead
        following = self.next.get(state)
        if following is None or self._one_less(self._same(following)) != state:
            return None
        return self.initial[state], ahead

    def _one_less(self, name: str) -> str | None:
        """Return the value that a value is one more than."""
        made = self.made.get(name)
        if made is None or not is_standard(made, "Add"):
            return None
        for value, other in (tuple(made.input), tuple(made.input)[::-1]):
            if self._is_one(other):
                return self._same(value)
        return None

    def _is_one(self, name: str) -> bool:
        array = self.own.get(name)
        if array is None and name in self.constants:
            array = self.constants.array(name)
        made = self.made.get(name)
        if made is not None and is_standard(made, "Constant"):
            array = next((numpy_helper.to_array(one.t) for one in made.attribute if one.name == "value"), None)
        return array is not None and array.size == 1 and bool(array.reshape(-1)[0] == 1)

    def _outside(self, name: str) -> str | None:
        """Return the value outside that a value is in all iterations."""
        if name in self.next:
            return self.initial[name] if self._same(self.next[name]) == name else None
        return None if name in self.made or name in self.own or name == self.number else name
