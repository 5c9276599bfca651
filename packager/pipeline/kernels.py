"""Compile a portfolio of kernels into a cache that builds share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from packager.backends.base import Context
from packager.bundle.dtypes import PRECISIONS
from packager.bundle.staging import temporary_folder
from packager.codegen.toolchain import find_toolchain
from packager.errors import UsageError
from packager.pipeline.options import StrPath
from packager.pipeline.shared_caches import opened_cache
from packager.progress import note
from packager.targets.availability import require_build_packages
from packager.targets.target_list import TargetList, parse_targets, require_available


@dataclass(frozen=True)
class KernelList:
    """The kernels of a portfolio for the bundles of one ``-arch``, by name; ``stored`` counts those that are new."""

    archs: tuple[str, ...]
    kernels: tuple[str, ...]
    stored: int = 0


def compile_kernels(
    output: StrPath,
    *,
    archs: Sequence[str] = ("sm_90a",),
    portfolio: str = "default",
    precision: str = "fp16",
    most: int | None = None,
    jobs: int | None = None,
    dry_run: bool = False,
) -> list[KernelList]:
    """Fill a shared cache with the kernels of a portfolio, and return which these are.

    ``output`` is a folder or URL, as ``build`` takes them for ``shared_cache``; ``archs`` are values of ``-arch`` of
    the Target ``cuda``, whose bundles find the kernels; ``precision`` is that of the builds, ``fp16`` or ``bf16``;
    ``most`` are the kernels of each, the most wanted first. What the cache has is not compiled again. Raises
    UsageError, ToolchainError.
    """
    for name, value in (("--most", most), ("--jobs", jobs)):
        if value is not None and value < 1:
            raise UsageError(f"{name} {value}: at least 1")
    if precision not in PRECISIONS:
        raise UsageError(f"--precision {precision!r} is unknown", hint=f"valid: {', '.join(PRECISIONS)}")
    require_build_packages()
    listed = []
    for text in dict.fromkeys(archs):
        targets = parse_targets([f"cuda -arch={text}", "cutlass"])
        require_available(targets)
        listed.append(_compile(output, targets, portfolio, precision, most, jobs or os.cpu_count() or 1, dry_run))
    return listed


def _compile(
    output: StrPath, targets: TargetList, name: str, precision: str, most: int | None, jobs: int, dry_run: bool
) -> KernelList:
    from packager.backends.cutlass.portfolio import compile_portfolio, kernels_of, read_portfolio

    (target,) = targets.specialized
    archs = tuple(target.options.arch)
    kernels = kernels_of(read_portfolio(name), archs, PRECISIONS[precision])[:most]
    names = tuple(config.name for config, _ in kernels)
    if dry_run:
        return KernelList(archs, names)
    toolchain = find_toolchain(targets.host.machine)
    with opened_cache(output, fill=True) as cache, temporary_folder("kernels") as workdir:
        note(f"{len(kernels)} kernels for {','.join(archs)}; those that are compiled stay, if this is interrupted")
        compile_portfolio(kernels, Context(workdir, toolchain, targets.base_of(target), jobs, cache), target.options)
        (shared,) = cache.shared
        if shared.counts.hits + shared.counts.added + shared.present < len(kernels):
            raise UsageError(
                f"{shared.store.name} did not get all kernels", detail=shared.counts.last_error or "it is only read"
            )
        return KernelList(archs, names, shared.counts.added)
