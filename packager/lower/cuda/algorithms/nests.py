"""Writes PrimFuncs of several nests, which run one after the other, each over many threads.

A nest over ``grid`` has independent iterations. A nest over ``rows`` has one iteration for each block of threads; in
it, loops by ``parallel`` are distributed over the threads of the block, with a barrier after each.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

from tvm import relax, tirx
from tvm.ir import PrimType, Range
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)
from tvm.sym import Analyzer

from packager.ir.pattern_kinds import OPAQUE
from packager.lower.tir_loops import whole_region

Extents = Sequence[Any]


def int64(value: Any) -> Any:
    """Return an integer or an expression as an expression of type int64."""
    return tirx.const(value, "int64") if isinstance(value, int) else cast(value, "int64")


def int32(value: int) -> Any:
    """Return an integer as an expression of type int32."""
    return tirx.const(value, "int32")


def cast(value: Any, dtype: str) -> Any:
    """Convert a value unless it has the type."""
    return value if str(value.ty) == dtype else tirx.Cast(PrimType(dtype), value)


def ceil_div(a: Any, b: int) -> Any:
    """Return a / b, rounded up."""
    return tirx.floordiv(int64(a) + (b - 1), int64(b))


def simplified(extent: Any) -> Any:
    """Return an extent as a constant, if it is one."""
    return Analyzer().simplify(extent)


def least(a: Any, b: Any) -> Any:
    """Return the smaller of two extents, at build time if both are known."""
    if isinstance(a, tirx.IntImm) and isinstance(b, tirx.IntImm):
        return a if int(a) <= int(b) else b
    return tirx.min(a, b)


class Nests:
    """A PrimFunc that is being written.

    Its parameters have the shapes and element types of ``inputs`` and ``outputs``, tensors as Relax knows them. Each
    extent that is no constant is a variable of the PrimFunc's own, ``inputs[i].shape[axis]``.
    """

    def __init__(self, inputs: Sequence[relax.TensorType], outputs: Sequence[relax.TensorType]) -> None:
        self._stack = contextlib.ExitStack()
        self._builder = self._stack.enter_context(IRBuilder())
        self._stack.enter_context(T.prim_func(s_tir=True))
        T.func_name("main")
        self.extents: list[list[Any]] = []
        self.inputs = [self._parameter(f"input_{i}", ty) for i, ty in enumerate(inputs)]
        self.outputs = [self._parameter(f"output_{i}", ty) for i, ty in enumerate(outputs)]
        self._stack.enter_context(T.sblock("root"))

    def _parameter(self, name: str, ty: relax.TensorType) -> Any:
        shape = [
            extent if isinstance(extent, tirx.IntImm) else tirx.Var(f"{name}_{axis}", "int64")
            for axis, extent in enumerate(ty.shape.values)
        ]
        self.extents.append(shape)
        return T.buffer_proxy(T.arg(name, T.buffer(shape, str(ty.dtype))))

    def workspace(self, shape: Extents, dtype: str) -> Any:
        """Return a buffer that the nests share."""
        return T.buffer_proxy(T.sblock_alloc_buffer([*map(int64, shape)], dtype))

    @contextlib.contextmanager
    def grid(self, name: str, *shape: Any) -> Iterator[tuple[Any, ...]]:
        """Begin a nest over all indices of a shape, which it yields."""
        total = math.prod(map(int64, shape[1:]), start=int64(shape[0]))
        with self._nest(name), T.parallel(int64(0), total) as flat:
            indices, rest = [], flat
            for extent in reversed([keep(int64(extent)) for extent in shape[1:]]):
                indices.append(keep(tirx.truncmod(rest, extent)))
                rest = keep(tirx.truncdiv(rest, extent))
            yield (rest, *reversed(indices))

    @contextlib.contextmanager
    def rows(self, name: str, extent: Any) -> Iterator[Any]:
        """Begin a nest with a block of threads for each row; yield the row."""
        with self._nest(name), T.parallel(int64(0), int64(extent)) as row:
            yield row

    @contextlib.contextmanager
    def elements(
        self, name: str, shape: Extents, reads: Sequence[Any], writes: Any, width: int
    ) -> Iterator[tuple[Any, ...]]:
        """Begin a block over the indices of vectors of a shape, which it yields: scheduled and fused as others are.

        It may read all of the tensors that it ``reads``, and writes ``width`` elements along the last axis of one.
        """
        loops = [*shape[:-1], tirx.floordiv(int64(shape[-1]), int64(width))]
        with T.grid(*map(int64, loops)) as found, T.sblock(name):
            at = [T.axis.spatial(int64(extent), loop) for extent, loop in zip(loops, _all(found), strict=True)]
            at[-1] = at[-1] * width
            T.reads(*(whole_region(_buffer(tensor)) for tensor in reads))
            counts = [*[1] * (len(at) - 1), width]
            ranges = [Range.from_min_extent(index, int64(count)) for index, count in zip(at, counts, strict=True)]
            T.writes(tirx.BufferRegion(_buffer(writes), ranges))
            yield tuple(at)

    @contextlib.contextmanager
    def places(self, name: str, shape: Extents, reads: Sequence[Any], writes: Any) -> Iterator[tuple[Any, ...]]:
        """Begin such a block that may write anywhere in one tensor."""
        with T.grid(*map(int64, shape)) as found, T.sblock(name):
            at = [T.axis.spatial(int64(extent), loop) for extent, loop in zip(shape, _all(found), strict=True)]
            T.reads(*(whole_region(_buffer(tensor)) for tensor in reads))
            T.writes(whole_region(_buffer(writes)))
            yield tuple(at)

    @contextlib.contextmanager
    def _nest(self, name: str) -> Iterator[None]:
        with T.sblock(name):
            T.reads()
            T.writes()
            yield

    def primfunc(self) -> tirx.PrimFunc:
        """Return the function; nothing more can be written."""
        self._stack.close()
        function = self._builder.get().without_attr("global_symbol")
        return function.with_attr("op_pattern", OPAQUE).with_attr("tirx.noalias", True)


def _all(loops: Any) -> list[Any]:
    return [loops] if isinstance(loops, tirx.Var) else [*loops]


def _buffer(tensor: Any) -> Any:
    """Return the buffer of a parameter."""
    return tensor[tuple(tensor.shape)].source


def one_thread() -> Any:
    """Begin what one thread does while the others of its block wait."""
    return T.serial(int64(0), int64(1))


def local(value: Any) -> Any:
    """Return a variable of a thread, ``[0]`` of a buffer, that holds a value first."""
    variable = T.buffer_proxy(T.alloc_local([1], str(value.ty)))
    variable[0] = value
    return variable


def vector(width: int) -> Any:
    """Begin what is done for each element of a vector."""
    return T.vectorized(int64(0), int64(width)) if width > 1 else T.serial(int64(0), int64(1))


def locals_of(number: int, dtype: str) -> Any:
    """Return variables of a thread, which are registers if the indices of all loads and stores are constants."""
    return T.buffer_proxy(T.alloc_local([number], dtype))


def shared(shape: Sequence[int], dtype: str) -> Any:
    """Return a buffer that the threads of a block share, in a nest over ``rows``."""
    return T.buffer_proxy(T.sblock_alloc_buffer([*shape], dtype, scope="shared"))


def keep(value: Any) -> Any:
    """Return a value that a thread computes here and once: expressions are written out wherever they are used."""
    return value if isinstance(value, tirx.IntImm | tirx.Var) else local(value)[0]


def emit(builder: Any, name: str, primfunc: tirx.PrimFunc, operands: Sequence[Any], outputs: Sequence[Any]) -> Any:
    """Emit a call of the function; return its results."""
    function = builder.add_func(primfunc, name)
    result = builder.emit(relax.call_tir(function, relax.Tuple([*operands]), [*outputs]))
    if len(outputs) == 1:
        return [result]
    return [builder.emit(relax.TupleGetItem(result, number)) for number in range(len(outputs))]


@contextlib.contextmanager
def adjacent(part: Any, steps: Any, number: Any) -> Iterator[Any]:
    """Begin a loop over the elements of a part, ``steps`` of ``number`` that lie side by side."""
    with T.serial(int32(0), steps) as step:
        element = keep(part * steps + step)
        with T.If(element < number), T.Then():
            yield element
