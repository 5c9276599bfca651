"""Finds the CUDA toolkit and compiles fatbins. Needs no GPU and no driver.

The choice of toolkit depends only on arguments and on this Python environment, never on PATH or CUDA_HOME: equal builds
use equal tools.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packager.bundle.gpu.arch import arch_key
from packager.bundle.hashing import digest
from packager.codegen.toolchain import run
from packager.errors import ToolchainError, UsageError, valid_names

PACKAGES = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-runtime", "nvidia-cuda-cccl")
INSTALL = "pip install 'packager[cuda]'"
WHEELS = "wheels"
OLDEST = (12, 0)

# Flags of all kernels. No fast math: nvcc's defaults are IEEE division, square root and denormals, and FMA contraction.
_FLAGS = ("-fatbin", "-std=c++17", "-O3")
# Required file, relative to the toolkit's folder -> the wheel that contains it.
_FILES = (
    ("bin/ptxas", "nvidia-cuda-nvcc"),
    ("nvvm/bin/cicc", "nvidia-nvvm"),
    ("include/cuda_fp16.h", "nvidia-cuda-runtime"),
    ("include/crt/host_defines.h", "nvidia-cuda-crt"),
)
_LIBRARY_FOLDERS = ("lib64", "lib")


@dataclass(frozen=True)
class CudaToolkit:
    """Absolute paths of a toolkit. ``version`` is nvcc's, ``13.0.88``; ``origin`` is ``wheels`` or the folder.

    ``include`` are the include folders for host code; nvcc finds them itself.
    """

    nvcc: Path
    include: tuple[Path, ...]
    library: Path
    version: str
    origin: str


def find_cuda_toolkit(home: str) -> CudaToolkit:
    """Return the toolkit in the folder ``home``, or from the wheels of ``packager[cuda]`` if empty.

    Raises ToolchainError if it is missing, incomplete, or older than CUDA 12.0.
    """
    if home:
        root = Path(home).absolute()
        hint = "give the folder with bin/nvcc, or omit it to use the wheels of packager[cuda]"
        if not (root / "bin" / "nvcc").is_file():
            raise ToolchainError(f"no CUDA toolkit in {home}: there is no bin/nvcc", hint=hint)
        return _toolkit(root, home, hint)
    return _toolkit(_wheels_root(), WHEELS, INSTALL)


def _wheels_root() -> Path:
    """Return the wheels' common folder. Raises ToolchainError if one is missing or has another minor version."""
    found = {name: _distribution(name) for name in PACKAGES}
    missing = [name for name, distribution in found.items() if distribution is None]
    if missing:
        raise ToolchainError(f"no CUDA toolkit: {', '.join(missing)} not installed", hint=INSTALL)
    versions = {name: distribution.version for name, distribution in found.items() if distribution}
    if len({tuple(version.split(".")[:2]) for version in versions.values()}) > 1:
        listed = ", ".join(f"{name} {version}" for name, version in versions.items())
        raise ToolchainError(f"the CUDA wheels are of different versions: {listed}", hint=INSTALL)
    nvcc = found["nvidia-cuda-nvcc"]
    assert nvcc is not None
    for file in nvcc.files or ():
        if file.parts[-2:] == ("bin", "nvcc"):
            return Path(str(nvcc.locate_file(file))).absolute().parent.parent
    raise ToolchainError("nvidia-cuda-nvcc is installed without nvcc", hint=f"{INSTALL} --force-reinstall")


def _distribution(name: str) -> importlib.metadata.Distribution | None:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _toolkit(root: Path, origin: str, hint: str) -> CudaToolkit:
    for file, wheel in _FILES:
        if not (root / file).is_file():
            where = f"{wheel} is damaged" if origin == WHEELS else f"the CUDA toolkit in {origin} is incomplete"
            raise ToolchainError(f"{where}: there is no {file}", hint=hint)
    nvcc = root / "bin" / "nvcc"
    version = _version(nvcc, hint)
    if tuple(map(int, version.split(".")))[:2] < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ToolchainError(f"the CUDA toolkit in {origin} is {version}, older than {oldest}", hint=hint)
    include = tuple(path for path in (root / "include", root / "include" / "cccl") if path.is_dir())
    library = next((root / name for name in _LIBRARY_FOLDERS if (root / name).is_dir()), root / _LIBRARY_FOLDERS[0])
    return CudaToolkit(nvcc, include, library, version, origin)


