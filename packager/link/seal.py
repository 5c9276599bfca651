"""Seals a linked file: reads its facts back, checks them against the plan, and writes the manifest."""

from __future__ import annotations

import dataclasses

from packager.bundle.elf.file import ElfImage, read_elf
from packager.bundle.gpu.arch import arch_key
from packager.bundle.gpu.fatbin import FATBIN_SECTION, Fatbin, fatbins_of
from packager.bundle.invariants import CUDA_KIND, target_names
from packager.bundle.loaded_libraries import read_libraries
from packager.bundle.manifest import (
    ABI_VERSION,
    CONSTANTS_SECTION,
    LIBRARIES_SECTION,
    SCHEMA_VERSION,
    SECTION_NAME,
    BackendRecord,
    Entry,
    Golden,
    License,
    Manifest,
    Sizes,
)
from packager.bundle.requirements import CudaRequirements, Requirements
from packager.bundle.section import LARGEST_TEXT, write_manifest
from packager.codegen.sysroot import C_LIBRARY
from packager.errors import BackendError, ModelError
from packager.ir.link_plan import LinkedFile, LinkPlan
from packager.link.segments import parts_of
from packager.version import __version__

# Capacity for facts known only after linking: numbers grow by a few digits, lists of names by a few entries.
MANIFEST_SLACK = 8192
RUNTIME_LICENSE = License("packager runtime", "Apache-2.0")


