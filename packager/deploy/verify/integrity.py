"""Checks data against the manifest's hashes: constants, the golden section, the external weights file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from packager.bundle.elf.window import open_window
from packager.bundle.hashing import sha256
from packager.bundle.manifest import CONSTANTS_SECTION, DATA_SHA256, GOLDEN_SECTION, SELECTION_SECTION
from packager.bundle.reader import BundleFile, read_section
from packager.bundle.section import LARGEST_TEXT
from packager.deploy.verify.findings import Finding, error
from packager.errors import PackagerError
from packager.progress import counted_bytes

_REBUILD = "rebuild the bundle; it was sealed with wrong hashes"


def integrity_findings(bundle: BundleFile) -> Iterator[Finding]:
    """Hash the parts of a bundle, and its external weights. The whole file must have been hashed before."""
    manifest = bundle.manifest
    if manifest.golden and GOLDEN_SECTION in bundle.elf.sections:
        actual = sha256([read_section(bundle, GOLDEN_SECTION)])
        if actual != manifest.golden.sha256:
            what = "the golden section is not the one that the manifest describes"
            yield error("integrity.golden", what, where=GOLDEN_SECTION, why="its SHA-256 differs", hint=_REBUILD)
    if SELECTION_SECTION in bundle.elf.sections and read_section(bundle, SELECTION_SECTION) != manifest.digits():
        yield error(
            "integrity.selection",
            "the candidates in use differ from the manifest",
            where=SELECTION_SECTION,
            why="the bytes of the section differ from $.choices and $.selection",
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
    with open_window(bundle.path) as window, counted_bytes("hashing constants", section.size) as used:
        part = window.part(section.offset, section.size, CONSTANTS_SECTION)
        for index, constant in enumerate(bundle.manifest.constants):
            inside = constant.offset + constant.bytes <= section.size
            if not inside or sha256(used(part.chunks(constant.offset, constant.bytes, "constant"))) != constant.sha256:
                what = f"constant {constant.name!r} {'has another SHA-256' if inside else 'is outside the section'}"
                yield error("integrity.constants", what, where=f"$.constants[{index}]", hint=_REBUILD)


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

    def finding(aspect: str, what: str, why: str) -> Finding:
        hint = "put the weights file that was built with this bundle beside it, under its own name or the bundle's"
        return error(f"integrity.weights_{aspect}", what, where=str(path), why=why, hint=hint)

    if not path.exists():
        yield finding("missing", "the weights file is missing", "the bundle does not run without it")
        return
    try:
        with open_window(path) as window:
            start = window.read(0, min(8, window.size), "weights file")
            data_offset = safetensors.header_size(start, window.size)
            if data_offset > LARGEST_TEXT:  # its names are in the manifest too
                yield finding("header", f"its header has {data_offset} bytes", "no bundle has one as large")
                return
            expected = data_offset + manifest.weights.bytes
            if window.size != expected:
                what = f"the weights file has {window.size} bytes, not {expected}"
                yield finding("size", what, "it is cut short, or another file")
                return
            header = safetensors.decode_header(window.read(0, data_offset, "weights header"), window.size)
            with counted_bytes(f"hashing {path.name}", 2 * window.size - data_offset) as used:
                data_sha256 = sha256(used(window.chunks(data_offset, window.size - data_offset, "data")))
                file_sha256 = sha256(used(window.chunks(0, window.size, "data")))
    except PackagerError as failure:
        yield finding("header", f"the weights file cannot be read: {failure.message}", "it is damaged")
        return
    found = {(entry.name, entry.dtype, entry.shape, entry.offset) for entry in header.entries}
    declared = {(item.name, item.dtype, item.shape, item.offset) for item in manifest.constants}
    if found != declared:
        names = ", ".join(sorted({str(item[0]) for item in found ^ declared})[:8])
        yield finding("header", f"its tensors differ from the manifest's: {names}", "it is another file")
    if header.metadata.get(DATA_SHA256) != data_sha256:
        yield finding("data", "its tensor data are damaged", f"SHA-256 is not its {DATA_SHA256}")
    elif file_sha256 != manifest.weights.file_sha256:
        yield finding("data", "it is not the file that the bundle was built with", "another SHA-256")
