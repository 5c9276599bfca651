"""Products of rows with the matrices of their groups: from a call of a model to a problem and its kernels.

How many rows a group has is data, so that no tile is the best one for all runs: the cost model takes groups of equal
sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packager.backends.cutlass.core.drafts import GroupDraft, Most, Ranking, rank
from packager.backends.cutlass.core.element_types import ELEMENTS, vector_of
from packager.backends.cutlass.core.kernel import KernelConfig, KernelSource
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.cost_model import GemmShape, ceil_div, microseconds, multiplied
from packager.backends.cutlass.gemm.kernels import SM80_MEGABYTES, TYPES
from packager.backends.cutlass.gemm.tiles import portfolio as tiles_of
from packager.backends.cutlass.gemm.tilings import Sm80Tile
from packager.codegen.templates import MARK, render
from packager.graph.dataflow import Dataflow, shape_of
from packager.graph.identity import IdentityMap
from packager.ir.primitives import Packing, Parameter

if TYPE_CHECKING:
    from packager.bundle.arrays import Array


@dataclass(frozen=True)
class GroupedGemm(KernelConfig):
    """A kernel for rows and matrices [groups, n, k] of ``dtype`` (a key of TYPES); the result has their type.

    K is a multiple of ``alignment``, the elements per access, and N of those that fit the result's.
    """

    tile: Sm80Tile
    dtype: str
    alignment: int

    @property
    def name(self) -> str:
        """A C identifier that encodes everything that the kernel's code depends on."""
        return f"pk_gemm_grouped_{ELEMENTS[self.dtype].short}_{self.tile.name}_a{self.alignment}"

    def source(self, archs: tuple[str, ...]) -> KernelSource:
        """Render the kernel's source file for these architectures."""
        element = ELEMENTS[self.dtype]
        out = "float32" if self.dtype == "tfloat32" else self.dtype
        text = render(
            "cutlass/gemm/grouped_sm80.cu.j2",
            **self.tile.values(),
            mark=MARK,
            name=self.name,
            element=element.cutlass,
            element_d=ELEMENTS[out].cutlass,
            alignment=self.alignment,
            alignment_d=min(self.alignment, vector_of(out)),
            instruction=(16, 8, 32 // element.size),
            math=TYPES[self.dtype].math,
        )
        return KernelSource(self.name, text, archs, SM80_MEGABYTES)


@dataclass(frozen=True)
class GroupedProblem:
    """``a`` [rows, depth] times the matrices ``b`` [groups, depth, columns]; ``ends`` [groups] are of rows of a."""

    a: Any
    b: Any
    ends: Any
    dtype: str
    rows: Any
    groups: int
    columns: int
    depth: int


def find_grouped(flow: Dataflow, anchor: Any, options: CutlassOptions) -> Iterator[GroupedProblem]:
    """Yield the problem of a call if each GPU of the bundle has a kernel."""
    a, b, ends = flow.value(anchor).args
    dtype, matrices, (rows, depth) = str(a.ty.dtype), shape_of(b) or (), shape_of(a) or (None, None)
    if dtype not in TYPES or str(b.ty.dtype) != dtype or not flow.is_constant(b):
        return
    if not all(isinstance(extent, int) and extent > 0 for extent in (depth, *matrices)) or rows == 0:
        return
    problem = GroupedProblem(a, b, ends, dtype, rows, matrices[0], matrices[2], depth)
    if rank_grouped(problem, 1, options):
        yield problem


def rank_grouped(problem: GroupedProblem, rows: int, options: CutlassOptions) -> Ranking:
    """Rank the kernels for so many rows at most."""
    dtype = multiplied(problem.dtype, options)
    size, groups = ELEMENTS[dtype].size, min(problem.groups, rows)
    alignment = math.gcd(problem.depth, problem.columns, 16 // size)

    def time(kernel: GroupedGemm) -> float:
        height = kernel.tile.shape[0]
        padded = groups * ceil_div(ceil_div(rows, groups), height) * height
        return microseconds(kernel.tile, GemmShape(padded, problem.columns, problem.depth, 1), size)

    tiles = tiles_of("sm80", dtype, problem.dtype, alignment=alignment)
    whole = (tile for tile in tiles if isinstance(tile, Sm80Tile) and tile.slices == 1)
    kernels = sorted((GroupedGemm(tile, dtype, alignment) for tile in whole), key=time)
    size_of = f"{rows}x{problem.columns}x{problem.depth} groups {problem.groups} aligned {alignment}"
    return rank(f"grouped gemm {dtype} {size_of}", options.arch, [], kernels, time)


def add_grouped(
    problem: GroupedProblem, arguments: IdentityMap[int], group: GroupDraft, options: CutlassOptions, most: Most
) -> None:
    """Add the function of a problem to its partition's group."""
    draft = group.add("grouped_gemm", rank_grouped(problem, most((problem.rows,)), options))
    draft.pointer("a", Parameter("argument", arguments[problem.a]))
    draft.pointer("b", group.packed(Packing(arguments[problem.b], "gnk", _pack_columns)))
    draft.pointer("ends", Parameter("argument", arguments[problem.ends]))
    draft.pointer("d", Parameter("argument", len(arguments), written=True))
    draft.set(m=problem.rows, n=problem.columns, k=problem.depth, groups=problem.groups)


def _pack_columns(matrices: Array) -> Array:
    """Return [groups, k, n] as [groups, n, k]."""
    return matrices.swapaxes(1, 2)
