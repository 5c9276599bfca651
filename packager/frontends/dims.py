"""Symbolic dims: what ``--dim`` asks for, and how it meets the dims that a model has."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from packager.errors import UnboundedDimsError, UsageError
from packager.manifest import Dim


class UnknownDimError(UsageError):
    """A model does not have dims that are asked for: ``names``."""

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
        """Whether the dim has one size only."""
        return self.min == self.max


def parse_dims(texts: Sequence[str]) -> dict[str, DimRequest]:
    """Parse ``NAME=SIZE`` and ``NAME=MIN:MAX`` texts. Raises UsageError."""
    requests: dict[str, DimRequest] = {}
    for text in texts:
        match = re.fullmatch(r"([^=]+)=(\d{1,18})(?::(\d{1,18}))?", text.strip())
        if not match:
            raise UsageError(f"--dim {text!r} cannot be read", hint="write --dim NAME=SIZE or --dim NAME=MIN:MAX")
        name, low, high = match[1], int(match[2]), int(match[3] or match[2])
        if name in requests:
            raise UsageError(f"--dim {name} is given twice")
        requests[name] = make_request(name, low, high)
    return requests


def make_request(name: str, low: int, high: int) -> DimRequest:
    """Return checked bounds. Raises UsageError unless 1 <= low <= high < 2**31, or both are 0."""
    if not 1 <= low <= high < 2**31 and (low, high) != (0, 0):
        raise UsageError(f"--dim {name}={low}:{high}: bounds must satisfy 1 <= MIN <= MAX < 2**31")
    return DimRequest(low, high)


def resolve_dims(
    found: Mapping[str, str], requests: Mapping[str, DimRequest], declared: Mapping[str, DimRequest] | None = None
) -> tuple[Dim, ...]:
    """Return the model's symbolic dims with bounds, without those that a request fixes.

    ``found`` maps each dim of the model to a place where it stands, for messages ("input 'x', axis 0"); ``declared``
    holds bounds that the model itself carries (torch.export), which a request may narrow.
    Raises UsageError for a request of a dim that the model does not have, and for dims without bounds.
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
