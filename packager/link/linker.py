"""Compiles the runtime and the entrypoint, and links them with the backends' libraries into one file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packager.bundle.elf.file import read_elf
from packager.bundle.graph.section import LARGEST_TEXT as LARGEST_GRAPH
from packager.bundle.hashing import digest
from packager.bundle.isa.features import needs_of_code
from packager.bundle.isa.levels import DISPATCHED_SECTION
from packager.bundle.loaded_libraries import library_texts
from packager.bundle.manifest import (
    CONSTANTS_SECTION,
    GOLDEN_SECTION,
    GRAPH_SECTION,
    LIBRARIES_SECTION,
    SECTION_NAME,
    SELECTION_SECTION,
)
from packager.bundle.requirements import CpuLevel
from packager.bundle.section import SECTION_HEADER
from packager.codegen.cache import Cache
from packager.codegen.escape import CText
from packager.codegen.objects import CONSTRUCTOR_SECTIONS
from packager.codegen.sysroot import read_system_symbols
from packager.codegen.templates import render
from packager.codegen.toolchain import Toolchain, run
from packager.codegen.workers import workers
from packager.errors import BackendError
from packager.ir.call_plan import CallPlan
from packager.ir.link_plan import ExternalWeights, LinkedFile, LinkPlan
from packager.link.constant_segment import append_constants
from packager.link.data_sections import DataSection, render_data
from packager.link.entrypoint import render_entrypoint
from packager.link.plain_names import check_names_are_data
from packager.link.runs import EntryLevel
from packager.resources import folder

# The runtime and the entrypoint must run on any CPU: they check the requirements of the kernels.
C_FLAGS = (
    *("-std=c11", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-ffunction-sections", "-fdata-sections"),
    *("-fno-asynchronous-unwind-tables", "-fstack-protector-strong", "-Wall", "-Wextra", "-Werror"),
)
# No start files: a bundle has no constructors and no destructors.
LINK_FLAGS = (
    *("-shared", "-nostartfiles", "-static-libgcc", "-Wl,-z,defs", "-Wl,-z,text", "-Wl,-z,now", "-Wl,-z,relro"),
    *("-Wl,-z,noexecstack", "-Wl,--build-id=none", "-Wl,--gc-sections", "-Wl,-Bsymbolic", "-Wl,--as-needed"),
    *("-Wl,--strip-debug", "-Wl,--hash-style=gnu", "-Wl,--exclude-libs,ALL", "-Wl,--discard-all"),
    "-Wl,-z,separate-code",  # verify reads sections of code: nothing else may be mapped as executable
)
LIBRARIES = ("-lm",)
OPENS_LIBRARIES = "src-libraries"  # the runtime's object that calls dlopen
OWN_PREFIXES = ("task_", "dim_", "input_", "output_", "state_", "entry_")  # of the entrypoint's own names


@dataclass(frozen=True)
class Linker:
    """Builds the parts of one bundle in ``workdir`` and links them; ``link`` may be called repeatedly."""

    toolchain: Toolchain
    workdir: Path
    cache: Cache
    jobs: int

    def compile_runtime(self, device: str, *, static: bool, loads: bool = False) -> tuple[Path, ...]:
        """Compile the runtime for a device (``cpu``, ``cuda``), or take its objects from the cache.

        What opens libraries is only part of it if the bundle ``loads`` any.
        """
        stub = folder("runtime_stub")
        folders = (stub / "src", stub / device)
        sources = sorted(path for place in folders for path in place.glob("*.c"))
        headers = sorted(path for place in (*folders, stub / "include") for path in place.glob("*.h"))
        flags = [*C_FLAGS, *([] if static else ["-DPK_SHARED"]), f"-I{stub / device}"]
        key = digest(
            {
                "flags": flags[:-1],
                "device": device,
                "cc": self.toolchain.versions["cc"],
                "machine": self.toolchain.machine,
                "files": {str(path.relative_to(stub)): path.read_text() for path in [*sources, *headers]},
            }
        )
        built = self.workdir / "runtime"
        built.mkdir(exist_ok=True)
        if not self.cache.fetch("object", key, built):
            with workers(self.jobs) as pool:
                list(
                    pool.map(
                        lambda source: self._compile(source, built / f"{source.parent.name}-{source.stem}.o", flags),
                        sources,
                    )
                )
            self.cache.add("object", key, sorted(built.iterdir()))
        return tuple(path for path in sorted(built.glob("*.o")) if loads or path.stem != OPENS_LIBRARIES)

    def _compile(self, source: Path, output: Path, flags: Sequence[str]) -> None:
        stub = folder("runtime_stub")
        argv = [self.toolchain.cc, *flags, f"-I{stub / 'include'}", f"-I{stub / 'src'}", "-c", str(source)]
        run([*argv, "-o", str(output)], cwd=self.workdir)

    def link(self, link_plan: LinkPlan, *, golden: bytes | None) -> LinkedFile:
        """Link one unsealed file: its manifest section is zero.

        Raises BackendError if a library defines a name of the runtime.
        """
        _check_names(link_plan)
        every = [library for library in link_plan.libraries if not library.level]
        features = sorted({feature for library in every for feature in library.cpu_features})
        entry_source = self.workdir / "entrypoint.c"
        entry_source.write_text(_entrypoint(link_plan, features))
        entry = self.workdir / "entrypoint.o"
        self._compile(entry_source, entry, C_FLAGS)
        data = self._assemble_data(link_plan, golden)
        objects = [entry, *(library.path for library in link_plan.libraries), data, *link_plan.runtime]
        output = self._link_archive(objects, link_plan) if link_plan.static else self._link_shared(objects, link_plan)
        return _read_back(output, link_plan, features)

    def _assemble_data(self, link_plan: LinkPlan, golden: bytes | None) -> Path:
        sections = [DataSection(SECTION_NAME, "a", ("pk_manifest",), f".zero {link_plan.manifest_room}")]
        if link_plan.weights.storage == "embedded":
            # A placeholder for append_constants: assembler and linker would hold the constants in memory.
            sections.append(DataSection(CONSTANTS_SECTION, "a", ("pk_constants",), ".zero 64"))
        plan = link_plan.plan
        if digits := [*(c.chosen for c in plan.choices), *(s.chosen for s in plan.selection)]:
            chosen = ", ".join(map(str, digits))
            sections.append(DataSection(SELECTION_SECTION, "a", ("pk_selection",), f".byte {chosen}"))
        if texts := library_texts(link_plan.loaded.libraries):
            pieces = CText("\n\t".join(f'.asciz "{text}"' for text in texts))  # checked: none needs escapes
            sections.append(DataSection(LIBRARIES_SECTION, "a", ("pk_library_texts",), pieces))
        if plan.graph is not None and len(graph := plan.graph.to_json()) <= LARGEST_GRAPH:
            (self.workdir / "graph.json").write_bytes(graph)
            sections.append(DataSection(GRAPH_SECTION, "", (), CText('.incbin "graph.json"')))
        if golden is not None:
            (self.workdir / "golden.bin").write_bytes(golden)
            sections.append(DataSection(GOLDEN_SECTION, "", (), CText('.incbin "golden.bin"')))
        source = self.workdir / "data.S"
        source.write_text(render_data(sections))
        output = self.workdir / "data.o"
        run([self.toolchain.cc, "-c", "data.S", "-o", output.name], cwd=self.workdir)
        return output

    def _link_shared(self, objects: Sequence[Path], link_plan: LinkPlan) -> Path:
        exports = self.workdir / "exports.map"
        exports.write_text(render("entrypoint/exports.map.j2", entry_symbol=link_plan.entry_symbol))
        output = self.workdir / "bundle.so"
        argv = [self.toolchain.cc, *LINK_FLAGS, f"-Wl,--version-script={exports.name}", "-o", output.name]
        embedded = link_plan.weights.storage == "embedded"
        if embedded:
            script = self.workdir / "constants.ld"
            script.write_text(render("entrypoint/constants.ld.j2", section=CONSTANTS_SECTION))
            argv.append(f"-Wl,-T,{script.name}")
        required = [f"-l{library.link_name}" for backend in link_plan.backends for library in backend.requires]
        libgcc = [self._passive_libgcc()] if any(library.uses_libgcc for library in link_plan.libraries) else []
        run([*argv, *map(str, objects), *libgcc, *dict.fromkeys(required), *LIBRARIES], cwd=self.workdir)
        if embedded:
            append_constants(output, link_plan.plan.constants)
        return output

    def _passive_libgcc(self) -> str:
        """Return a copy of libgcc without constructors, with its code in the section of dispatched code.

        Its constructors only detect CPU features early: ifunc resolvers detect them again, and elsewhere they only
        select faster code.
        """
        libgcc = read_system_symbols(self.toolchain, self.workdir).libgcc_file
        changes = [f"--remove-section={pattern}" for pattern in CONSTRUCTOR_SECTIONS]
        changes += [f"--rename-section=.text={DISPATCHED_SECTION}"]
        run([self.toolchain.objcopy, *changes, str(libgcc), libgcc.name], cwd=self.workdir)
        return libgcc.name

    def _link_archive(self, objects: Sequence[Path], link_plan: LinkPlan) -> Path:
        """Link relocatably, localize every symbol but the entry, and wrap the object in an archive."""
        entry_symbol = link_plan.entry_symbol
        combined = self.workdir / f"{entry_symbol}.o"
        run([self.toolchain.ld, "-r", "--strip-debug", "-o", combined.name, *map(str, objects)], cwd=self.workdir)
        run([self.toolchain.objcopy, f"--keep-global-symbol={entry_symbol}", combined.name], cwd=self.workdir)
        if link_plan.weights.storage == "embedded":
            append_constants(combined, link_plan.plan.constants)
        output = self.workdir / "bundle.a"
        output.unlink(missing_ok=True)
        run([self.toolchain.ar, "rcsD", output.name, combined.name], cwd=self.workdir)
        return output


def _entrypoint(link_plan: LinkPlan, features: Sequence[str]) -> str:
    """Render the entrypoint. Raises ValueError if a name of the model would change its code."""

    def render(values: tuple[CallPlan, ExternalWeights | None]) -> str:
        plan, external = values
        return render_entrypoint(
            plan,
            entry_symbol=link_plan.entry_symbol,
            manifest_bytes=link_plan.manifest_room - SECTION_HEADER.size,
            cpu_features=features,
            levels=entry_levels(link_plan),
            external=external,
            cuda=link_plan.cuda,
            cuda_modules=[module for library in link_plan.libraries for module in library.cuda_modules],
            loaded=link_plan.loaded,
        )

    values = (link_plan.plan, link_plan.weights_file)
    return check_names_are_data(render(values), values, render)


def entry_levels(link_plan: LinkPlan) -> tuple[EntryLevel, ...]:
    """Return the levels for the entrypoint; a function without a clone for a level uses the next lower level's."""
    levels: list[EntryLevel] = []
    clones: dict[str, str] = {}
    for level in link_plan.cpu_levels:
        for library in link_plan.libraries:
            if library.level == (level.name if levels else ""):
                clones |= dict(zip(library.symbols, library.defined, strict=True))
        levels.append(EntryLevel(level.name, level.cpu_features, dict(clones)))
    return tuple(levels)


