"""Checks whether a bundle runs on a machine: this one, or one described by `packager machine --json`."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from packager.bundle import strict_json
from packager.bundle.elf.symbols import version_key
from packager.bundle.fields import GlibcVersion
from packager.bundle.isa.cpu import this_cpu
from packager.bundle.manifest import Manifest
from packager.deploy.verify.findings import Finding, error
from packager.deploy.verify.gpus import CudaDriver, cuda_findings, this_cuda
from packager.deploy.verify.libraries import VERSION_FUNCTIONS, find_libraries, missing_libraries
from packager.errors import UsageError


@dataclass(frozen=True)
class Machine:
    """The properties of a machine that bundles depend on; ``glibc`` is null if the C library is another one.

    ``cpu_features`` are the kernel's names: ``flags`` (x86) or ``Features`` (arm) of ``/proc/cpuinfo``. ``cuda`` is
    null without an NVIDIA driver, and may be omitted. ``libraries`` are the shared libraries that were found, soname ->
    version, or null where packager does not know how to ask for it; null if none was looked for.
    """

    schema_version: Literal[1]
    machine: str
    os: str
    glibc: GlibcVersion | None
    cpu: str
    cpu_features: tuple[str, ...]
    cuda: CudaDriver | None = None
    libraries: dict[str, str | None] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value of ``packager machine --json``."""
        return asdict(self)


def this_machine(
    *,
    gpus: bool = True,
    sonames: Collection[str] = (),
    folders: Sequence[Path] = (),
    functions: Mapping[str, str] = VERSION_FUNCTIONS,
) -> Machine:
    """Describe this machine; ``cpu_features`` are common to all its processors.

    Without ``gpus``, ``cuda`` is None: querying the NVIDIA driver may take a second. Libraries of these ``sonames`` are
    looked for in ``folders`` and where the dynamic linker looks, and asked for their versions by ``functions``.
    """
    cpu = this_cpu()
    cuda = this_cuda() if gpus else None
    libraries = find_libraries(sonames, folders, functions) if sonames else None
    glibc = _this_glibc()
    return Machine(1, platform.machine(), platform.system().lower(), glibc, cpu.name, cpu.features, cuda, libraries)


def _this_glibc() -> str | None:
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):  # unknown to musl and others
        return None
    return version if name == "glibc" else None


def read_machine(path: Path) -> Machine:
    """Read a file written by ``packager machine --json``. Raises UsageError."""
    hint = "write it with `packager machine --json` on that machine"
    try:
        return strict_json.read(Machine, strict_json.parse(path.read_bytes()))
    except OSError as failure:
        raise UsageError(f"cannot read {path}: {failure.strerror}", hint=hint) from None
    except strict_json.MismatchError as mismatch:
        raise UsageError(f"{path} does not describe a machine: {mismatch}", hint=hint) from None


def machine_findings(manifest: Manifest, machine: Machine, *, searched: bool = False) -> Iterator[Finding]:
    """Compare the bundle's requirements with a machine, which was ``searched`` for the bundle's libraries, or only for
    those that packager knows."""
    requirements = manifest.requirements
    if machine.os != requirements.os:
        yield error(
            "machine.os",
            f"the bundle is for {requirements.os}, the machine runs {machine.os}",
            where="$.requirements.os",
            why="its dynamic linker does not read this file",
            hint="use a machine that runs Linux",
        )
    if machine.machine != requirements.machine:
        yield error(
            "machine.arch",
            f"the bundle is for {requirements.machine}, the machine is {machine.machine}",
            where="$.requirements.machine",
            why="it cannot execute this code",
            hint="rebuild with a --target for that machine",
        )
        return  # features of another architecture are not comparable
    missing = sorted(set(requirements.cpu_features) - set(machine.cpu_features))
    if missing:
        yield error(
            "machine.cpu_features",
            f"the CPU lacks {', '.join(missing)}",
            where="$.requirements.cpu_features",
            why="the code uses these instructions, so the bundle refuses to create a session",
            hint='rebuild for an older CPU, for example --target "llvm -mcpu=x86-64-v2"',
        )
    yield from cuda_findings(manifest, machine.cuda)
    yield from missing_libraries(manifest, machine.libraries, searched)
    if requirements.glibc is None:
        return
    if machine.glibc is None or version_key(machine.glibc) < version_key(requirements.glibc):
        yield error(
            "machine.glibc",
            f"the bundle needs glibc {requirements.glibc}, the machine has {machine.glibc or 'none'}",
            where="$.requirements.glibc",
            why="its dynamic linker refuses the file",
            hint="rebuild on the oldest distribution to support",
        )
