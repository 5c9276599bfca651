"""Which CPU features the code of a linked file needs, and whether its manifest says so.

Reading instructions takes a disassembler (capstone), which a machine that only runs bundles need not have.
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
    """Compare what the code uses with what its manifest declares."""
    requirements = bundle.manifest.requirements
    needs = needs_of_code(bundle.elf, bundle.path)
    every = set(requirements.cpu_features)
    yield from _undeclared(needs.every - every, "code that every session runs", "$.requirements.cpu_features")
    for index, level in enumerate(requirements.cpu_levels):
        extra = needs.of_levels.get(level.name, frozenset()) - set(level.cpu_features)
        yield from _undeclared(extra, f"code for {level.name}", f"$.requirements.cpu_levels[{index}]")
    extra = needs.dispatched - every - set(requirements.dispatched_features)
    yield from _undeclared(extra, "code that asks the CPU itself", "$.requirements.dispatched_features")


def level_findings(bundle: BundleFile) -> Iterator[Finding]:
    """Check, without reading instructions, that code for better CPUs lies in the sections of their levels."""
    elf, requirements = bundle.elf, bundle.manifest.requirements
    declared = {code_section(level.name) for level in requirements.cpu_levels[1:]}
    found = {name for name in elf.sections if name.startswith(CODE_PREFIX)}
    if found != declared:
        yield error(
            "manifest.cpu_levels",
            f"sections of CPU levels: {_listed(found)}; declared: {_listed(declared)}",
            where="section headers, $.requirements.cpu_levels",
            why="nobody can tell on which CPUs this code runs",
            hint=_RELINK,
        )
    misplaced = sorted(
        clone_symbol(item.symbol, level)
        for _, item in bundle.manifest.primitives()
        for level in ("", *item.levels)
        if not _lies_right(elf, clone_symbol(item.symbol, level), level)
    )
    if misplaced:
        yield error(
            "manifest.cpu_levels",
            f"functions that do not lie in the section of their CPU level: {', '.join(misplaced[:8])}",
            where=".symtab",
            why="a session would run code that its CPU was not checked for",
            hint=_RELINK,
        )


def _lies_right(elf: ElfImage, name: str, level: str) -> bool:
    """Whether a form lies in its level's section, the least in no level's. One that is missing is another finding."""
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
            why="a session is not refused where the CPU lacks them, and would die of an illegal instruction",
            hint=_RELINK,
        )
