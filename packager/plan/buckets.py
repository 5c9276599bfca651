"""Merges the variants of a model with bucketed dims into one entry with symbolic shapes.

Variants are compiled with fixed sizes, so the symbolic extents of the entry are inferred: the simplest expression with
the right value at all sizes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from packager.bundle.buckets import Sizes, shown_sizes
from packager.bundle.manifest import Dim, RunTimeExtent, TensorSpec
from packager.bundle.shape_expr import MAX_LENGTH
from packager.errors import ModelError
from packager.graph.symbolic import combine, extent_interval
from packager.ir.call_plan import EntryPlan
from packager.ir.shapes import Extent

# Divisors typical of strides, patches and down-sampling.
_DIVISORS = (1, 2, 3, 4, 5, 6, 7, 8, 14, 16, 28, 32, 49, 64, 128, 196, 256, 512, 1024)
_TOKEN = re.compile(r"[A-Za-z_]\w*|[0-9]+|[^A-Za-z_0-9]+")


def gather_variants(runs: Sequence[EntryPlan]) -> tuple[EntryPlan, ...]:
    """Return the entries of a bundle: models without buckets unchanged, all variants of a model merged.

    Raises ModelError for a dim that is no input's extent, and for outputs without a common shape expression.
    """
    groups = (tuple(group) for _, group in itertools.groupby(runs, key=lambda run: run.name))
    return tuple(_entry(group) if group[0].sizes else group[0] for group in groups)


def _entry(variants: tuple[EntryPlan, ...]) -> EntryPlan:
    first = variants[0]
    inputs = tuple(_tensor("input", specs, variants) for specs in zip(*(run.inputs for run in variants), strict=True))
    dims = [_dim(name, inputs, variants) for name in first.sizes]
    outputs = tuple(
        _tensor("output", specs, variants) for specs in zip(*(run.outputs for run in variants), strict=True)
    )
    return replace(
        first,
        inputs=inputs,
        outputs=outputs,
        dims=(*dims, *first.dims),
        steps=(),
        sizes={},
        variants=variants,
        extents=_extents(variants),
    )


def _extents(variants: tuple[EntryPlan, ...]) -> tuple[RunTimeExtent, ...]:
    """Return the run-time extents, each with its largest bound. Raises ModelError unless all variants have the same."""
    found: list[RunTimeExtent] = []
    for extents in itertools.zip_longest(*(run.extents for run in variants)):
        if len({extent and extent.name for extent in extents}) > 1:
            raise ModelError(
                "the variants for the sizes of the bucketed dims compute different extents",
                hint="fix the dim with --dim NAME=SIZE, or bound it: --dim NAME=MIN:MAX",
            )
        bounds = {extent.bound for extent in extents}
        known = {dim.name: dim for run in variants for dim in run.dims}
        for extent in found:
            known[extent.name] = Dim(extent.name, 0, extent_interval(extent.bound, known)[1])
        most = max(extent_interval(bound, known)[1] for bound in bounds)
        found.append(replace(extents[0], bound=bounds.pop() if len(bounds) == 1 and not found else most))
    return tuple(found)


def _dim(name: str, inputs: Sequence[TensorSpec], variants: Sequence[EntryPlan]) -> Dim:
    if not any(name in spec.shape for spec in inputs):
        raise ModelError(
            f"--dim {name}: no input has the dim as an extent, so no run could select its bucket",
            hint=f"fix it: --dim {name}=SIZE",
        )
    sizes = tuple(dict.fromkeys(run.sizes[name] for run in variants))
    return Dim(name, sizes[0], sizes[-1], sizes)


def _tensor(kind: str, specs: Sequence[TensorSpec], variants: Sequence[EntryPlan]) -> TensorSpec:
    """Return the description of a tensor in all variants."""
    sizes = [run.sizes for run in variants]
    for spec, own in zip(specs, sizes, strict=True):
        if (spec.dtype, len(spec.shape)) != (specs[0].dtype, len(specs[0].shape)):
            raise ModelError(
                f"{kind} {spec.name!r} is {_shown(specs[0])} for {shown_sizes(sizes[0])}, but {_shown(spec)} for "
                f"{shown_sizes(own)}",
                hint="fix the dim with --dim NAME=SIZE, or build a bundle for each size",
            )
    shape = []
    for axis, extents in enumerate(zip(*(spec.shape for spec in specs), strict=True)):
        extent = common_extent(extents, sizes)
        if extent is None or len(str(extent)) > MAX_LENGTH:
            listed = ", ".join(f"{e} for {shown_sizes(own)}" for e, own in zip(extents[:3], sizes, strict=False))
            raise ModelError(
                f"{kind} {specs[0].name!r}: axis {axis} is {listed}: no expression over the dims matches",
                hint="fix a dim with --dim NAME=SIZE, or bound it: --dim NAME=MIN:MAX",
            )
        if kind == "input" and not isinstance(extent, int) and not extent.isidentifier():
            raise ModelError(
                f"input {specs[0].name!r}: axis {axis} is {extent}, but an input's extent must be a single dim",
                hint="fix the dim with --dim NAME=SIZE, or bound it: --dim NAME=MIN:MAX",
            )
        shape.append(extent)
    return replace(specs[0], shape=tuple(shape))


def _shown(spec: TensorSpec) -> str:
    return f"{spec.dtype}[{', '.join(map(str, spec.shape))}]"


def common_extent(extents: Sequence[Extent], sizes: Sequence[Sizes]) -> Extent | None:
    """Return an extent with value ``extents[i]`` at ``sizes[i]`` for all i, or None."""
    if len(set(extents)) == 1:
        return extents[0]
    numbers = [extent for extent in extents if isinstance(extent, int)]
    if len(numbers) < len(extents):
        return _common_text([str(extent) for extent in extents], sizes)
    for term, values in _terms(sizes):
        found = _scaled(term, values, numbers)
        if found is not None:
            return found
    for name in sizes[0]:
        found = _stepped(name, [own[name] for own in sizes], numbers)
        if found is not None:
            return found
    return None


def _common_text(texts: Sequence[str], sizes: Sequence[Sizes]) -> Extent | None:
    """Generalize expressions over other dims that differ only in numbers: ``n * 128`` and ``n * 256``."""
    columns = list(itertools.zip_longest(*map(_TOKEN.findall, texts)))
    parts: list[str] = []
    for column in columns:
        if len(set(column)) == 1:
            parts.append(column[0])
            continue
        if any(token is None or not token.isdigit() for token in column):
            return None
        number = common_extent([int(token) for token in column], sizes)
        if number is None:
            return None
        parts.append(str(number) if str(number).isidentifier() else f"({number})")
    return "".join(parts)


def _terms(sizes: Sequence[Sizes]) -> Iterator[tuple[Extent, list[int]]]:
    """Yield candidate terms with their values: the dims, and sums and products of two of them."""
    names = list(sizes[0])
    for name in names:
        yield name, [own[name] for own in sizes]
    for one, other in itertools.combinations(names, 2):
        yield combine("*", one, other), [own[one] * own[other] for own in sizes]
        yield combine("+", one, other), [own[one] + own[other] for own in sizes]


def _scaled(term: Extent, values: Sequence[int], extents: Sequence[int]) -> Extent | None:
    """Return ``(term * factor + offset) // divisor`` with the smallest divisor that matches the extents, or None."""
    low, high = min(range(len(values)), key=values.__getitem__), max(range(len(values)), key=values.__getitem__)
    run = values[high] - values[low]
    for divisor in _DIVISORS if run else ():
        factor = round((extents[high] - extents[low]) * divisor / run)
        rests = [extent * divisor - factor * value for value, extent in zip(values, extents, strict=True)]
        least, most = max(rests), min(rests) + divisor - 1
        if factor > 0 and least <= most:
            offset = min(max(0, least), most)
            return combine("//", combine("+", combine("*", term, factor), offset), divisor)
    return None


def _stepped(name: str, values: Sequence[int], extents: Sequence[int]) -> Extent | None:
    """Return a sum of step functions of one dim that determines the extents; None if it does not determine them."""
    known = dict(zip(values, extents, strict=True))
    if [known[value] for value in values] != list(extents):
        return None
    sizes = sorted(known)
    result: Extent = known[sizes[0]]
    for before, size in itertools.pairwise(sizes):
        difference = known[size] - known[before]
        step = combine("*", f"min(1, {name} // {size})", abs(difference))
        if difference:
            result = combine("+" if difference > 0 else "-", result, step)
    return result
