"""Make the link plan: the stage between code generation and the linker."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from packager.ir.call_plan import CallPlan
from packager.ir.link_plan import CudaCode, LinkPlan, PreparedLibrary
from packager.ir.primitives import BackendOutput
from packager.link.libraries.cpu_levels import cpu_levels
from packager.link.linker import Linker
from packager.link.loaded_libraries import libraries_of_functions, plan_loaded_libraries, with_libraries
from packager.link.seal import manifest_room
from packager.link.weights import describe_weights
from packager.pipeline.provenance import provenance_of
from packager.pipeline.request import Request


def plan_link(
    request: Request,
    call_plan: CallPlan,
    compiled: tuple[BackendOutput, ...],
    libraries: tuple[PreparedLibrary, ...],
    linker: Linker,
    *,
    external: bool,
) -> LinkPlan:
    """Collect the contents of the linked file, compile the runtime, and reserve space for the manifest.

    Raises ToolchainError.
    """
    weights, weights_file = describe_weights(call_plan, request.weights_file.name, linker.workdir, external=external)
    toolchain = dict(linker.toolchain.versions)
    for output in compiled:
        toolchain |= output.toolchain
    loaded = plan_loaded_libraries(call_plan, compiled, libraries)
    link_plan = LinkPlan(
        plan=with_libraries(call_plan, loaded, libraries_of_functions(compiled)),
        backends=compiled,
        libraries=libraries,
        runtime=linker.compile_runtime(request.targets.device, static=request.static, loads=bool(loaded.libraries)),
        targets=tuple(request.targets.to_manifest()),
        machine=request.targets.host.machine,
        entry_symbol=request.entry_symbol,
        static=request.static,
        weights=weights,
        weights_file=weights_file,
        toolchain=toolchain,
        provenance=provenance_of(request),
        manifest_room=0,
        cpu_levels=cpu_levels(libraries, request.targets.host.cpus) if request.targets.device == "cpu" else (),
        cuda=_cuda_code(request, toolchain),
        loaded=loaded,
    )
    return dataclasses.replace(link_plan, manifest_room=manifest_room(link_plan))


def _cuda_code(request: Request, versions: Mapping[str, str]) -> CudaCode | None:
    """Return the driver version and architectures that the GPU code requires; PTX needs the toolkit's own version."""
    if request.targets.device != "cuda":
        return None
    options = request.targets.generator.options
    major, minor = versions["nvcc"].split(".")[:2]
    driver = int(major) * 1000 + (int(minor) * 10 if options.ptx else 0)
    return CudaCode(driver, ", ".join([*options.arch, *options.ptx]))
