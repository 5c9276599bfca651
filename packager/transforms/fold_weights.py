"""Constant folding of weights at build time.

``LiftTransformParams`` moves weight-only computations out of ``main``; they run once on the build machine, and their
results replace the weights. Results that only reorder elements stay views of the weights, so that sessions can repeat
the reordering on swapped data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm_ffi import structural_map

from packager.bundle.arrays import Array
from packager.graph.dataflow import bindings_of, called_function, operator_of, variables_of
from packager.graph.evaluate import evaluate
from packager.graph.identity import IdentityMap
from packager.graph.rewrite import unique_name, with_main
from packager.ir.model import NamedArray
from packager.transforms.clamp_indices import clamp_indices, legalize_take
from packager.transforms.own_legalizers import OWN_LEGALIZERS

TRANSFORM = "main_transform_params"


def fold_weights(
    module: tvm.IRModule, constants: Mapping[str, NamedArray]
) -> tuple[tvm.IRModule, dict[str, NamedArray]]:
    """Replace weight-only computations by their results; return the module and its new constants.

    ``constants`` are the values of main's parameters after the inputs, in order, and so is the result. A folded
    constant is named after its source constants and the applied operators; folding again appends to the name.
    """
    if not constants:
        return module, dict(constants)
    lifted = _release(relax.transform.LiftTransformParams()(_hold(module)))
    if relax.analysis.free_vars(lifted["main"]):
        return module, dict(constants)  # the result depends only on weights: TVM would lift it out of main
    transform = lifted[TRANSFORM]
    origins = _origins(transform, constants)
    values = _evaluate(lifted, transform, [constant.array for constant in constants.values()])
    taken = set(constants).union(*(constant.sources for constant in constants.values()))
    folded: dict[str, NamedArray] = {}
    for origin, value in zip(origins, values, strict=True):
        if origin.operators:
            name = unique_name(f"{'+'.join(origin.stems) or 'constant'}{origin.operators}", taken)
        else:
            (stem,) = origin.stems
            name = unique_name(stem, set(folded))
        taken.add(name)
        folded[name] = NamedArray(value, origin.sources)
    remaining = {v: f for v, f in lifted.functions.items() if v.name_hint != TRANSFORM}
    return tvm.IRModule(remaining, attrs=module.attrs), folded


def _hold(module: tvm.IRModule) -> tvm.IRModule:
    """Make calls of extern functions depend on an input, so that they are not lifted: they cannot run at build time."""
    return _map_outside_calls(module, lambda arguments, first: [*arguments, first])


def _release(module: tvm.IRModule) -> tvm.IRModule:
    """Undo ``_hold``."""
    return _map_outside_calls(module, lambda arguments, _first: arguments[:-1])


def _map_outside_calls(module: tvm.IRModule, change: Callable[[list[Any], Any], list[Any]]) -> tvm.IRModule:
    """Change the arguments of extern calls, given ``main``'s first input; without inputs nothing can be held."""
    if not int(module["main"].attrs.get("num_input", 0)):
        return module
    outside, first = tvm.ir.Op.get("relax.call_dps_packed"), module["main"].params[0]
    found = []

    def visit(call: relax.Call) -> relax.Call:
        if not call.op.same_as(outside):
            return call
        found.append(call)
        arguments = relax.Tuple(change(list(call.args[1].fields), first))
        return relax.Call(call.op, [call.args[0], arguments], call.attrs, call.ty_args)

    main = structural_map(module["main"], (relax.Call, visit))
    return relax.transform.Normalize()(with_main(module, main)) if found else module


@dataclass(frozen=True)
class _Origin:
    """The provenance of a value: names of constants, applied operators (``.reshape.permute_dims``), and the model's
    constants it derives from."""

    stems: tuple[str, ...]
    operators: str
    sources: tuple[str, ...]


