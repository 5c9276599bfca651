"""Real bundles under load, plain and with their runtime under sanitizers: threads, loads and unloads, two models."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import packager
from packager.bundle.manifest import CONSTANTS_SECTION
from packager.link.linker import C_FLAGS, LIBRARIES, LINK_FLAGS

from .conftest import Build
from .models import ROOT, Model
from .programs import CHECK_HEADER, INCLUDE, SOURCES, WARNINGS, attempt, execute

pytestmark = pytest.mark.slow

RUNTIME = ROOT / "runtime_stub" / "src"
DEVICE = ROOT / "runtime_stub" / "cpu"
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}


@dataclass(frozen=True)
class Flavor:
    """Flags for the bundle's C code and for the programs that load it."""

    name: str
    flags: tuple[str, ...]


PLAIN = Flavor("plain", ())
ADDRESS = Flavor("address", ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"))
THREAD = Flavor("thread", ("-g", "-fsanitize=thread"))


def relink(work: Path, folder: Path, flavor: Flavor) -> Path:
    """Link what a build kept as the build does, with its entrypoint and the runtime compiled under a sanitizer."""
    folder.mkdir()
    objects = []
    for source in (work / "entrypoint.c", *sorted(RUNTIME.glob("*.c")), *sorted(DEVICE.glob("*.c"))):
        target = folder / f"{source.parent.name}-{source.stem}.o"
        flags = [*C_FLAGS, *flavor.flags, "-DPK_SHARED", f"-I{INCLUDE}", f"-I{RUNTIME}"]
        execute(["gcc", *flags, "-c", source, "-o", target])
        objects.append(target)
    bundle = folder / "bundle.so"
    link = [*LINK_FLAGS, *flavor.flags, f"-Wl,--version-script={work / 'exports.map'}"]
    kernels = sorted(work.glob("prepared-*.o"))
    execute(["gcc", *link, "-o", bundle, *objects, *kernels, data_with_constants(work, folder), *LIBRARIES])
    for weights in work.glob("*.safetensors"):
        shutil.copy(weights, folder)
    return bundle


def data_with_constants(work: Path, folder: Path) -> Path:
    """Return data.o with the constants that the build has put into the linked file."""
    data, constants = folder / "data.o", folder / "constants.bin"
    shutil.copy(work / "data.o", data)
    if CONSTANTS_SECTION in execute(["readelf", "-SW", data]):
        execute(["objcopy", "--dump-section", f"{CONSTANTS_SECTION}={constants}", work / "bundle.so", "/dev/null"])
        execute(["objcopy", "--update-section", f"{CONSTANTS_SECTION}={constants}", data])
    return data


@dataclass(frozen=True)
class Soak:
    """One flavor's program and its bundles; ``kept`` are those that the build made."""

    flavor: Flavor
    program: Path
    kept: Callable[[Model, str, str], Path]
    make: Callable[[Model, str, str], Path]

    def bundle(self, model: Model, weights: str = "embedded", place: str = "greedy") -> Path:
        """Return a model's bundle of this flavor."""
        return self.make(model, weights, place)

    def run(self, *arguments: object) -> None:
        """Run a case; a sanitizer's report fails it."""
        execute([self.program, *map(str, arguments)], **OPTIONS)


@pytest.fixture(scope="session", params=[PLAIN, ADDRESS, THREAD], ids=lambda flavor: flavor.name)
def soak(request: pytest.FixtureRequest, build: Build, tmp_path_factory: pytest.TempPathFactory) -> Soak:
    """The program and the bundles of one flavor."""
    flavor: Flavor = request.param
    folder = tmp_path_factory.mktemp(flavor.name)
    program = folder / "soak"
    flags = ["-std=c11", "-O1", *WARNINGS, *flavor.flags, f"-I{INCLUDE}", f"-I{CHECK_HEADER}"]
    execute(["gcc", *flags, SOURCES / "soak.c", "-o", program, "-ldl", "-lpthread"])

    def kept(model: Model, weights: str, place: str) -> Path:
        target = "llvm" if place == "greedy" else "llvm > ccompiler"
        return build(model, target, weights=weights, place=place)

    @functools.cache
    def make(model: Model, weights: str, place: str) -> Path:
        name = f"{model.name}-{weights}-{place}"
        path = kept(model, weights, place)
        return path if flavor is PLAIN else relink(path.parent / "work", folder / name, flavor)

    return Soak(flavor, program, kept, make)


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.parametrize("name", ["digits", "mlp"])
def test_threads(soak: Soak, name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """8 threads with a session each, pools of 1, 2 and 4: the same bits everywhere, and onnxruntime's numbers."""
    model: Model = request.getfixturevalue(name)
    rows = 7
    soak.run("threads", soak.bundle(model), rows, tmp_path / "values")
    values = np.fromfile(tmp_path / "values", np.float32)
    inputs = values[: rows * int(np.prod(model.row))].reshape(rows, *model.row)
    model.check(inputs, values[inputs.size :])


@pytest.mark.parametrize("name", ["digits", "mlp"])
def test_vectors_of_a_trial(soak: Soak, name: str, request: pytest.FixtureRequest) -> None:
    """Sessions in 8 threads run other alternatives of the same regions at the same time."""
    model: Model = request.getfixturevalue(name)
    choices = packager.inspect(soak.kept(model, "embedded", "trial")).manifest.choices
    soak.run("choices", soak.bundle(model, place="trial"), 5, 64, *(len(choice.alternatives) for choice in choices))


def test_two_models_in_one_process(soak: Soak, digits: Model, twin: Model) -> None:
    soak.run("pair", soak.bundle(digits), soak.bundle(twin, "external"), 6)


@pytest.mark.parametrize("weights", ["embedded", "external"])
def test_1000_loads_and_unloads(soak: Soak, digits: Model, weights: str) -> None:
    """No growth of heap, mappings, files or threads."""
    plain = soak.flavor is PLAIN
    soak.run("cycles", soak.bundle(digits, weights), 1000 if plain else 60, int(plain))


def test_sanitizer_is_on(soak: Soak, digits: Model) -> None:
    """A bundle whose runtime is under a sanitizer does not load into a program without it, or names its runtime."""
    needed = execute(["readelf", "-d", soak.bundle(digits)])
    for name, library in (("address", "libasan"), ("thread", "libtsan")):
        assert (library in needed) == (soak.flavor.name == name)


def test_cases_can_fail(soak: Soak, digits: Model) -> None:
    """The program stops at the first wrong thing: here a batch beyond the bounds."""
    done = attempt([soak.program, "threads", soak.bundle(digits), "33"], **OPTIONS)
    assert done.returncode != 0
    assert "PACKAGER_ERROR_SHAPE" in done.stderr