def _version(nvcc: Path, hint: str) -> str:
    argv = [str(nvcc), "--version"]
    match = re.search(r"\bV([0-9]+\.[0-9]+\.[0-9]+)", run(argv, cwd=Path("/")))
    if match is None:
        raise ToolchainError(f"{nvcc} says no version", argv=argv, hint=hint)
    return match[1]


def known_archs(toolkit: CudaToolkit) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the architectures that nvcc supports, real (``sm_90a``) and virtual (``compute_90a``), in order.

    Parsed from its help: ``--list-gpu-code`` omits those with a suffix. Raises ToolchainError.
    """
    text = run([str(toolkit.nvcc), "--help"], cwd=Path("/"))
    names = set(re.findall(r"'((?:sm|compute)_[0-9]+[af]?)'", text))
    if not names:
        raise ToolchainError(f"{toolkit.nvcc} lists no architectures", hint="is it nvcc?")
    ordered = sorted(names, key=arch_key)
    return (
        tuple(name for name in ordered if name.startswith("sm_")),
        tuple(name for name in ordered if name.startswith("compute_")),
    )


def check_archs(archs: Sequence[str], ptx: Sequence[str], toolkit: CudaToolkit) -> None:
    """Raise UsageError if there is no architecture, or one is listed twice or unknown to nvcc."""
    if not archs:
        raise UsageError("cuda: no GPU architecture to compile for", hint="name it, for example -arch=sm_90a")
    real, virtual = known_archs(toolkit)
    for key, chosen, valid in (("arch", archs, real), ("ptx", ptx, virtual)):
        for name in chosen:
            if name not in valid:
                raise UsageError(
                    f"cuda: -{key}={name} is not an architecture that nvcc {toolkit.version} supports",
                    hint=valid_names(name, valid, "architectures"),
                )
            if list(chosen).count(name) > 1:
                raise UsageError(f"cuda: -{key} names {name} twice", hint="name each architecture once")


def fatbin_key(toolkit: CudaToolkit, source: Path, archs: Sequence[str], ptx: Sequence[str], cc_version: str) -> str:
    """Return a hash of all that ``compile_fatbin`` makes code of, for a file that includes the toolkit's headers alone.

    Its name counts, since internal symbols have it.
    """
    facts = {"name": source.name, "text": source.read_text(encoding="utf-8"), "arch": list(archs), "ptx": list(ptx)}
    return digest(facts | {"flags": _FLAGS, "nvcc": toolkit.version, "cc": cc_version})


def compile_fatbin(
    toolkit: CudaToolkit,
    source: Path,
    output: Path,
    archs: Sequence[str],
    ptx: Sequence[str],
    flags: Sequence[str],
    cc: str,
    *,
    temporary: Path | None = None,
) -> None:
    """Compile a CUDA C++ file to a fatbin with machine code for ``archs`` (``sm_90a``) and PTX for ``ptx``.

    ``cc`` is a gcc with C++ for any machine: it only preprocesses. Equal sources with equal names give equal bytes, in
    any folder. ``temporary`` is nvcc's folder for temporary files. Raises ToolchainError with nvcc's message, and
    leaves no output.
    """
    codes = [(f"compute_{arch.removeprefix('sm_')}", arch) for arch in archs] + [(name, name) for name in ptx]
    argv = [
        str(toolkit.nvcc),
        *_FLAGS,
        f"-ccbin={cc}",
        # Names of internal symbols contain a hash of the file's path, which differs between work folders.
        "-Xcicc",
        f"--orig_src_path_name={source.name}",
        *(f"-gencode=arch={virtual},code={code}" for virtual, code in codes),
        *flags,
        "-o",
        str(output.absolute()),
        source.name,
    ]
    try:
        run(argv, cwd=source.absolute().parent, temporary=temporary)
    except ToolchainError as error:
        output.unlink(missing_ok=True)
        hint = error.hint
        if "cc1plus" in error.stderr:
            hint = "nvcc needs a C++ compiler, for example: apt-get install g++"
        elif "unsupported GNU version" in error.stderr:
            hint = f"use a gcc that CUDA {toolkit.version} supports, or a newer toolkit"
        raise ToolchainError(error.message, argv=error.argv, stderr=error.stderr, hint=hint) from None
