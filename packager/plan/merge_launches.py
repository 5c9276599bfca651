"""Merges calls of small kernels that do not depend on each other into one launch, for GPUs.

A launch takes a microsecond or more, however little there is to do: rotary embeddings of queries and keys and what puts
values into a cache are three, lookups of several tables as many as there are tables. A call moves up to the first one
that it can run beside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from packager.ir.call_plan import Operand
from packager.ir.model import CallSource
from packager.ir.primitives import FunctionGroup, Kernel
from packager.plan.calls import Placed, PlannedCall, PlannedTensor, owners, root
from packager.plan.merged_kernels import Nest, nest_of

# Threads of a call that are fewer than a GPU has at once: others fill it by themselves.
MOST_THREADS = 1 << 17
# Calls of a launch, and its pointers: the code of all is fetched, and 4 KB of parameters are what a launch has.
MOST_CALLS, MOST_POINTERS = 8, 48
# Bytes of results that exist earlier than they need to.
MOST_EARLY_BYTES = 1 << 20

# A tensor's memory: itself, until it has a place in the arena.
Key = Operand | int


@dataclass
class Launch:
    """Calls that run at the place of the first of them."""

    place: int
    calls: list[PlannedCall] = field(default_factory=list)

    def takes(self, call: PlannedCall) -> bool:
        """Whether there is room for a call."""
        pointers = sum(len(own.operands) for own in (*self.calls, call))
        return len(self.calls) < MOST_CALLS and pointers <= MOST_POINTERS


class LaunchMerger:
    """Merges the calls of entries; the same kernels become one kernel, wherever they are called."""

    def __init__(self) -> None:
        self._nests: dict[str, Nest | None] = {}
        self._merged: dict[tuple[str, ...], Kernel] = {}

    def merge(self, calls: list[PlannedCall], nbytes: Callable[[PlannedTensor], int]) -> None:
        """Replace calls that are alone in their branch; ``nbytes`` says how large a tensor is."""
        launches: list[Launch] = []
        read: dict[Key, int] = {}  # the last place at which a memory is read
        written: dict[Key, int] = {}
        for index, call in enumerate(calls):
            if call.dropped:
                continue
            reads, writes = (set(_keys(call, written=each)) for each in (False, True))
            places = [written[key] for key in reads | writes if key in written]
            after = max([*places, *(read[key] for key in writes if key in read)], default=-1)
            place = index
            if self._is_small(call):
                found = next((each for each in launches if each.place > after and each.takes(call)), None)
                if found is None or _early_bytes(call, nbytes) > MOST_EARLY_BYTES:
                    launches.append(found := Launch(index))
                found.calls.append(call)
                place = found.place
            for last, keys in ((read, reads), (written, writes)):
                last.update({key: max(place, last.get(key, -1)) for key in keys})
        for launch in launches:
            if len(launch.calls) > 1:
                self._replace(calls, launch)

    def _is_small(self, call: PlannedCall) -> bool:
        """Whether a call can be merged, and is worth it."""
        function = call.function
        if call.branch or call.elements is not None or not isinstance(function, Kernel):
            return False
        if any(isinstance(root(tensor), Placed) for tensor in call.operands):
            return False
        if function.symbol not in self._nests:
            self._nests[function.symbol] = nest_of(function)
        nest = self._nests[function.symbol]
        return nest is not None and nest.blocks * nest.threads <= MOST_THREADS

    def _replace(self, calls: list[PlannedCall], launch: Launch) -> None:
        first, *others = launch.calls
        symbols = tuple(call.function.symbol for call in launch.calls)
        if symbols not in self._merged:
            kernels = tuple(call.function for call in launch.calls if isinstance(call.function, Kernel))
            parameters = tuple(parameter for kernel in kernels for parameter in kernel.parameters)
            name = f"{symbols[0]}_and_{len(others)}_more"
            number = sum(kernel.symbol.startswith(name) for kernel in self._merged.values())
            symbol = f"{name}_{number}" if number else name
            self._merged[symbols] = Kernel(symbol, parameters, members=kernels)
        kernel = self._merged[symbols]
        sources = [call.source for call in launch.calls]
        ops, nodes = ([each for source in sources for each in getattr(source, name)] for name in ("ops", "nodes"))
        calls[launch.place] = replace(
            first,
            function=kernel,
            group=FunctionGroup((kernel,)),
            operands=[tensor for call in launch.calls for tensor in call.operands],
            source=CallSource(tuple(dict.fromkeys(ops)), tuple(dict.fromkeys(nodes))),
            merged=tuple(launch.calls),
        )
        for call in others:
            for tensor in _results(call):
                whole = root(tensor)
                whole.first = launch.place if whole.first is None else min(whole.first, launch.place)
            call.dropped = True


def _results(call: PlannedCall) -> Iterator[PlannedTensor]:
    """Yield the tensors that a call writes."""
    for parameter, tensor in zip(call.function.parameters, call.operands, strict=True):
        if parameter.written:
            yield tensor


def _early_bytes(call: PlannedCall, nbytes: Callable[[PlannedTensor], int]) -> int:
    """Return the bytes that a call's results need of the arena."""
    results = [root(tensor) for tensor in _results(call)]
    return sum(nbytes(tensor) for tensor in results if tensor.operand is None)


def _keys(call: PlannedCall, *, written: bool) -> Iterator[Key]:
    """Yield the memory that a call writes, or that it reads."""
    for parameter, tensor in zip(call.function.parameters, call.operands, strict=True):
        if parameter.written == written:
            for owner, _ in owners(tensor):
                yield owner.operand if owner.operand is not None else id(owner)
