"""Stores the constants: embedded in the bundle, or in a safetensors file next to it."""

from __future__ import annotations

from pathlib import Path

from packager.bundle import safetensors
from packager.bundle.hashing import sha256_of_file
from packager.bundle.manifest import DATA_SHA256, Weights
from packager.errors import UsageError
from packager.ir.call_plan import CallPlan
from packager.ir.link_plan import ExternalWeights
from packager.ir.model import LoweredModel

# In a program that links an archive the constants are between its code and data, which address at most 2 GiB. In a
# library they follow both (packager.link.constant_segment).
MAX_ARCHIVE_BYTES = 2**31 - 2**24


def are_external(model: LoweredModel, storage: str | None, *, static: bool) -> bool:
    """Whether the constants are stored in a separate file. ``storage`` is the option; None decides by size.

    Raises UsageError if they exceed what an archive can hold.
    """
    nbytes = sum(constant.array.nbytes for constant in model.constants.values())
    if not static or nbytes <= MAX_ARCHIVE_BYTES:
        return storage == "external"
    if storage == "embedded":
        raise UsageError(
            f"--weights embedded: an archive cannot hold {nbytes / 2**30:.1f} GiB of constants",
            hint="build a shared library, or put them into a file with --weights external",
        )
    return True


def describe_weights(
    plan: CallPlan, file_name: str, workdir: Path, *, external: bool
) -> tuple[Weights, ExternalWeights | None]:
    """Return the manifest's description of the constants and, if external, of the file that the bundle is bound to.

    External constants are written to ``workdir/file_name``.
    """
    table = plan.constants
    if not table.records:
        return Weights("none", 0, None, None), None
    if not external:
        return Weights("embedded", table.nbytes, None, None), None
    tensors = {record.name: array for record, array in zip(table.records, table.arrays, strict=True)}
    metadata = {DATA_SHA256: safetensors.data_sha256(tensors)}
    path = workdir / file_name
    with path.open("wb") as stream:
        safetensors.write(stream, tensors, metadata)
    header = safetensors.encode_header(tensors, metadata)
    return (
        Weights("external", table.nbytes, file_name, sha256_of_file(path)),
        ExternalWeights(file_name, path.stat().st_size, header),
    )
