"""Checks a bundle's code against its manifest: CPU features, code for CPU levels, GPU architectures.

Disassembly requires iced-x86 and capstone, which are optional on the deploy side.
"""

from __future__ import annotations

from collections.abc import Iterator

from packager.bundle.elf.file import ElfImage
from packager.bundle.elf.tables import SHF_ALLOC, SHF_EXECINSTR, SHF_WRITE, read_sections
from packager.bundle.elf.window import open_window
from packager.bundle.gpu.arch import arch_key
from packager.bundle.gpu.fatbin import FATBIN_SECTION, fatbins_of
from packager.bundle.isa.features import needs_of_code
from packager.bundle.isa.levels import CODE_PREFIX, clone_symbol, code_section
from packager.bundle.reader import BundleFile
from packager.deploy.verify.findings import Finding, error
from packager.errors import BundleError, listed


def code_findings(bundle: BundleFile) -> Iterator[Finding]:
    """Compare the CPU features that the code uses with the manifest."""
    requirements = bundle.manifest.requirements
    needs = needs_of_code(bundle.elf, bundle.path)
    every = set(requirements.cpu_features)
    yield from _undeclared(needs.every - every, "code that every session runs", "$.requirements.cpu_features")
    for index, level in enumerate(requirements.cpu_levels):
        extra = needs.of_levels.get(level.name, frozenset()) - set(level.cpu_features)
        yield from _undeclared(extra, f"code for {level.name}", f"$.requirements.cpu_levels[{index}]")
    extra = needs.dispatched - every - set(requirements.dispatched_features)
    yield from _undeclared(extra, "code behind its own CPU check", "$.requirements.dispatched_features")


def level_findings(bundle: BundleFile) -> Iterator[Finding]:
    """Check, without disassembly, that code for higher CPU levels is in the sections of these levels."""
    elf, requirements = bundle.elf, bundle.manifest.requirements
    declared = {code_section(level.name) for level in requirements.cpu_levels[1:]}
    found = {name for name in elf.sections if name.startswith(CODE_PREFIX)}
    if found != declared:
        yield error(
            "manifest.cpu_levels",
            f"sections of CPU levels: {listed(sorted(found))}; declared: {listed(sorted(declared))}",
            where="section headers, $.requirements.cpu_levels",
            why="it is unknown which CPUs this code requires",
        )
    misplaced = {
        clone_symbol(item.symbol, level)
        for _, item in bundle.manifest.primitives()
        for level in ("", *item.levels)
        if not _in_right_section(elf, clone_symbol(item.symbol, level), level)
    }
    if misplaced:
        what = f"functions outside the section of their CPU level: {listed(sorted(misplaced))}"
        why = "a session would run code without a check of its CPU"
        yield error("manifest.cpu_levels", what, where=".symtab", why=why)


def _in_right_section(elf: ElfImage, name: str, level: str) -> bool:
    """Whether a clone is in the section of its level, the lowest level's in none. Missing ones are reported
    elsewhere."""
    place = elf.section_of(name)
    return place is None or (place == code_section(level) if level else not place.startswith(CODE_PREFIX))


def _undeclared(features: frozenset[str] | set[str], what: str, where: str) -> Iterator[Finding]:
    if features:
        yield error(
            "code.cpu_features",
            f"{what} uses {', '.join(sorted(features))}, which the manifest does not declare",
            where=where,
            why="a session on a CPU without them would be accepted, and crash with an illegal instruction",
        )


def gpu_code_findings(bundle: BundleFile) -> Iterator[Finding]:
    """Check that the file's fatbins have code for exactly the declared architectures."""
    with open_window(bundle.path) as window:
        sections = [section for section in read_sections(window).sections if section.name == FATBIN_SECTION]
    if len(sections) > 1:
        yield error(
            "manifest.sections", f"there are {len(sections)} sections {FATBIN_SECTION}", where="section headers"
        )
    section = sections[0] if sections else None
    if section and (section.flags & (SHF_WRITE | SHF_EXECINSTR) or not section.flags & SHF_ALLOC):
        yield error("manifest.sections", f"{FATBIN_SECTION} must be mapped and read-only", where="section headers")
    try:
        fatbins = fatbins_of(bundle.path, section)
    except BundleError as failure:
        yield error("manifest.gpu_code", f"the GPU code cannot be read: {failure.message}", where=FATBIN_SECTION)
        return
    wanted = bundle.manifest.requirements.cuda
    if wanted is None:
        if fatbins:
            yield error("manifest.gpu_code", "the file has GPU code that is not declared", where=FATBIN_SECTION)
        return
    if not fatbins and (wanted.archs or wanted.ptx):
        yield error("manifest.gpu_code", f"GPU code for {wanted.describe()} is missing", where=FATBIN_SECTION)
    declared = {*wanted.archs, *wanted.ptx}
    for number, fatbin in enumerate(fatbins, start=1):
        if extra := {*fatbin.archs, *fatbin.ptx} - declared:
            yield _wrong(f"GPU module {number} of {len(fatbins)} has undeclared code", extra)
    if fatbins and (missing := declared - {name for fatbin in fatbins for name in (*fatbin.archs, *fatbin.ptx)}):
        yield _wrong("no GPU module has code", missing)


def _wrong(what: str, names: set[str]) -> Finding:
    archs = ", ".join(sorted(names, key=arch_key))
    return error("manifest.gpu_code", f"{what} for {archs}", where=f"{FATBIN_SECTION}, $.requirements.cuda")
