"""Builds the C runtime with a hand-written model and the C programs that drive it, and runs them.

Everything is compiled once per session and sanitizer; a test is one case of one program, in a process of its own.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STUB = ROOT / "runtime_stub"
SOURCES = Path(__file__).parent / "c"
EXPORTS = "{ global: packager_bundle_v1; test_add_error; local: *; };\n"
LINK = ["defs", "now", "relro", "noexecstack"]
ENVIRONMENT = {"TSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "detect_leaks=1"}
STRICT = ["-Wall", "-Wextra", "-Werror"]
BUNDLE = ["-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-ffunction-sections", "-fdata-sections", *STRICT]


@dataclass(frozen=True)
class Flavor:
    """A way to compile: the compiler, its extra flags, and what its programs are run with."""

    name: str
    cc: str = "gcc"
    flags: tuple[str, ...] = ()
    runner: tuple[str, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether code runs natively and without a sanitizer, so that counts of resources mean something."""
        return self.name == "plain"

    def require(self) -> None:
        """Skip the test if the compiler, or what its programs are run with, is missing."""
        for tool in (self.cc, *self.runner[:1]):
            if shutil.which(tool) is None:
                pytest.skip(f"{tool} is not installed")


PLAIN = Flavor("plain")
ADDRESS = Flavor("address", flags=("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"))
THREAD = Flavor("thread", flags=("-g", "-fsanitize=thread"))
AARCH64 = Flavor("aarch64", cc="aarch64-linux-gnu-gcc", runner=("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"))

# What fixtures are parametrized with: native cases are fast tests, those under sanitizers and emulated are slow ones.
FLAVOURS = [PLAIN, *(pytest.param(flavor, marks=pytest.mark.slow) for flavor in (ADDRESS, THREAD, AARCH64))]


def execute(command: Sequence[str | Path], *, timeout: float = 60, environment: Mapping[str, str] | None = None) -> str:
    """Run a command and return its stdout; what it printed is the failure's message."""
    argv = [str(part) for part in command]
    environment = os.environ | ENVIRONMENT | (environment or {})
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False, env=environment)
    assert done.returncode == 0, f"{' '.join(argv)}\nexit status {done.returncode}\n{done.stderr}{done.stdout}"
    return done.stdout


class Builder:
    """Compiles bundles and programs of one flavor into a folder; each only once.

    ``device`` is the folder of the runtime that bundles are linked with, ``sources`` that of the model and programs.
    """

    def __init__(self, flavor: Flavor, folder: Path, *, device: str = "cpu", sources: Path = SOURCES) -> None:
        self.flavor = flavor
        self.folder = folder
        self.device = device
        self.sources = sources
        (folder / "exports.map").write_text(EXPORTS)
        self.runtime = functools.cache(self._runtime)
        self.bundle = functools.cache(self._bundle)
        self.program = functools.cache(self._program)

    def compile(self, *arguments: str | Path) -> None:
        includes = [f"-I{STUB / name}" for name in ("include", "src", self.device)]
        execute([self.flavor.cc, *self.flavor.flags, *includes, *arguments])

    def _runtime(self, shared: bool = True) -> list[Path]:
        """Return the runtime's objects, in the form for a shared library or for an archive."""
        objects = []
        for source in sorted([*(STUB / "src").glob("*.c"), *(STUB / self.device).glob("*.c")]):
            target = self.folder / f"{source.parent.name}-{source.stem}{'' if shared else '.static'}.o"
            self.compile(*BUNDLE, *(["-DPK_SHARED"] if shared else []), "-c", source, "-o", target)
            objects.append(target)
        return objects

    def _bundle(self, name: str, *defines: str) -> Path:
        """Link model.c, compiled with these macros, into a bundle."""
        target = self.folder / f"{name}.so"
        target.parent.mkdir(exist_ok=True)
        link = ["-Wl,--gc-sections", "-Wl,--build-id=none", f"-Wl,--version-script={self.folder / 'exports.map'}"]
        link += [argument for option in LINK for argument in ("-z", option)]
        includes = f"-I{target.parent}"
        model = self.sources / "model.c"
        self.compile(*BUNDLE, *defines, includes, "-shared", model, *self.runtime(), *link, "-o", target)
        return target

    def _program(self, name: str) -> Path:
        target = self.folder / name
        source = self.sources / f"{name}.c"
        self.compile("-std=c11", "-O1", "-g", *STRICT, f"-I{SOURCES}", source, "-o", target, "-ldl", "-lpthread")
        return target

    def run(self, program: str, *arguments: str | Path, environment: Mapping[str, str] | None = None) -> str:
        return execute([*self.flavor.runner, self.program(program), *arguments], environment=environment)

    @property
    def dynamic(self) -> Path:
        return self.bundle("dynamic", "-DMODEL_DYNAMIC")

    @property
    def selection(self) -> Path:
        return self.bundle("selection", "-DMODEL_STATIC", "-DSELECTION=0,1")

    def calling_library(self) -> Path:
        """A bundle that calls a library, or does without."""
        return self.bundle("library", "-DMODEL_STATIC", "-DSELECTION=0,1", "-DLIBRARY=2")

    def library(self, folder: Path, soname: str = "libpktest.so.2", version: int = 20103, value: int = 7) -> Path:
        """Compile a library for that bundle into a folder, and return the folder."""
        folder.mkdir(exist_ok=True)
        defines = [f"-DVERSION={version}", f"-DVALUE={value}"]
        link = ["-shared", f"-Wl,-soname,{soname}", "-o", folder / soname]
        self.compile("-std=c11", "-fPIC", *defines, self.sources / "test_library.c", *link)
        return folder

    @property
    def constants(self) -> Path:
        return self.bundle("constants", "-DMODEL_CONSTANTS")

    @property
    def batches(self) -> Path:
        return self.bundle("batches", "-DMODEL_BATCHES")

    @property
    def states(self) -> Path:
        return self.bundle("states", "-DMODEL_STATES")

    @property
    def static(self) -> Path:
        return self.bundle("static", "-DMODEL_STATIC")
