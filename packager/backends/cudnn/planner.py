"""Asks cuDNN for plans where a bundle is built: with no GPU, by a description of one."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packager.backends.cudnn.devices import Device
from packager.backends.cudnn.library import CUBLASLT, LEAST
from packager.bundle.elf.search import find_library, installed_folders
from packager.bundle.elf.symbols import version_key
from packager.codegen.toolchain import find_toolchain, run
from packager.errors import ToolchainError
from packager.resources import folder

TEMPLATES = folder("templates") / "cudnn"
MAX_KNOBS = 12
"""As PK_CUDNN_MAX_KNOBS of templates/cudnn/graph.h."""
FLAGS = ("-std=gnu11", "-O1", "-Wall", "-Wextra")


@dataclass(frozen=True)
class Choice:
    """A plan: an engine of the library, and its settings, type -> value."""

    engine: int
    knobs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Libraries:
    """The files of cuDNN, and of the cuBLASLt that it needs."""

    cudnn: Path
    cublaslt: Path


@dataclass(frozen=True)
class Plans:
    """What version ``version`` answers for each of some problems, best first; empty: no engine takes it."""

    version: str
    choices: tuple[tuple[Choice, ...], ...]


def find_libraries(sonames: Sequence[str]) -> Libraries | None:
    """Return the libraries of this machine, or None if one is missing."""
    folders = installed_folders()
    found = [[path for name in names if (path := find_library(name, folders))] for names in (sonames, CUBLASLT.sonames)]
    return Libraries(found[0][0], found[1][0]) if all(found) else None


def ask(
    libraries: Libraries, device: Device, problems: Sequence[Sequence[int]], candidates: int, workdir: Path
) -> Plans:
    """Return the plans of problems, each the numbers of a pk_cudnn_conv_t, for a device.

    Raises ToolchainError: cuDNN may also end the process that asks it.
    """
    given = workdir / f"problems_{device.arch}.txt"
    given.write_text("".join(" ".join(map(str, numbers)) + "\n" for numbers in problems), encoding="utf-8")
    planner, driver = _compile(workdir)
    argv = [str(planner), str(driver), str(libraries.cublaslt), str(libraries.cudnn), str(device.path)]
    reads = [libraries.cudnn.parent, libraries.cudnn.resolve().parent, libraries.cublaslt.resolve()]
    lines = run([*argv, str(candidates), str(given)], cwd=workdir, reads=reads).splitlines()
    if len(lines) != len(problems) + 1:
        raise ToolchainError(f"{libraries.cudnn} answers {len(lines) - 1} of {len(problems)} problems", argv=argv)
    return Plans(_version(lines[0]), tuple(_choices(line) for line in lines[1:]))


def _compile(workdir: Path) -> tuple[Path, Path]:
    """Compile the program that asks, and an empty driver for machines without one."""
    planner, driver = workdir / "planner", workdir / "libcuda.so.1"
    if planner.exists():  # compiled for another device
        return planner, driver
    cc = find_toolchain(platform.machine()).cc
    source, empty = TEMPLATES / "planner.c", TEMPLATES / "planner_driver.c"
    shared = ("-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
    run([cc, *FLAGS, *shared, "-o", str(driver), str(empty)], cwd=workdir, reads=[TEMPLATES])
    run([cc, *FLAGS, "-o", str(planner), str(source), "-ldl"], cwd=workdir, reads=[TEMPLATES])
    return planner, driver


def _version(line: str) -> str:
    packed = int(line)
    version = f"{packed // 10000}.{packed // 100 % 100}.{packed % 100}"
    if version_key(version) < version_key(LEAST):
        raise ToolchainError(f"cuDNN is version {version}", hint=f"install {LEAST} or newer, or none")
    return version


def _choices(line: str) -> tuple[Choice, ...]:
    found = []
    for text in filter(None, line.split(" ; ")):
        engine, *settings = text.split()
        pairs = [re.fullmatch(r"(\d+)=(-?\d+)", setting) for setting in settings]
        found.append(Choice(int(engine), tuple((int(pair[1]), int(pair[2])) for pair in pairs if pair)))
    return tuple(found)
