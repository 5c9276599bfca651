"""Checks that the CPU features of a bundle's code are declared in its manifest.

Disassembly requires iced-x86 and capstone, which are optional on the deploy side.
"""

from __future__ import annotations

from collections.abc import Iterator

from packager.bundle.cpu_levels import CODE_PREFIX, clone_symbol, code_section
from packager.bundle.elf.file import ElfImage
from packager.bundle.isa.needs import needs_of_code
from packager.bundle.reader import BundleFile
from packager.deploy.verify.findings import Finding, error

_RELINK = "rebuild the bundle with `packager build`, and do not edit, strip or relink it"


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
            f"sections of CPU levels: {_listed(found)}; declared: {_listed(declared)}",
            where="section headers, $.requirements.cpu_levels",
            why="it is unknown which CPUs this code requires",
            hint=_RELINK,
        )
    misplaced = sorted(
        clone_symbol(item.symbol, level)
        for _, item in bundle.manifest.primitives()
        for level in ("", *item.levels)
        if not _in_right_section(elf, clone_symbol(item.symbol, level), level)
    )
    if misplaced:
        yield error(
            "manifest.cpu_levels",
            f"functions outside the section of their CPU level: {', '.join(misplaced[:8])}",
            where=".symtab",
            why="a session would run code without a check of its CPU",
            hint=_RELINK,
        )


def _in_right_section(elf: ElfImage, name: str, level: str) -> bool:
    """Whether a clone is in the section of its level, the lowest level's in none. Missing ones are reported
    elsewhere."""
    place = elf.section_of(name)
    return place is None or (place == code_section(level) if level else not place.startswith(CODE_PREFIX))


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _undeclared(features: frozenset[str] | set[str], what: str, where: str) -> Iterator[Finding]:
    if features:
        yield error(
            "code.cpu_features",
            f"{what} uses {', '.join(sorted(features))}, which the manifest does not declare",
            where=where,
            why="a session on a CPU without them would be accepted, and crash with an illegal instruction",
            hint=_RELINK,
        )
