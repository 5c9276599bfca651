"""Moves blobs to a registry and from it, by oras; what has arrived is not sent again.

Source: OCI distribution specification, v1.1. Its uploads in chunks cannot be resumed after a lost connection:
registries forget them. So a large file is several blobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import urljoin

from packager.deploy.registry.artifact import MANIFEST, MAX_MANIFEST_BYTES, Blob, File, digest_of
from packager.deploy.registry.reference import Reference
from packager.errors import BundleError, PackagerError, ToolchainError, last_line

T = TypeVar("T")
Counted = Callable[[Iterable[bytes]], Iterator[bytes]]

ATTEMPTS = 4
PAUSE_SECONDS = 1.0
TIMEOUT_SECONDS = 60.0
_READ_BYTES = 1 << 20


class RegistryError(PackagerError):
    """A registry refused a request, or did not answer."""

    exit_code = 2


class _LostError(Exception):
    """A request that may be good the next time."""


class Client:
    """Talks to the registry of one artifact."""

    def __init__(self, reference: Reference, *, plain_http: bool = False) -> None:
        self.reference = reference
        self._registry = _registry(reference, plain_http=plain_http)
        self._base = f"{self._registry.prefix}://{reference.host}/v2/{reference.name}"

    def manifest(self) -> bytes:
        """Return the manifest of the artifact; by digest, it is checked. Raises RegistryError, BundleError."""

        def get() -> bytes:
            response = self._ask(
                "GET", f"{self._base}/manifests/{self.reference.version}", headers={"Accept": MANIFEST}
            )
            if response.status_code == 404:
                raise RegistryError(f"there is no {self.reference}")
            self._require(response, 200)
            content: bytes = response.content
            return content

        content = self._patiently(get)
        if len(content) > MAX_MANIFEST_BYTES:
            raise BundleError(f"{self.reference}: its manifest is too large")
        if self.reference.digest and digest_of(content) != self.reference.digest:
            raise BundleError(f"{self.reference}: the registry gave another manifest, of {digest_of(content)}")
        return content

    def put_manifest(self, content: bytes) -> None:
        """Store the manifest under the artifact's tag. Raises RegistryError."""

        def put() -> None:
            url = f"{self._base}/manifests/{self.reference.tag}"
            self._require(self._ask("PUT", url, data=content, headers={"Content-Type": MANIFEST}), 201)

        self._patiently(put)

    def upload(self, content: bytes, digest: str) -> None:
        """Store a blob, unless it is there. Raises RegistryError."""

        def put() -> None:
            if self._ask("HEAD", f"{self._base}/blobs/{digest}").status_code == 200:
                return
            response = self._ask("POST", f"{self._base}/blobs/uploads/", headers={"Content-Length": "0"})
            self._require(response, 202)
            place = self._location(response)
            headers = {"Content-Type": "application/octet-stream"}
            joined = "&" if "?" in place else "?"
            self._require(self._ask("PUT", f"{place}{joined}digest={digest}", data=content, headers=headers), 201)

        self._patiently(put)

    def _location(self, response: Any) -> str:
        """Return the place of an upload, which is on this registry: credentials go there."""
        place = urljoin(str(response.url), str(response.headers.get("Location", "")))
        if not place.startswith(f"{self._registry.prefix}://{self.reference.host}/"):
            raise RegistryError(f"{self.reference.host} sends an upload elsewhere: {place.partition('?')[0][:200]}")
        return place

    def download(self, file: File, path: Path, counted: Counted) -> None:
        """Write a file; what is there of an earlier attempt, in ``path`` with ``.part``, is checked and kept.

        Raises RegistryError; BundleError if the registry's bytes are not those of a digest.
        """
        if path.is_file():
            return
        part = path.with_name(f"{path.name}.part")
        part.touch()
        with part.open("r+b") as stream:
            for blob in file.blobs:
                start = stream.tell()
                if digest_of(stream.read(blob.size)) == blob.digest:
                    continue
                self._patiently(partial(self._download, blob, stream, start, counted))
                stream.seek(start)
                actual = digest_of(stream.read(blob.size))
                if actual != blob.digest:
                    stream.truncate(start)
                    raise BundleError(
                        f"{self.reference}: {file.name} is not what its manifest names: a SHA-256 is {actual[7:23]}, "
                        f"not {blob.digest[7:23]}",
                        hint="the registry's storage is damaged, or someone changed it: push the bundle again",
                    )
        part.rename(path)

    def _download(self, blob: Blob, stream: IO[bytes], start: int, counted: Counted) -> None:
        stream.seek(start)
        stream.truncate(start)
        with self._ask("GET", f"{self._base}/blobs/{blob.digest}", stream=True) as response:
            if response.status_code == 404:
                raise RegistryError(f"{self.reference}: the registry has lost {blob.digest}")
            self._require(response, 200)
            for piece in counted(response.iter_content(_READ_BYTES)):
                stream.write(piece)
                if stream.tell() > start + blob.size:
                    break
        if stream.tell() < start + blob.size:
            raise _LostError("the connection was closed")

    def _ask(self, method: str, url: str, **arguments: Any) -> Any:
        """Return the response to a request. Raises RegistryError without credentials, _LostError without an answer."""
        import requests

        try:
            response = self._registry.do_request(url, method, **arguments)
        except (requests.ConnectionError, requests.Timeout) as failure:
            raise _LostError(_cause(failure)) from None
        except (requests.RequestException, ValueError) as failure:  # oras raises ValueError where it has no credentials
            raise RegistryError(
                f"{self.reference.host} refuses: {last_line(failure)}", hint="log in, as with: docker login HOST"
            ) from None
        if response.status_code >= 500:
            raise _LostError(_reason(response))
        return response

    def _require(self, response: Any, status: int) -> None:
        if response.status_code != status:
            hint = "log in, as with: docker login HOST" if response.status_code in (401, 403) else None
            raise RegistryError(f"{self.reference.host} refuses: {_reason(response)}", hint=hint)

    def _patiently(self, work: Callable[[], T]) -> T:
        """Return what ``work`` returns, tried again after lost requests. Raises RegistryError."""
        import requests

        for attempt in range(ATTEMPTS):
            try:
                return work()
            except (_LostError, requests.RequestException) as failure:  # these while a blob is read
                if attempt == ATTEMPTS - 1:
                    raise RegistryError(
                        f"{self.reference.host} does not answer: {_cause(failure)}",
                        hint="run the command again: it goes on where it stopped",
                    ) from None
                time.sleep(PAUSE_SECONDS * 2**attempt)
        raise AssertionError


