"""Checks the GPU code in the linked image against the manifest."""

from __future__ import annotations

from collections.abc import Iterator

from packager.bundle.elf.tables import SHF_ALLOC, SHF_EXECINSTR, SHF_WRITE, read_sections
from packager.bundle.elf.window import open_window
from packager.bundle.fatbin import FATBIN_SECTION, fatbins_of
from packager.bundle.gpu_arch import arch_key
from packager.bundle.reader import BundleFile
from packager.deploy.verify.findings import Finding, error
from packager.errors import BundleError

_RELINK = "rebuild the bundle with `packager build`, and do not edit, strip or relink it"


def gpu_code_findings(bundle: BundleFile) -> Iterator[Finding]:
    """Check that the file's fatbins have code for exactly the declared architectures."""
    with open_window(bundle.path) as window:
        sections = [section for section in read_sections(window).sections if section.name == FATBIN_SECTION]
    if len(sections) > 1:
        yield _finding("manifest.sections", f"there are {len(sections)} sections {FATBIN_SECTION}", "section headers")
    section = sections[0] if sections else None
    if section and (section.flags & (SHF_WRITE | SHF_EXECINSTR) or not section.flags & SHF_ALLOC):
        yield _finding("manifest.sections", f"{FATBIN_SECTION} must be mapped and read-only", "section headers")
    try:
        fatbins = fatbins_of(bundle.path, section)
    except BundleError as failure:
        yield _finding("manifest.gpu_code", f"the GPU code cannot be read: {failure.message}", FATBIN_SECTION)
        return
    wanted = bundle.manifest.requirements.cuda
    if wanted is None:
        if fatbins:
            yield _finding("manifest.gpu_code", "the file has GPU code that is not declared", FATBIN_SECTION)
        return
    if not fatbins and (wanted.archs or wanted.ptx):
        yield _finding("manifest.gpu_code", f"GPU code for {wanted.describe()} is missing", FATBIN_SECTION)
    declared = {*wanted.archs, *wanted.ptx}
    for number, fatbin in enumerate(fatbins, start=1):
        if extra := {*fatbin.archs, *fatbin.ptx} - declared:
            yield _wrong(f"GPU module {number} of {len(fatbins)} has undeclared code", extra)
    if fatbins and (missing := declared - {name for fatbin in fatbins for name in (*fatbin.archs, *fatbin.ptx)}):
        yield _wrong("no GPU module has code", missing)


def _wrong(what: str, names: set[str]) -> Finding:
    listed = ", ".join(sorted(names, key=arch_key))
    return _finding("manifest.gpu_code", f"{what} for {listed}", f"{FATBIN_SECTION}, $.requirements.cuda")


def _finding(check: str, what: str, where: str) -> Finding:
    return error(check, what, where=where, why="the manifest does not describe this file", hint=_RELINK)
