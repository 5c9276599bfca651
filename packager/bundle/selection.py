"""What a bundle has several of, and which one it uses: candidates of primitive functions, alternatives of regions.

The selection section has a byte for each choice, then one for each function with candidates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from packager.bundle.fields import Count, Identifier, Name, Sha256, Symbol
from packager.bundle.strict_json import Unique

Rule = Literal["greedy", "trial", "records"]


@dataclass(frozen=True)
class Selection:
    """A primitive function with several candidate kernels in the bundle, or one chosen by measurement.

    ``chosen`` is the index of the candidate in use, stored as this entry's byte of the selection section. ``problem``
    and ``revision`` are the key of its measurements (``docs/tuning.md``).
    """

    symbol: Symbol
    problem: Name
    revision: Name
    candidates: Annotated[tuple[Name, ...], Unique()]
    chosen: Count


@dataclass(frozen=True)
class Alternative:
    """A way to compute a region: its primitive functions as text, the kinds of the backends that provide them, and the
    symbols of the libraries that they call (``requirements.libraries``)."""

    name: Name
    backends: Annotated[tuple[Name, ...], Unique()]
    libraries: Annotated[tuple[Identifier, ...], Unique()] = ()


@dataclass(frozen=True)
class PlacementChoice:
    """A class of equal regions of the model with several alternatives in the bundle.

    ``chosen`` is the index of the alternative in use, stored as this choice's byte of the selection section.
    ``problem`` and ``revision`` are the key of its measurements (``docs/placement.md``). ``regions`` are the source
    nodes of each region. Where a library is missing that an alternative calls, sessions use ``fallback``, an
    alternative that calls none; it is null if there is no such alternative, or no need.
    """

    name: Symbol
    problem: Name
    revision: Name
    regions: tuple[tuple[Name, ...], ...]
    alternatives: tuple[Alternative, ...]
    chosen: Count
    fallback: Count | None = None


@dataclass(frozen=True)
class PlacementPlan:
    """The choices that one order of Targets makes: the index of an alternative of each, in order."""

    name: Name
    digits: tuple[Count, ...]


@dataclass(frozen=True)
class PlacementRecord:
    """How the parts of a model were placed: in the order of Targets (``greedy``), to be measured (``trial``), or as
    ``records`` of measurements say.

    ``model`` is a hash of its classes of regions. A trial has ``choices`` of all alternatives, and ``plans``, those of
    each backend alone and of each order of Targets, the greedy one first. Otherwise a choice is between an alternative
    that needs a library of the target machine, and one that does not.
    """

    rule: Rule
    model: Sha256
    choices: Annotated[tuple[PlacementChoice, ...], Unique("name")]
    plans: Annotated[tuple[PlacementPlan, ...], Unique("name")]
