"""Makes vectors that are added to heads part of the bias of the product that heads are.

Relative attention adds two vectors to its queries, one for the scores of contents and one for those of positions (Dai
et al. 2019, "Transformer-XL"; Conformer, XLNet). Each becomes a product with a bias of its own, which is merged with
those of keys and values, instead of two kernels that read and write all heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from packager.graph.dataflow import Dataflow, axes_of, computed_from_constants, same, shape_of
from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.rewrite import Bindings, map_bindings, recompute, tidy

# The most products that become of one, and its most steps: another of more takes longer than two kernels.
MOST_PRODUCTS = 2
MOST_STEPS = 1024


@dataclass(frozen=True)
class _Heads:
    """Heads that a product makes: its last axis is split by ``split``, whose axes are then ``permuted`` if they are."""

    product: Any
    bias: Any
    split: Any
    permuted: Any

    @property
    def result(self) -> Any:
        """The variable that vectors are added to."""
        return self.split if self.permuted is None else self.permuted


def add_to_biases(module: tvm.IRModule, num_inputs: int) -> tvm.IRModule:
    """Rewrite the sums in ``main`` of heads and constant vectors, if all that reads these heads are such sums."""
    main = module["main"]
    flow, constants = Dataflow(main), computed_from_constants(main, num_inputs)
    replaced: IdentityMap[list[Any]] = IdentityMap()  # from a sum to the bindings that replace its own
    for variable in flow.variables:
        heads = _heads(flow, constants, variable)
        if heads is None or flow.is_result(variable):
            continue
        sums = flow.readers(variable)
        vectors = [_vector(flow, constants, heads, each) for each in sums]
        if 0 < len(vectors) <= MOST_PRODUCTS and None not in vectors:
            replaced.update(zip(sums, _with_biases(flow, heads, sums, vectors), strict=True))
    if not len(replaced):
        return module
    return tidy(map_bindings(module, lambda binding: replaced.get(binding.var, [binding])))


def _heads(flow: Dataflow, constants: IdentitySet, variable: Any) -> _Heads | None:
    """Return how a variable is the heads of a product with constant weights that nothing else reads."""
    permuted = flow.call(variable, "permute_dims")
    split = permuted.args[0] if permuted is not None else variable
    reshape = flow.call(split, "reshape")
    if reshape is None or (permuted is not None and not flow.is_read_once(split)):
        return None
    rows, heads = shape_of(reshape.args[0]), shape_of(split)
    if not rows or not heads or len(heads) < 2:
        return None
    width, (count, dim) = rows[-1], heads[-2:]
    if not all(isinstance(extent, int) for extent in (width, count, dim)) or width != count * dim:
        return None
    product, bias = reshape.args[0], None
    if (added := flow.call(product, "add")) is not None and flow.is_read_once(product):
        bias = next((operand for operand in added.args if operand in constants), None)
        product = next((operand for operand in added.args if operand not in constants), None)
        if bias is None or not same(shape_of(bias), rows[-1:]):
            return None
    call = flow.call(product, "matmul")
    if call is None or call.args[1] not in constants or not flow.is_read_once(product):
        return None
    steps = shape_of(call.args[1])
    if not steps or len(steps) != 2 or not isinstance(steps[0], int) or steps[0] > MOST_STEPS:
        return None
    return _Heads(product, bias, split, variable if permuted is not None else None)


def _vector(flow: Dataflow, constants: IdentitySet, heads: _Heads, reader: Any) -> Any | None:
    """Return the constant that a sum adds to heads, if it is a vector of each head."""
    call = flow.call(reader, "add")
    vector = None if call is None else next((operand for operand in call.args if operand in constants), None)
    extents, whole = shape_of(vector), shape_of(heads.result)
    if extents is None or whole is None or len(extents) > len(whole) or not same(shape_of(reader), whole):
        return None
    padded = (*[1] * (len(whole) - len(extents)), *extents)
    axes = axes_of(flow.value(heads.permuted)) or tuple(range(len(whole)))
    head, dim = axes.index(len(whole) - 2), axes.index(len(whole) - 1)
    wanted = tuple(extent if axis in (head, dim) else 1 for axis, extent in enumerate(whole))
    return vector if head < dim and same(padded, wanted) else None


def _with_biases(flow: Dataflow, heads: _Heads, sums: Sequence[Any], vectors: Sequence[Any]) -> list[list[Any]]:
    """Return the bindings of each sum; those of the first make one product of all, of which they are parts."""
    made, product = Bindings(sums[0], "_biased"), flow.value(heads.product)
    columns = int(product.args[1].ty.shape.values[-1])
    early = [recompute(flow, vector, made.bind) for vector in vectors]
    biases = [made.bind(relax.op.reshape(vector, [columns])) for vector in early]
    if heads.bias is not None:
        biases = [made.bind(relax.op.add(heads.bias, bias)) for bias in biases]
    matrix, bias = product.args[1], biases[0]
    if len(sums) > 1:
        matrix = made.bind(relax.op.concat([matrix] * len(sums), axis=1))
        bias = made.bind(relax.op.concat(biases, axis=0))
    whole = made.bind(relax.op.matmul(product.args[0], matrix, product.attrs.out_dtype or None))
    whole = made.bind(relax.op.add(whole, bias))
    results = []
    for number, variable in enumerate(sums):
        made = made if number == 0 else Bindings(variable, "_biased")
        rows, axis = whole, whole.ty.ndim - 1
        if len(sums) > 1:
            rows = made.bind(relax.op.strided_slice(rows, [axis], [number * columns], [(number + 1) * columns]))
        split = relax.op.reshape(rows, heads.split.ty.shape)
        if heads.permuted is not None:
            split = relax.op.permute_dims(made.bind(split), axes_of(flow.value(heads.permuted)))
        results.append(made.ended(split))
    return results
