"""Adds residuals to one of several products that are summed, so that an epilogue reads each term.

Blocks that run attention and an MLP side by side (Wang and Komatsuzaki 2021, "GPT-J-6B") write
``(attention + mlp) + rows``: one epilogue can add the other product, but none of the two adds the rows then.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from packager.graph.dataflow import Dataflow, computed_from_constants, operator_of, same, shape_of
from packager.graph.identity import IdentitySet
from packager.graph.rewrite import map_bindings, tidy

MOST = 8  # additions in a row


def add_residuals_first(module: tvm.IRModule, num_inputs: int) -> tvm.IRModule:
    """Rewrite sums in ``main`` in which two products are added before the other terms."""
    main = module["main"]
    flow, constants = Dataflow(main), computed_from_constants(main, num_inputs)
    products = IdentitySet(v for v in flow.variables if _is_product(flow, v, constants))
    found = False

    def replaced(binding: Any) -> list[Any]:
        nonlocal found
        terms, has_pair = _terms(flow, products, binding.var) if operator_of(binding.value) == "add" else ([], False)
        summed = [term for term in terms if term in products]
        others = [term for term in terms if term not in products]
        inner = any(operator_of(flow.value(reader)) == "add" for reader in flow.readers(binding.var))
        if not has_pair or not others or (inner and flow.is_read_once(binding.var)):
            return [binding]
        found = True
        made: list[Any] = []
        total, *rest = (*others, *summed)
        for at, term in enumerate(rest):
            value = relax.BlockBuilder().normalize(relax.op.add(term, total))
            last = at == len(rest) - 1
            total = binding.var if last else type(binding.var)(f"{binding.var.name}_sum{at}", value.ty)
            made.append(relax.VarBinding(total, value))
        return made

    rewritten = map_bindings(module, replaced)
    return tidy(rewritten) if found else module


def _terms(flow: Dataflow, products: IdentitySet, variable: Any, left: int = MOST) -> tuple[list[Any], bool]:
    """Return the terms of a sum of tensors of one shape, in order, and whether two products are added to each other."""
    call = flow.value(variable)
    shape = shape_of(variable)
    whole = operator_of(call) == "add" and all(same(shape_of(term), shape) for term in call.args)
    if variable in products or not whole or left == 0:
        return [variable], False
    found: list[Any] = []
    has_pair = all(term in products for term in call.args)
    for term in call.args:
        terms, inner = _terms(flow, products, term, left - 1) if flow.is_read_once(term) else ([term], False)
        found += terms
        has_pair = has_pair or inner
    return found, has_pair


def _is_product(flow: Dataflow, variable: Any, constants: IdentitySet) -> bool:
    """Whether what is read once is a product with a matrix of the model, possibly with a vector added to it."""
    if not flow.is_read_once(variable):
        return False
    call = flow.value(variable)
    if operator_of(call) == "add":
        sides = [side for side in call.args if side not in constants]
        return len(sides) == 1 and isinstance(sides[0], relax.Var) and _is_product(flow, sides[0], constants)
    return operator_of(call) == "matmul" and call.args[1] in constants
