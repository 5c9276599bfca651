"""The planner's mutable tensors and calls; converts these to the entrypoint's calls, and records their primitive
functions for the manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from packager.bundle.manifest import Dim, Primitive
from packager.bundle.selection import Selection
from packager.graph import symbolic
from packager.graph.cost import estimate
from packager.ir.call_plan import Branch, Call, Index, Memory, Operand, Subject, Switch
from packager.ir.model import CallSource, NamedArray
from packager.ir.primitives import Cost, FunctionGroup, Kernel, PrimitiveFunction
from packager.ir.shapes import Extent
from packager.plan.arena import Buffer

# Calls below this work (about 10 us) run on one thread: parallelizing costs more than it saves. One byte of traffic
# counts as BYTE_WORK FLOPs.
PARALLEL_WORK = 1 << 20
BYTE_WORK = 5


class PlannedTensor:
    """A tensor during planning: its memory, or the buffer that it aliases."""

    def __init__(self, operand: Operand | None, shape: tuple[Any, ...], dtype: str) -> None:
        self.operand = operand  # None until the arena is allocated
        self.shape = shape
        self.dtype = dtype
        self.constant: tuple[str, NamedArray] | None = None  # its content, if it is a constant of main
        self.first: int | None = None  # its lifetime, in steps
        self.last: int | None = None
        self.moved: PlannedTensor | None = None  # whose memory it has instead, decided after calls were planned

    def touch(self, step: int) -> None:
        """Extend its lifetime to a step; steps must not decrease."""
        self.first = step if self.first is None else self.first
        self.last = step

    def buffer(self, nbytes: int, digits: Mapping[int, int]) -> Buffer:
        """Return its request for a place in the arena."""
        return Buffer(nbytes, self.first or 0, self.last or 0, digits)


class Alias(PlannedTensor):
    """A view of another tensor's memory with another shape."""

    def __init__(self, source: PlannedTensor, view: PlannedTensor) -> None:
        super().__init__(None, view.shape, view.dtype)
        self.source = source


class Placed(PlannedTensor):
    """A tensor whose memory is found within that of others, its ``parts``."""

    def __init__(self, view: PlannedTensor, *parts: PlannedTensor) -> None:
        super().__init__(Operand("placed", 0), view.shape, view.dtype)
        self.parts = parts

    def touch(self, step: int) -> None:
        """Extend the lifetime of all parts."""
        super().touch(step)
        for part in self.parts:
            root(part).touch(step)

    def memory(self) -> Memory:
        """Return its memory, after all tensors are allocated."""
        raise NotImplementedError


class Switched(Placed):
    """The value of one of several cases, in its memory, by the value of ``subject``."""

    def __init__(self, view: PlannedTensor, subject: Subject, cases: Sequence[tuple[int, PlannedTensor]]) -> None:
        super().__init__(view, *(tensor for _, tensor in cases))
        self.subject, self.cases = subject, tuple(cases)

    def memory(self) -> Memory:
        """Return the switch."""
        return Switch(self.subject, tuple((value, operand_of(tensor)) for value, tensor in self.cases))


def root(tensor: PlannedTensor) -> PlannedTensor:
    """Return the tensor that owns the memory, or the one that says where it is."""
    while tensor.moved is not None or isinstance(tensor, Alias):
        tensor = tensor.moved if tensor.moved is not None else tensor.source  # type: ignore[attr-defined]
    return tensor


def owners(tensor: PlannedTensor, branch: Branch = ()) -> Iterator[tuple[PlannedTensor, Branch]]:
    """Yield the tensors that may own the memory, each with the branch in which it does."""
    whole = root(tensor)
    if isinstance(whole, Switched):
        for value, case in whole.cases:
            yield from owners(case, (*branch, (whole.subject, value)))
    elif isinstance(whole, Placed):
        for part in whole.parts:
            yield from owners(part, branch)
    else:
        yield whole, branch