def _origins(transform: relax.Function, constants: Mapping[str, NamedArray]) -> list[_Origin]:
    """Return the origin of each output of the transform."""
    parameter = transform.params[0]
    own = [_Origin((name,), "", constant.sources) for name, constant in constants.items()]
    if transform.body.body.same_as(parameter):  # identity: nothing to compute
        return own
    origins: IdentityMap[_Origin] = IdentityMap()
    fields: Any = ()
    for binding in bindings_of(transform):
        value = binding.value
        if isinstance(value, relax.TupleGetItem) and value.tuple_value.same_as(parameter):
            origins[binding.var] = own[value.index]
        elif isinstance(value, relax.Tuple):
            fields = value.fields
        else:
            inputs = [origins[v] for v in variables_of(value) if v in origins]
            operators = "".join(dict.fromkeys(origin.operators for origin in inputs))
            by_shape = _operator(value) == "shape_of"
            origins[binding.var] = _Origin(
                _merged(origin.stems for origin in inputs),
                f"{operators}.{_operator(value)}",
                () if by_shape else _merged(origin.sources for origin in inputs),
            )
    return [origins[field] for field in fields]


def _merged(names: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for group in names for name in group))


def _operator(value: relax.Expr) -> str:
    name = operator_of(value)
    return str(called_function(value)) if name == "call_tir" else name.rpartition(".")[2] or "value"


def _evaluate(lifted: tvm.IRModule, transform: relax.Function, values: list[Array]) -> list[Array]:
    """Evaluate the transform with numpy, and unsupported operators compiled for this machine."""
    results = evaluate(transform, values)
    unknown = [index for index, result in enumerate(results) if result is None]
    if unknown:
        for index, array in zip(unknown, _run(lifted, _restricted(transform, unknown), values), strict=True):
            results[index] = array
    return [result for result in results if result is not None]


def _restricted(transform: relax.Function, indices: Sequence[int]) -> relax.Function:
    """Restrict the transform to these outputs."""
    blocks = list(transform.body.blocks)
    *kept, last = blocks[-1].bindings
    fields = [last.value.fields[index] for index in indices]
    output = relax.Var("selected", relax.TupleType([field.ty for field in fields]))
    bindings = [*kept, relax.VarBinding(output, relax.Tuple(fields))]
    blocks[-1] = type(blocks[-1])(bindings)
    return relax.Function(transform.params, relax.SeqExpr(blocks, output), output.ty, transform.is_pure)


def _with_read_fields(transform: relax.Function) -> tuple[relax.Function, list[int]]:
    """Drop unread fields of the transform's parameter; return it with the indices of the others."""
    (whole,) = transform.params
    fields = [
        value
        for value in (binding.value for binding in bindings_of(transform))
        if isinstance(value, relax.TupleGetItem) and value.tuple_value.same_as(whole)
    ]
    read = sorted({int(field.index) for field in fields})
    part = relax.Var(whole.name, relax.TupleType([whole.ty.fields[index] for index in read]))

    def narrow(field: relax.TupleGetItem) -> relax.TupleGetItem:
        return relax.TupleGetItem(part, read.index(field.index)) if field.tuple_value.same_as(whole) else field

    body = structural_map(transform.body, (relax.TupleGetItem, narrow))
    return relax.Function([part], body, transform.ret_ty, transform.is_pure, transform.attrs), read


def _run(lifted: tvm.IRModule, transform: relax.Function, values: list[Array]) -> list[Array]:
    functions = {v: f for v, f in lifted.functions.items() if v.name_hint not in ("main", TRANSFORM)}
    module = tvm.IRModule({**functions, TRANSFORM: transform})
    module = relax.transform.DeadCodeElimination([TRANSFORM])(module)
    module = relax.transform.LegalizeOps({"relax.take": legalize_take, **OWN_LEGALIZERS})(module)
    # Constant indices may be out of bounds: that would crash the build, or make it nondeterministic.
    clamped = {v: clamp_indices(f) if isinstance(f, tirx.PrimFunc) else f for v, f in module.functions.items()}
    module = tvm.IRModule(clamped, attrs=module.attrs)
    module[TRANSFORM], read = _with_read_fields(module[TRANSFORM])
    # TVM copies all of its arguments.
    machine = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())
    results = machine[TRANSFORM]([tvm.runtime.tensor(np.asarray(values[index], order="C")) for index in read])
    return [np.asarray(result.numpy()) for result in results]
