"""Imports ``Loop`` with a trip count or a condition that the run decides: the body once, between begin and end.

ONNX operator Loop (version 25); ``graph.loop_bodies`` turns Scan into it. States keep their buffers over all
iterations. An extent of a state that changes is a run-time extent, found by importing the body until no other extent
changes. So is the number of iterations so far, where only the user knows its bound and scan outputs need room.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import onnx
from tvm import relax, tirx
from tvm.ir import GenericConst

from packager.errors import ModelError
from packager.frontends.onnx.graph.nodes import attributes_of, title_of
from packager.frontends.onnx.ops.operands import dtype_of, extents
from packager.frontends.onnx.ops.run_time.extents import LARGEST
from packager.frontends.onnx.ops.shapes.arithmetic import as_tensor, is_symbolic
from packager.graph.control_flow import LOOP_BEGIN, LOOP_END, LOOP_RESULT, LOOP_STATE, control_flow
from packager.graph.rewrite import nodes_of


class BodyImporter(Protocol):
    """What a loop needs of the importer (``importer.Importer``)."""

    bb: Any
    analyzer: Any
    extents: Any
    value_bounds: Any
    _nodes: dict[str, Any]

    def save(self) -> Any:
        """Return what ``restore`` needs."""

    def restore(self, saved: Any) -> None:
        """Forget what was imported since ``save``."""

    def convert_nodes(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Import nodes."""

    def taken(self) -> list[Any]:
        """Return expressions that are 1 in runs that compute the loop."""

    def _known(self, name: str) -> Any: ...

    def _element_type(self, name: str) -> str: ...


MAX_ATTEMPTS = 8
SCALAR = relax.TensorType([], "int64")


# In place of a state and an axis: the number of iterations so far.
ITERATIONS = (-1, 0)


@dataclass(frozen=True)
class _Axis:
    """A varying extent: axis ``axis`` of state ``state``, an upper bound if it is known, and its variable; or
    ``ITERATIONS``."""

    state: int
    axis: int
    bound: Any
    variable: Any = None

    @property
    def is_counter(self) -> bool:
        return (self.state, self.axis) == ITERATIONS

    @property
    def kind(self) -> str:
        """The first part of its variable's name."""
        return "loop" if self.is_counter else "state"


@dataclass(frozen=True)
class _Body:
    """An imported body: the number of the iteration, the states, and its results."""

    number: Any
    axes: tuple[_Axis, ...]
    states: list[Any]
    going: Any
    nexts: list[Any]
    scanned: list[Any]
    inner: int  # run-time extents that existed before


def convert_loop(importer: BodyImporter, node: onnx.NodeProto) -> list[Any]:
    """Import a Loop; return its results. Raises ModelError."""
    return _Loop(importer, node).convert()


