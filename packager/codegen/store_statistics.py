"""What shared caches were asked for, by store, over all builds of this user: one file in the local cache's folder."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
from collections.abc import Iterator
from pathlib import Path

from packager.bundle.staging import replacing
from packager.codegen.cache import Cache
from packager.codegen.shared_cache import Counts

FILE = "stores.json"


def read_statistics(cache: Cache) -> dict[str, Counts]:
    """Return the counts of each store by its name; none for a file that was damaged."""
    try:
        found = json.loads((cache.folder / FILE).read_text(encoding="utf-8"))
        return {str(name): Counts(**counts) for name, counts in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def add_statistics(cache: Cache) -> None:
    """Add the counts of this build's stores. As of the cache itself, a folder that cannot be written is no error."""
    if not cache.enabled or not cache.shared:
        return
    with contextlib.suppress(OSError):
        cache.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(cache.folder / f"{FILE}.lock"):
            known = read_statistics(cache)
            for shared in cache.shared:
                known[shared.store.name] = _sum(known.get(shared.store.name, Counts()), shared.counts)
            with replacing(cache.folder / FILE) as temporary:
                temporary.write_text(
                    json.dumps({name: dataclasses.asdict(counts) for name, counts in known.items()}, indent=1)
                )


def _sum(known: Counts, more: Counts) -> Counts:
    first, second = dataclasses.asdict(known), dataclasses.asdict(more)
    sums = {name: value + second[name] for name, value in first.items() if isinstance(value, int)}
    return Counts(**sums, last_error=more.last_error or known.last_error)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
