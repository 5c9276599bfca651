"""Backends that take stated times: what is the fastest placement of a model is known, whatever machine measures it.

Times are processor time of the thread, by which runs of one thread are measured: other load counts in neither.

They compute sin, cos, sinh and cosh of values up to 3 by their series, which takes less time than TVM's calls of the C
library, and spin until the time of the operator is over. ``spina`` and ``spinb`` take operator by operator; an operator
can be faster right behind another one of the same backend (``after``), as with a pipeline that is kept warm, so that
two neighbors may be worth moving together though neither is alone. ``spinmerge`` joins adjacent operators, and each can
take another time then (``merged``). ``spinlib`` says that it needs a library of the target machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from packager.backends.api import (
    API_VERSION,
    BackendOutput,
    Candidates,
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
    read_records,
    run,
)
from packager.errors import UsageError

TERMS = 9  # of the series: 3^19/19! is 1e-8
# The operators: whether powers are odd, and whether signs alternate.
SERIES = {"sin": (True, True), "cos": (False, True), "sinh": (True, False), "cosh": (False, False)}
HEAD = """
#define _POSIX_C_SOURCE 199309L
#include <stdint.h>
#include <time.h>
static int64_t ended;  /* when the last function of this backend did */
static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}
"""
GAP_US = 20
"""What is called sooner after the end of another function is right behind it."""


@dataclass(frozen=True)
class SpinOptions(PartitionOptions):
    """Attributes of all kinds: microseconds by operator, as ``sin:100,cos:50``."""

    us: tuple[str, ...] = attribute((), "Operators to take, and their microseconds")
    after: tuple[str, ...] = attribute((), "Microseconds right behind another operator of the same backend")
    merged: tuple[str, ...] = attribute((), "Microseconds in a partition of several operators")
    slower: int = attribute(0, "How much longer the usual one of two candidates takes; 0: there is one", minimum=0)
    tuning: tuple[str, ...] = attribute((), "Files of records that packager tune wrote", is_path=True)


def _times(items: Sequence[str]) -> dict[str, int]:
    times = {}
    for item in items:
        name, _, us = item.partition(":")
        if name not in SERIES or not us.isdigit():
            raise UsageError(f"{item!r} is no time of an operator", hint=f"sin:100; operators: {', '.join(SERIES)}")
        times[name] = int(us)
    return times


class SpinBackend:
    """See the module."""

    api_version = API_VERSION
    device = "cpu"
    options = SpinOptions
    summary = "functions that take a stated time, for packager's tests"

    def __init__(self, kind: str, merges: bool = False, needs_library: bool = False) -> None:
        self.kind = kind
        self.merges = merges
        self.needs_library = needs_library

    def canonical(self, options: SpinOptions, base: Target | None) -> SpinOptions:  # noqa: ARG002
        for items in (options.us, options.after, options.merged):
            _times(items)
        return options

    def probe(self, target: Target) -> Unavailable | None:  # noqa: ARG002
        return None

    def patterns(self, target: Target) -> Sequence[Pattern]:
        from tvm.relax.dpl import is_op, wildcard

        operators = _times(target.options.us)
        return [
            Pattern(f"{self.kind}.{name}", is_op(f"relax.{name}")(wildcard()), check=_can_take) for name in operators
        ]

    def compile(self, partitions: Sequence[Partition], target: Target, context: Context) -> BackendOutput:
        if not partitions:
            return BackendOutput(self.kind)
        texts, groups = zip(*(_render(partition, target.options) for partition in partitions), strict=True)
        source = context.workdir / f"{self.kind}.c"
        source.write_text(HEAD + "".join(texts))
        built = source.with_suffix(".o")
        run([context.toolchain.cc, "-O3", "-fPIC", "-c", source.name, "-o", built.name], cwd=context.workdir)
        symbols = tuple(group.functions[0].symbol for group in groups)
        named = {partition.name: group for partition, group in zip(partitions, groups, strict=True)}
        return BackendOutput(self.kind, (StaticLibrary(built.name, (built,), symbols),), named)


def _can_take(match: Match) -> bool:
    (call,) = match.calls
    extents = [str(extent) for extent in call.ty.shape.values]
    return str(call.ty.dtype) == "float32" and all(e.removeprefix("T.int64(").rstrip(")").isdigit() for e in extents)


def _render(partition: Partition, options: Any) -> tuple[str, FunctionGroup]:
    function = partition.function
    body = function.body.body
    arguments, results = list(function.params), list(body.fields) if hasattr(body, "fields") else [body]
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    operators = [str(binding.value.op.name).removeprefix("relax.") for binding in bindings]
    names = {variable.__chandle__(): f"p{index}" for index, variable in enumerate([*arguments, *results])}
    inner = [binding.var for binding in bindings if binding.var.__chandle__() not in names]
    names |= {variable.__chandle__(): f"w{index}" for index, variable in enumerate(inner)}
    alone = _times(options.us)
    merged, after = alone | _times(options.merged), alone | _times(options.after)
    several = len(bindings) > 1
    usual, warm = (sum((merged if several else times)[name] for name in operators) for times in (alone, after))
    choice = ["int64_t choice"] if options.slower else []
    problem = f"spin {'+'.join(operators)} {_count(results[0].ty)}"
    ways = tuple(r.chosen for r in read_records(options.tuning).records if r.problem == problem) or ("slow", "fast")
    extra = f"(choice == {ways.index('slow')} ? {options.slower} : 0)" if options.slower and "slow" in ways else "0"
    loops = "".join(
        _loop(name, names[b.value.args[0].__chandle__()], names[b.var.__chandle__()], _count(b.var.ty))
        for name, b in zip(operators, bindings, strict=True)
    )
    symbol = f"{partition.name}_spin"
    declared = ", ".join(
        [f"{'const ' if i < len(arguments) else ''}float *p{i}" for i in range(len(arguments) + len(results))]
        + [f"float *w{i}" for i in range(len(inner))]
        + choice
    )
    text = (
        f"int32_t {symbol}({declared});\nint32_t {symbol}({declared}) {{\n"
        f"  int64_t start = now(), ns = 1000 * ({extra} + "
        f"(start - ended < {1000 * GAP_US} ? {warm} : {usual}));\n"
        f"{loops}  while (now() - start < ns) {{ }}\n  ended = now();\n  return 0;\n}}\n"
    )
    parameters = (
        *(Parameter("argument", i, written=i >= len(arguments)) for i in range(len(arguments) + len(results))),
        *(Parameter("workspace", i, written=True) for i in range(len(inner))),
    )
    workspaces = tuple(4 * _count(variable.ty) for variable in inner)
    candidates = Candidates(problem, ways, "spin-1", 0) if options.slower else None
    return text, FunctionGroup((PrimitiveFunction(symbol, parameters, candidates=candidates),), (), workspaces)


def _loop(name: str, source: str, result: str, count: int) -> str:
    """Return C that evaluates a series from its last term on: 1 +- x^2/(k(k+1)) (1 +- ...)."""
    odd, alternates = SERIES[name]
    sign, value = "-" if alternates else "+", "1.0f"
    for term in range(TERMS, 0, -1):
        below = 2 * term * (2 * term + 1) if odd else 2 * term * (2 * term - 1)
        value = f"1.0f {sign} t * {1 / below:.9e}f * ({value})"
    return (
        f"  for (int64_t i = 0; i < {count}; ++i) {{ float x = {source}[i], t = x * x; "
        f"{result}[i] = {'x * ' if odd else ''}({value}); }}\n"
    )


def _count(ty: Any) -> int:
    return math.prod(int(extent) for extent in ty.shape.values)


SPIN_A = SpinBackend("spina")
SPIN_B = SpinBackend("spinb")
MERGING = SpinBackend("spinmerge", merges=True)
LIBRARY = SpinBackend("spinlib", needs_library=True)
