"""The CUDA toolkit of the wheels, as it is installed here; no GPU is needed, and the system's toolkit is not used."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from packager.bundle.elf.window import open_window
from packager.bundle.gpu.fatbin import Fatbin, read_fatbins
from packager.codegen.cuda_toolkit import (
    PACKAGES,
    CudaToolkit,
    check_archs,
    compile_fatbin,
    find_cuda_toolkit,
    known_archs,
)
from packager.errors import ToolchainError, UsageError
from packager.pipeline.doctor import examine

ROOT = Path(__file__).parents[2]
CC = shutil.which("gcc") or "gcc"
HALF = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda/std/cstdint>
extern "C" __global__ void convert(const __half *x, __nv_bfloat16 *y, cuda::std::int64_t n) {
  cuda::std::int64_t i = blockIdx.x * cuda::std::int64_t(blockDim.x) + threadIdx.x;
  if (i < n) y[i] = __float2bfloat16(__half2float(x[i]));
}
"""
# The name of what is private to a file has a hash of the file's path, unless nvcc is told another one.
PRIVATE = """
namespace { __device__ float table[4]; }
extern "C" __global__ void set(int i, float x) { table[i & 3] += x; }
"""


@pytest.fixture(scope="module")
def toolkit() -> CudaToolkit:
    return find_cuda_toolkit("")


