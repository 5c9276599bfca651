"""Finds and runs the C toolchain. Every external command of a build runs through ``run``."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from packager.codegen import sandbox
from packager.codegen.timings import tool_call
from packager.codegen.workers import tool_process
from packager.errors import ToolchainError

_HINTS = {
    "No space left on device": "free some disk space",
    "Permission denied": f"if the compiler needs a file that it may not read here, set {sandbox.VARIABLE}=off",
}
DEBIAN_PACKAGES = {"x86_64": "gcc-x86-64-linux-gnu", "aarch64": "gcc-aarch64-linux-gnu"}


@dataclass(frozen=True)
class Toolchain:
    """Paths of the tools for one machine, and their ``--version`` lines."""

    machine: str
    cc: str
    ld: str
    ar: str
    objcopy: str
    versions: Mapping[str, str]


def find_toolchain(machine: str) -> Toolchain:
    """Return the toolchain for ``machine``. Raises ToolchainError if a tool is missing."""
    native = machine == platform.machine()
    prefix = "" if native else f"{machine}-linux-gnu-"
    package = "gcc" if native else DEBIAN_PACKAGES.get(machine, f"gcc for {machine}")
    paths = {}
    for tool in ("gcc", "ld", "ar", "objcopy"):
        path = shutil.which(prefix + tool)
        if path is None:
            raise ToolchainError(
                f"no C compiler for {machine}: {prefix + tool} is not on PATH",
                hint=f"install it, for example: apt-get install {package}",
            )
        paths[tool] = path
    versions = {"cc": _first_line(paths["gcc"]), "ld": _first_line(paths["ld"])}
    return Toolchain(machine, paths["gcc"], paths["ld"], paths["ar"], paths["objcopy"], versions)


def _first_line(tool: str) -> str:
    argv = [tool, "--version"]
    lines = run(argv, cwd=Path("/")).splitlines()
    if not lines:
        raise ToolchainError(f"{tool} says no version", argv=argv, hint="is it a compiler?")
    return lines[0].strip()


def run(argv: Sequence[str], *, cwd: Path, temporary: Path | None = None, reads: Sequence[Path] = ()) -> str:
    """Run a tool and return its stdout. Raises ToolchainError with argv and stderr if it fails.

    The environment has a fixed locale and no variables that change compilers' output, so that equal inputs give equal
    bytes. Its temporary files are in ``temporary``, by default in ``cwd``: a work folder, removed with all it holds. It
    writes nowhere else, reads no more than ``sandbox.access`` says of its arguments and ``reads``, and has no network.
    """
    environment = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    environment |= {"LC_ALL": "C", "TMPDIR": str(temporary or cwd)}
    try:
        allowed = sandbox.access([*argv, *map(str, reads)], [cwd, temporary or cwd])
        begin = partial(sandbox.start, argv, allowed, cwd=cwd, environment=environment)
        with tool_call(argv), tool_process(begin) as process:
            output, errors = process.communicate()
    except OSError as error:
        raise ToolchainError(f"{argv[0]} cannot be run: {error}", argv=argv) from None
    if code := process.returncode:
        how = f"was killed by signal {-code}" if code < 0 else f"failed with exit code {code}"
        raise ToolchainError(
            f"{Path(argv[0]).name} {how}",
            argv=argv,
            stderr=errors,
            hint=next((hint for text, hint in _HINTS.items() if text in errors), None),
        )
    return output
