"""A backend whose functions call a library that is opened on the target machine: sin and cos of static float32 tensors.

``loader`` takes it for granted that the library is there; what ``loaderopt`` takes has a fallback.

The library is tests/integration/libraries/acme.c, which tests compile in several versions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from packager.backends.api import (
    API_VERSION,
    BackendOutput,
    Context,
    FunctionGroup,
    KnownLibrary,
    LoadedLibrary,
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

FUNCTIONS = ("acme_version", "acme_sin", "acme_cos")
HEAD = """
#include "packager_library.h"
typedef void map_t(float *y, const float *x, int64_t n);
static void *functions[NUM_FUNCTIONS];
static void version(void *const *opened, int32_t version[3]) {
  int packed = ((int (*)(void))opened[0])();
  version[0] = packed / 10000, version[1] = packed / 100 % 100, version[2] = packed % 100;
}
extern const pk_library_t LIBRARY;
const pk_library_t LIBRARY = { functions, NUM_FUNCTIONS, version };
"""


@dataclass(frozen=True)
class LoaderOptions(PartitionOptions):
    """What is declared of the library."""

    operators: tuple[str, ...] = attribute(("sin", "cos"), "Operators to take")
    sonames: tuple[str, ...] = attribute(("libacme.so.2", "libacme.so.1"), "Sonames of the library")
    least: str = attribute("2.1", "Its least version")
    chosen_with: str = attribute("", "The version that it was tested with")


class LoaderBackend:
    """See the module."""

    api_version = API_VERSION
    device = "cpu"
    options = LoaderOptions
    merges = False
    known_libraries = (KnownLibrary(("libacme.so.2", "libacme.so.1"), "acme_version", opens=("libacme_part.so.1",)),)
    summary = "functions that call a library, for packager's tests"

    def __init__(self, kind: str, *, needs_library: bool = False) -> None:
        self.kind = kind
        self.needs_library = needs_library

    def canonical(self, options: LoaderOptions, base: Target | None) -> LoaderOptions:  # noqa: ARG002
        return options

    def probe(self, target: Target) -> Unavailable | None:  # noqa: ARG002
        return None

    def patterns(self, target: Target) -> Sequence[Pattern]:
        from tvm.relax.dpl import is_op, wildcard

        return [
            Pattern(f"{self.kind}.{name}", is_op(f"relax.{name}")(wildcard()), check=_can_take)
            for name in target.options.operators
        ]

    def compile(self, partitions: Sequence[Partition], target: Target, context: Context) -> BackendOutput:
        if not partitions:
            return BackendOutput(self.kind)
        groups, texts = {}, [HEAD]
        library_symbol = f"{self.kind}_acme"
        for partition in partitions:
            symbol, operator = f"{partition.name}_call", partition.composites[0].ops[0]
            extents = partition.function.params[0].ty.shape.values
            texts.append(
                f"int32_t {symbol}(const float *x, float *y);\nint32_t {symbol}(const float *x, float *y) {{\n"
                f"  ((map_t *)functions[{FUNCTIONS.index(f'acme_{operator}')}])"
                f"(y, x, {math.prod(int(extent) for extent in extents)});\n  return 0;\n}}\n"
            )
            parameters = (Parameter("argument", 0), Parameter("argument", 1, written=True))
            groups[partition.name] = FunctionGroup(
                (PrimitiveFunction(symbol, parameters),), libraries=(library_symbol,)
            )
        source = context.workdir / "loader.c"
        source.write_text("".join(texts))
        built = source.with_suffix(".o")
        flags = ["-O2", "-fPIC", f"-DLIBRARY={library_symbol}", f"-DNUM_FUNCTIONS={len(FUNCTIONS)}"]
        flags.append(f"-I{context.headers}")
        run([context.toolchain.cc, *flags, "-c", source.name, "-o", built.name], cwd=context.workdir)
        symbols = tuple(group.functions[0].symbol for group in groups.values())
        options: Any = target.options
        library = LoadedLibrary(library_symbol, options.sonames, FUNCTIONS, options.least, options.chosen_with or None)
        static = StaticLibrary(built.name, (built,), symbols, loaded_libraries=(library,))
        return BackendOutput(self.kind, (static,), groups)


def _can_take(match: Match) -> bool:
    (call,) = match.calls
    extents = [str(extent) for extent in call.ty.shape.values]
    return str(call.ty.dtype) == "float32" and all(e.removeprefix("T.int64(").rstrip(")").isdigit() for e in extents)


LOADER = LoaderBackend("loader")
OPTIONAL = LoaderBackend("loaderopt", needs_library=True)
ANOTHER = LoaderBackend("loaderopt2", needs_library=True)
