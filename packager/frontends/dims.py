"""Symbolic dims: parse ``--dim``, apply it to the dims of a model, and name dims."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from packager.bundle.buckets import Buckets
from packager.bundle.manifest import Dim
from packager.errors import UnboundedDimsError, UsageError

# The manifest limits the length of shape expressions, which contain dim names.
MAX_DIM_NAME = 64


class UnknownDimError(UsageError):
    """``--dim`` names dims (``names``) that the model does not have."""

    def __init__(self, names: Sequence[str], have: str) -> None:
        super().__init__(f"--dim {names[0]}: the model has no such dim", hint=f"its symbolic dims: {have}")
        self.names = tuple(names)


@dataclass(frozen=True)
class DimRequest:
    """One ``--dim``: inclusive bounds; equal bounds fix the dim."""

    min: int
    max: int

    @property
    def fixed(self) -> bool:
        """Whether the bounds are equal."""
        return self.min == self.max


T = TypeVar("T")

# A dim in the API: a size, bounds, or bucketed sizes.
DimArgument = int | tuple[int, int] | DimRequest | Buckets


def parse_dims(texts: Sequence[str]) -> dict[str, DimRequest | Buckets]:
    """Parse ``NAME=SIZE``, ``NAME=MIN:MAX`` and ``NAME=SIZE,SIZE,...`` texts. Raises UsageError."""
    requests: dict[str, DimRequest | Buckets] = {}
    for text in texts:
        match = re.fullmatch(r"([^=]+)=(\d{1,18})(?::(\d{1,18})|((?:,\d{1,18})+))?", text.strip())
        if not match:
            hint = "write --dim NAME=SIZE, --dim NAME=MIN:MAX or --dim NAME=SIZE,SIZE"
            raise UsageError(f"--dim {text!r} cannot be read", hint=hint)
        name, first = match[1], int(match[2])
        if name in requests:
            raise UsageError(f"--dim {name} is given twice")
        sizes = Buckets(first, *map(int, match[4][1:].split(","))) if match[4] else None
        requests[name] = check_argument(name, sizes or (first, int(match[3] or first)))
    return requests


def check_argument(name: str, argument: DimArgument) -> DimRequest | Buckets:
    """Convert an argument for dim ``name``; a single bucket fixes the dim. Raises UsageError."""
    if isinstance(argument, Buckets):
        argument.check(name)
        return argument if len(argument.sizes) > 1 else DimRequest(*argument.sizes * 2)
    if isinstance(argument, DimRequest):
        argument = (argument.min, argument.max)
    bounds = argument if isinstance(argument, tuple) else (argument, argument)
    if len(bounds) != 2 or not all(isinstance(bound, int) for bound in bounds):
        raise UsageError(
            f"dims: {name!r} is {argument!r}, expected a size, bounds or buckets",
            hint=f'for example: {{"{name}": 8}}, {{"{name}": (1, 64)}}, {{"{name}": packager.Buckets(128, 256)}}',
        )
    return make_request(name, *bounds)


def make_request(name: str, low: int, high: int) -> DimRequest:
    """Check bounds. Raises UsageError unless 1 <= low <= high < 2**31, or both are 0."""
    if not 1 <= low <= high < 2**31 and (low, high) != (0, 0):
        raise UsageError(f"--dim {name}={low}:{high}: bounds must satisfy 1 <= MIN <= MAX < 2**31")
    return DimRequest(low, high)


def resolve_dims(
    found: Mapping[str, str], requests: Mapping[str, DimRequest], declared: Mapping[str, DimRequest] | None = None
) -> tuple[Dim, ...]:
    """Return the model's symbolic dims with bounds, without those that a request fixes.

    ``found`` maps each dim of the model to its first occurrence, for messages ("input 'x', axis 0"). ``declared`` holds
    bounds from the model itself (torch.export), which a request may narrow.
    Raises UsageError for a request for an unknown dim, and for dims without bounds.
    """
    unknown = sorted(set(requests) - set(found))
    if unknown:
        have = ", ".join(sorted(found)) or "none"
        raise UnknownDimError(unknown, have)
    dims = []
    unbounded: dict[str, str] = {}
    for name, where in found.items():
        request = requests.get(name) or (declared or {}).get(name)
        if request is None:
            unbounded[name] = where
            continue
        limit = (declared or {}).get(name)
        if limit and not limit.min <= request.min <= request.max <= limit.max:
            raise UsageError(
                f"--dim {name}={request.min}:{request.max} is outside the bounds {limit.min}:{limit.max} of the model"
            )
        if not request.fixed:
            dims.append(Dim(name, request.min, request.max))
    if unbounded:
        raise UnboundedDimsError(unbounded)
    return tuple(dims)


def named_dims(requests: Mapping[str, T]) -> dict[str, T]:
    """Return what is asked of dims by their names here: the model's may be spelled otherwise (``Dim.0``: ``Dim_0``).

    Raises UsageError for two spellings of a name.
    """
    named: dict[str, T] = {}
    for spelled, request in requests.items():
        is_name = re.fullmatch(r"[A-Za-z_]\w*", spelled, re.ASCII) and not keyword.iskeyword(spelled)
        name = spelled if is_name else identifier(spelled, set())
        if name in named:
            raise UsageError(f"--dim {name} is given twice, once as {spelled!r}")
        named[name] = request
    return named


def identifier(spelled: str, taken: set[str]) -> str:
    """Return a unique ASCII identifier for a dim."""
    name = re.sub(r"[^A-Za-z0-9_]+", "_", spelled).strip("_")[:MAX_DIM_NAME] or "dim"
    if name[0].isdigit() or keyword.iskeyword(name):
        name = f"dim_{name}"
    unique, count = name, 1
    while unique in taken:
        count += 1
        unique = f"{name}_{count}"
    return unique
