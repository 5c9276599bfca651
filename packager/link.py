"""Compile the runtime and the entrypoint, and link everything into one file."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from packager import isa
from packager.cache import Cache, digest
from packager.ir import CallPlan, LinkPlan, ObjectFile
from packager.manifest import CONSTANTS_SECTION, GOLDEN_SECTION, SECTION_HEADER, SECTION_NAME
from packager.render import DataSection, render, render_data, render_entrypoint
from packager.resources import folder
from packager.toolchain import Toolchain, run

# The runtime and the entrypoint run on any CPU of the machine: they check what the kernels need before these run.
C_FLAGS = (
    *("-std=c11", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-ffunction-sections", "-fdata-sections"),
    *("-fno-asynchronous-unwind-tables", "-fstack-protector-strong", "-Wall", "-Wextra", "-Werror"),
)
# No start files: a bundle has no constructors and no destructors.
LINK_FLAGS = (
    *("-shared", "-nostartfiles", "-static-libgcc", "-Wl,-z,defs", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,noexecstack"),
    *("-Wl,--build-id=none", "-Wl,--gc-sections", "-Wl,-Bsymbolic", "-Wl,--as-needed", "-Wl,--strip-debug"),
    *("-Wl,--hash-style=gnu", "-Wl,--exclude-libs,ALL", "-Wl,--discard-all"),
)
LIBRARIES = ("-lm",)
# Bundles run with glibc 2.28. These functions got new versions after it (2.29: exp to pow, 2.35: hypot, 2.38: fmod,
# 2.39: exp10), which differ in errno alone, so code that names no version is bound to the one they have had all along.
NEWER_MATH = ("exp", "exp2", "exp10", "exp10f", "fmod", "fmodf", "hypot", "hypotf", "log", "log2", "pow")
FIRST_GLIBC = {"x86_64": "GLIBC_2.2.5", "aarch64": "GLIBC_2.17"}


@dataclass(frozen=True)
class Linker:
    """Builds the parts of one bundle in ``workdir`` and links them, as often as asked."""

    toolchain: Toolchain
    workdir: Path
    cache: Cache
    jobs: int

    def compile_runtime(self, *, static: bool) -> tuple[Path, ...]:
        """Return the runtime's objects, from the cache if they are there."""
        stub = folder("runtime_stub")
        sources = sorted((stub / "src").glob("*.c"))
        headers = sorted([*(stub / "src").glob("*.h"), *(stub / "include").glob("*.h")])
        flags = [*C_FLAGS, *([] if static else ["-DPK_SHARED"])]
        key = digest(
            {
                "flags": flags,
                "cc": self.toolchain.versions["cc"],
                "machine": self.toolchain.machine,
                "files": {path.name: path.read_text() for path in [*sources, *headers]},
            }
        )
        built = self.workdir / "runtime"
        built.mkdir(exist_ok=True)
        if not self.cache.fetch("object", key, built):
            with ThreadPoolExecutor(self.jobs) as pool:
                list(pool.map(lambda source: self._compile(source, built / f"{source.stem}.o", flags), sources))
            self.cache.add("object", key, sorted(built.iterdir()))
        return tuple(sorted(built.glob("*.o")))

    def _compile(self, source: Path, output: Path, flags: Sequence[str]) -> None:
        stub = folder("runtime_stub")
        argv = [self.toolchain.cc, *flags, f"-I{stub / 'include'}", f"-I{stub / 'src'}", "-c", str(source)]
        run([*argv, "-o", str(output)], cwd=self.workdir)

    def link(self, link_plan: LinkPlan, *, golden: bytes | None) -> Path:
        """Link one unsealed file: its manifest section is all zero. Returns its path in the work folder."""
        plan = link_plan.plan
        libraries = [
            self._prepare(library, link_plan) for backend in link_plan.backends for library in backend.static_libraries
        ]
        features = sorted({feature for library in libraries for feature in isa.cpu_features(library)})
        entry_source = self.workdir / "entrypoint.c"
        entry_source.write_text(
            render_entrypoint(
                plan,
                entry_symbol=link_plan.entry_symbol,
                manifest_bytes=link_plan.manifest_room - SECTION_HEADER.size,
                cpu_features=features,
                external=link_plan.weights_file,
            )
        )
        entry = self.workdir / "entrypoint.o"
        self._compile(entry_source, entry, C_FLAGS)
        data = self._assemble_data(link_plan, golden)
        objects = [entry, *libraries, data, *link_plan.runtime]
        if link_plan.static:
            return self._link_archive(objects, link_plan.entry_symbol)
        return self._link_shared(objects, link_plan.entry_symbol)

    def _assemble_data(self, link_plan: LinkPlan, golden: bytes | None) -> Path:
        sections = [DataSection(SECTION_NAME, "a", ("pk_manifest",), f".zero {link_plan.manifest_room}")]
        if link_plan.weights.storage == "embedded":
            write_constants(link_plan.plan, self.workdir / "constants.bin")
            sections.append(DataSection(CONSTANTS_SECTION, "a", ("pk_constants",), '.incbin "constants.bin"'))
        if golden is not None:
            (self.workdir / "golden.bin").write_bytes(golden)
            sections.append(DataSection(GOLDEN_SECTION, "", (), '.incbin "golden.bin"'))
        source = self.workdir / "data.S"
        source.write_text(render_data(sections))
        output = self.workdir / "data.o"
        run([self.toolchain.cc, "-c", "data.S", "-o", output.name], cwd=self.workdir)
        return output

    def _prepare(self, library: ObjectFile, link_plan: LinkPlan) -> Path:
        """Return an object of what is used of ``library``: what is not may need CPU features that nothing else does.

        In the shared form its calls of NEWER_MATH name their version; in the other the final link decides.
        """
        prepared = self.workdir / f"prepared-{library.path.stem}.o"
        roots = [f"--undefined={symbol}" for symbol in library.symbols]
        options = self.workdir / f"{prepared.stem}.options"  # there may be more symbols than a command line holds
        options.write_text("\n".join(roots))
        argv = [self.toolchain.ld, "-r", "--gc-sections", f"@{options.name}", "-o", prepared.name]
        run([*argv, str(library.path)], cwd=self.workdir)
        if not link_plan.static:
            version = FIRST_GLIBC[self.toolchain.machine]
            names = [f"--redefine-sym={name}={name}@{version}" for name in NEWER_MATH]
            run([self.toolchain.objcopy, *names, prepared.name], cwd=self.workdir)
        return prepared

    def _link_shared(self, objects: Sequence[Path], entry_symbol: str) -> Path:
        exports = self.workdir / "exports.map"
        exports.write_text(render("exports.map.j2", entry_symbol=entry_symbol))
        output = self.workdir / "bundle.so"
        argv = [self.toolchain.cc, *LINK_FLAGS, f"-Wl,--version-script={exports.name}", "-o", output.name]
        run([*argv, *map(str, objects), *LIBRARIES], cwd=self.workdir)
        return output

    def _link_archive(self, objects: Sequence[Path], entry_symbol: str) -> Path:
        """Link relocatably, localise every symbol but the entry, and wrap the object in an archive."""
        combined = self.workdir / f"{entry_symbol}.o"
        run([self.toolchain.ld, "-r", "--strip-debug", "-o", combined.name, *map(str, objects)], cwd=self.workdir)
        run([self.toolchain.objcopy, f"--keep-global-symbol={entry_symbol}", combined.name], cwd=self.workdir)
        output = self.workdir / "bundle.a"
        output.unlink(missing_ok=True)
        run([self.toolchain.ar, "rcsD", output.name, combined.name], cwd=self.workdir)
        return output


def write_constants(plan: CallPlan, path: Path) -> None:
    """Write all constants at their offsets; gaps are zero."""
    with path.open("wb") as file:
        for record, array in zip(plan.constants.records, plan.constants.arrays, strict=True):
            file.write(bytes(record.offset - file.tell()))
            file.write(array.reshape(-1).view("uint8").data)
        file.write(bytes(plan.constants.nbytes - file.tell()))