def _read_back(output: Path, link_plan: LinkPlan, checked: Sequence[str]) -> LinkedFile:
    """Disassemble the linked code for the CPU features it requires. ``checked`` are those that every session checks."""
    needs = needs_of_code(read_elf(output), output)
    features = needs.every.union(checked)
    levels: list[CpuLevel] = []
    for level in link_plan.cpu_levels:
        below = levels[-1].cpu_features if levels else features
        levels.append(CpuLevel(level.name, tuple(sorted(needs.of_levels.get(level.name, frozenset()).union(below)))))
    return LinkedFile(output, tuple(sorted(features)), tuple(levels), tuple(sorted(needs.dispatched - features)))


def _check_names(link_plan: LinkPlan) -> None:
    """Raise BackendError if a library defines a name of the runtime or of the entrypoint."""
    include = folder("runtime_stub")
    texts = [
        folder("templates") / "entrypoint" / "entrypoint.c.j2",
        folder("templates") / "entrypoint" / "integers.c.j2",
        include / "include" / "packager.h",
        include / "include" / "packager_library.h",
        include / "src" / "entrypoint.h",
    ]
    taken = {name for text in texts for name in re.findall(r"[A-Za-z_]\w*", text.read_text())}
    taken.update(name for path in link_plan.runtime for name in read_elf(path).exports)
    for library in link_plan.libraries:
        for symbol in (*library.defined, *(loaded.symbol for loaded in library.loaded_libraries)):
            if symbol in taken or symbol.startswith(OWN_PREFIXES):
                raise BackendError(
                    f"{library.kind}: it provides {symbol}, a name of packager's runtime or entrypoint",
                    hint="start symbols with the name of the backend and of the partition",
                )
