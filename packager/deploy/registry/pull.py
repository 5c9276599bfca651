"""Takes a bundle from a registry: its files are checked in a folder of their own, then moved to their places."""

from __future__ import annotations

import shutil
from pathlib import Path

from packager.bundle.hashing import sha256_of_file
from packager.bundle.reader import inspect
from packager.deploy.registry.artifact import File, digest_of, read_manifest
from packager.deploy.registry.client import Client
from packager.deploy.registry.reference import parse_reference
from packager.deploy.trust.check import require_trusted
from packager.deploy.trust.trust import SIGNATURE_SUFFIX
from packager.errors import BundleError, UsageError
from packager.progress import counted_bytes, report


def pull(
    reference: str,
    folder: str | Path = ".",
    *,
    trust: str | Path | None = None,
    force: bool = False,
    plain_http: bool = False,
) -> Path:
    """Write a bundle and all that was pushed with it to a folder, and return the bundle's path.

    Every file is checked by the hashes in the artifact's manifest, the bundle and its weights by their own; with
    ``trust`` someone whom it names must have signed them. Nothing is in its place before all is there and right. After
    an interruption the same call goes on where it stopped. Files of other content are replaced with ``force`` alone.

    Raises UsageError, BundleError; RegistryError for what the registry says; ToolchainError without oras.
    """
    where, into = parse_reference(reference), Path(folder)
    client = Client(where, plain_http=plain_http)
    report(f"reading {where}")
    manifest = client.manifest()
    files = read_manifest(manifest, str(where))
    if not force:
        _refuse_others(files, into)
    staging = into / f".packager-pull-{digest_of(manifest)[7:23]}"
    try:
        staging.mkdir(parents=True, exist_ok=True)
        for file in files:
            with counted_bytes(f"reading {file.name}", file.size) as counted:
                client.download(file, staging / file.name, counted)
        try:
            bundle = _check(files, staging, trust)
        except BundleError:
            shutil.rmtree(staging, ignore_errors=True)  # it would be as wrong the next time
            raise
        for file in sorted(files, key=lambda file: file.role == "bundle"):  # the bundle last
            (staging / file.name).replace(into / file.name)
        shutil.rmtree(staging, ignore_errors=True)
    except OSError as failure:
        raise UsageError(f"cannot write to {into}: {failure.strerror or failure}") from None
    return into / bundle.name


def _check(files: list[File], staging: Path, trust: str | Path | None) -> Path:
    """Check files together, and return the bundle. Raises BundleError."""
    names = {file.role: file.name for file in files}
    bundle = staging / names["bundle"]
    if trust is not None:  # before anything of the bundle is interpreted
        require_trusted(bundle, trust, staging / names.get("signature", f"{bundle.name}{SIGNATURE_SUFFIX}"))
    weights = inspect(bundle).manifest.weights
    if weights.file != names.get("weights"):
        raise BundleError(f"the bundle's weights are {weights.file}, and the artifact's {names.get('weights')}")
    if weights.file is not None and sha256_of_file(staging / weights.file) != weights.file_sha256:
        raise BundleError(f"the weights {weights.file} are not the bundle's")
    return bundle


def _refuse_others(files: list[File], into: Path) -> None:
    for file in files:
        place = into / file.name
        if place.exists() and not file.is_at(place):
            raise UsageError(f"{place} exists and is another file", hint="pull into another folder, or use --force")
