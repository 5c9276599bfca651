"""Lower scheduled kernels to C functions over pointers and integers for TVM's LLVM and C code generators."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.ir import PrimType
from tvm.tirx import stmt as st
from tvm_ffi import structural_map

from packager.errors import BackendError
from packager.graph.rewrite import nodes_of
from packager.ir.primitives import Kernel
from packager.lower.kernels import STACK_BYTES, _static_bytes, take_pointers

_S = s_tir.transform

_T = tirx.transform

# TVM's default pipeline (tvm/s_tir/pipeline.py) without the passes for GPUs and packed functions. LowerTVMBuiltin is
# left out on purpose: it turns stack buffers into run-time allocations.
LOWERING = [
    _S.CanonicalizeLoop(),
    _S.LowerInitBlock(),
    _S.PlanAndUpdateBufferAllocationLocation(),
    _S.ConvertBlocksToOpaque(),
    _S.CompactBufferAllocation(),
    _S.LowerMatchBuffer(),
    _S.StmtSimplify(),
    _S.AnnotateIrregularLoop(),
    _S.LowerOpaqueBlock(),
    _T.FlattenBuffer(),
    _T.BF16ComputeLegalize(),
    _T.NarrowDataType(32),
    _S.LoopPartition(),
    _T.VectorizeLoop(True),
    _T.StorageRewrite(),
    _S.HoistIfThenElse(),
    _T.UnrollLoop(),
    _S.RenormalizeSplitPattern(),
    _T.StmtSimplify(),
    _T.RemoveNoOp(),
    _S.RewriteUnsafeSelect(),
    _T.CommonSubexprElim(),
    _T.FP8ComputeLegalize(),
    _T.VerifyMemory(),
]


def lower_kernels(kernels: tuple[Kernel, ...], target: tvm.target.Target) -> tvm.IRModule:
    """Lower kernels to a module of C functions, ready for a CPU code generator.

    Raises BackendError for a kernel that needs more than STACK_BYTES of stack.
    """
    module = tvm.IRModule({kernel.symbol: kernel.primfunc for kernel in kernels})
    module = _T.BindTarget(target.with_host(target))(module)
    module = tvm.transform.Sequential(LOWERING)(module)
    by_name = {var.name_hint: function for var, function in module.functions.items()}
    module = tvm.IRModule({k.symbol: _to_c_function(k, by_name[k.symbol], target) for k in kernels})
    return tvm.transform.Sequential([_T.FP8StorageLegalize(), _T.BF16StorageLegalize(), _T.LowerIntrin()])(module)


def _to_c_function(kernel: Kernel, function: Any, target: tvm.target.Target) -> Any:
    """Replace the buffer parameters by pointers and integers: TVM no longer has MakeUnpackedAPI."""
    _check_stack(kernel, function)
    pointers, declarations = take_pointers(function)
    statements = list(function.body.seq) if isinstance(function.body, st.SeqStmt) else [function.body]
    scalars = list(kernel.scalars)
    if kernel.extent is not None:
        begin, end = tirx.Var("begin", "int64"), tirx.Var("end", "int64")
        scalars += [begin, end]
        statements[-1] = _over_range(kernel, statements[-1], begin, end)
    # Nested parallel loops of some operators would call TVM's thread pool.
    statements = [structural_map(statement, (st.For, _serial)) for statement in statements]
    body = st.AttrStmt(0, "device_type", tirx.const(1, "int32"), st.SeqStmt([*declarations, *statements]))
    body = st.AttrStmt(0, "device_id", tirx.const(0, "int32"), body)
    c_function = tirx.PrimFunc(
        [*pointers, *scalars], st.SeqStmt([body, st.Return(tirx.const(0, "int32"))]), ret_type=PrimType("int32")
    )
    return c_function.with_attrs({"tirx.noalias": True, "target": target, "global_symbol": kernel.symbol})


def _over_range(kernel: Kernel, loop: Any, begin: Any, end: Any) -> Any:
    if not isinstance(loop, st.For) or int(loop.kind) != st.ForKind.PARALLEL:
        raise BackendError(f"the parallel loop of {kernel.symbol!r} is not outermost after lowering")
    variable = loop.loop_var
    begin, end = (tirx.Cast(variable.ty, v) if str(variable.ty) != "int64" else v for v in (begin, end))
    return st.For(variable, begin, end - begin, st.ForKind.SERIAL, loop.body)


def _serial(loop: Any) -> Any:
    if int(loop.kind) != st.ForKind.PARALLEL:
        return loop
    return st.For(loop.loop_var, loop.min, loop.extent, st.ForKind.SERIAL, loop.body)


def _check_stack(kernel: Kernel, function: Any) -> None:
    for allocation in nodes_of(function.body, st.AllocBuffer):
        if _static_bytes(allocation.buffer) > STACK_BYTES:
            raise BackendError(f"kernel {kernel.symbol!r} needs a stack buffer of shape {allocation.buffer.shape}")
