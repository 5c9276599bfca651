"""Split a scheduled PrimFunc into kernels: one C function per loop nest.

A PrimFunc may hold several loop nests with buffers between them. Each nest becomes a kernel, and each buffer between
nests a *workspace* that the call plan puts into the arena, so kernels never allocate. The parallel outer loop of a nest
becomes a range [begin, end) that the caller chooses: generated code contains no threading. The C signature is
``int32_t symbol(T *..., int64_t shape..., [int64_t begin, int64_t end])``.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import tvm
from tvm import s_tir, tirx
from tvm.ir import PointerType, PrimType
from tvm.tirx import stmt as st
from tvm.tirx.buffer import is_buffer_var
from tvm.tirx.op import register_intrin_lowering

from packager.errors import BackendError
from packager.graph.identity import IdentitySet
from packager.graph.rewrite import nodes_of
from packager.ir.primitives import FunctionGroup, Kernel, Parameter

# Buffers used by a single nest stay on its stack up to this size, in bytes.
STACK_BYTES = 16 * 1024
# Avoids clashes with libc: TVM names functions after operators ("max", "for_each").
SYMBOL_PREFIX = "pkf_"
# An attribute of functions all of whose results are rounded to 16 bits, and of their kernels.
ROUNDED = "packager.rounded"


def make_group(name: str, primfunc: tirx.PrimFunc, device: str = "cpu") -> FunctionGroup:
    """Split a scheduled S-TIR PrimFunc into kernels and workspaces.

    On CUDA each nest is a launch, and all global buffers are workspaces.

    Raises BackendError if the body is not a root block of loop nests.
    """
    if not isinstance(primfunc.body, s_tir.SBlockRealize):
        raise BackendError(f"PrimFunc {name!r} is not schedulable S-TIR")
    root = primfunc.body.block
    nests = list(root.body.seq) if isinstance(root.body, st.SeqStmt) else [root.body]
    used = [_used_buffers(nest) for nest in nests]
    workspaces = []
    local: list[list[Any]] = [[] for _ in nests]
    for buffer in root.alloc_buffers:
        users = [index for index, buffers in enumerate(used) if buffer in buffers]
        if len(users) == 1 and _stays_inside(buffer, device):
            local[users[0]].append(buffer)
        elif users:
            workspaces.append(buffer)
    kernels = []
    for index, nest in enumerate(nests):
        symbol = SYMBOL_PREFIX + _identifier(name) + (f"_{index}" if len(nests) > 1 else "")
        kernels.append(_make_kernel(symbol, primfunc, nest, workspaces, local[index]))
    shapes = tuple(tuple(p.shape) if is_buffer_var(p) else p for p in primfunc.params)
    return FunctionGroup(tuple(kernels), shapes, tuple(_nbytes(buffer) for buffer in workspaces))


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name, flags=re.ASCII)


def _used_buffers(nest: Any) -> IdentitySet:
    return IdentitySet(var for var in nodes_of(nest, tirx.Var) if is_buffer_var(var))


def _stays_inside(buffer: Any, device: str) -> bool:
    """Tell whether a buffer of a single nest is kept on the stack, in registers or in shared memory."""
    if buffer.scope() not in ("", "global"):
        return True  # lowering shrinks it to the tile of one iteration; _check_stack tests the result
    return device == "cpu" and _static_bytes(buffer) <= STACK_BYTES


def _nbytes(buffer: Any) -> Any:
    """Return the size of a buffer in bytes, an integer or an expression over shape variables."""
    size: Any = tirx.const(_itemsize(buffer), "int64")
    for extent in buffer.shape:
        size = size * tirx.Cast(PrimType("int64"), extent)
    return size


def _itemsize(buffer: Any) -> int:
    return (int(tvm.runtime.DataType(buffer.dtype).bits) + 7) // 8


def _static_bytes(buffer: Any) -> float:
    size: float = _itemsize(buffer)
    for extent in buffer.shape:
        if not isinstance(extent, tirx.IntImm):
            return float("inf")
        size *= int(extent)
    return size


def _make_kernel(symbol: str, primfunc: Any, nest: Any, workspaces: list[Any], local: list[Any]) -> Kernel:
    used = _used_buffers(nest)
    stored = IdentitySet(store.buffer for store in nodes_of(nest, tirx.BufferStore))
    parameters = []
    buffers = []
    kinds: dict[Literal["argument", "workspace"], Any] = {"argument": primfunc.params, "workspace": workspaces}
    for kind, candidates in kinds.items():
        for index, buffer in enumerate(candidates):
            if buffer in used:
                parameters.append(Parameter(kind, index, written=buffer in stored))
                buffers.append(buffer)
    nest, extent = _take_range(nest)
    root = s_tir.SBlock([], [], [], "root", nest, alloc_buffers=local)
    body = s_tir.SBlockRealize([], True, root)
    function = tirx.PrimFunc(buffers, body).with_attr("tirx.noalias", True).with_attr("s_tir", True)
    if primfunc.attrs and ROUNDED in primfunc.attrs:
        function = function.with_attr(ROUNDED, True)
    return Kernel(
        symbol=symbol,
        primfunc=function,
        parameters=tuple(parameters),
        scalars=tuple(_shape_variables(primfunc)),
        extent=extent,
    )


def _take_range(nest: Any) -> tuple[Any, Any | None]:
    """Return the nest, and the extent of its outer loop if that is parallel with more than one iteration."""
    if not isinstance(nest, st.For) or int(nest.kind) != st.ForKind.PARALLEL:
        return nest, None
    if isinstance(nest.extent, tirx.IntImm) and int(nest.extent) == 1:
        return st.For(nest.loop_var, nest.min, nest.extent, st.ForKind.SERIAL, nest.body), None
    return nest, nest.extent


def _shape_variables(primfunc: Any) -> list[Any]:
    """Return the shape variables and scalar parameters of a PrimFunc, in order of appearance."""
    found = IdentitySet()
    for parameter in primfunc.params:
        if is_buffer_var(parameter):
            for extent in parameter.shape:
                found |= IdentitySet(nodes_of(extent, tirx.Var))
        else:
            found.add(parameter)
    return list(found)


def _lower_to_libm(call: Any) -> Any:
    """Lower to the LLVM intrinsic, which calls libm per element: TVM has no rule for these functions."""
    return tirx.call_llvm_pure_intrin(call.ty, call.op.name.replace("tirx.", "llvm."), *call.args)


for _name in ("tirx.sinh", "tirx.cosh"):
    register_intrin_lowering(_name, target="llvm", f=_lower_to_libm, level=99)


def take_pointers(function: Any) -> tuple[list[Any], list[Any]]:
    """Return a pointer for each buffer parameter of a lowered function, and the statements that declare the buffers."""
    pointers, declarations = [], []
    for index, buffer in enumerate(function.params):  # buffer names come from the model and may be any text
        pointer = tirx.Var(f"p{index}", PointerType(PrimType(str(buffer.dtype)), "global"))
        pointers.append(pointer)
        if isinstance(buffer.elem_offset, tirx.Var):  # pointers point at the first element already
            declarations.append(st.Bind(buffer.elem_offset, tirx.const(0, str(buffer.elem_offset.ty))))
        declarations.append(st.DeclBuffer(buffer, data=pointer))
    return pointers, declarations