def manifest_room(link_plan: LinkPlan) -> int:
    """Return the capacity in bytes to reserve for the manifest section. Raises ModelError if it would be too large."""
    draft = _manifest(link_plan, _nothing_read(link_plan), Sizes(0, 0, 0), None)
    size = -(-(len(draft.to_json()) + MANIFEST_SLACK) // 64) * 64
    if size > LARGEST_TEXT:
        raise ModelError(f"the model's names and constants take a manifest of {size} bytes, more than {LARGEST_TEXT}")
    return size


def seal(linked: LinkedFile, link_plan: LinkPlan, *, golden: Golden | None) -> Manifest:
    """Write the manifest into the linked file. Raises BackendError if the file does not match the plan."""
    path = linked.path
    image = read_elf(path)
    _check(image, link_plan)
    section = image.sections[SECTION_NAME]
    constants = image.sections.get(CONSTANTS_SECTION)
    requirements = Requirements(
        machine=image.machine,
        os="linux",
        needed=image.needed,
        glibc=None if link_plan.static else image.glibc,
        cpu_features=linked.cpu_features,
        exports=image.exports,
        undefined=image.imports,
        cuda=cuda_requirements(fatbins_of(path, image.sections.get(FATBIN_SECTION)), link_plan),
        cpu_levels=linked.levels,
        dispatched_features=linked.dispatched_features,
        libraries=read_libraries(path, image.sections.get(LIBRARIES_SECTION)),
    )
    if requirements.libraries != link_plan.loaded.libraries:
        raise BackendError("the linked file does not list the libraries that it opens as they were declared")
    sizes = Sizes(path.stat().st_size, image.code_bytes, constants.size if constants else 0)
    manifest = _manifest(link_plan, requirements, sizes, golden)
    return write_manifest(path, manifest, section.offset, section.size)


def _check(image: ElfImage, link_plan: LinkPlan) -> None:
    if image.exports != (link_plan.entry_symbol,):
        raise BackendError(f"the linked file exports {', '.join(image.exports)}, not only {link_plan.entry_symbol}")
    allowed = C_LIBRARY.union(library.soname for backend in link_plan.backends for library in backend.requires)
    extra = sorted(set(image.needed) - allowed)
    if extra:
        raise BackendError(
            f"the linked file needs {', '.join(extra)}", hint="the backend must declare it in `requires`"
        )
    called = {primitive.symbol for primitive in link_plan.plan.primitives}
    provided = {symbol for library in link_plan.libraries for symbol in library.symbols}
    for library in link_plan.libraries:
        names = dict(zip(library.symbols, library.defined, strict=True))
        lost = sorted({names[symbol] for symbol in called.intersection(names)} - image.functions)
        if lost:
            raise BackendError(f"{library.kind}: the linked file does not define {', '.join(lost)}")
    if called - provided:
        raise BackendError(f"no backend provides {', '.join(sorted(called - provided))}")
    if image.init_entries or image.fini_entries:
        raise BackendError("the linked file runs code at load or unload")
    if image.unversioned and set(image.needed) <= set(image.version_libraries):
        raise BackendError(f"the linked file needs {', '.join(image.unversioned)}, which no library provides")


def cuda_requirements(fatbins: tuple[Fatbin, ...], link_plan: LinkPlan) -> CudaRequirements | None:
    """Return the requirements of the GPU code. Raises BackendError for missing or unrequested architectures."""
    wanted = _wanted(link_plan)
    if wanted is None:
        if fatbins:
            raise BackendError(
                f"the linked file has GPU code in {FATBIN_SECTION}, but the build has no Target of kind {CUDA_KIND!r}",
                hint="CPU backends must return objects without GPU code",
            )
        return None
    for what, attribute in (("machine code", "archs"), ("PTX", "ptx")):
        asked = set(getattr(wanted, attribute))
        for number, fatbin in enumerate(fatbins, start=1):
            if extra := sorted(set(getattr(fatbin, attribute)) - asked):
                raise BackendError(
                    f"GPU module {number} of {len(fatbins)} has {what} for {', '.join(extra)}, which is not requested",
                    hint="backends must compile modules for the architectures of their Target only",
                )
        missing = sorted(asked - {name for fatbin in fatbins for name in getattr(fatbin, attribute)})
        if fatbins and missing:
            raise BackendError(
                f"no GPU module has {what} for {', '.join(missing)}",
                hint="a backend needs a module for each architecture of its Target",
            )
    if not fatbins and link_plan.plan.functions:
        raise BackendError(f"the linked file has no GPU code: there is no section {FATBIN_SECTION}")
    return wanted if fatbins else CudaRequirements((), (), wanted.driver)


def _wanted(link_plan: LinkPlan) -> CudaRequirements | None:
    if link_plan.cuda is None:
        return None
    targets = [target for target in link_plan.targets if target["kind"] == CUDA_KIND]
    archs, ptx = (
        tuple(sorted({name for target in targets for name in target_names(target, attribute)}, key=arch_key))
        for attribute in ("arch", "ptx")
    )
    major, minor = divmod(link_plan.cuda.driver, 1000)
    return CudaRequirements(archs, ptx, f"{major}.{minor // 10}")


def _nothing_read(link_plan: LinkPlan) -> Requirements:
    features = {name for library in link_plan.libraries for name in library.cpu_features if not library.level}
    return Requirements(
        machine=link_plan.machine,
        os="linux",
        needed=(),
        glibc=None,
        cpu_features=tuple(sorted(features)),
        exports=(link_plan.entry_symbol,),
        undefined=(),
        cuda=_wanted(link_plan),
        cpu_levels=link_plan.cpu_levels,
        libraries=link_plan.loaded.libraries,
    )


def _backend_record(kind: str, link_plan: LinkPlan) -> BackendRecord:
    libraries = [library for library in link_plan.libraries if library.kind == kind]
    provided = {symbol for library in libraries for symbol in library.symbols}
    return BackendRecord(
        kind=kind,
        primitives=tuple(
            dataclasses.replace(
                primitive,
                levels=tuple(one.level for one in libraries if one.level and primitive.symbol in one.symbols),
            )
            for primitive in link_plan.plan.primitives
            if primitive.symbol in provided
        ),
        static_libraries=tuple(file for library in libraries for file in library.files),
    )


def _manifest(link_plan: LinkPlan, requirements: Requirements, sizes: Sizes, golden: Golden | None) -> Manifest:
    plan = link_plan.plan
    entries = tuple(
        Entry(e.name, e.source, e.dims, e.inputs, e.outputs, e.states, e.extents, parts_of(e) if link_plan.cuda else ())
        for e in plan.entries
    )
    return Manifest(
        schema_version=SCHEMA_VERSION,
        packager_version=__version__,
        abi_version=ABI_VERSION,
        form="static" if link_plan.static else "shared",
        content_sha256="0" * 64,
        model=plan.source,
        dims=entries[0].dims,
        inputs=entries[0].inputs,
        outputs=entries[0].outputs,
        states=tuple(state.spec for state in plan.states),
        entries=entries if len(entries) > 1 else (),
        targets=link_plan.targets,
        backends=tuple(_backend_record(backend.kind, link_plan) for backend in link_plan.backends),
        constants=plan.constants.records,
        weights=link_plan.weights,
        arena_bytes=plan.arena_bytes,
        requirements=requirements,
        sizes=sizes,
        toolchain=dict(link_plan.toolchain),
        licenses=tuple(
            dict.fromkeys([RUNTIME_LICENSE, *(x for backend in link_plan.backends for x in backend.licenses)])
        ),
        selection=plan.selection,
        golden=golden,
        provenance=link_plan.provenance,
        extents=entries[0].extents,
        parts=entries[0].parts,
        placement=plan.placement,
    )
