"""All partitions of a model as one C file, and that as one object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from packager.backends.base import Context
from packager.backends.ccompiler.conv2d import add_conv2d
from packager.backends.ccompiler.dense import add_dense
from packager.backends.ccompiler.depthwise import add_depthwise, is_depthwise
from packager.backends.ccompiler.elementwise import add_elementwise
from packager.backends.ccompiler.functions import CFunction, GroupDraft, Machine
from packager.backends.ccompiler.gcc import compile_module, machine_of, predefined
from packager.backends.ccompiler.graph import POOLS, ROW_ANCHORS, CannotRender, Operation, read_graph
from packager.backends.ccompiler.pool2d import add_pool2d
from packager.backends.ccompiler.rows import add_rows
from packager.backends.ccompiler.shapes import c_name
from packager.backends.ccompiler.stages import Stage, make_stages
from packager.backends.ccompiler.tiles import COLUMNS, KINDS, Tile
from packager.header import ENVIRONMENT, MARK
from packager.primitives import BackendOutput, FunctionGroup, Partition, StaticLibrary
from packager.targets import Target

LIBM = ("log", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")
INTEGERS = (
    ("i8", "int8_t", "uint32_t"),
    ("u8", "uint8_t", "uint32_t"),
    ("i16", "int16_t", "uint32_t"),
    ("i32", "int32_t", "uint32_t"),
    ("i64", "int64_t", "uint64_t"),
)
# How each machine loads halves as floats (p), stores floats as halves, and adds the products of pairs of int16.
HALF_LOADS = {
    "avx2": "__builtin_ia32_vcvtph2ps256(*(const pk_uh *)p)",
    "avx512": "__builtin_ia32_vcvtph2ps512_mask(*(const pk_uh *)p, (pk_vf32){0}, -1, 4)",
    "aarch64": "__builtin_convertvector(*(const pk_uh *)p, pk_vf32)",
    "sse2": "",
}
HALF_STORES = {
    "avx2": "(pk_uh)__builtin_ia32_vcvtps2ph256(pk_load_f32(from + i), 0)",
    "avx512": "(pk_uh)__builtin_ia32_vcvtps2ph512_mask(pk_load_f32(from + i), 0, (pk_uh){0}, -1)",
    "aarch64": "__builtin_convertvector(pk_load_f32(from + i), pk_uh)",
    "sse2": "",
}
PAIR_PRODUCTS = {
    "avx2": "(pk_vi32)__builtin_ia32_pmaddwd256((pk_wi8)pairs, w)",
    "avx512": "(pk_vi32)__builtin_ia32_pmaddwd256((pk_wi8)pairs, w)",
    "sse2": "(pk_vi32)__builtin_ia32_pmaddwd128((pk_wi8)pairs, w)",
    "aarch64": "pk_low(pairs) * pk_low((pk_vi32)w) + pk_high(pairs) * pk_high((pk_vi32)w)",
}


def compile_partitions(partitions: Sequence[Partition], target: Target, context: Context) -> BackendOutput:
    """Render all partitions and compile them. Raises BackendError, UsageError."""
    if not partitions:
        return BackendOutput(target.kind)
    options: Any = target.options
    machine = machine_of(predefined(context, options))
    source, groups, given_back = render_module(partitions, options.header, machine)
    if not groups:
        return BackendOutput(target.kind, given_back=given_back)
    path = context.workdir / "ccompiler.c"
    path.write_text(source)
    symbols = tuple(function.symbol for group in groups.values() for function in group.functions)
    library = StaticLibrary("ccompiler.o", (compile_module(path, options, context),), symbols)
    return BackendOutput(
        target.kind,
        static_libraries=(library,),
        groups=groups,
        given_back=given_back,
        toolchain={"ccompiler": context.toolchain.versions["cc"]},
    )


def render_module(
    partitions: Sequence[Partition], headers: Sequence[str], machine: Machine
) -> tuple[str, dict[str, FunctionGroup], dict[str, str]]:
    """Return the C file, the group of each partition, and the reasons for which others are given back."""
    made: list[CFunction] = []
    groups, given_back = {}, {}
    for partition in partitions:
        try:
            draft = draft_group(partition, machine)
        except CannotRender as reason:
            given_back[partition.name] = f"ccompiler cannot render {reason}"
            continue
        made += draft.functions
        groups[partition.name] = draft.group()
    tiles = sorted({tile for function in made for tile in function.tiles})
    lanes = machine.vector_bytes // 4
    values = {
        "mark": MARK,
        "headers": [name if name.startswith("<") else f'"{name}"' for name in headers],
        "libm": LIBM,
        "integers": INTEGERS,
        "lanes": lanes,
        "bytes": machine.vector_bytes,
        "integer_bytes": min(machine.vector_bytes, 32),
        "half_load": HALF_LOADS[machine.name],
        "half_store": HALF_STORES[machine.name],
        "half_type": "_Float16" if machine.name == "aarch64" else "int16_t",
        "pair_product": PAIR_PRODUCTS[machine.name],
        "tiles": [_tile(tile) for tile in tiles],
        "sources": [function.source for function in made],
    }
    return ENVIRONMENT.get_template("ccompiler/module.c.j2").render(values), groups, given_back


def draft_group(partition: Partition, machine: Machine) -> GroupDraft:
    """Return the functions of a partition. Raises CannotRender."""
    graph = read_graph(partition.function, partition.constant_arguments)
    names = [c_name(variable) for variable in graph.variables]
    if len(set(names)) < len(names):
        raise CannotRender("two shape variables of one name")
    group = GroupDraft(partition.name, graph, machine)
    for stage in make_stages(graph):
        if stage.anchor is None:
            add_elementwise(stage, group)
        else:
            _adder(stage.anchor)(stage, stage.anchor, group)
    return group


def _adder(anchor: Operation) -> Callable[[Stage, Operation, GroupDraft], None]:
    if anchor.name in ROW_ANCHORS:
        return add_rows
    if anchor.name in POOLS:
        return add_pool2d
    if anchor.name == "nn.conv2d":
        return add_depthwise if is_depthwise(anchor) else add_conv2d
    return add_dense


def _tile(tile: Tile) -> str:
    kind = next(kind for kind in KINDS.values() if kind.name == tile.kind)
    return ENVIRONMENT.get_template("ccompiler/tile.c.j2").render(
        name=tile.name,
        kind=kind.name,
        data=kind.data,
        weight=kind.weight,
        total=kind.total,
        step=COLUMNS * kind.pair,
        rows=tile.rows,
        panels=tile.panels,
        vectors=tile.vectors,
        height=tile.height,
        width=tile.width,
    )
