"""A third party's backend, as small as one can be that computes: static add, subtract, multiply, relu and matmul.

The tests of partitioning use it: every operator becomes a plain C loop, so what is tested is packager's part. ``toy``
takes operator by operator, and matmul with add as one; ``toymerge`` lets what is adjacent become one partition. Bytes
become floats by a table, which is a constant of the backend's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from packager.backends.api import (
    API_VERSION,
    BackendOutput,
    Context,
    FunctionGroup,
    Match,
    Parameter,
    Partition,
    PartitionOptions,
    Pattern,
    PrimitiveFunction,
    StaticLibrary,
    Target,
    Unavailable,
    attribute,
    run,
)

ELEMENTWISE = {
    "add": "a[i] + b[i]",
    "subtract": "a[i] - b[i]",
    "multiply": "a[i] * b[i]",
    "nn.relu": "a[i] > 0 ? a[i] : 0",
}
UNARY = ("nn.relu", "astype")
TABLE = "bytes"
C_TYPES = {"uint8": "uint8_t", "float32": "float", "int32": "int32_t"}


@dataclass(frozen=True)
class ToyOptions(PartitionOptions):
    """Attributes of both kinds."""

    operators: tuple[str, ...] = attribute(
        ("add", "subtract", "multiply", "nn.relu", "matmul", "astype"), "Operators to take"
    )
    give_back: tuple[str, ...] = attribute((), "Give partitions back that hold one of these operators")
    leave_out: tuple[str, ...] = attribute((), "Give these operators back out of partitions that hold others")


class ToyBackend:
    """See the module."""

    api_version = API_VERSION
    device = "cpu"
    options = ToyOptions
    summary = "plain C loops, for packager's tests"

    def __init__(self, kind: str, merges: bool) -> None:
        self.kind = kind
        self.merges = merges

    def canonical(self, options: ToyOptions, base: Target | None) -> ToyOptions:  # noqa: ARG002
        return options

    def probe(self, target: Target) -> Unavailable | None:  # noqa: ARG002
        return None

    def patterns(self, target: Target) -> Sequence[Pattern]:
        from tvm.relax.dpl import is_op, wildcard

        found = []
        for name in target.options.operators:
            count = 1 if name in UNARY else 2
            single = is_op(f"relax.{name}")(*(wildcard() for _ in range(count)))
            found.append(Pattern(f"{self.kind}.{name}", single, check=_can_take))
        if "matmul" in target.options.operators and not self.merges:
            product = is_op("relax.matmul")(wildcard(), wildcard())
            found.append(
                Pattern(f"{self.kind}.dense_add", is_op("relax.add")(product, wildcard()), check=_can_take, taps=True)
            )
        return found

    def would_give_back(self, partitions: Sequence[Partition], target: Target) -> dict[str, str]:
        return {p.name: "asked to" for p in partitions if set(target.options.give_back) & set(_operators(p))}

    def compile(self, partitions: Sequence[Partition], target: Target, context: Context) -> BackendOutput:
        refused = self.would_give_back(partitions, target)
        unknown = set(target.options.leave_out)
        left_out = {
            p.name: tuple(place for place, one in enumerate(p.composites) if unknown & set(one.ops))
            for p in partitions
            if unknown & set(_operators(p)) and unknown < set(_operators(p))
        }
        refused |= {p.name: "it cannot" for p in partitions if unknown & set(_operators(p))}
        kept = [p for p in partitions if p.name not in refused]
        if not kept:
            return BackendOutput(self.kind, given_back=refused, left_out=left_out)
        texts, groups = zip(*(_render(partition) for partition in kept), strict=True)
        source = context.workdir / f"{self.kind}.c"
        source.write_text("#include <stdint.h>\n" + "\n".join(texts))
        built = source.with_suffix(".o")
        run([context.toolchain.cc, "-O2", "-fPIC", "-c", source.name, "-o", built.name], cwd=context.workdir)
        symbols = tuple(f"{partition.name}_f" for partition in kept)
        library = StaticLibrary(built.name, (built,), symbols)
        by_name = {partition.name: group for partition, group in zip(kept, groups, strict=True)}
        used = any(p.kind == "constant" for group in groups for f in group.functions for p in f.parameters)
        table = {TABLE: np.arange(256, dtype=np.float32)} if used else {}
        return BackendOutput(self.kind, (library,), by_name, refused, table, left_out=left_out)


def _operators(partition: Partition) -> list[str]:
    return [operator for composite in partition.composites for operator in composite.ops]


def _can_take(match: Match) -> bool:
    return all(_fits(call) for call in match.calls)


def _fits(call: Any) -> bool:
    from tvm import relax

    shapes = [[str(extent) for extent in value.ty.shape.values] for value in (call, *call.args)]
    if not all(isinstance(operand, relax.Var) for operand in call.args):
        return False  # a constant that stands in the graph
    if str(call.op.name) == "relax.astype":
        return (str(call.args[0].ty.dtype), str(call.ty.dtype)) == ("uint8", "float32") and _is_static(shapes)
    static = _is_static(shapes)
    right = str(call.ty.dtype) in ("float32", "int32") and static
    if str(call.op.name) == "relax.matmul":
        return right and len(shapes[1]) == len(shapes[2]) == 2
    return right and all(shape == shapes[0] for shape in shapes)


def _is_static(shapes: Sequence[Sequence[str]]) -> bool:
    return all(extent.removeprefix("T.int64(").rstrip(")").isdigit() for shape in shapes for extent in shape)


def _render(partition: Partition) -> tuple[str, FunctionGroup]:
    function = partition.function
    arguments = list(function.params)
    body = function.body.body
    results = list(body.fields) if hasattr(body, "fields") else [body]
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    names = {variable.__chandle__(): f"p{i}" for i, variable in enumerate([*arguments, *results])}
    inner = [b.var for b in bindings if b.var.__chandle__() not in names]
    names |= {variable.__chandle__(): f"w{i}" for i, variable in enumerate(inner)}
    loops = []
    for binding in bindings:
        call = binding.value
        if not hasattr(call, "op"):
            raise AssertionError(f"{binding} is no call")
        c_type = C_TYPES[str(call.ty.dtype)]
        operands = [
            f"const {C_TYPES[str(a.ty.dtype)]} *{n} = {names[a.__chandle__()]};"
            for n, a in zip("ab", call.args, strict=False)
        ]
        loops.append(f"{{ {' '.join(operands)} {c_type} *o = {names[binding.var.__chandle__()]}; {_loop(call)} }}")
    has_table = any(str(binding.value.op.name) == "relax.astype" for binding in bindings)
    parameters = [
        *(Parameter("argument", i, written=i >= len(arguments)) for i in range(len(arguments) + len(results))),
        *(Parameter("workspace", i, written=True) for i in range(len(inner))),
        *([Parameter("constant", name=TABLE)] if has_table else []),
    ]
    declared = ", ".join(
        [f"void *p{i}" for i in range(len(arguments) + len(results))]
        + [f"void *w{i}" for i in range(len(inner))]
        + (["const float *table"] if has_table else [])
    )
    symbol = f"{partition.name}_f"
    text = f"int32_t {symbol}({declared});\nint32_t {symbol}({declared}) {{\n" + "\n".join(loops) + "\nreturn 0; }"
    group = FunctionGroup(
        (PrimitiveFunction(symbol, tuple(parameters)),), (), tuple(4 * _count(variable.ty) for variable in inner)
    )
    return text, group


def _count(ty: Any) -> int:
    return math.prod(int(extent) for extent in ty.shape.values)


def _loop(call: Any) -> str:
    name = str(call.op.name).removeprefix("relax.")
    if name == "astype":
        return f"for (int64_t i = 0; i < {_count(call.ty)}; ++i) o[i] = table[a[i]];"
    if name != "matmul":
        return f"for (int64_t i = 0; i < {_count(call.ty)}; ++i) o[i] = {ELEMENTWISE[name]};"
    rows, depth = (int(extent) for extent in call.args[0].ty.shape.values)
    columns = int(call.args[1].ty.shape.values[1])
    return (
        f"for (int64_t i = 0; i < {rows}; ++i) for (int64_t j = 0; j < {columns}; ++j) {{ o[i * {columns} + j] = 0; "
        f"for (int64_t k = 0; k < {depth}; ++k) o[i * {columns} + j] += a[i * {depth} + k] * b[k * {columns} + j]; }}"
    )


TOY = ToyBackend("toy", merges=False)
MERGING = ToyBackend("toymerge", merges=True)
