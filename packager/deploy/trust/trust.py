"""Reads whom a caller trusts: a public key, certificates of authorities, or a TOML file that names several."""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from packager.bundle import strict_json
from packager.bundle.fields import Name
from packager.errors import UsageError

SIGNATURE_SUFFIX = ".sig"


@dataclass(frozen=True)
class Trust:
    """Whose signatures count: any of these.

    ``public_keys`` are PEM files of elliptic curve keys (P-256, P-384, P-521). ``authorities`` are PEM files of
    certificates that signing certificates must be issued under; ``identities`` are the names that a signing
    certificate must have at least one of (e-mail address, URI or DNS name), empty for all that the authorities vouch
    for. In a file, paths are relative to its folder.
    """

    schema_version: Literal[1]
    name: Name
    public_keys: tuple[Name, ...] = ()
    authorities: tuple[Name, ...] = ()
    identities: tuple[Name, ...] = ()


def trust_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of trust files."""
    return strict_json.schema(Trust, "urn:packager:trust:1")


def read_trust(path: Path) -> Trust:
    """Read a public key or certificates (PEM), or a TOML file of a ``Trust``. Raises UsageError."""
    try:
        content = path.read_bytes()
        if b"-----BEGIN PUBLIC KEY-----" in content:
            trust = Trust(1, path.name, public_keys=(str(path),))
        elif b"-----BEGIN CERTIFICATE-----" in content:
            trust = Trust(1, path.name, authorities=(str(path),))
        elif b"PRIVATE KEY-----" in content:
            raise ValueError("it is a private key, which stays with who signs")
        else:
            trust = _beside(path, strict_json.read(Trust, tomllib.loads(content.decode())))
        if not trust.public_keys and not trust.authorities:
            raise ValueError("it names neither public_keys nor authorities")
        if trust.identities and not trust.authorities:
            raise ValueError("$.identities: only certificates have identities, and there are no authorities")
    except (OSError, ValueError, RecursionError) as failure:  # TOMLDecodeError, MismatchError, bad UTF-8: ValueErrors
        reason = failure.strerror if isinstance(failure, OSError) else str(failure)
        raise UsageError(
            f"cannot use {path} to say who is trusted: {reason}",
            hint="give a public key, certificates (PEM) or a TOML file: `packager schema trust` prints its keys",
        ) from None
    return trust


def _beside(path: Path, trust: Trust) -> Trust:
    folder = path.parent
    return dataclasses.replace(
        trust,
        public_keys=tuple(str(folder / name) for name in trust.public_keys),
        authorities=tuple(str(folder / name) for name in trust.authorities),
    )


def signature_of(bundle: Path) -> Path:
    """Return the place of a bundle's signature unless another is given: beside it."""
    return bundle.with_name(bundle.name + SIGNATURE_SUFFIX)