def operand_of(tensor: PlannedTensor) -> Memory:
    """Return the memory of an allocated tensor."""
    whole = root(tensor)
    if isinstance(whole, Placed):
        return whole.memory()
    assert whole.operand is not None
    return whole.operand


@dataclass
class PlannedCall:
    """A call of a primitive function; ``names`` maps its group's shape variables to extents over the dims.

    ``dropped``: a no-op, since it would copy memory to itself. ``written`` is the number of bytes written, if less than
    the size of its results. ``elements`` is the number of elements written, if it may be 0. ``branch`` is that in which
    the results are used. ``merged`` are the calls that it does at once, if it is of several.
    """

    function: PrimitiveFunction
    group: FunctionGroup
    operands: list[PlannedTensor]
    names: Mapping[Any, Extent]
    source: CallSource
    dropped: bool = False
    written: int | None = None
    elements: Extent | None = None
    branch: Branch = ()
    merged: tuple[PlannedCall, ...] = ()


@dataclass(frozen=True)
class PlannedRead:
    """A read of run-time extent ``number`` from ``scalar``, before the call with index ``before``.

    ``count`` is set if that is the number of iterations of a loop.
    """

    number: int
    scalar: PlannedTensor
    before: int
    count: Index | None = None


def selection_of(function: PrimitiveFunction) -> Selection:
    """Return what a session has of a function with candidates."""
    found = function.candidates
    assert found is not None
    return Selection(function.symbol, found.problem, found.revision, found.names, found.chosen)


class CallRecorder:
    """Makes the calls of a plan, after all tensors are allocated; ``primitives`` are the called functions.

    ``selection`` maps symbols of functions with candidates to their selection index.
    """

    def __init__(self, dims: Mapping[str, Dim], selection: Mapping[str, int]) -> None:
        self.dims = dims
        self.selection = selection
        self.primitives: dict[str, Primitive] = {}

    def step(self, call: PlannedCall) -> Call:
        """Convert a call and record it."""
        function = call.function
        scalars = tuple(symbolic.to_extent(scalar, call.names) for scalar in function.scalars)
        extent = None if function.extent is None else symbolic.to_extent(function.extent, call.names)
        cost = self._cost(call)
        self._record(call, cost)
        work = call.group.cost or cost
        parallel = (
            extent not in (None, 1) and work.flops + BYTE_WORK * (work.bytes_read + work.bytes_written) >= PARALLEL_WORK
        )
        operands = tuple(operand_of(tensor) for tensor in call.operands)
        return Call(
            function.symbol,
            operands,
            scalars,
            extent,
            parallel,
            self.selection.get(function.symbol),
            call.elements,
            call.branch,
        )

    def _cost(self, call: PlannedCall) -> Cost:
        """Return the cost of a kernel; the last function of a partition is attributed the work of all."""
        if call.merged:
            costs = [self._cost(each) for each in call.merged]
            return Cost(*(sum(getattr(cost, each.name) for cost in costs) for each in fields(Cost)))
        group, function = call.group, call.function
        if isinstance(function, Kernel):
            cost = estimate(function, call.names, self.dims)
            return cost if call.written is None else replace(cost, bytes_written=min(cost.bytes_written, call.written))
        return group.cost if group.cost is not None and function is group.functions[-1] else Cost(0, 0, 0)

    def _record(self, call: PlannedCall, cost: Cost) -> None:
        # Call sites of one function differ only in dims: the manifest has the largest.
        symbol, source = call.function.symbol, call.source
        new = Primitive(symbol, call.group.composite, source.ops, (), 0, 0, 0, 0)
        known = self.primitives.get(symbol, new)
        self.primitives[symbol] = replace(
            known,
            nodes=tuple(dict.fromkeys([*known.nodes, *source.nodes])),
            flops=max(known.flops, cost.flops),
            bytes_read=max(known.bytes_read, cost.bytes_read),
            bytes_written=max(known.bytes_written, cost.bytes_written),
            calls=known.calls + 1,
        )
