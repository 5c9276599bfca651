"""Makes one function of two calls, as TVM's FuseTIR does of what FuseOps has put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.s_tir import ScheduleError

from packager.errors import BackendError
from packager.graph.dataflow import bindings_of, operator_of
from packager.graph.identity import IdentityMap, IdentitySet, position
from packager.ir.model import CallSource
from packager.ir.primitives import Kernel
from packager.lower.cuda.kernels import TRIAL_GPU, lower_cuda_kernels
from packager.lower.kernels import make_group

_MAX_NAME, _PREFIX = 200, "fused_"


def join_calls(module: tvm.IRModule, calls: Sequence[Any], operands: Sequence[Any], results: Sequence[Any]) -> Any:
    """Return the PrimFunc of several bindings of calls, of which each may read what those before it make.

    Its parameters are ``operands``, which the calls read from others, then ``results``, variables of theirs.
    """
    builder = relax.BlockBuilder()
    functions = [builder.add_func(module[each.value.args[0]], f"part{n}") for n, each in enumerate(calls)]
    inner = [relax.Var(f"operand{n}", operand.ty) for n, operand in enumerate(operands)]
    bound = IdentityMap(zip(operands, inner, strict=True))
    with builder.function("joined", inner, attrs={"Primitive": True}, private=True):
        with builder.dataflow():
            for each, function in zip(calls, functions, strict=True):
                arguments = relax.Tuple([bound[operand] for operand in each.value.args[1].fields])
                bound[each.var] = builder.emit(relax.call_tir(function, arguments, each.var.ty))
            found = [bound[variable] for variable in results]
            output = builder.emit_output(relax.Tuple(found) if len(found) > 1 else found[0])
        builder.emit_func_output(output)
    outer = [relax.Var(f"operand{n}", operand.ty) for n, operand in enumerate(operands)]
    with builder.function("main", outer):
        with builder.dataflow():
            output = builder.emit_output(relax.Call(builder.get().get_global_var("joined"), outer))
        builder.emit_func_output(output)
    joined = relax.transform.FuseTIR()(builder.get())
    (binding,) = [each for each in bindings_of(joined["main"]) if operator_of(each.value) == "call_tir"]
    return joined[binding.value.args[0]]


def operands_of(first: Any, second: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return what two bindings of calls read from others, each once; and what decides which function both make."""
    read = [operand for each in (first, second) for operand in each.value.args[1].fields]
    operands = tuple(IdentitySet(operand for operand in read if not operand.same_as(first.var)))
    places = tuple(position((*operands, first.var), operand) for operand in read)
    return operands, (*(str(each.value.args[0].name_hint) for each in (first, second)), places)


def lowers(function: tirx.PrimFunc, schedule: Callable[[tirx.PrimFunc], tirx.PrimFunc]) -> bool:
    """Whether a schedule takes a function, and its kernels can be written."""
    try:
        with TRIAL_GPU:
            group = make_group("joined", schedule(function), "cuda")
        lower_cuda_kernels([each for each in group.functions if isinstance(each, Kernel)], TRIAL_GPU)
    except (ScheduleError, tvm.error.InternalError, BackendError):
        return False
    return True


def joined_name(first: Any, second: Any) -> str:
    """Return a name for the function of two calls."""
    names = (str(each.value.args[0].name_hint).removeprefix(_PREFIX) for each in (first, second))
    return f"{_PREFIX}{'_'.join(names)}"[:_MAX_NAME]


def joined_source(first: CallSource, second: CallSource) -> CallSource:
    """Return the operators and the source nodes of two calls."""
    return CallSource((*first.ops, *second.ops), tuple(dict.fromkeys((*first.nodes, *second.nodes))))