@pytest.fixture
def hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in which no toolkit but that of the wheels can be found, and variables lead elsewhere."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("gcc", "as", "ld", "sh", "rm"):
        found = shutil.which(tool)
        assert found
        (folder / tool).symlink_to(found)
    monkeypatch.setenv("PATH", str(folder))
    for name in ("CUDA_HOME", "CUDA_PATH", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"):
        monkeypatch.setenv(name, "/nowhere")


def fatbin(
    toolkit: CudaToolkit, source: Path, *, archs: tuple[str, ...] = ("sm_80",), ptx: tuple[str, ...] = ()
) -> Path:
    output = source.with_suffix(".fatbin")
    compile_fatbin(toolkit, source, output, archs, ptx, (), CC)
    return output


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.slow
@pytest.mark.usefixtures("hidden")
def test_the_wheels_compile_with_the_systems_toolkit_hidden(tmp_path: Path) -> None:
    toolkit = find_cuda_toolkit("")
    assert toolkit.origin == "wheels"
    assert toolkit.version.startswith("13.0.")
    assert "site-packages" in str(toolkit.nvcc)
    path = fatbin(toolkit, write(tmp_path / "half.cu", HALF), archs=("sm_80", "sm_90a"), ptx=("compute_80",))
    with open_window(path) as window:
        assert read_fatbins(window) == (Fatbin(("sm_80", "sm_90a"), ("compute_80",)),)
    plan = subprocess.run(
        [str(toolkit.nvcc), "--dryrun", "-fatbin", f"-ccbin={CC}", "half.cu"],
        cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True,
    ).stderr  # fmt: skip
    assert f"TOP={toolkit.nvcc.parent}/.." in plan
    assert "/nowhere" not in plan


def test_what_host_code_needs_is_there(toolkit: CudaToolkit) -> None:
    assert all(path.is_absolute() and path.is_dir() for path in (*toolkit.include, toolkit.library))
    assert any((path / "cuda_runtime.h").is_file() for path in toolkit.include)
    assert any((path / "cub" / "cub.cuh").is_file() for path in toolkit.include)
    assert (toolkit.library / "libcudart_static.a").is_file()


def test_a_folder_is_a_toolkit_too(toolkit: CudaToolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "cuda"
    home.symlink_to(toolkit.nvcc.parent.parent)
    found = find_cuda_toolkit(str(home))
    assert (found.nvcc, found.origin, found.version) == (home / "bin" / "nvcc", str(home), toolkit.version)
    assert fatbin(found, write(tmp_path / "half.cu", HALF)).is_file()
    monkeypatch.chdir(tmp_path)
    assert find_cuda_toolkit("cuda").nvcc == home / "bin" / "nvcc"


def incomplete(home: Path, nvcc: str) -> str:
    """A folder that has all files of a toolkit, but a script for nvcc."""
    for name in ("bin/ptxas", "nvvm/bin/cicc", "include/cuda_fp16.h", "include/crt/host_defines.h"):
        write(home / name, "")
    write(home / "bin" / "nvcc", f"#!/bin/sh\n{nvcc}\n").chmod(0o755)
    return str(home)


def test_folders_that_are_no_toolkit(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"no CUDA toolkit in .*nothing: there is no bin/nvcc") as caught:
        find_cuda_toolkit(str(tmp_path / "nothing"))
    assert "packager[cuda]" in (caught.value.hint or "")
    write(tmp_path / "part" / "bin" / "nvcc", "")
    with pytest.raises(ToolchainError, match="part is incomplete: there is no bin/ptxas"):
        find_cuda_toolkit(str(tmp_path / "part"))
    with pytest.raises(ToolchainError, match=r"is 11\.8\.89, older than 12\.0"):
        find_cuda_toolkit(incomplete(tmp_path / "old", "echo 'Cuda compilation tools, release 11.8, V11.8.89'"))
    with pytest.raises(ToolchainError, match="says no version"):
        find_cuda_toolkit(incomplete(tmp_path / "mute", "echo hello"))
    with pytest.raises(ToolchainError, match="nvcc failed with exit code 3"):
        find_cuda_toolkit(incomplete(tmp_path / "broken", "exit 3"))


def without_site_packages(*folders: Path) -> str:
    """Look for the wheels in a Python that has only these folders; return what the error says, and the hint."""
    code = "\n".join(
        [
            "import sys",
            f"sys.path[:0] = {[str(ROOT), *map(str, folders)]!r}",
            "from packager.codegen.cuda_toolkit import find_cuda_toolkit",
            "from packager.errors import ToolchainError",
            "try: find_cuda_toolkit('')",
            "except ToolchainError as error: print(error.render())",
        ]
    )
    argv = [sys.executable, "-I", "-S", "-c", code]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def wheels(folder: Path, versions: Mapping[str, str]) -> Path:
    """A folder in which distributions of these versions are installed, without files."""
    for name, version in versions.items():
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        write(info / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        write(info / "RECORD", "")
    return folder


def test_wheels_that_are_missing_or_do_not_match(tmp_path: Path) -> None:
    assert without_site_packages() == (
        f"error: no CUDA toolkit: {', '.join(PACKAGES)} not installed\n\nhint: pip install 'packager[cuda]'\n"
    )
    some = wheels(tmp_path / "some", {name: "13.0.88" for name in PACKAGES if name != "nvidia-nvvm"})
    assert "error: no CUDA toolkit: nvidia-nvvm not installed" in without_site_packages(some)
    mixed = wheels(tmp_path / "mixed", dict.fromkeys(PACKAGES, "13.0.88") | {"nvidia-nvvm": "13.2.51"})
    said = without_site_packages(mixed)
    assert "error: the CUDA wheels are of different versions:" in said
    assert "nvidia-nvvm 13.2.51" in said
    empty = wheels(tmp_path / "empty", dict.fromkeys(PACKAGES, "13.0.88"))
    assert "error: nvidia-cuda-nvcc is installed without nvcc" in without_site_packages(empty)


def test_architectures(toolkit: CudaToolkit) -> None:
    real, virtual = known_archs(toolkit)
    listed = subprocess.run([str(toolkit.nvcc), "--list-gpu-code"], capture_output=True, text=True, check=True).stdout
    assert {name for name in listed.split() if name.startswith("sm_")} <= set(real)
    assert {"sm_80", "sm_90", "sm_90a", "sm_100f"} <= set(real)
    assert real.index("sm_90") < real.index("sm_90a") < real.index("sm_100")
    assert {"compute_80", "compute_90a"} <= set(virtual)
    check_archs(("sm_80", "sm_90a"), ("compute_80",), toolkit)


@pytest.mark.parametrize(
    ("archs", "ptx", "message", "hint"),
    [
        ((), (), "no GPU architecture", "-arch=sm_90a"),
        ((), ("compute_80",), "no GPU architecture", "-arch=sm_90a"),
        (("sm_90b",), (), "-arch=sm_90b is not an architecture that nvcc 13.0", "did you mean 'sm_90'?"),
        (("sm_50",), (), "-arch=sm_50 is not an architecture", "sm_75, sm_80"),
        (("compute_80",), (), "-arch=compute_80 is not an architecture", "valid architectures: sm_"),
        (("sm_80",), ("sm_80",), "-ptx=sm_80 is not an architecture", "valid architectures: compute_"),
        (("sm_80", "sm_80"), (), "-arch names sm_80 twice", "once"),
    ],
)
def test_architectures_that_are_refused(
    archs: tuple[str, ...], ptx: tuple[str, ...], message: str, hint: str, toolkit: CudaToolkit
) -> None:
    with pytest.raises(UsageError) as caught:
        check_archs(archs, ptx, toolkit)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


@pytest.mark.slow
def test_equal_sources_give_equal_bytes_in_any_folder(toolkit: CudaToolkit, tmp_path: Path) -> None:
    one, two, other = (
        fatbin(toolkit, write(tmp_path / name / "kernels.cu", text), ptx=("compute_80",)).read_bytes()
        for name, text in (("one", PRIVATE), ("far/away/two", PRIVATE), ("other", PRIVATE.replace("+=", "-=")))
    )
    assert one == two
    assert one != other


def test_an_error_in_a_source_is_shown_and_nothing_is_left(toolkit: CudaToolkit, tmp_path: Path) -> None:
    source = write(tmp_path / "kernels.cu", 'extern "C" __global__ void k(int *a) { a[0] = b; }')
    write(source.with_suffix(".fatbin"), "of an earlier build")
    with pytest.raises(ToolchainError) as caught:
        fatbin(toolkit, source)
    assert 'kernels.cu(1): error: identifier "b" is undefined' in caught.value.stderr
    assert caught.value.argv[0] == str(toolkit.nvcc)
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize(
    ("says", "hint"),
    [
        ("gcc: fatal error: cannot execute 'cc1plus': execvp: No such file or directory", "apt-get install g++"),
        ("#error -- unsupported GNU version! gcc versions later than 15 are not supported!", "use a gcc that CUDA"),
    ],
)
def test_host_compilers_that_nvcc_cannot_use(says: str, hint: str, toolkit: CudaToolkit, tmp_path: Path) -> None:
    gcc = write(tmp_path / "bin" / "gcc", f'#!/bin/sh\necho "{says}" >&2\nexit 1\n')
    gcc.chmod(0o755)
    source = write(tmp_path / "half.cu", HALF)
    with pytest.raises(ToolchainError) as caught:
        compile_fatbin(toolkit, source, tmp_path / "half.fatbin", ("sm_80",), (), (), str(gcc))
    assert hint in (caught.value.hint or "")


def test_doctor_names_the_toolkit(toolkit: CudaToolkit) -> None:
    (found,) = [finding for finding in examine() if finding.what == "CUDA toolkit"]
    assert found.ok
    assert not found.required
    assert found.detail == f"{toolkit.version}, wheels of packager[cuda]"
