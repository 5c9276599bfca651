"""Makes one product of those that read the same rows: gate and up, and queries, keys and values behind rotations.

The time of a product of few rows is that of reading its weights and of starting it: one of all columns takes less than
several. Of more rows, one of all columns fills the GPU better; there a product stays apart whose epilogue does more, an
activation or a residual, or whose result a product reads as it is, which would be a copy. A gate and what it gates are
one product then, without others: an epilogue multiplies the two. Products with biases are merged, too, unless they are
of many rows and all make heads that attention reads as they are, which has a product of its own. The weights become one
constant, computed from theirs, and so do the biases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax

from packager.graph.dataflow import Dataflow, computed_from_constants, operator_of, shape_of
from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.products.epilogues import chains, only_reader
from packager.graph.rewrite import map_bindings, rebuild_call, recompute, tidy
from packager.transforms.layout.layouts import CONVOLUTIONS

FEW_ROWS = 8
VIEWS = ("reshape", "permute_dims", "expand_dims", "broadcast_to")


def merge_products(module: tvm.IRModule, num_inputs: int) -> tvm.IRModule:
    """Make one product in ``main`` of all of the same rows with constant matrices."""
    main = module["main"]
    flow, constants = Dataflow(main), computed_from_constants(main, num_inputs)
    groups: IdentityMap[list[Any]] = IdentityMap()
    for variable in flow.variables:
        if is_mergeable(flow.value(variable), constants):
            groups.setdefault(flow.value(variable).args[0], []).append(variable)
    merged: IdentityMap[list[Any]] = IdentityMap()  # from a product to the bindings that replace its own
    for products in groups.values():
        alike = [each for each in products if str(each.ty.dtype) == str(products[0].ty.dtype)]
        for results in (_of_few_rows if _has_few(flow, products[0]) else _of_many_rows)(flow, constants, alike):
            if len(results) > 1:
                pieces = as_slices(flow, [*results], [*results.values()])
                merged.update(zip(results.values(), pieces, strict=True))
    if not len(merged):
        return module
    rewritten = map_bindings(module, lambda binding: merged.get(binding.var, [binding]))
    return tidy(rewritten)


def is_mergeable(call: Any, constants: IdentitySet) -> bool:
    """Whether it is a product with a matrix that is computed from constants."""
    if operator_of(call) != "matmul" or call.args[1] not in constants:
        return False
    rows, matrix = (shape_of(call.args[0]) or ())[:-1], shape_of(call.args[1]) or ()
    static = len(matrix) == 2 and all(isinstance(extent, int) for extent in matrix)
    same_types = str(call.args[0].ty.dtype) == str(call.args[1].ty.dtype) == str(call.ty.dtype)
    return static and same_types and len(rows) > 0 and matrix[1] % 8 == 0


def _has_few(flow: Dataflow, product: Any) -> bool:
    """Whether a product has few rows; those of symbolic extents may be many."""
    rows = (shape_of(flow.value(product).args[0]) or ())[:-1]
    return all(isinstance(extent, int) for extent in rows) and math.prod(rows) <= FEW_ROWS


def _of_few_rows(flow: Dataflow, constants: IdentitySet, products: Sequence[Any]) -> list[IdentityMap[Any]]:
    """Return all products of the same few rows, with their results: themselves, or what adds vectors to them."""
    return [IdentityMap((product, _biased(flow, constants, product)) for product in products)]


def _biased(flow: Dataflow, constants: IdentitySet, product: Any) -> Any:
    """Return what adds a constant vector to a product, and alone reads it; the product if nothing does."""
    for chain in chains(flow, product):
        adds = len(chain.variables) == 2 and chain.bias is not None and chain.bias in constants
        if adds and not flow.is_result(chain.result) and chain.result.ty.ndim == product.ty.ndim:
            return chain.result
    return product


def _of_many_rows(flow: Dataflow, constants: IdentitySet, products: Sequence[Any]) -> list[IdentityMap[Any]]:
    """Return groups of products of the same many rows, with their results: themselves, or what adds vectors to them."""
    pairs: list[IdentityMap[Any]] = []
    gated = IdentitySet()
    for gate in products:
        partner = _gated(flow, gate, products)
        if partner is not None and gate not in gated and partner not in gated:
            pairs.append(IdentityMap((each, each) for each in (gate, partner)))
            gated |= IdentitySet((gate, partner))
    plain, biased = IdentityMap[Any](), IdentityMap[Any]()
    for product in products:
        chain = next(chains(flow, product))
        if product in gated or any(
            _reads_whole_rows(flow, reader, chain.result) for reader in flow.readers(chain.result)
        ):
            continue
        if len(chain.variables) == 1:
            plain[product] = product
        elif len(chain.variables) == 2 and not _biased(flow, constants, product).same_as(product):
            biased[product] = chain.result
    found = [_readers_of_heads(flow, result) for result in biased.values()]
    if all("matmul" in operators for operators in found):
        return [*pairs, plain]
    without = [product for product in plain if _readers_of_heads(flow, product)]  # as keys of Whisper and DINOv3
    if len(without) == len(plain):
        results = IdentityMap([*biased.items(), *plain.items()])
        return [*pairs, IdentityMap((each, results[each]) for each in products if each in results)]
    return [*pairs, plain, biased]


def _gated(flow: Dataflow, gate: Any, others: Sequence[Any]) -> Any:
    """Return which of the others the activation of a product multiplies, None if that is no gate."""
    chain = next(chains(flow, gate))
    reader = only_reader(flow, chain.result) if chain.activation else None
    if chain.bias is not None or chain.residual is not None or flow.call(reader, "multiply") is None:
        return None
    return next((other for other in others if any(other.same_as(factor) for factor in flow.value(reader).args)), None)


def _readers_of_heads(flow: Dataflow, rows: Any) -> set[str]:
    """Return the operators that read the heads that rows are split into, behind views; none if anything reads rows."""
    found: set[str] = set()
    for reader in flow.readers(rows):
        if flow.call(reader, "reshape") is None or reader.ty.ndim != rows.ty.ndim + 1:
            return set()
        found |= _behind_views(flow, reader)
    return set() if flow.is_result(rows) else found


def _behind_views(flow: Dataflow, variable: Any) -> set[str]:
    readers = [(reader, operator_of(flow.value(reader))) for reader in flow.readers(variable)]
    deeper = [_behind_views(flow, reader) for reader, name in readers if name in VIEWS]
    return set().union(*deeper, (name for _, name in readers if name not in VIEWS))


def _reads_whole_rows(flow: Dataflow, variable: Any, rows: Any) -> bool:
    """Whether it is computed of these rows, or of a view, by what reads them from memory: a product of the rows as
    they are, or a convolution."""
    call = flow.call(variable, "reshape", "permute_dims", "matmul", *CONVOLUTIONS)
    if call is None or not call.args[0].same_as(rows):
        return False
    if operator_of(call) not in VIEWS:
        return True
    deeper = [reader for reader in flow.readers(variable) if _reads_whole_rows(flow, reader, variable)]
    is_turned = operator_of(call) == "permute_dims"  # as heads are
    return any(not is_turned or flow.call(reader, "matmul") is None for reader in deeper)


def _vector(flow: Dataflow, product: Any, result: Any) -> Any:
    """Return what a result adds to a product."""
    if result.same_as(product):
        return relax.const(np.zeros(int(product.ty.shape.values[-1])), str(product.ty.dtype))
    return next(term for term in flow.value(result).args if not term.same_as(product))


def as_slices(flow: Dataflow, products: Sequence[Any], results: Sequence[Any]) -> list[list[Any]]:
    """Return the bindings of ``results``, which are the products or add vectors to them, as slices of one.

    Those of the earliest make that: all columns, with all vectors; zeros where there is none.
    """
    first, builder = flow.value(products[0]), relax.BlockBuilder()
    made: list[Any] = []

    def bind(name: str, value: Any) -> Any:
        value = builder.normalize(value)
        variable = type(products[0])(name, value.ty)
        made.append(relax.VarBinding(variable, value))
        return variable

    def early(constant: Any) -> Any:
        """Return a constant as it is computed before the first product."""
        return recompute(flow, constant, partial(bind, f"{products[0].name}_constant"))

    def flat(constant: Any) -> Any:
        """Return a vector without the axes of one element that it may have in front."""
        vector = early(constant)
        return vector if vector.ty.ndim == 1 else bind(f"{constant.name}_v", relax.op.reshape(vector, (-1,)))

    def joined(constants: Sequence[Any], name: str) -> Any:
        return bind(f"{products[0].name}_{name}", relax.op.concat(constants, axis=-1))

    weights = joined([early(flow.value(product).args[1]) for product in products], "weights")
    whole = bind(f"{products[0].name}_merged", rebuild_call(first, first.args[0], weights))
    if not all(result.same_as(product) for result, product in zip(results, products, strict=True)):
        vectors = [_vector(flow, product, result) for product, result in zip(products, results, strict=True)]
        whole = bind(f"{results[0].name}_merged", relax.op.add(whole, joined([*map(flat, vectors)], "biases")))
    axis, begin, found = len(whole.ty.shape.values) - 1, 0, []
    places = IdentityMap((variable, place) for place, variable in enumerate(flow.variables))
    earliest = min(results, key=lambda result: places[result])
    for variable in results:
        end = begin + int(variable.ty.shape.values[-1])
        piece = builder.normalize(relax.op.strided_slice(whole, [axis], [begin], [end]))
        found.append([*(made if variable.same_as(earliest) else ()), relax.VarBinding(variable, piece)])
        begin = end
    return found
