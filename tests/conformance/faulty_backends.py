"""Backends with one fault each, derived from the first example, and the suite over each of them: all tests must fail.

``test_the_suite_itself`` runs this module in a process where these kinds are registered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packager_first import FUNCTION, FirstBackend

from packager.backends.base import PartitionOptions, Pattern, attribute
from packager.codegen.toolchain import run
from packager.ir.primitives import StaticLibrary
from packager.testing import PartitionConformance, cases

CASES = cases("dense")[2:3]


def recompile(output: Any, context: Any, text: str, *symbols: str) -> Any:
    """Return an output whose object is compiled from its source with more text, and which claims more symbols."""
    (library,) = output.static_libraries
    source = context.workdir / "first.c"
    source.write_text(source.read_text() + text)
    run([context.toolchain.cc, "-O3", "-fPIC", "-c", "first.c", "-o", "first.o"], cwd=context.workdir)
    return replace(output, static_libraries=(StaticLibrary("first", library.files, (*library.symbols, *symbols)),))


class Renamed(FirstBackend):
    """The example under another kind."""

    def __init__(self) -> None:
        self.kind = f"faulty_{type(self).__name__.lower()}"

    def patterns(self, target: Any) -> list[Pattern]:
        return [replace(pattern, name=f"{self.kind}.relu") for pattern in super().patterns(target)]


class Lying(Renamed):
    def compile(self, partitions: Any, target: Any, context: Any) -> Any:
        return recompile(super().compile(partitions, target, context), context, "", "nothing_of_the_kind")


class Leaking(Renamed):
    def compile(self, partitions: Any, target: Any, context: Any) -> Any:
        return recompile(super().compile(partitions, target, context), context, "int left_over = 3;")


class Wrong(Renamed):
    def compile(self, partitions: Any, target: Any, context: Any) -> Any:
        output = super().compile(partitions, target, context)
        source = (context.workdir / "first.c").read_text()
        assert "x[i] < 0" in FUNCTION
        (context.workdir / "first.c").write_text(source.replace("x[i] < 0", "x[i] < 0.25f"))
        return recompile(output, context, "")


class Littering(Renamed):
    def compile(self, partitions: Any, target: Any, context: Any) -> Any:
        Path.home().joinpath("settings").write_text("")
        return super().compile(partitions, target, context)


class Random(Renamed):
    """Writes the elements of a set in their order."""

    def compile(self, partitions: Any, target: Any, context: Any) -> Any:
        text = "".join(f"static int {name} __attribute__((used));" for name in set("abcdefgh"))
        return recompile(super().compile(partitions, target, context), context, text)


class Remembering(Renamed):
    calls = 0

    def compile(self, partitions: Any, target: Any, context: Any) -> Any:
        self.calls += 1
        return replace(super().compile(partitions, target, context), toolchain={"calls": str(self.calls)})


class Silent(Renamed):
    def compile(self, partitions: Any, target: Any, context: Any) -> Any:
        output = super().compile([], target, context)
        return replace(output, given_back={partition.name: " " for partition in partitions})


class Busy(Renamed):
    """Hands something back when it was given nothing."""

    def compile(self, partitions: Any, target: Any, context: Any) -> Any:
        if partitions:
            return super().compile(partitions, target, context)
        return replace(super().compile([], target, context), given_back={"something": "no reason"})


class Greedy(Renamed):
    """Has a pattern that no case hits."""

    def patterns(self, target: Any) -> list[Pattern]:
        from tvm.relax.dpl import is_op, wildcard

        return [*super().patterns(target), Pattern(f"{self.kind}.erf", is_op("relax.erf")(wildcard()))]


@dataclass(frozen=True)
class MoreOptions(PartitionOptions):
    """With an attribute that no test has a value for."""

    level: int = attribute(1, "Level")


class Untested(Renamed):
    options = MoreOptions


class Unstable(Renamed):
    options = MoreOptions

    def canonical(self, options: Any, base: Any) -> Any:  # noqa: ARG002
        return replace(options, level=options.level + 1)


class Suite(PartitionConformance):
    cases = CASES


class TestLying(Suite):
    kind = "faulty_lying"


class TestLeaking(Suite):
    kind = "faulty_leaking"


class TestWrong(Suite):
    kind = "faulty_wrong"


class TestLittering(Suite):
    kind = "faulty_littering"


class TestRandom(Suite):
    kind = "faulty_random"


class TestRemembering(Suite):
    kind = "faulty_remembering"


class TestSilent(Suite):
    kind = "faulty_silent"


class TestBusy(Suite):
    kind = "faulty_busy"


class TestGreedy(Suite):
    kind = "faulty_greedy"


class TestUntested(Suite):
    kind = "faulty_untested"


class TestUnstable(Suite):
    kind = "faulty_unstable"
    values = {"level": 7}


class TestImporting(Suite):
    """Of the module ``faulty_importing``, which imports TVM at its top."""

    kind = "faulty_importing"
