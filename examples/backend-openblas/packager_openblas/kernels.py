"""The kernels inside OpenBLAS's static archive: their names, and for which CPUs they are."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from packager.backends.api import Target, this_cpu

# How many columns a panel of packed columns has, by the CPU's name in OpenBLAS. A panel of rows always has 4.
CORES = {"HASWELL": 8, "ZEN": 8, "SKYLAKEX": 16}

CPUS = {
    "HASWELL": ("x86-64-v3", "haswell", "broadwell", "skylake", "alderlake"),
    "ZEN": ("znver1", "znver2", "znver3"),
    "SKYLAKEX": ("x86-64-v4", "skylake-avx512", "cascadelake", "icelake-server", "sapphirerapids", "znver4", "znver5"),
}
# What the code of each needs, in the kernel's words; the best comes first.
FEATURES = {"SKYLAKEX": {"avx512f", "avx512vl", "avx512dq", "avx512bw"}, "HASWELL": {"avx2", "fma"}}


def best_core(base: Target | None) -> str:
    """Return the core whose kernels run on every CPU that the base Target means; empty if there is none."""
    if base is None or base.machine != "x86_64":
        return ""
    cpu = base.cpus[0]  # the least that the bundle runs on
    if cpu == "native":
        has = set(this_cpu().features)
        return next((core for core, features in FEATURES.items() if features <= has), "")
    return next((core for core, names in CPUS.items() if cpu in names), "")


def kernel_names(core: str) -> dict[str, str]:
    """Return the symbols of a core's kernels by the macros of ``product.h``."""
    return {
        "OPENBLAS_PACK_ROWS": f"sgemm_oncopy_{core}",
        "OPENBLAS_PACK_COLUMNS": f"sgemm_itcopy_{core}",
        "OPENBLAS_MULTIPLY": f"sgemm_kernel_{core}",
    }


def missing_symbols(archive: Path, symbols: Iterable[str]) -> list[str]:
    """Return the symbols that the index of an archive does not name. The index is its first member."""
    with archive.open("rb") as file:
        header = file.read(8 + 60)
        size = header[56:66].strip()
        is_index = header.startswith(b"!<arch>\n/ ") and size.isdigit()
        names = set(file.read(int(size)).split(b"\0")) if is_index else set()
    return [symbol for symbol in symbols if symbol.encode() not in names]
