"""How long steps of builds take on this machine: one file in the cache's folder, for estimates of the time left."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from contextlib import contextmanager

from packager.bundle.staging import replacing
from packager.codegen.cache import Cache
from packager.progress import Steps, counted

FILE = "costs.json"
NEWEST = 0.5
"""Weight of the newest build in the mean: compilers and machines change."""


@contextmanager
def estimated(
    text: str, total: int, cache: Cache, *, at_once: int = 1, typical: float | None = None
) -> Iterator[Steps]:
    """Count steps as ``progress.counted`` does, estimated by those of earlier builds: ``cache`` knows them by ``text``.

    ``typical`` seconds are assumed before the first build. Steps that fail are not remembered.
    """
    known = _read(cache).get(text)
    with counted(text, total, at_once=at_once, earlier=typical if known is None else known) as steps:
        yield steps
    if steps.seconds is not None and cache.enabled:
        mean = steps.seconds if known is None else NEWEST * steps.seconds + (1 - NEWEST) * known
        costs = _read(cache) | {text: round(mean, 3)}
        with contextlib.suppress(OSError):  # as the cache itself: a full disk ends no build
            cache.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replacing(cache.folder / FILE) as temporary:
                temporary.write_text(json.dumps(costs, indent=1, sort_keys=True))


def _read(cache: Cache) -> dict[str, float]:
    """Return the mean seconds of a step by its text; none for a file that was damaged."""
    if not cache.enabled:
        return {}
    try:
        costs = json.loads((cache.folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(costs, dict):
        return {}
    return {text: float(cost) for text, cost in costs.items() if isinstance(cost, (int, float)) and 0 <= cost < 1e6}
