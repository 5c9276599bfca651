"""Did-you-mean suggestions for unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def valid_names(name: object, valid: Iterable[object], what: str) -> str:
    """Return the hint ``did you mean 'x'? valid kinds: w, x``; ``what`` is the plural noun, ``kinds``."""
    names = [str(item) for item in valid]
    close = difflib.get_close_matches(str(name)[:100], names, n=1)
    listed = ", ".join(names) or "none"
    return (f"did you mean {close[0]!r}? " if close else "") + f"valid {what}: {listed}"


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the closest known name, or an empty string."""
    near = difflib.get_close_matches(name[:100], list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