def _cause(failure: Exception) -> str:
    """Return why a connection failed: what the system said, without the names of what wraps it."""
    while (inner := getattr(failure, "reason", None) or (failure.args[0] if failure.args else None)) is not None:
        if not isinstance(inner, Exception):
            break
        failure = inner
    system = failure.__cause__ or failure.__context__
    if isinstance(system, OSError) and system.strerror:
        return system.strerror
    return last_line(failure)


def _registry(reference: Reference, *, plain_http: bool) -> Any:
    """Return oras's client, with a limit on waiting, and without its own way to try again."""
    try:
        import oras.container
        import oras.provider
        import requests.adapters
    except ImportError as error:
        raise ToolchainError(
            f"registries require the package oras: {error}", hint="pip install 'packager[registry]'"
        ) from None

    class Impatient(requests.adapters.HTTPAdapter):  # type: ignore[misc]
        def send(self, *arguments: Any, **options: Any) -> Any:
            return super().send(*arguments, **{**options, "timeout": TIMEOUT_SECONDS})

    class Registry(oras.provider.Registry):  # type: ignore[misc]
        do_request = oras.provider.Registry.do_request.__wrapped__

    registry = Registry(reference.host, insecure=plain_http or reference.is_local)
    for scheme in ("http://", "https://"):
        registry.session.mount(scheme, Impatient())
    container = oras.container.Container(f"{reference.host}/{reference.name}", registry=reference.host)
    registry.auth.load_configs(container)  # of docker login
    return registry


def _reason(response: Any) -> str:
    try:
        (error, *_) = response.json()["errors"]
        return f"{response.status_code} {error.get('code', '')} {error.get('message', '')}".strip()[:300]
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{response.status_code} {response.reason}"
