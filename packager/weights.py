"""Where the constants of a bundle go: into the bundle, or into a safetensors file beside it."""

from __future__ import annotations

from pathlib import Path

from packager import safetensors
from packager.call_plan import CallPlan
from packager.digest import sha256_of_file
from packager.ir import ExternalWeights
from packager.manifest import Weights


def describe_weights(
    plan: CallPlan, file_name: str, workdir: Path, *, external: bool
) -> tuple[Weights, ExternalWeights | None]:
    """Return what the manifest says of the constants and, for external ones, the file that the bundle is bound to.

    External constants are written to ``workdir/file_name``.
    """
    table = plan.constants
    if not table.records:
        return Weights("none", 0, None, None), None
    if not external:
        return Weights("embedded", table.nbytes, None, None), None
    tensors = {record.name: array for record, array in zip(table.records, table.arrays, strict=True)}
    metadata = {safetensors.DATA_SHA256: safetensors.data_sha256(tensors)}
    path = workdir / file_name
    with path.open("wb") as stream:
        safetensors.write(stream, tensors, metadata)
    header = safetensors.encode_header(tensors, metadata)
    return (
        Weights("external", table.nbytes, file_name, sha256_of_file(path)),
        ExternalWeights(file_name, path.stat().st_size, header),
    )
