"""cuDNN as a loaded library: its functions, the versions that it may have, and what it opens itself."""

from __future__ import annotations

from packager.backends.cudnn.options import CudnnOptions
from packager.ir.primitives import KnownLibrary, LoadedLibrary

SYMBOL = "pkm_cudnn"
LEAST = "9.0"
"""The first version with all functions and attributes of templates/cudnn/cudnn.h."""
FUNCTIONS = (
    "cudnnGetVersion",
    "cudnnCreate",
    "cudnnDestroy",
    "cudnnSetStream",
    "cudnnBackendCreateDescriptor",
    "cudnnBackendDestroyDescriptor",
    "cudnnBackendFinalize",
    "cudnnBackendSetAttribute",
    "cudnnBackendGetAttribute",
    "cudnnBackendExecute",
)
"""In the order of PK_CUDNN_FUNCTIONS of templates/cudnn/cudnn.h."""
PARTS = tuple(
    f"libcudnn_{part}.so.9"
    for part in (
        *("graph", "ops", "cnn", "adv", "ext", "heuristic"),
        *("engines_precompiled", "engines_runtime_compiled", "engines_tensor_ir"),
    )
)
"""What the library opens when it first needs them. Not every version has all."""
CUBLASLT = LoadedLibrary(
    "pkm_cudnn_cublaslt", ("libcublasLt.so.13", "libcublasLt.so.12"), ("cublasLtGetVersion",), "12.0"
)
"""cuDNN ends the process where it does not find this: it is opened first."""

KNOWN = (
    KnownLibrary(CUBLASLT.sonames, "cublasLtGetVersion"),
    KnownLibrary(CudnnOptions().soname, "cudnnGetVersion", PARTS),
)


def loaded_libraries(options: CudnnOptions, chosen_with: str | None) -> tuple[LoadedLibrary, LoadedLibrary]:
    """Return the libraries that sessions open, in this order; plans were chosen with version ``chosen_with``."""
    return (CUBLASLT, LoadedLibrary(SYMBOL, options.soname, FUNCTIONS, LEAST, chosen_with))
