"""Reads where an artifact is: ``oci://HOST[:PORT]/NAME[:TAG][@sha256:DIGEST]``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packager.errors import UsageError

# The grammar of the OCI distribution specification, v1.1.
_NAME = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*"
_REFERENCE = re.compile(
    rf"oci://(?P<host>[A-Za-z0-9.-]+(?::[0-9]+)?|\[[0-9a-fA-F:]+\](?::[0-9]+)?)/(?P<name>{_NAME})"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    flags=re.ASCII,
)
_LOCAL = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class Reference:
    """An artifact by its tag, or by the digest of its manifest, which says exactly what it is."""

    host: str
    name: str
    tag: str = "latest"
    digest: str = ""

    @property
    def version(self) -> str:
        """The digest, or else the tag."""
        return self.digest or self.tag

    @property
    def is_local(self) -> bool:
        """Whether the registry is on this machine, where registries are asked without TLS."""
        return re.sub(r":[0-9]+$", "", self.host) in _LOCAL

    def at(self, digest: str) -> str:
        """Return the text that names one artifact for ever."""
        return f"oci://{self.host}/{self.name}@{digest}"

    def __str__(self) -> str:
        tag = f":{self.tag}" if not self.digest else f"@{self.digest}"
        return f"oci://{self.host}/{self.name}{tag}"


def parse_reference(text: str) -> Reference:
    """Return what a text names. Raises UsageError."""
    found = _REFERENCE.fullmatch(text)
    if found is None:
        raise UsageError(
            f"{text!r} does not name an artifact of a registry",
            hint="for example oci://registry.example.com/team/model:1.0, or @sha256:... in place of :1.0",
        )
    return Reference(found["host"], found["name"], found["tag"] or "latest", found["digest"] or "")
