"""Render all partitions of a model to one C file, and compile it for each CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from packager.backends.base import Context, Target
from packager.backends.ccompiler.bytes.tables import use_tables
from packager.backends.ccompiler.compiler import compile_module, machine_of, predefined
from packager.backends.ccompiler.core.copies import compose_moves
from packager.backends.ccompiler.core.expressions import CTYPES, LIBM
from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.in_place import find_placeable, write_in_place
from packager.backends.ccompiler.core.machine import (
    BYTE_LOADS,
    BYTE_MAXIMA,
    BYTE_PAIRS,
    HALF_LOADS,
    HALF_STORES,
    HALVES_SUMS,
    PAIR_PRODUCTS,
    SOME_LOADS,
    SOME_STORES,
    VECTOR_MAXIMA,
    VECTOR_MINIMA,
    WITHIN_LOADS,
    Machine,
)
from packager.backends.ccompiler.core.operations import (
    COL2IM,
    CONVOLUTIONS,
    MOVES,
    NORMALIZE,
    PLANAR_CONV,
    POOLS,
    RESIZE,
    ROW_ANCHORS,
    ROW_DOTS,
    CannotRender,
    Graph,
    Operation,
    read_graph,
)
from packager.backends.ccompiler.core.reciprocals import multiply_by_reciprocals
from packager.backends.ccompiler.core.shapes import c_name
from packager.backends.ccompiler.core.stages import Stage, make_stages
from packager.backends.ccompiler.gemm.blocks import HELD, SUM
from packager.backends.ccompiler.gemm.dots import render_dots
from packager.backends.ccompiler.gemm.narrow import render_narrow
from packager.backends.ccompiler.gemm.planes import render_planes
from packager.backends.ccompiler.gemm.row_dots import add_row_dots, find_row_dots
from packager.backends.ccompiler.gemm.tiles import render_tiles
from packager.backends.ccompiler.ops.attention import add_attention, tile_values
from packager.backends.ccompiler.ops.block_matmul import add_block_matmul
from packager.backends.ccompiler.ops.col2im import add_col2im
from packager.backends.ccompiler.ops.computed_conv import add_computed_conv, is_computed_conv
from packager.backends.ccompiler.ops.conv2d import add_conv2d, winograd_of
from packager.backends.ccompiler.ops.data_movement import add_move
from packager.backends.ccompiler.ops.dense import add_dense
from packager.backends.ccompiler.ops.depthwise import add_depthwise, is_depthwise
from packager.backends.ccompiler.ops.elementwise import add_elementwise
from packager.backends.ccompiler.ops.normalize import add_normalization
from packager.backends.ccompiler.ops.planar_conv import add_planar_conv, find_planar
from packager.backends.ccompiler.ops.pool2d import add_pool2d
from packager.backends.ccompiler.ops.pool_lines import pool_planes
from packager.backends.ccompiler.ops.recurrent import add_recurrent
from packager.backends.ccompiler.ops.softmax_norm import add_neighbors, add_rows
from packager.backends.ccompiler.ops.strided_copy import add_copy
from packager.backends.ccompiler.ops.trees import add_trees, gather_of
from packager.backends.ccompiler.ops.winograd import render_transforms
from packager.backends.ccompiler.resize.resize import add_resize
from packager.codegen.escape import header_name
from packager.codegen.templates import MARK, render
from packager.errors import BackendError
from packager.ir.primitives import BackendOutput, FunctionGroup, Partition, StaticLibrary

# Weights that stay in the L2 cache between runs, whatever the CPU.
NEAR = 64 * 1024
INTEGERS = [
    (ctype.suffix, ctype.value, "uint64_t" if dtype == "int64" else "uint32_t")
    for dtype, ctype in CTYPES.items()
    if dtype != "bool" and not ctype.is_float
]


Adder = Callable[[Stage, Operation, GroupDraft], None]
ADDERS: dict[str, Adder] = {
    **dict.fromkeys(ROW_ANCHORS, add_rows),
    **dict.fromkeys(MOVES, add_move),
    **dict.fromkeys(POOLS, add_pool2d),
    **dict.fromkeys(CONVOLUTIONS, add_conv2d),
    "nn.avg_pool1d": add_neighbors,
    NORMALIZE: add_normalization,
    PLANAR_CONV: add_planar_conv,
    RESIZE: add_resize,
    COL2IM: add_col2im,
    ROW_DOTS: add_row_dots,
    "copy": add_copy,
    "attention": add_attention,
    "matmul": add_dense,
    "packager.recurrent": add_recurrent,
    "packager.tree_ensemble": add_trees,
    "packager.block_matmul": add_block_matmul,
}


def compile_partitions(partitions: Sequence[Partition], target: Target, context: Context) -> BackendOutput:
    """Render all partitions and compile them, once for each CPU. Raises BackendError, UsageError."""
    if not partitions:
        return BackendOutput(target.kind)
    options: Any = target.options
    machines = [machine_of(predefined(context, march)) for march in options.march]
    # Higher levels may require more than their names say: CPUs without it run the code of the level below.
    machines[1:] = [replace(machine, quads=machine.name == "avx512") for machine in machines[1:]]
    variants = [
        (march, *render_module(partitions, options.header, machine, winograd=options.winograd))
        for march, machine in zip(options.march, machines, strict=True)
    ]
    _, _, groups, given_back = variants[0]
    for march, _, others, not_taken in variants[1:]:
        require_equal_groups({**groups, **given_back}, {**others, **not_taken}, options.march[0], march)
    if not groups:
        return BackendOutput(target.kind, given_back=given_back)
    # Sequential: an interrupt only ends a compiler that the main thread waits for.
    compiled = [_compile_variant(march, source, target, context) for march, source, _, _ in variants]
    symbols = tuple(function.symbol for group in groups.values() for function in group.functions)
    levels = ("", *context.base.cpus[1:])
    return BackendOutput(
        target.kind,
        static_libraries=tuple(
            StaticLibrary(path.name, (path,), symbols, level=level)
            for path, level in zip(compiled, levels, strict=False)  # a march that is given may be for all levels
        ),
        groups=groups,
        given_back=given_back,
        toolchain={"ccompiler": context.toolchain.versions["cc"]},
    )


def _compile_variant(march: str, source: str, target: Target, context: Context) -> Path:
    """Compile the C of one CPU. The file has the same name for all, since the object contains it."""
    first = march == target.options.march[0]
    folder = context.workdir if first else context.workdir / march
    folder.mkdir(exist_ok=True)
    path = folder / "ccompiler.c"
    path.write_text(source)
    made = context.workdir / ("ccompiler.o" if first else f"ccompiler-{march}.o")
    return compile_module(path, made, march, target.options, context)


def require_equal_groups(
    first: Mapping[str, FunctionGroup | str], second: Mapping[str, FunctionGroup | str], one: str, other: str
) -> None:
    """Raise BackendError unless partitions have the same functions for two CPUs, or were given back for both.

    Both have one call plan, one arena and one set of packed constants.
    """
    for name, group in first.items():
        if _described(group) != _described(second[name]):
            raise BackendError(
                f"ccompiler: partition {name} has other functions, workspaces or constants for {other} than for {one}",
                hint="this is a bug of the backend: only the C text may depend on the CPU. -march names one for all",
                detail=f"{one}: {_described(group)}\n{other}: {_described(second[name])}",
            )


def _described(group: FunctionGroup | str) -> Any:
    """Return a comparable value: expressions by their text, packings by the names of their layouts."""
    if isinstance(group, str):
        return group
    functions = [(f.symbol, f.parameters, [str(s) for s in f.scalars], str(f.extent)) for f in group.functions]
    packings = [(packing.arguments, packing.layout) for packing in group.packings]
    return functions, [str(size) for size in group.workspaces], packings


def render_module(
    partitions: Sequence[Partition], headers: Sequence[str], machine: Machine, *, winograd: int = 2
) -> tuple[str, dict[str, FunctionGroup], dict[str, str]]:
    """Return the C file, the group of each partition, and why others are given back."""
    drafts, given_back = draft_groups(partitions, machine, winograd=winograd)
    made = [function for draft in drafts.values() for function in draft.functions]
    groups = {name: draft.group() for name, draft in drafts.items()}
    sources = [function.source for function in made]
    lanes = machine.vector_bytes // 4
    wanted = {tile for function in made for tile in function.tiles}
    weights = _weights(partitions, drafts)
    values = {
        "mark": MARK,
        "headers": [header_name(name) for name in headers],
        "libm": LIBM,
        "integers": INTEGERS,
        "lanes": lanes,
        "bytes": machine.vector_bytes,
        "halves": [lanes >> step for step in range(1, lanes.bit_length())],
        "spans": [lanes >> step for step in range(lanes.bit_length() - 1)],
        "some_load": SOME_LOADS.get(machine.name, ""),
        "within_load": WITHIN_LOADS.get(machine.name, ""),
        "some_store": SOME_STORES.get(machine.name, ""),
        "vector_max": VECTOR_MAXIMA.get(machine.name, ""),
        "vector_min": VECTOR_MINIMA.get(machine.name, ""),
        "quads": machine.quads,
        "sum": SUM,
        "embedded": machine.embeds,
        "integer_bytes": min(machine.vector_bytes, 32),
        "half_load": HALF_LOADS[machine.name],
        "half_store": HALF_STORES[machine.name],
        "byte_load": BYTE_LOADS.get(machine.name, ""),
        "half_type": "_Float16" if machine.name == "aarch64" else "int16_t",
        "pair_product": PAIR_PRODUCTS[machine.name],
        "tiles": [
            *render_tiles(machine, wanted, fetch=weights > NEAR, cached=weights <= HELD),
            *render_dots(machine, wanted, sources),
            *render_narrow(machine, wanted),
            *render_transforms(sources),
            *render_planes(machine, sources),
        ],
        "sources": sources,
        "gather": gather_of(machine.name),
        "transposes": sorted({bits for bits in (8, 16, 32, 64) if any(f"pk_transpose_{bits}(" in s for s in sources)}),
        "tables": machine.name if any("pk_map_bytes(" in source for source in sources) else "",
        "byte_maxima": BYTE_MAXIMA[machine.name] if any("8_bytes(" in source for source in sources) else "",
        "trees": any("pk_child" in source for source in sources),
        "byte_pairs": BYTE_PAIRS[machine.name] if any("pk_quantize_block_" in source for source in sources) else "",
        "halves_sum": HALVES_SUMS.get(machine.name, ""),
        "attention": tile_values(machine, sources) if any("pk_attend_" in source for source in sources) else None,
    }
    return render("ccompiler/common/module.c.j2", values), groups, given_back


def _weights(partitions: Sequence[Partition], drafts: Mapping[str, GroupDraft]) -> float:
    """Return the number of weights that all calls of all functions read; infinity if it is symbolic."""
    total = 0.0
    for partition in partitions:
        read = [function.weights for function in drafts[partition.name].functions] if partition.name in drafts else []
        different = {tuple(sorted(site.constants.items())) for site in partition.sites}
        total += len(different) * sum(count if isinstance(count, int) else math.inf for count in read)
    return total


def draft_groups(
    partitions: Sequence[Partition], machine: Machine, *, winograd: int
) -> tuple[dict[str, GroupDraft], dict[str, str]]:
    """Return the functions of each partition, and why others cannot be rendered."""
    drafts, given_back = {}, {}
    for partition in partitions:
        try:
            drafts[partition.name] = draft_group(partition, machine, winograd=winograd)
        except CannotRender as reason:
            given_back[partition.name] = f"ccompiler cannot render {reason}"
    return drafts, given_back


def draft_group(partition: Partition, machine: Machine, *, winograd: int) -> GroupDraft:
    """Return the functions of a partition. Raises CannotRender."""
    problems = [composite.problem for composite in partition.composites if composite.problem is not None]
    graph = read_graph(partition.function, partition.constant_arguments, problems)
    operations = multiply_by_reciprocals(graph.operations, graph.results)
    operations = find_row_dots(operations, graph.results)
    is_winograd = partial(_is_winograd, graph=graph, winograd=winograd)
    operations = find_planar(pool_planes(operations, graph.results), graph.results, is_winograd)
    can_place = partial(_can_place, graph=graph, winograd=winograd)
    alone = find_placeable(operations, graph.results, can_place)
    graph = replace(graph, operations=tuple(compose_moves(operations, graph.results, alone)))
    names = [c_name(variable) for variable in graph.variables]
    if len(set(names)) < len(names):
        raise CannotRender("two shape variables of one name")
    group = GroupDraft(partition.name, graph, machine, winograd)
    for stage in map(use_tables, write_in_place(make_stages(graph), graph, can_place)):
        if stage.anchor is None:
            add_elementwise(stage, group)
        else:
            _adder(stage.anchor, graph)(stage, stage.anchor, group)
    return group


def _can_place(anchor: Operation, *, graph: Graph, winograd: int) -> bool:
    """Whether parts of an anchor's rows may be written apart."""
    return anchor.name in CONVOLUTIONS and _adder(anchor, graph) is add_conv2d and winograd_of(anchor, winograd) is None


def _is_winograd(conv: Operation, *, graph: Graph, winograd: int) -> bool:
    """Whether a convolution with channels last takes Winograd's way."""
    return _adder(conv, graph) is add_conv2d and winograd_of(conv, winograd) is not None


def _adder(anchor: Operation, graph: Graph) -> Adder:
    layout = getattr(anchor.attributes, "data_layout", getattr(anchor.attributes, "layout", "NHWC"))
    if anchor.name in (*CONVOLUTIONS, *POOLS) and layout not in ("NWC", "NHWC", "NDHWC"):
        raise CannotRender(f"{anchor.name} over {layout}")
    if is_computed_conv(anchor, graph.constants):
        return add_computed_conv
    is_depthwise_conv = anchor.name in CONVOLUTIONS and is_depthwise(anchor)
    return add_depthwise if is_depthwise_conv else ADDERS[anchor.name]
