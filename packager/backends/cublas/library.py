"""cuBLASLt as a loaded library: its functions, and the versions that it may have."""

from __future__ import annotations

from packager.backends.cublas.options import CublasOptions
from packager.ir.primitives import KnownLibrary, LoadedLibrary

SYMBOL = "pkm_cublaslt"
LEAST = "12.0"
"""The first version with all functions and attributes of templates/cublas/cublaslt.h, but for scales of columns."""
LEAST_COLUMNS = "12.9"
FUNCTIONS = (
    "cublasLtGetVersion",
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
    "cublasLtMatrixLayoutSetAttribute",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmul",
)
"""In the order of PK_CUBLASLT_FUNCTIONS of templates/cublas/cublaslt.h."""

KNOWN = (KnownLibrary(CublasOptions().soname, "cublasLtGetVersion"),)


def loaded_library(options: CublasOptions, *, scales_columns: bool) -> LoadedLibrary:
    """Return the library that sessions open."""
    return LoadedLibrary(SYMBOL, options.soname, FUNCTIONS, LEAST_COLUMNS if scales_columns else LEAST)
