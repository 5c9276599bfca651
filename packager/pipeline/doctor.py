"""``packager doctor``: check the tools and packages of this machine, with hints for missing ones."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from packager.codegen import sandbox
from packager.codegen.cuda_toolkit import find_cuda_toolkit
from packager.codegen.toolchain import find_toolchain
from packager.errors import ToolchainError
from packager.targets.availability import BUILD_PACKAGES, Probe, availability, probe_package

if TYPE_CHECKING:
    from packager.backends.base import Unavailable

MACHINES = ("x86_64", "aarch64")


def examine() -> list[Probe]:
    """Probe Python, the build packages, torch, the C toolchains, the CUDA toolkit and the backends."""
    findings = [Probe("python", True, platform.python_version(), None, True)]
    findings += [probe_package(name, "pip install 'packager[build]'", required=True) for name in BUILD_PACKAGES]
    findings.append(probe_package("torch", "for .pt2 models: pip install 'packager[torch]'", required=False))
    findings += [_compiler(machine) for machine in MACHINES]
    findings += [_sandbox(), _cuda_toolkit()]
    if all(finding.ok for finding in findings if finding.required):
        findings += _backends()
    return findings


def _compiler(machine: str) -> Probe:
    what, required = f"C compiler for {machine}", machine == platform.machine()
    try:
        toolchain = find_toolchain(machine)
    except ToolchainError as error:
        return Probe(what, False, error.message, error.hint, required)
    return Probe(what, True, toolchain.versions["cc"], None, required)


def _sandbox() -> Probe:
    """Probe what keeps compilers from files that they do not need, and from the network."""
    what, found = "sandbox for compilers", sandbox.support()
    parts = [f"files by Landlock {found.landlock}"] * bool(found.landlock) + ["network by seccomp"] * found.seccomp
    missing = [name for name, there in (("Landlock", found.landlock), ("seccomp", found.seccomp)) if not there]
    if not missing:
        return Probe(what, True, ", ".join(parts), None, False)
    hint = f"compilers run with your rights: use a kernel with it (5.13 on), and no {sandbox.VARIABLE}=off"
    return Probe(what, False, f"no {' and no '.join(missing)}", hint, False)


def _cuda_toolkit() -> Probe:
    """Probe the default CUDA toolkit, which a Target may override."""
    what = "CUDA toolkit"
    try:
        toolkit = find_cuda_toolkit("")
    except ToolchainError as error:
        return Probe(what, False, error.message, f"for GPUs: {error.hint}", False)
    return Probe(what, True, f"{toolkit.version}, {toolkit.origin} of packager[cuda]", None, False)


def _backends() -> list[Probe]:
    from packager.backends.registry import own_backends, third_parties
    from packager.targets.target_list import parse_targets, unavailable

    findings = []
    for machine in MACHINES:
        target = parse_targets({"kind": "llvm", "mtriple": f"{machine}-linux-gnu"}).host
        what, good = f"backend llvm for {machine}", f"default -mcpu={','.join(target.cpus)}"
        findings.append(_backend(what, unavailable(target), good, required=machine == platform.machine()))
    for found in own_backends():
        if found.kind != "llvm":
            findings.append(
                _backend(f"backend {found.kind}", availability(found.kind), "from packager", required=False)
            )
    for kind, origin in third_parties():  # installed is not asked for: their code is not imported here
        findings.append(
            Probe(f"backend {kind}", True, f"from {origin}; packager targets {kind} checks it", None, False)
        )
    return findings


def _backend(what: str, reason: Unavailable | None, good: str, *, required: bool) -> Probe:
    if reason is None:
        return Probe(what, True, good, None, required)
    return Probe(what, False, reason.reason, reason.hint or None, required)
