"""softmax(scale * q k^T + mask) v, as exporters write it: the heads of one tensor taken apart, and put together again.

What stands between the tensors and the two products (reshapes, transposes, slices) becomes strides. numpy finds them:
the same views are taken of an array that has no memory of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from tvm import relax, tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_map

from packager.backends.cutlass.activations import scalar_of
from packager.backends.cutlass.chains import Chain, chains, same, shape_of
from packager.dataflow import Dataflow, operator_of
from packager.fold.numpy_ops import evaluate_call

MOVES = ("reshape", "permute_dims", "expand_dims", "squeeze")
# What stands for symbolic extents where views are taken: different primes, so that no two extents are equal by chance.
PRIMES = (5, 7, 11, 13, 17)
LARGEST_MASK = 2**26  # elements
MASKED = -1e3  # scores below it count as masked out: their weight is 0 in every element type


@dataclass(frozen=True)
class Heads:
    """An operand as [batch, heads, rows, depth] of ``source``; element (b, h, s, d) lies at
    ``offset + b * rows * row + s * row + h * head + d``."""

    source: Any
    offset: int
    row: int
    head: int


@dataclass(frozen=True)
class Attention:
    """``variables`` are those whose bindings it covers, in order; ``result`` the last.

    ``projections`` are the products that make q, k and v, where they are covered too. ``mask`` is what is added to the
    scores, None if nothing is or it is ``causal``.
    """

    variables: tuple[Any, ...]
    q: Heads
    k: Heads
    v: Heads
    out: Heads
    batch: Any
    heads: int
    queries: Any
    keys: Any
    depth: int
    value_depth: int
    scale: float
    mask: Any = None
    causal: bool = False
    projections: tuple[Chain, ...] = ()

    @property
    def result(self) -> Any:
        """The variable that holds the result."""
        return self.variables[-1]


def find_attention(flow: Dataflow, softmax: Any) -> Iterator[Attention]:
    """Yield the attention around a softmax, with the products before it if they can be covered, and without them."""
    extents = shape_of(softmax)
    if not extents or int(flow.value(softmax).attrs.axis) % len(extents) != len(extents) - 1:
        return
    scores = _scores(flow, softmax)
    weighted = _weighted(flow, softmax)
    if scores is None or weighted is None:
        return
    product, weights = weighted
    keys_first = _operand(flow, flow.value(scores.product).args[1])
    q, v = _operand(flow, flow.value(scores.product).args[0]), _operand(flow, flow.value(product).args[1])
    out, after = _after(flow, product, v.shape if v else ())
    if q is None or keys_first is None or v is None or out is None:
        return
    core = [softmax, product, scores.product, *scores.covered, *weights, *after]
    found = _attention(flow, core, (q, keys_first.transposed(), v), out, scores)
    if found is None:
        return
    if (whole := _with_projections(flow, found)) is not None:
        yield whole
    yield found


@dataclass(frozen=True)
class _Scores:
    """What is computed between the first product and the softmax."""

    product: Any
    covered: tuple[Any, ...]
    scale: float
    mask: Any


def _scores(flow: Dataflow, softmax: Any) -> _Scores | None:
    """Follow the operand of a softmax back to the product of queries and keys."""
    variable, scale, mask = flow.value(softmax).args[0], 1.0, None
    covered: list[Any] = []
    for _ in range(12):
        call = flow.value(variable)
        name = operator_of(call)
        if name == "matmul":
            return _Scores(variable, tuple(covered), scale, mask)
        covered.append(variable)
        if name in ("astype", "reshape"):
            variable = call.args[0]
        elif name in ("multiply", "divide"):
            number = scalar_of(call.args[1])
            first = 0
            if number is None and name == "multiply":
                number, first = scalar_of(call.args[0]), 1
            if not number:
                return None
            scale *= number if name == "multiply" else 1 / number
            variable = call.args[first]
        elif name == "add" and mask is None and scale == 1.0:
            sides = [side for side in call.args if _comes_from_product(flow, side)]
            if len(sides) != 1:
                return None
            mask = call.args[1] if sides[0].same_as(call.args[0]) else call.args[0]
            variable = sides[0]
        else:
            return None
    return None


def _comes_from_product(flow: Dataflow, variable: Any) -> bool:
    """Whether a value is a product, but for views, casts and a scale."""
    for _ in range(8):
        call = flow.value(variable)
        name = operator_of(call)
        if name == "matmul":
            return True
        if name not in ("astype", "reshape", "multiply", "divide"):
            return False
        tensors = [argument for argument in call.args[:2] if isinstance(argument, relax.Var)]
        if len(tensors) != 1:
            return False
        (variable,) = tensors
    return False


def _weighted(flow: Dataflow, softmax: Any) -> tuple[Any, list[Any]] | None:
    """Return the product of the weights with the values, and what stands before it."""
    variable = softmax
    covered: list[Any] = []
    while not flow.is_result(variable) and len(readers := flow.readers(variable)) == 1:
        call = flow.value(readers[0])
        name = operator_of(call)
        if name == "matmul" and call.args[0].same_as(variable):
            return readers[0], covered
        if name not in ("astype", "reshape"):
            return None
        covered.append(readers[0])
        variable = readers[0]
    return None


@dataclass(frozen=True)
class _Operand:
    """An operand of a product as [batch, heads, rows, depth]: the views from ``source`` to it, first to last."""

    source: Any
    views: tuple[Any, ...]
    shape: tuple[Any, ...]
    swapped: bool = False

    def transposed(self) -> _Operand:
        """Return the operand with its last two axes exchanged."""
        b, h, s, d = self.shape
        return _Operand(self.source, self.views, (b, h, d, s), True)


def _operand(flow: Dataflow, variable: Any) -> _Operand | None:
    """Follow an operand back through views; one whose batch and heads are one axis is taken before that."""
    views: list[Any] = []
    extents = shape_of(variable)
    if extents and len(extents) == 3:
        inner = shape_of(flow.value(variable).args[0]) if flow.call(variable, "reshape") is not None else None
        if inner is None or len(inner) != 4 or not same(inner[2:], extents[1:]):
            return None
        views.append(variable)
        variable, extents = flow.value(variable).args[0], inner
    if not extents or len(extents) != 4:
        return None
    while True:
        value = flow.value(variable)
        if operator_of(value) in MOVES:
            views.append(variable)
            variable = value.args[0]
        elif isinstance(value, relax.TupleGetItem) and flow.call(value.tuple_value, "split") is not None:
            views += [variable, value.tuple_value]
            variable = flow.value(value.tuple_value).args[0]
        else:
            return _Operand(variable, tuple(reversed(views)), extents)


def _after(flow: Dataflow, product: Any, shape: Sequence[Any]) -> tuple[bool | None, list[Any]]:
    """Return whether rows come before heads in the result (None: neither form), and the views that make it so."""
    variable, covered = product, []
    best: tuple[bool | None, list[Any]] = (False, [])
    moved = False
    while not flow.is_result(variable) and len(readers := flow.readers(variable)) == 1:
        variable = readers[0]
        call = flow.value(variable)
        name = operator_of(call)
        covered.append(variable)
        if name == "permute_dims" and not moved:
            source = shape_of(call.args[0])
            if not source or len(source) != 4 or [int(axis) for axis in call.attrs.axes] != [0, 2, 1, 3]:
                break
            if not same(tuple(source[1:2]), tuple(shape[1:2])):
                break
            moved = True
        elif name != "reshape":
            break
        best = (moved, list(covered))
    return best


def _attention(
    flow: Dataflow, core: Sequence[Any], operands: Sequence[_Operand], rows_first: bool, scores: _Scores
) -> Attention | None:
    q, k, v = operands
    batch, heads, queries, depth = q.shape
    keys, value_depth = k.shape[2], v.shape[3]
    static = all(isinstance(extent, int) for extent in (heads, depth, value_depth))
    fits = same(k.shape[:2], q.shape[:2]) and same(v.shape[:2], q.shape[:2]) and same(k.shape[3], depth)
    if not static or not fits or not same(v.shape[2], keys):
        return None
    places = [_locate(flow, operand) for operand in operands]
    if any(place is None for place in places):
        return None
    at_q, at_k, at_v = [place for place in places if place is not None]
    mask, causal = scores.mask, False
    if mask is not None and (array := _known(flow, mask)) is not None:
        causal = _is_causal(array, queries, keys)
        if causal or not array.any():  # of zeros: none
            mask = None
    views = [view for operand in operands for view in operand.views]
    row, head = (heads * value_depth, value_depth) if rows_first else (value_depth, 0)
    variables = _ordered(flow, [*core, *views])
    if not _covers(flow, variables):
        return None
    return Attention(
        variables,
        at_q,
        at_k,
        at_v,
        Heads(variables[-1], 0, row, head),
        batch,
        heads,
        queries,
        keys,
        depth,
        value_depth,
        scores.scale,
        mask,
        causal,
    )


def _known(flow: Dataflow, variable: Any) -> NDArray[Any] | None:
    """Return the value of a mask that depends on no input, if it is of a known shape and not too large to look at."""
    values: dict[int, NDArray[Any]] = {}

    def visit(expr: Any) -> bool:
        handle = expr.__chandle__()
        if handle in values or not isinstance(expr, relax.Var):
            return True
        extents = shape_of(expr)
        if extents is None or not all(isinstance(e, int) for e in extents) or math.prod(extents) > LARGEST_MASK:
            return False
        array, call = flow.array(expr), flow.value(expr)
        if array is None and isinstance(call, relax.Call) and all(visit(a) for a in call.args):
            array = evaluate_call(call, values)
        if array is not None:
            values[handle] = array
        return array is not None

    return values[variable.__chandle__()] if visit(variable) else None


def _is_causal(array: NDArray[Any], queries: Any, keys: Any) -> bool:
    """Whether a mask leaves each query the keys up to its own."""
    shape = array.shape
    if len(shape) < 2 or any(extent != 1 for extent in shape[:-2]) or shape[-2:] != (queries, keys):
        return False
    matrix = array.reshape(shape[-2:])
    later = np.triu(np.ones(matrix.shape, dtype=bool), 1)
    return bool((matrix[~later] == 0).all() and (matrix[later] < MASKED).all())


def _ordered(flow: Dataflow, variables: Sequence[Any]) -> tuple[Any, ...]:
    wanted = {variable.__chandle__() for variable in variables}
    return tuple(variable for variable in flow.variables if variable.__chandle__() in wanted)


def _covers(flow: Dataflow, variables: Sequence[Any]) -> bool:
    """Whether of all these variables only the last is read by others."""
    inner = {variable.__chandle__() for variable in variables}
    for variable in variables[:-1]:
        if flow.is_result(variable) or any(reader.__chandle__() not in inner for reader in flow.readers(variable)):
            return False
    return True


def _locate(flow: Dataflow, operand: _Operand) -> Heads | None:
    """Return where the elements of an operand lie in its source; None if that is no fixed distance."""
    places = {_place(flow, operand, shift) for shift in (0, 1)}
    if len(places) != 1 or None in places:
        return None
    (place,) = places
    assert place is not None
    return Heads(operand.source, *place)


def _place(flow: Dataflow, operand: _Operand, shift: int) -> tuple[int, int, int] | None:
    """Return offset, and the strides of rows and heads, for one choice of the symbolic extents."""
    numbers: dict[int, int] = {}

    def known(extents: Sequence[Any]) -> tuple[int, ...]:
        return tuple(_number(extent, numbers, shift) for extent in extents)

    shape = known(shape_of(operand.source) or ())
    array = as_strided(np.zeros(1, np.int8), shape, [math.prod(shape[axis + 1 :]) for axis in range(len(shape))])
    start = array.__array_interface__["data"][0]
    pending: list[NDArray[Any]] = []
    for view in operand.views:
        value = flow.value(view)
        name = operator_of(value)
        if name == "split":
            pending = _split(array, value)
        elif isinstance(value, relax.TupleGetItem):
            array = pending[int(value.index)]
        elif name == "permute_dims":
            array = array.transpose([int(axis) for axis in value.attrs.axes])
        elif len(shape_of(view) or ()) == 3 and view.same_as(operand.views[-1]):
            continue  # batch and heads become one axis, which needs no fixed distance
        else:
            array = array.view()
            try:
                array.shape = known(shape_of(view) or ())
            except AttributeError:
                return None
    if operand.swapped:
        array = array.transpose([0, 1, 3, 2])
    batch, head, row, step = array.strides
    extents = array.shape
    if (step != 1 and extents[3] > 1) or (batch != extents[2] * row and extents[0] > 1):
        return None
    return array.__array_interface__["data"][0] - start, row, head


def _split(array: NDArray[Any], call: Any) -> list[NDArray[Any]]:
    axis, sections = int(call.attrs.axis), call.attrs.indices_or_sections
    if isinstance(sections, int | tirx.IntImm):
        return np.split(array, int(sections), axis)
    return np.split(array, [int(index) for index in sections], axis)


def _number(extent: Any, numbers: dict[int, int], shift: int) -> int:
    """Return an extent with primes for its variables, the same for the same variable."""
    if isinstance(extent, int):
        return extent
    if isinstance(extent, tirx.Var):
        return numbers.setdefault(extent.__chandle__(), PRIMES[(len(numbers) + shift) % len(PRIMES)])
    known = structural_map(extent, (tirx.Var, lambda v: tirx.IntImm(str(v.ty.dtype), _number(v, numbers, shift))))
    return int(Analyzer().simplify(known))


def _with_projections(flow: Dataflow, found: Attention) -> Attention | None:
    """Return the attention with the products that make its operands, if all three are of the same tensor."""
    projections = [_projection(flow, heads) for heads in (found.q, found.k, found.v)]
    if any(chain is None for chain in projections):
        return None
    taken = [chain for chain in projections if chain is not None]
    data = {flow.value(chain.anchor).args[0].__chandle__() for chain in taken}
    types = {(shape_of(flow.value(chain.anchor).args[1]), chain.bias is None, chain.scale) for chain in taken}
    if len(data) != 1 or len(types) != 1 or len({chain.anchor.__chandle__() for chain in taken}) != 3:
        return None
    variables = _ordered(flow, [*found.variables, *(variable for chain in taken for variable in chain.variables)])
    return replace(found, variables=variables, projections=tuple(taken)) if _covers(flow, variables) else None


def _projection(flow: Dataflow, heads: Heads) -> Chain | None:
    """Return the product of a tensor with a constant matrix, and its bias, that an operand is."""
    anchor = heads.source
    for _ in range(6):
        call = flow.value(anchor)
        if operator_of(call) == "matmul":
            break
        tensors = [a for a in getattr(call, "args", ()) if isinstance(a, relax.Var) and flow.value(a) is not None]
        if operator_of(call) not in ("add", "astype", "reshape", "multiply") or len(tensors) != 1:
            return None
        (anchor,) = tensors
    else:
        return None
    matrix = call.args[1]
    whole = heads.offset == 0 and isinstance(extents := shape_of(matrix), tuple) and heads.row == extents[-1]
    if not whole or len(shape_of(matrix) or ()) != 2 or not flow.is_constant(matrix):
        return None
    for chain in chains(flow, anchor):
        if chain.result.same_as(heads.source) and chain.residual is None and not chain.activation:
            return chain
    return None
