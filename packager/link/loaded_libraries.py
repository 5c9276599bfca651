"""Finds which loaded libraries the calls of a plan use, and checks that placement choices can do without them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from packager.bundle.requirements import LibraryRequirement
from packager.errors import BackendError
from packager.ir.call_plan import Call, CallPlan, Digit
from packager.ir.link_plan import LibraryUse, LoadedLibraries, PreparedLibrary
from packager.ir.primitives import BackendOutput, LoadedLibrary

OUTSIDE = -1
"""In place of a choice's number: of calls that every session makes."""


def libraries_of_functions(backends: Iterable[BackendOutput]) -> dict[str, tuple[str, ...]]:
    """Return symbol of a primitive function -> symbols of the loaded libraries that it calls."""
    return {
        function.symbol: group.libraries
        for output in backends
        for group in output.groups.values()
        for function in group.functions
        if group.libraries
    }


def plan_loaded_libraries(
    plan: CallPlan, backends: Iterable[BackendOutput], prepared: Iterable[PreparedLibrary]
) -> LoadedLibraries:
    """Return the libraries that a plan's calls use, in the order of their declarations, and the uses of each.

    A call that belongs to several choices is a use by the first: without its alternative the call is not made.
    Raises BackendError for a choice whose fallback calls a library.
    """
    declared = {library.symbol: library for one in prepared for library in one.loaded_libraries}
    called = libraries_of_functions(backends)
    found = {
        (place, symbol) for call in _calls(plan) for symbol in called.get(call.symbol, ()) for place in _place(call)
    }
    used = [declared[symbol] for symbol in declared if any(symbol == of for _, of in found)]
    numbers = {library.symbol: number for number, library in enumerate(used)}
    uses = sorted((*place, numbers[symbol]) for place, symbol in found)
    fallbacks = _fallbacks(plan, {place for place, _ in found})
    needed = {library for choice, _, library in uses if choice == OUTSIDE or fallbacks[choice] is None}
    return LoadedLibraries(
        libraries=tuple(_requirement(library, number not in needed) for number, library in enumerate(used)),
        uses=tuple(LibraryUse(*use) for use in uses),
        fallbacks=fallbacks,
    )


def with_libraries(plan: CallPlan, loaded: LoadedLibraries, called: Mapping[str, Sequence[str]]) -> CallPlan:
    """Return a plan whose records for the manifest name the libraries of primitive functions and of alternatives."""
    primitives = tuple(
        dataclasses.replace(primitive, libraries=tuple(called.get(primitive.symbol, ())))
        for primitive in plan.primitives
    )
    if plan.placement is None:
        return dataclasses.replace(plan, primitives=primitives)
    of_alternative: dict[tuple[int, int], list[str]] = {}
    for use in loaded.uses:
        of_alternative.setdefault((use.choice, use.alternative), []).append(loaded.libraries[use.library].symbol)
    choices = tuple(
        dataclasses.replace(
            choice,
            alternatives=tuple(
                dataclasses.replace(alternative, libraries=tuple(of_alternative.get((number, index), ())))
                for index, alternative in enumerate(choice.alternatives)
            ),
            fallback=loaded.fallbacks[number],
        )
        for number, choice in enumerate(plan.choices)
    )
    placement = dataclasses.replace(plan.placement, choices=choices)
    return dataclasses.replace(plan, primitives=primitives, placement=placement)


def _calls(plan: CallPlan) -> Iterable[Call]:
    return (step for entry in plan.entries for run in entry.runs() for step in run.steps if isinstance(step, Call))


def _place(call: Call) -> list[tuple[int, int]]:
    digits = [(subject.number, value) for subject, value in call.branch if isinstance(subject, Digit)]
    return digits[:1] or [(OUTSIDE, 0)]


def _fallbacks(plan: CallPlan, with_library: set[tuple[int, int]]) -> tuple[int | None, ...]:
    """Return the fallbacks that placement has decided on, of choices with an alternative that calls a library.

    Raises BackendError if a fallback calls one.
    """
    fallbacks: list[int | None] = []
    for number, choice in enumerate(plan.choices):
        calling = {index for of, index in with_library if of == number}
        if choice.fallback in calling:
            way = choice.alternatives[choice.fallback]
            raise BackendError(
                f"{', '.join(way.backends)}: {way.name} of {choice.problem} calls a loaded library, and is the "
                "fallback of alternatives that do",
                hint="a backend whose code calls a library says so by `needs_library`: docs/writing-a-backend.md",
            )
        fallbacks.append(choice.fallback if calling else None)
    return tuple(fallbacks)


def _requirement(library: LoadedLibrary, optional: bool) -> LibraryRequirement:
    return LibraryRequirement(
        symbol=library.symbol,
        sonames=library.sonames,
        least=library.least,
        chosen_with=library.chosen_with,
        functions=library.functions,
        optional=optional,
        embedded=library.embedded,
    )


def loaded_view(loaded: LoadedLibraries) -> dict[str, Any] | None:
    """Return the template view of the libraries that sessions open; None if there are none."""
    if not loaded.libraries:
        return None
    return {
        "symbols": [library.symbol for library in loaded.libraries],
        "uses": [dataclasses.astuple(use) for use in loaded.uses],
        "fallbacks": [OUTSIDE if fallback is None else fallback for fallback in loaded.fallbacks],
    }
