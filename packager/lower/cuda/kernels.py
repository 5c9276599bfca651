"""Lower scheduled loop nests to CUDA device functions and launch dimensions.

A nest bound to threads becomes one kernel ``void symbol(T *..., int64_t shape...)``. Grid and block dimensions are read
from the nest as expressions over the shape variables; TVM's host code, which looks kernels up by name at each call, is
not used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.ir import Call, TensorLoad
from tvm.tirx import stmt as st

from packager.errors import BackendError
from packager.graph.identity import IdentitySet
from packager.graph.rewrite import nodes_of
from packager.ir.primitives import Kernel
from packager.lower.cuda.codegen_workarounds import (
    branch_on_vectors,
    cast_infinities,
    check_registers,
    plain_names,
    unroll_unsupported_vectors,
)
from packager.lower.cuda.fast_math import divide_fast
from packager.lower.cuda.thread_loops import BLOCK, THREAD, side_by_side
from packager.lower.kernels import take_pointers

AXES = ("blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z")
DEVICE_KERNEL_LAUNCH = 2  # tvm::CallingConv
DYNAMIC = "shared.dyn"
# Whether a schedule lowers does not depend on the GPU architecture.
TRIAL_GPU = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})


@dataclass(frozen=True)
class Launch:
    """Launch dimensions by axis (``blockIdx.x``): integers or ``tirx`` expressions; axes not named are 1.

    ``shared_bytes`` is dynamic shared memory. The kernel ``overlaps`` earlier ones: it may be placed before these are
    complete, if it waits for them.
    """

    extents: Mapping[str, Any]
    shared_bytes: int
    overlaps: bool


_S = s_tir.transform
_T = tirx.transform
# TVM's default pipeline (tvm/s_tir/pipeline.py) up to the split of host and device code. StorageRewrite is left out: it
# merges thread-local buffers with the result of a reduction, which LowerThreadAllreduce then moves to shared memory.
# nvcc allocates registers, and MergeSharedMemoryAllocations shared memory.
LOWERING = [
    _S.CanonicalizeLoop(),
    _S.LowerCrossThreadReduction(),
    _S.LowerInitBlock(),
    _S.PlanAndUpdateBufferAllocationLocation(),
    _S.ConvertBlocksToOpaque(),
    _S.LiftThreadBinding(),
    _S.ManifestSharedMemoryLocalStage(),
    # Simplifies (step * 32 + thread) // 32 to step, so that buffers shrink to the part that each thread uses.
    _S.StmtSimplify(),
    _S.CompactBufferAllocation(),
    _S.LowerAutoCopy(),
    _S.UnifyThreadBinding(),
    _S.LowerMatchBuffer(),
    _S.StmtSimplify(),
    _S.InjectPermutedLayout(),
    _S.AnnotateIrregularLoop(),
    _S.InjectSoftwarePipeline(),
    _S.TransformMmaBufferLayout(),
    _S.LowerOpaqueBlock(),
    _T.FlattenBuffer(),
    _T.BF16ComputeLegalize(),
    _T.NarrowDataType(32),
    _S.LoopPartition(),
    branch_on_vectors,
    unroll_unsupported_vectors,
    _T.VectorizeLoop(True),
    _S.InjectVirtualThread(),
    _S.InjectDoubleBuffer(),
    _S.HoistIfThenElse(),
    _T.UnrollLoop(),
    _S.RenormalizeSplitPattern(),
    _T.StmtSimplify(),
    _T.RemoveNoOp(),
    _S.RewriteUnsafeSelect(),
]
VERIFY = [divide_fast, _T.CommonSubexprElim(), _T.FP8ComputeLegalize(), _T.VerifyMemory()]
SYNCHRONIZE = [_S.ThreadSync("shared"), _S.ThreadSync(DYNAMIC), _S.ThreadSync("warp")]
SHARE = [_S.InferFragment(), _S.LowerThreadAllreduce(), _S.MergeSharedMemoryAllocations()]
FINISH = [
    _T.FP8StorageLegalize(),
    _T.BF16StorageLegalize(),
    _T.LowerWarpMemory(),
    _T.StmtSimplify(),
    _T.LowerIntrin(),
    cast_infinities,
    plain_names,
]


def lower_cuda_kernels(
    kernels: Sequence[Kernel], target: tvm.target.Target
) -> tuple[tvm.IRModule, Mapping[str, Launch]]:
    """Lower kernels to a module of device functions, and the launch dimensions of each.

    Raises BackendError for a nest that is not bound to threads, or whose threads would have to share registers.
    """
    members = {kernel.symbol: _members(kernel) for kernel in kernels}
    single = [member for own in members.values() for member in own]
    extents = {kernel.symbol: _thread_extents(kernel) for kernel in single}
    module = tvm.IRModule({kernel.symbol: kernel.primfunc for kernel in single})
    module = _T.BindTarget(target.with_host(tvm.target.Target("llvm")))(module)
    module = tvm.transform.Sequential(LOWERING)(module)
    for function in module.functions.values():
        check_registers(function)
    module = _with_barriers(tvm.transform.Sequential(VERIFY)(module))
    module = tvm.transform.Sequential(SHARE)(module)
    by_name = {var.name_hint: function for var, function in module.functions.items()}
    for name, own in members.items():
        if len(own) > 1:
            sizes = [(int(extents[m.symbol][BLOCK]), int(extents[m.symbol][THREAD])) for m in own]
            by_name[name] = side_by_side([by_name[member.symbol] for member in own], sizes)
            extents[name] = {BLOCK: sum(blocks for blocks, _ in sizes), THREAD: max(threads for _, threads in sizes)}
    launches = {
        name: Launch(extents[name], _dynamic_bytes(name, by_name[name].body), not _is_restrict(by_name[name].body))
        for name in members
    }
    module = tvm.IRModule({k.symbol: _to_device_function(k, by_name[k.symbol], target) for k in kernels})
    return tvm.transform.Sequential(FINISH)(module), launches


def _members(kernel: Kernel) -> list[Kernel]:
    """Return a kernel, or those that it launches, each with variables and a name of its own."""
    return [
        replace(member, symbol=f"{kernel.symbol}_{number}", primfunc=s_tir.renew_defs(member.primfunc))
        for number, member in enumerate(kernel.members)
    ] or [kernel]


def _with_barriers(module: tvm.IRModule) -> tvm.IRModule:
    """Insert barriers where TVM finds that threads need them, but in functions that have all of theirs."""
    own = {var: function for var, function in module.functions.items() if _has_barriers(function.body)}
    others = tvm.IRModule({var: function for var, function in module.functions.items() if var not in own})
    return tvm.IRModule({**tvm.transform.Sequential(SYNCHRONIZE)(others).functions, **own})


def _thread_extents(kernel: Kernel) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for loop in nodes_of(kernel.primfunc.body, st.For):
        if int(loop.kind) == st.ForKind.THREAD_BINDING:
            tag = str(loop.thread_binding.thread_tag)
            if tag in AXES and _exceeds(loop.extent, found.setdefault(tag, loop.extent)):
                # The launch has the threads of the first loop; TVM guards later loops with fewer, not with more.
                raise BackendError(f"kernel {kernel.symbol!r} has loops with more threads than its launch")
    if not found:
        raise BackendError(f"kernel {kernel.symbol!r} is not bound to threads of the GPU")
    return found


def _exceeds(extent: Any, first: Any) -> bool:
    return isinstance(extent, tirx.IntImm) and isinstance(first, tirx.IntImm) and int(extent) > int(first)


def _dynamic_bytes(name: str, body: Any) -> int:
    buffers = [allocation.buffer for allocation in nodes_of(body, st.AllocBuffer)]
    dynamic = [buffer for buffer in buffers if buffer.scope() == DYNAMIC]
    if any(_is_symbolic(buffer) for buffer in buffers if buffer.scope() != DYNAMIC):
        raise BackendError(f"kernel {name!r} needs registers of symbolic size")
    if any(map(_is_symbolic, dynamic)):
        raise BackendError(f"kernel {name!r} needs shared memory of symbolic size")
    sizes = [tvm.runtime.DataType(b.dtype).itemsize * math.prod(map(int, b.shape)) for b in dynamic]
    return int(max(sizes, default=0))


def _is_symbolic(buffer: Any) -> bool:
    return not all(isinstance(extent, tirx.IntImm) for extent in buffer.shape)


def _to_device_function(kernel: Kernel, function: Any, target: tvm.target.Target) -> Any:
    """Replace the buffer parameters by pointers and integers, in the order of the kernel's parameters."""
    pointers, declarations = take_pointers(function)
    statements = list(function.body.seq) if isinstance(function.body, st.SeqStmt) else [function.body]
    device_function = tirx.PrimFunc([*pointers, *kernel.scalars], st.SeqStmt([*declarations, *statements]))
    return device_function.with_attrs(
        {
            "tirx.noalias": _is_restrict(function.body),
            "tirx.is_global_func": True,
            "calling_conv": DEVICE_KERNEL_LAUNCH,
            "target": target,
            "global_symbol": kernel.symbol,
        }
    )


