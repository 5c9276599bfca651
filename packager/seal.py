"""Seal a linked file: read back what is really in it, write that into its manifest, and check it against the plan."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import packager
from packager import isa
from packager.deploy.elf import ElfImage, read_elf
from packager.errors import BackendError
from packager.ir import LinkPlan
from packager.manifest import (
    ABI_VERSION,
    CONSTANTS_SECTION,
    SCHEMA_VERSION,
    SECTION_NAME,
    BackendRecord,
    Golden,
    License,
    Manifest,
    Requirements,
    Sizes,
    StaticLibrary,
    content_sha256,
    encode_section,
)

# Room for what is known only after the link: numbers grow by a few digits, lists of names by a few entries.
MANIFEST_SLACK = 8192
DYNAMIC_LINKERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}


def manifest_room(link_plan: LinkPlan) -> int:
    """Return the bytes to reserve for the manifest section."""
    draft = _manifest(link_plan, _nothing_read(link_plan), Sizes(0, 0, 0), None)
    return -(-(len(draft.to_json()) + MANIFEST_SLACK) // 64) * 64


def seal(path: Path, link_plan: LinkPlan, *, golden: Golden | None) -> Manifest:
    """Write the manifest into the linked file at ``path``. Raises BackendError if the file is not what was planned."""
    image = read_elf(path)
    _check(image, link_plan)
    section = image.sections[SECTION_NAME]
    constants = image.sections.get(CONSTANTS_SECTION)
    requirements = Requirements(
        machine=image.machine,
        os="linux",
        needed=image.needed,
        glibc=None if link_plan.static else image.glibc,
        cpu_features=isa.cpu_features(path),
        exports=image.exports,
        undefined=image.undefined if link_plan.static else (),
    )
    sizes = Sizes(path.stat().st_size, image.code_bytes, constants.size if constants else 0)
    manifest = _manifest(link_plan, requirements, sizes, golden)
    manifest = dataclasses.replace(manifest, content_sha256=content_sha256(path, section.offset, section.size))
    content = encode_section(manifest.to_json(), section.size)
    with path.open("r+b") as file:
        file.seek(section.offset)
        file.write(content)
    return manifest


def _check(image: ElfImage, link_plan: LinkPlan) -> None:
    if image.exports != (link_plan.entry_symbol,):
        raise BackendError(f"the linked file exports {', '.join(image.exports)}, not {link_plan.entry_symbol} alone")
    allowed = {"libc.so.6", "libm.so.6", DYNAMIC_LINKERS[link_plan.machine]}
    extra = sorted(set(image.needed) - allowed)
    if extra:
        raise BackendError(f"the linked file needs {', '.join(extra)}", hint="a backend links to a shared library")
    for backend in link_plan.backends:
        lost = sorted({p.symbol for p in backend.primitives} - set(image.symbols))
        if lost:
            raise BackendError(f"{backend.kind}: the linked file does not define {', '.join(lost)}")


def _nothing_read(link_plan: LinkPlan) -> Requirements:
    features = {name for b in link_plan.backends for library in b.static_libraries for name in library.cpu_features}
    return Requirements(link_plan.machine, "linux", (), None, tuple(sorted(features)), (link_plan.entry_symbol,), ())


def _manifest(link_plan: LinkPlan, requirements: Requirements, sizes: Sizes, golden: Golden | None) -> Manifest:
    plan = link_plan.plan
    return Manifest(
        schema_version=SCHEMA_VERSION,
        packager_version=packager.__version__,
        abi_version=ABI_VERSION,
        form="static" if link_plan.static else "shared",
        content_sha256="0" * 64,
        model=plan.source,
        dims=plan.dims,
        inputs=plan.inputs,
        outputs=plan.outputs,
        targets=link_plan.targets,
        backends=tuple(
            BackendRecord(
                kind=backend.kind,
                primitives=backend.primitives,
                static_libraries=tuple(
                    StaticLibrary(library.path.name, hashlib.sha256(library.path.read_bytes()).hexdigest())
                    for library in backend.static_libraries
                ),
            )
            for backend in link_plan.backends
        ),
        constants=plan.constants.records,
        weights=link_plan.weights,
        arena_bytes=plan.arena_bytes,
        requirements=requirements,
        sizes=sizes,
        toolchain=dict(link_plan.toolchain),
        licenses=(License("packager runtime", "Apache-2.0"), License("Apache TVM generated code", "Apache-2.0")),
        golden=golden,
    )