class _Loop:
    def __init__(self, importer: BodyImporter, node: onnx.NodeProto) -> None:
        self.importer, self.node, self.builder = importer, node, importer.bb
        self.body: onnx.GraphProto = attributes_of(node)["body"]
        trip, going, *initial = [*node.input, ""][: max(len(node.input), 2)]
        self.trip, self.count, self.bound = self._trip(trip)
        goes = not going or bool(np.all(False if (known := importer._known(going)) is None else known))
        self.going = relax.const(1, "int64") if goes else self._scalar(self._tensor(going))
        for taken in importer.taken():  # no iteration in a run that takes another branch
            self.going = self.builder.emit(relax.op.multiply(self.going, as_tensor(self.builder, taken)))
        self.initial = [self._tensor(name) for name in initial if name]

    def convert(self) -> list[Any]:
        """Import the body until its states have the extents that they start with."""
        stacks = len(self.body.output) - 1 > len(self.initial)
        axes: dict[tuple[int, int], Any] = {ITERATIONS: None} if stacks and self.bound is None else {}
        for _ in range(MAX_ATTEMPTS):
            saved = self.importer.save()
            body = self._import_body([_Axis(state, axis, bound) for (state, axis), bound in axes.items()])
            found = self._changing(body)
            if found == axes:
                return self._end(body)
            self.importer.restore(saved)
            axes = found
        raise ModelError(
            f"node {title_of(self.node)!r}: the shapes of its states change in ways that are not supported",
            hint="give the states shapes that follow from the number of the iteration, or keep them",
        )

    def _tensor(self, name: str) -> Any:
        value = self.importer._nodes[name]
        return as_tensor(self.builder, value, self.importer._element_type(name)) if is_symbolic(value) else value

    def _scalar(self, value: Any) -> Any:
        """Return a tensor of one element as an int64 scalar."""
        whole = value if dtype_of(value) == "int64" else self.builder.emit(relax.op.astype(value, "int64"))
        return whole if not extents(whole) else self.builder.emit(relax.op.reshape(whole, []))

    def _condition(self, value: Any) -> Any:
        """Return whether a loop goes on as an int64 scalar."""
        known = value.value.numpy() if isinstance(value, GenericConst) else None
        return self._scalar(value) if known is None else relax.const(int(known.item()), "int64")

    def _trip(self, name: str) -> tuple[Any, Any, Any]:
        """Return the number of iterations: as a scalar, or as an extent, which the host knows; and an upper bound."""
        if not name:
            return None, 2**62, None
        known = self.importer._known(name)
        if known is not None:
            count = known.item()
            if isinstance(count, int):
                return None, max(count, 0), max(count, 0) if count <= LARGEST else None
            return None, count, count
        scalar, bound = self._scalar(self._tensor(name)), self.importer.value_bounds.bound(name)
        if bound is None:
            return scalar, None, None
        # Read as an extent, so that a run refuses a count beyond its bound.
        scalar = self.builder.emit(relax.op.maximum(scalar, relax.const(0, "int64")))
        return None, self.importer.extents.read(self.builder, scalar, bound, "trip"), bound

    @property
    def is_counted(self) -> bool:
        """Whether it always runs as often as the trip count says, which is known in dims."""
        source = next((n for n in self.body.node if self.body.output[0].name in n.output), None)
        passed = self.body.output[0].name
        while source is not None and source.op_type == "Identity":
            passed = source.input[0]
            source = next((n for n in self.body.node if passed in n.output), None)
        always = passed == self.body.input[1].name or self.importer._known(passed) is not None
        starts = not isinstance(self.going, relax.Var)
        known = self.importer._known(self.node.input[0]) if self.node.input[0] else None
        return always and starts and known is not None and self.bound is not None

    def _import_body(self, axes: Sequence[_Axis]) -> _Body:
        importer, builder = self.importer, self.builder
        inner = len(importer.extents.found)
        first = [_expr(self._start(axis)) for axis in axes]
        trip = [] if self.trip is None else [self.trip]
        operands = [*trip, self.going, *self.initial, _expr(-1 if self.count is None else self.count), *first]
        begin = control_flow(LOOP_BEGIN, operands, [SCALAR] * (1 + len(axes)))
        (number, *scalars), made = self._fields(begin), []
        for axis, scalar in zip(axes, scalars, strict=True):
            # Without a bound a state's extent may still get one from the body, but iterations only from the user.
            limit = LARGEST if axis.bound is None and not axis.is_counter else axis.bound
            variable = importer.extents.read(builder, scalar, limit, axis.kind)
            made.append(_Axis(axis.state, axis.axis, axis.bound, variable))
        states = []
        for place, initial in enumerate(self.initial):
            shape = [*map(_expr, extents(initial))]
            for axis in made:
                if axis.state == place:
                    shape[axis.axis] = axis.variable
            ty = relax.TensorType(shape, dtype_of(initial))
            states.append(builder.emit(control_flow(LOOP_STATE, [number, _expr(place)], [ty])))
        values = [number, relax.const(True, "bool"), *states]
        for value, given in zip(self.body.input, values, strict=True):
            importer._nodes[value.name] = given
        importer.convert_nodes(self.body.node)
        names = [value.name for value in self.body.output]
        results = [self._tensor(name) for name in names]
        count = len(states)
        return _Body(number, tuple(made), states, results[0], results[1 : 1 + count], results[1 + count :], inner)

    def _start(self, axis: _Axis) -> Any:
        """Return what a varying extent is before the loop."""
        return 0 if axis.is_counter else extents(self.initial[axis.state])[axis.axis]

    def _fields(self, call: Any) -> list[Any]:
        result = self.builder.emit(call)
        if not isinstance(result.ty, relax.TupleType):
            return [result]
        return [self.builder.emit(relax.TupleGetItem(result, index)) for index in range(len(result.ty.fields))]

    def _changing(self, body: _Body) -> dict[tuple[int, int], Any]:
        """Return the axes of states whose extents change, with bounds."""
        analyzer = self.importer.analyzer
        known = {(axis.state, axis.axis): axis for axis in body.axes}
        found: dict[tuple[int, int], Any] = {
            place: self._most(axis.variable) for place, axis in known.items() if axis.is_counter
        }
        self.bound = found.get(ITERATIONS, self.bound)
        for state, (old, new) in enumerate(zip(body.states, body.nexts, strict=True)):
            before, after = extents(old), extents(new)
            if len(before) != len(after) or dtype_of(old) != dtype_of(new):
                title = f"node {title_of(self.node)!r}"
                hint = "such loops are not supported"
                raise ModelError(f"{title}: state {state} changes its rank or its element type", hint=hint)
            for axis, (have, following) in enumerate(zip(before, after, strict=True)):
                if (state, axis) in known:
                    found[state, axis] = self._bound(known[state, axis], following)
                elif not analyzer.can_prove_equal(_expr(have), _expr(following)):
                    found[state, axis] = None
        return found

    def _bound(self, axis: _Axis, following: Any) -> Any:
        """Return an upper bound of a varying extent, given its value for the next iteration."""
        analyzer = self.importer.analyzer
        start = self._most(self._start(axis))
        growth = analyzer.simplify(_expr(following) - axis.variable)
        if not _uses(following, axis.variable):
            return max(start, self._most(following))
        if not _uses(growth, axis.variable) and self.bound is not None:
            return start + self._most(self.bound) * max(self._most(growth), 0)
        if axis.bound is not None:
            return axis.bound
        if (most := self._most(axis.variable)) < LARGEST:  # the user's
            return most
        raise ModelError(
            f"node {title_of(self.node)!r}: axis {axis.axis} of state {axis.state} grows with each iteration, and "
            "nothing bounds it",
            hint=f"give its maximum: --dim {axis.variable.name}=1:MAX, or bound the number of iterations in the model",
        )

    def _most(self, extent: Any) -> int:
        return int(self.importer.analyzer.const_int_bound(_expr(extent)).max_value)

    def _end(self, body: _Body) -> list[Any]:
        importer, builder = self.importer, self.builder
        inner = [found.variable for found in importer.extents.found[body.inner :]]
        after = [
            axis.variable + 1 if axis.is_counter else extents(body.nexts[axis.state])[axis.axis] for axis in body.axes
        ]
        pairs = [e for axis, e in zip(body.axes, after, strict=True) for e in (axis.variable, _expr(e))]
        bound = 0 if self.bound is None else self.bound
        rooms = []
        for value in body.scanned:
            if any(_uses(extent, variable) for extent in extents(value) for variable in inner):
                raise ModelError(
                    f"node {title_of(self.node)!r}: a scan output has other extents in each iteration",
                    hint="such loops are not supported",
                )
            rooms.append(relax.TensorType([_expr(bound), *map(_expr, extents(value))], dtype_of(value)))
        operands = [body.number, self._condition(body.going), *body.nexts, *body.scanned, *pairs]
        end = control_flow(LOOP_END, operands, [*[SCALAR] * (1 + len(body.axes)), *rooms])
        count, *others = self._fields(end)
        final = {
            (axis.state, axis.axis): importer.extents.read(builder, scalar, axis.bound, axis.kind)
            for axis, scalar in zip(body.axes, others[: len(body.axes)], strict=True)
        }
        results = []
        for place, state in enumerate(body.states):
            shape = [final.get((place, axis), extent) for axis, extent in enumerate(extents(state))]
            results.append(self._result(count, state, shape))
        collected = others[len(body.axes) :]
        if collected:
            number = bound if self.is_counted else final.get(ITERATIONS)
            number = importer.extents.read(builder, count, bound, "loop") if number is None else number
            results += [self._result(count, room, [number, *extents(room)[1:]]) for room in collected]
        return results

    def _result(self, count: Any, value: Any, shape: Sequence[Any]) -> Any:
        ty = relax.TensorType([*map(_expr, shape)], dtype_of(value))
        return self.builder.emit(control_flow(LOOP_RESULT, [count, value], [ty]))


def _expr(extent: Any) -> Any:
    return tirx.IntImm("int64", extent) if isinstance(extent, int) else extent


def _uses(extent: Any, variable: Any) -> bool:
    return any(variable.same_as(v) for v in nodes_of(_expr(extent), tirx.Var))
