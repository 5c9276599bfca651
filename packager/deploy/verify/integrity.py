"""Checks data against the manifest's hashes: constants, the golden section, the external weights file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packager.bundle.elf.window import Window, open_window
from packager.bundle.manifest import CONSTANTS_SECTION, GOLDEN_SECTION, SELECTION_SECTION
from packager.bundle.reader import BundleFile, read_section
from packager.deploy.verify.findings import Finding, error
from packager.errors import PackagerError

_CHUNK = 1 << 20
_REBUILD = "rebuild the bundle; it was sealed with wrong hashes"


def integrity_findings(bundle: BundleFile) -> Iterator[Finding]:
    """Hash the parts of a bundle, and its external weights. The whole file must have been hashed before."""
    manifest = bundle.manifest
    if manifest.golden and GOLDEN_SECTION in bundle.elf.sections:
        actual = hashlib.sha256(read_section(bundle, GOLDEN_SECTION)).hexdigest()
        if actual != manifest.golden.sha256:
            yield error(
                "integrity.golden",
                "the golden section is not the one that the manifest describes",
                where=GOLDEN_SECTION,
                why="its SHA-256 differs",
                hint=_REBUILD,
            )
    chosen = bytes(selected.chosen for selected in manifest.selection)
    if SELECTION_SECTION in bundle.elf.sections and read_section(bundle, SELECTION_SECTION) != chosen:
        yield error(
            "integrity.selection",
            "the candidates in use differ from the manifest",
            where=SELECTION_SECTION,
            why="the bytes of the section differ from $.selection",
            hint="choose candidates with `packager tune`, which seals the bundle again",
        )
    if manifest.weights.storage == "embedded":
        yield from _constant_findings(bundle)
    elif manifest.weights.storage == "external":
        yield from _weights_findings(bundle)


def _constant_findings(bundle: BundleFile) -> Iterator[Finding]:
    section = bundle.elf.sections.get(CONSTANTS_SECTION)
    if section is None:
        return  # reported as a wrong size
    with open_window(bundle.path) as window:
        part = window.part(section.offset, section.size, CONSTANTS_SECTION)
        for index, constant in enumerate(bundle.manifest.constants):
            inside = constant.offset + constant.bytes <= section.size
            if not inside or _sha256(part, constant.offset, constant.bytes) != constant.sha256:
                yield error(
                    "integrity.constants",
                    f"constant {constant.name!r} {'has another SHA-256' if inside else 'is outside the section'}",
                    where=f"$.constants[{index}]",
                    why="the manifest does not describe this file",
                    hint=_REBUILD,
                )


def _sha256(window: Window, start: int, size: int) -> str:
    digest = hashlib.sha256()
    for offset in range(start, start + size, _CHUNK):
        digest.update(window.read(offset, min(_CHUNK, start + size - offset), "data"))
    return digest.hexdigest()


@dataclass(frozen=True)
class _Weights:
    """The expected external weights file and its path, for messages."""

    where: str

    def finding(self, aspect: str, what: str, why: str) -> Finding:
        hint = "put the weights file that was built with this bundle beside it, under its own name or the bundle's"
        return error(f"integrity.weights_{aspect}", what, where=self.where, why=why, hint=hint)


def _weights_findings(bundle: BundleFile) -> list[Finding]:
    """Check the file that the runtime would open: the name from the build, else the bundle's name."""
    name = bundle.manifest.weights.file
    assert name is not None  # the strict reader has checked that external weights name a file
    findings = list(_file_findings(bundle, bundle.path.parent / name))
    renamed = bundle.path.with_suffix(".safetensors")
    return list(_file_findings(bundle, renamed)) if findings and renamed.exists() else findings


def _file_findings(bundle: BundleFile, path: Path) -> Iterator[Finding]:
    from packager.bundle import safetensors  # needs numpy

    manifest = bundle.manifest
    report = _Weights(str(path))
    if not path.exists():
        yield report.finding("missing", "the weights file is missing", "the bundle does not run without it")
        return
    try:
        with open_window(path) as window:
            start = window.read(0, min(8, window.size), "weights file")
            data_offset = safetensors.header_size(start, window.size)
            expected = data_offset + manifest.weights.bytes
            if window.size != expected:
                what = f"the weights file has {window.size} bytes, not {expected}"
                yield report.finding("size", what, "it is cut short, or another file")
                return
            header = safetensors.decode_header(window.read(0, data_offset, "weights header"), window.size)
            data_sha256 = _sha256(window, data_offset, window.size - data_offset)
            file_sha256 = _sha256(window, 0, window.size)
    except PackagerError as failure:
        yield report.finding("header", f"the weights file cannot be read: {failure.message}", "it is damaged")
        return
    found = {(entry.name, entry.dtype, entry.shape, entry.offset) for entry in header.entries}
    declared = {(item.name, item.dtype, item.shape, item.offset) for item in manifest.constants}
    if found != declared:
        names = ", ".join(sorted({str(item[0]) for item in found ^ declared})[:8])
        yield report.finding("header", f"its tensors differ from the manifest's: {names}", "it is another file")
    if header.metadata.get(safetensors.DATA_SHA256) != data_sha256:
        yield report.finding("data", "its tensor data are damaged", f"SHA-256 is not its {safetensors.DATA_SHA256}")
    elif file_sha256 != manifest.weights.file_sha256:
        yield report.finding("data", "it is not the file that the bundle was built with", "another SHA-256")
