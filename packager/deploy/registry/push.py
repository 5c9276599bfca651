"""Stores a bundle in a registry, with its weights, signature, provenance and what is attached."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from packager.bundle.hashing import sha256_of_file
from packager.bundle.reader import inspect
from packager.bundle.staging import temporary_folder
from packager.deploy.registry.artifact import PIECE_BYTES, File, digest_of, file_of, write_manifest
from packager.deploy.registry.client import Client
from packager.deploy.registry.reference import parse_reference
from packager.deploy.trust.statement import provenance_statement
from packager.deploy.trust.trust import signature_of
from packager.errors import BundleError, UsageError
from packager.progress import counted_bytes, report
from packager.version import __version__


def push(
    bundle: str | Path,
    reference: str,
    *,
    attach: Sequence[str | Path] = (),
    plain_http: bool = False,
    piece_bytes: int = PIECE_BYTES,
) -> str:
    """Store an intact bundle as ``oci://HOST/NAME:TAG``, and return its reference by digest.

    With it go its external weights, the signature beside it if there is one, its provenance, and the files of
    ``attach``: records of tuning, for example. Blobs that the registry has are not sent again; after an interruption
    the same call goes on where it stopped: with the next of ``piece_bytes``.

    Raises UsageError, BundleError; RegistryError for what the registry says; ToolchainError without oras.
    """
    path, where = Path(bundle), parse_reference(reference)
    if where.digest:
        raise UsageError(f"{reference}: a digest is what push returns", hint="name a tag, as in oci://HOST/NAME:1.0")
    found = inspect(path)
    files = [("bundle", path)]
    weights = found.manifest.weights
    if weights.file is not None:
        beside = path.with_name(weights.file)
        if not beside.is_file() or sha256_of_file(beside) != weights.file_sha256:
            raise BundleError(f"the weights file {beside} is not the bundle's", hint="put it beside the bundle")
        files.append(("weights", beside))
    if signature_of(path).is_file():
        files.append(("signature", signature_of(path)))
    client = Client(where, plain_http=plain_http)
    with temporary_folder("push") as folder:
        provenance = folder / f"{path.name}.provenance.json"
        provenance.write_text(json.dumps(provenance_statement(found), indent=1), encoding="utf-8")
        config = folder / "config.json"
        facts = {"schema_version": 1, "packager": __version__, "model": found.manifest.model.name}
        config.write_text(json.dumps(facts, sort_keys=True), encoding="utf-8")
        files += [("provenance", provenance), *(("record", Path(name)) for name in attach)]
        names = [file.name for _, file in files]
        if hidden := next((name for name in names if name.startswith(".")), None):
            raise UsageError(f"{hidden}: hidden files are not taken from registries", hint="rename it")
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UsageError(f"two files are named {twice!r}", hint="rename the one that is attached")
        stored = [(file_of(role, file, piece_bytes), file) for role, file in files]
        settings = file_of("record", config, piece_bytes)
        for file, place in [(settings, config), *stored]:
            _store(client, file, place)
        manifest = write_manifest(settings.blobs[0], [file for file, _ in stored])
        client.put_manifest(manifest)
    return where.at(digest_of(manifest))


def _store(client: Client, file: File, path: Path) -> None:
    report(f"storing {file.name}")
    with counted_bytes(f"storing {file.name}", file.size) as counted, path.open("rb") as stream:
        for blob in file.blobs:
            for content in counted([stream.read(blob.size)]):
                if digest_of(content) != blob.digest:
                    raise UsageError(f"{path} was changed while it was stored")
                client.upload(content, blob.digest)
