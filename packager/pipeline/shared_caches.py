"""Opens the shared caches of a build: those of ``--cache``, or of the environment."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from packager.bundle.staging import temporary_folder
from packager.codegen.cache import Cache
from packager.codegen.shared_cache import TIMEOUT_SECONDS, SharedCache
from packager.codegen.shared_entry import Signatures
from packager.codegen.store_statistics import add_statistics
from packager.codegen.stores import open_store
from packager.errors import PackagerError, UsageError
from packager.pipeline.options import StrPath

CACHES = "PACKAGER_CACHE"
KEY = "PACKAGER_CACHE_KEY"
TRUST = "PACKAGER_CACHE_TRUST"
TIMEOUT = "PACKAGER_CACHE_TIMEOUT"


@contextmanager
def opened_cache(urls: StrPath | Sequence[StrPath], *, enabled: bool = True, fill: bool = False) -> Iterator[Cache]:
    """Yield the user's cache with shared ones behind it, and add to their statistics at the end.

    Without ``urls`` those of ``$PACKAGER_CACHE`` are used, which blanks separate. ``$PACKAGER_CACHE_KEY`` is the key
    that signs entries, ``$PACKAGER_CACHE_TRUST`` says whose entries are used. With ``fill`` stores also get what the
    local cache has. Raises UsageError; ToolchainError if a package is missing.
    """
    if urls and not enabled:
        raise UsageError("--cache and --no-cache exclude each other")
    cache = Cache.of_user(enabled=enabled, shared=open_shared(urls, os.environ, fill=fill) if enabled else ())
    try:
        yield cache
    finally:
        add_statistics(cache)


def open_shared(
    urls: StrPath | Sequence[StrPath], environment: Mapping[str, str], *, fill: bool = False
) -> tuple[SharedCache, ...]:
    """Return shared caches, of which none is asked yet. Raises UsageError, ToolchainError."""
    listed = [urls] if isinstance(urls, (str, os.PathLike)) else urls
    given = [os.fspath(url) for url in listed] or environment.get(CACHES, "").split()
    signatures = _signatures(environment) if given else None
    timeout = _timeout(environment)
    return tuple(SharedCache(open_store(url), signatures, timeout, fill) for url in dict.fromkeys(given))


def _timeout(environment: Mapping[str, str]) -> float:
    text = environment.get(TIMEOUT) or str(TIMEOUT_SECONDS)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 < seconds < 1e6:
        raise UsageError(f"{TIMEOUT} is {text!r}, not a number of seconds")
    return seconds


def _signatures(environment: Mapping[str, str]) -> Signatures | None:
    key, trust = (Path(environment[name]) if environment.get(name) else None for name in (KEY, TRUST))
    return _FileSignatures(key, trust) if key or trust else None


class _FileSignatures:
    """Signs with a key, and takes what a file says is trusted; each as signatures of bundles."""

    def __init__(self, key: Path | None, trust: Path | None) -> None:
        from packager.deploy.trust.library import model_signing
        from packager.deploy.trust.trust import read_trust

        with model_signing():  # whoever asks for signatures and cannot have them learns it before the build
            self._trust = read_trust(trust) if trust is not None else None
        if key is not None and not key.is_file():
            raise UsageError(f"{KEY}: there is no key {key}")
        self._key = key
        self._lock = threading.Lock()  # the library redirects stdout, which is not for several threads

    def sign(self, index: bytes) -> bytes | None:
        """Return a signature, or None if there is no key to sign with."""
        if self._key is None:
            return None
        from packager.deploy.trust.sign import sign_file

        with self._lock, temporary_folder("entry") as folder:
            path, place = folder / "entry.json", folder / "entry.json.sig"
            path.write_bytes(index)
            sign_file(path, place, key=self._key)
            return place.read_bytes()

    def refusal(self, index: bytes, signature: bytes | None) -> str:
        """Return why a signature does not count, or an empty string."""
        if self._trust is None:
            return ""
        if signature is None:
            return "it is not signed"
        from packager.deploy.trust.check import refusal

        with self._lock, temporary_folder("entry") as folder:
            path, place = folder / "entry.json", folder / "entry.json.sig"
            path.write_bytes(index)
            place.write_bytes(signature)
            try:
                refused = refusal(path, self._trust, place)
            except PackagerError as failure:
                return f"its signature cannot be checked: {failure.message}"
        return f"its signature does not count ({refused.aspect})" if refused is not None else ""
