"""Converter of Einsum (ONNX version 12) as matrix products, which passes and backends know.

A pair of operands whose labels fall into batch, rows, columns and contracted ones is a product, as in opt_einsum's
``tensordot`` form (Smith and Gray, 2018) and in ``torch.einsum``. More operands are contracted from left to right.
"""

from __future__ import annotations

import math
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from packager.frontends.onnx.ops.operands import Convert, Converter, dtype_of, extents, text
from packager.graph.dataflow import same

ELLIPSIS = "..."


@dataclass(frozen=True)
class _Term:
    """A tensor and the labels of its axes, each once."""

    data: Any
    labels: str


def _einsum(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    equation = _labeled(text(attributes, "equation", ""), [data.ty.ndim for data in inputs])
    terms = (
        None if equation is None else [_Term(data, labels) for data, labels in zip(inputs, equation[0], strict=True)]
    )
    if equation is None or terms is None or not _is_sum_of_products(terms):
        return convert("Einsum", list(inputs), attributes)
    result = equation[1]
    if any(label not in "".join(term.labels for term in terms) for label in result):
        return convert("Einsum", list(inputs), attributes)
    while len(terms) > 1:
        first, second, *others = terms
        needed = {*result, *(label for term in others for label in term.labels)}
        terms = [_contract(builder, first, second, needed), *others]
    term = _sum_over(builder, terms[0], result)
    return _permuted(builder, term, result).data


def _labeled(equation: str, ranks: Sequence[int]) -> tuple[list[str], str] | None:
    """Return labels of each operand and of the result, the axes of an ellipsis labeled too.

    None where an operand has a label twice (a diagonal), or an ellipsis in which ranks differ.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    operands = left.split(",")
    named = {label for label in equation if label.isalpha()}
    hidden = {
        rank - len(labels.replace(ELLIPSIS, ""))
        for labels, rank in zip(operands, ranks, strict=True)
        if ELLIPSIS in labels
    }
    free = "".join(label for label in string.ascii_letters if label not in named)
    if len(hidden) > 1 or max(hidden, default=0) > len(free):
        return None
    axes = free[: max(hidden, default=0)]
    operands = [labels.replace(ELLIPSIS, axes) for labels in operands]
    if not arrow:
        once = sorted(label for label in named if left.count(label) == 1)
        right = ELLIPSIS + "".join(once)
    result = right.replace(ELLIPSIS, axes)
    fits = all(len(labels) == rank == len(set(labels)) for labels, rank in zip(operands, ranks, strict=True))
    return (operands, result) if fits and len(set(result)) == len(result) else None


def _is_sum_of_products(terms: Sequence[_Term]) -> bool:
    """Whether these are floats, and a label has one extent: Einsum broadcasts extents of one."""
    found: dict[str, Any] = {}
    for term in terms:
        if not dtype_of(term.data).startswith(("float", "bfloat")):
            return False
        for label, extent in zip(term.labels, extents(term.data), strict=True):
            if not same(found.setdefault(label, extent), extent):
                return False
    return True


def _contract(builder: Any, first: _Term, second: _Term, needed: Iterable[str]) -> _Term:
    """Multiply two tensors, and sum over what is not needed any more."""
    first = _sum_over(builder, first, {*needed, *second.labels})
    second = _sum_over(builder, second, {*needed, *first.labels})
    shared = [label for label in first.labels if label in second.labels]
    batch = "".join(label for label in shared if label in needed)
    summed = "".join(label for label in shared if label not in needed)
    rows = "".join(label for label in first.labels if label not in shared)
    columns = "".join(label for label in second.labels if label not in shared)
    size = dict(zip(first.labels + second.labels, extents(first.data) + extents(second.data), strict=True))

    def flattened(term: _Term, *groups: str) -> Any:
        """Return the axes of ``batch``, then one for each of the groups."""
        data = _permuted(builder, term, batch + "".join(groups)).data
        if all(len(group) == 1 for group in groups):
            return data
        shape = [size[label] for label in batch] + [math.prod(size[label] for label in group) for group in groups]
        return builder.emit(relax.op.reshape(data, shape))

    if not summed:  # products of elements
        left, right = (flattened(term, group) for term, group in ((first, rows), (second, columns)))
        left = builder.emit(relax.op.expand_dims(left, [len(batch) + 1]))
        right = builder.emit(relax.op.expand_dims(right, [len(batch)]))
        product = relax.op.multiply(left, right)
    else:
        product = relax.op.matmul(flattened(first, rows, summed), flattened(second, summed, columns))
    labels = batch + rows + columns
    result = builder.emit(product)
    if len(rows) != 1 or len(columns) != 1:
        result = builder.emit(relax.op.reshape(result, [size[label] for label in labels]))
    return _Term(result, labels)


def _sum_over(builder: Any, term: _Term, needed: Iterable[str]) -> _Term:
    """Sum over the axes of labels that are not needed."""
    needed = set(needed)
    axes = [axis for axis, label in enumerate(term.labels) if label not in needed]
    if not axes:
        return term
    return _Term(
        builder.emit(relax.op.sum(term.data, axes)), "".join(label for label in term.labels if label in needed)
    )


def _permuted(builder: Any, term: _Term, labels: str) -> _Term:
    """Return the tensor with its axes in the order of ``labels``."""
    if labels == term.labels:
        return term
    return _Term(builder.emit(relax.op.permute_dims(term.data, [*map(term.labels.index, labels)])), labels)


CONVERTERS: Mapping[str, Converter] = {"Einsum": _einsum}
