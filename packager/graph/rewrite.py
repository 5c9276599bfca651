"""Walks TVM's expressions and statements, and rebuilds them with changes: they are immutable."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

from tvm import IRModule, relax
from tvm_ffi import structural_map, structural_walk

from packager.errors import ModelError, last_line
from packager.graph.dataflow import Dataflow, bindings_of

_WINDOW = ("strides", "padding", "dilation", "groups", "data_layout", "kernel_layout", "out_layout", "out_dtype")
_ATTRIBUTES = {
    "relax.matmul": ("out_dtype",),
    **{f"relax.nn.conv{axes}d": _WINDOW for axes in (1, 2, 3)},
    **{f"relax.nn.conv{axes}d_transpose": ("output_padding", *_WINDOW) for axes in (1, 2, 3)},
}
PRODUCTS = tuple(_ATTRIBUTES)
_TIDY = (relax.transform.Normalize(), relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination())


def nodes_of(node: Any, *kinds: Any) -> list[Any]:
    """Return the nodes of these classes in an expression or statement, in the order of TVM's walk."""
    found: list[Any] = []
    structural_walk(node, [(kind, found.append) for kind in kinds])
    return found


def map_operands(expr: Any, change: Callable[[Any], Any]) -> Any:
    """Rebuild a tuple, tuple field or call with changed operands, its type to be inferred; return others unchanged."""
    match expr:
        case relax.Tuple():
            return relax.Tuple([change(field) for field in expr.fields])
        case relax.TupleGetItem():
            return relax.TupleGetItem(change(expr.tuple_value), expr.index)
        case relax.Call():
            return relax.Call(expr.op, [change(argument) for argument in expr.args], expr.attrs, expr.ty_args)
    return expr


def rebuild_call(call: relax.Call, *operands: Any, **changes: Any) -> relax.Call:
    """Rebuild a call of one of ``PRODUCTS`` with other operands and changed attributes.

    With ``out_dtype=None`` the result has the type of the operands.
    """
    name = call.op.name
    kept = {attribute: getattr(call.attrs, attribute) for attribute in _ATTRIBUTES[name]}
    kept["out_dtype"] = kept["out_dtype"] or None
    make = relax.op.matmul if name == "relax.matmul" else getattr(relax.op.nn, name.removeprefix("relax.nn."))
    return make(*operands, **{**kept, **changes})


def rebuild_main(
    builder: relax.BlockBuilder,
    main: relax.Function,
    bind: Callable[[Any], None],
    result: Callable[[Any], Any],
    parameters: Sequence[relax.Var] | None = None,
) -> relax.Function:
    """Rebuild ``main`` in ``builder``: ``bind`` emits the replacement of a binding, ``result`` converts the result.

    ``parameters`` replace main's, if given.
    """
    with builder.function("main", list(parameters or main.params), attrs=dict(main.attrs or {})):
        with builder.dataflow():
            for binding in bindings_of(main):
                bind(binding)
            output = builder.emit_output(result(main.body.body))
        builder.emit_func_output(output)
    return builder.get()["main"]


def with_bindings(main: relax.Function, bindings: Sequence[Any]) -> relax.Function:
    """Return ``main`` with these bindings in place of its own, in one block of the same kind."""
    dataflow = all(isinstance(block, relax.DataflowBlock) for block in main.body.blocks)
    block = relax.DataflowBlock(bindings) if dataflow else relax.BindingBlock(bindings)
    body = relax.SeqExpr([block], main.body.body)
    return relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)


def map_bindings(
    module: IRModule, change: Callable[[Any], Iterable[Any]], result: Callable[[Any], Any] = lambda result: result
) -> IRModule:
    """Replace each binding of ``main`` by those that ``change`` returns, then the result by that of ``result``."""
    main = module["main"]
    blocks = [type(block)([new for old in block.bindings for new in change(old)]) for block in main.body.blocks]
    body = relax.SeqExpr(blocks, result(main.body.body))
    return with_main(module, relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs))


class Bindings:
    """New bindings before that of ``variable``, which are named after it, with an ``ending``."""

    def __init__(self, variable: Any, ending: str = "") -> None:
        self.variable, self.name = variable, f"{variable.name}{ending}"
        self.bindings: list[Any] = []
        self._builder = relax.BlockBuilder()

    @property
    def dtype(self) -> str:
        """The element type of ``variable``, a tensor."""
        return str(self.variable.ty.dtype)

    def bind(self, value: Any) -> Any:
        """Bind a value to a new variable and return that."""
        value = self._builder.normalize(value)
        inner = type(self.variable)(self.name, value.ty)
        self.bindings.append(relax.VarBinding(inner, value))
        return inner

    def ended(self, value: Any) -> list[Any]:
        """Return the bindings, the last of which binds ``variable`` to a value."""
        return [*self.bindings, relax.VarBinding(self.variable, value)]


def as_type(bind: Callable[[Any], Any], value: Any, dtype: str) -> Any:
    """Return a tensor, by ``bind`` cast unless it has the type already."""
    return value if str(value.ty.dtype) == dtype else bind(relax.op.astype(value, dtype))


def recompute(flow: Dataflow, constant: Any, bind: Callable[[Any], Any]) -> Any:
    """Compute a constant again by ``bind``, where its own bindings may come later. Returns its new variable."""
    if isinstance(constant, relax.Tuple):
        return map_operands(constant, lambda field: recompute(flow, field, bind))
    value = flow.value(constant)
    return constant if value is None else bind(map_operands(value, lambda operand: recompute(flow, operand, bind)))


def unique_name(name: str, taken: Container[str]) -> str:
    """Return ``name``, numbered from ``name_2`` on if it is taken."""
    names = (name if count == 1 else f"{name}_{count}" for count in itertools.count(1))
    return next(candidate for candidate in names if candidate not in taken)


def with_main(module: IRModule, main: relax.Function) -> IRModule:
    """Replace ``main``; other functions and their GlobalVars are kept."""
    functions = {v: main if v.name_hint == "main" else f for v, f in module.functions.items()}
    return IRModule(functions, attrs=module.attrs)


def name_result(module: IRModule, name: str) -> IRModule:
    """Rename the variable that ``main`` returns: block builders generate a name."""
    main = module["main"]
    result = main.body.body
    if not isinstance(result, relax.Var) or result.name == name:
        return module
    named = type(result)(name, result.ty)
    return with_main(module, structural_map(main, (relax.Var, lambda var: named if var.same_as(result) else var)))


def tidy(module: IRModule) -> IRModule:
    """Infer types of what a rewrite made, and drop its aliases and what nothing reads any more."""
    return apply(_TIDY, module)


def apply(passes: Sequence[Any], module: IRModule) -> IRModule:
    """Run passes in order. Raises ModelError that names the pass that failed."""
    for transform in passes:
        try:
            module = transform(module)
        except Exception as error:  # passes raise arbitrary C++ errors
            name = transform.info.name if hasattr(transform, "info") else transform.__name__
            raise ModelError(
                f"TVM cannot lower this model: pass {name} failed",
                detail=last_line(error),
                hint="this is a limit of TVM; simplify the model, or export it with another opset",
            ) from error
    return module