def _is_restrict(body: Any) -> bool:
    """Whether the pointers of a kernel are ``__restrict__``: where a thread loads after it has stored.

    Then nvcc loads by ``ld.global.nc``, and all at once. Such loads may be answered by the cache of an SM with what was
    there when the kernel was placed, wait or not: it must not be before earlier kernels are complete. Without, ptxas
    keeps the order of loads and stores, which is that of the code anyway in other kernels. Threads that exchange values
    through global memory need that order.
    """
    return _loads_after_stores(body) and not _exchanges(body)


def _loads_after_stores(body: Any) -> bool:
    loops = [loop for loop in nodes_of(body, st.For) if int(loop.kind) != st.ForKind.THREAD_BINDING]
    return _follow_stores(body, stored=False)[0] or any(
        _loads_global(loop.body) and any(_is_global(store.buffer) for store in nodes_of(loop.body, st.BufferStore))
        for loop in loops
    )


def _follow_stores(statement: Any, *, stored: bool) -> tuple[bool, bool]:
    """Return whether loads of a thread follow its stores, and whether it has stored then: of two branches one runs."""
    match statement:
        case st.SeqStmt():
            follow = False
            for each in statement.seq:
                own, stored = _follow_stores(each, stored=stored)
                follow |= own
            return follow, stored
        case st.IfThenElse():
            cases = [each for each in (statement.then_case, statement.else_case) if each is not None]
            follows, stores = zip(*(_follow_stores(each, stored=stored) for each in cases), strict=True)
            return any(follows), any(stores) or stored
        case st.BufferStore():
            return stored and _loads_global(statement.value), stored or _is_global(statement.buffer)
    inner = getattr(statement, "body", None)
    return (False, stored) if inner is None else _follow_stores(inner, stored=stored)


def _exchanges(body: Any) -> bool:
    """Tell whether threads exchange values through global memory, with a barrier between."""
    if not _has_barriers(body):
        return False
    stored = IdentitySet(store.buffer for store in nodes_of(body, st.BufferStore))
    loaded = IdentitySet(load.source for load in nodes_of(body, TensorLoad))
    return any(buffer in loaded and _is_global(buffer) for buffer in stored)


def _has_barriers(body: Any) -> bool:
    return any(str(getattr(call.op, "name", "")).endswith("tvm_storage_sync") for call in nodes_of(body, Call))


def _loads_global(node: Any) -> bool:
    return any(_is_global(load.source) for load in nodes_of(node, TensorLoad))


def _is_global(buffer: Any) -> bool:
    return buffer.scope() in ("", "global")
