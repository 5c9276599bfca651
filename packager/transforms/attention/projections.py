"""Makes one product of those of the same rows that attention of other rows reads: keys and values of a memory.

The kernels of ``cutlass`` make one product of queries, keys and values of the same rows, and read the heads of each in
what several products made. All layers of a decoder (Vaswani et al. 2017, section 3.2.3) read one memory.
"""

from __future__ import annotations

from typing import Any

import tvm

from packager.graph.attention.heads import Heads
from packager.graph.attention.match import find_core
from packager.graph.dataflow import Dataflow, computed_from_constants, operator_of, same, shape_of
from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.rewrite import map_bindings, tidy
from packager.transforms.products.merge_products import as_slices, is_mergeable


def merge_projections(module: tvm.IRModule, num_inputs: int) -> tvm.IRModule:
    """Merge the products of ``main`` that make keys and values of other rows than the queries, and queries of those."""
    main = module["main"]
    finder = _Finder(Dataflow(main), computed_from_constants(main, num_inputs))
    replaced: IdentityMap[list[Any]] = IdentityMap()
    for results in (found for groups in finder.results.values() for found in groups.values()):
        if len(results) > 1:
            bindings = as_slices(finder.flow, [*results], [*results.values()])
            replaced.update(zip(results.values(), bindings, strict=True))
    if not len(replaced):
        return module
    return tidy(map_bindings(module, lambda binding: replaced.get(binding.var, [binding])))


class _Finder:
    """``results`` has, by the rows that they read, the products of attention with their results: those that are the
    products themselves (False), and those that add vectors to them (True).
    """

    def __init__(self, flow: Dataflow, constants: IdentitySet) -> None:
        self.flow, self.constants = flow, constants
        self.results: IdentityMap[dict[bool, IdentityMap[Any]]] = IdentityMap()
        for variable in flow.variables:
            core = find_core(flow, variable, widely=True) if flow.call(variable, "nn.softmax") is not None else None
            if core is not None:
                self._add((core.q, core.k, core.v))

    def _add(self, operands: tuple[Heads, Heads, Heads]) -> None:
        products = [self._product(operand.source) for operand in operands]
        rows = IdentitySet(self.flow.value(product).args[0] for product in products if product is not None)
        if None not in products and len(rows) == 1:
            return
        for product, operand in zip(products, operands, strict=True):
            if product is not None and not self.flow.is_result(operand.source):
                groups = self.results.setdefault(self.flow.value(product).args[0], {})
                groups.setdefault(not product.same_as(operand.source), IdentityMap())[product] = operand.source

    def _product(self, source: Any) -> Any:
        """Return the product with a constant matrix that makes a source of heads; None if none does."""
        call = self.flow.value(source)
        if operator_of(call) == "matmul":
            return source if is_mergeable(call, self.constants) else None
        if operator_of(call) != "add":
            return None
        for product, vector in (call.args, reversed(call.args)):
            is_vector = vector in self.constants and same(shape_of(vector), (product.ty.shape.values[-1],))
            if is_vector and is_mergeable(self.flow.value(product), self.constants) and self.flow.is_read_once(product):
                return product
        return None
