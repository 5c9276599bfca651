"""packager's declarations of cuBLASLt agree with each other, and with the headers of NVIDIA's wheel."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from packager.backends.cublas.library import FUNCTIONS, LEAST_COLUMNS
from packager.backends.cublas.options import MAX_CANDIDATES
from packager.codegen.cuda_toolkit import find_cuda_toolkit
from packager.resources import folder

TEMPLATES = folder("templates") / "cublas"
OWN = (TEMPLATES / "cublaslt.h").read_text(encoding="utf-8")
WHEELS = ("nvidia-cublas==13.1.0.3", "nvidia-cublas-cu12==12.4.5.8")
COLUMNS = f"/* From version {LEAST_COLUMNS} on. */"


def enumerators(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"^ +(CU\w+) = (\d+),?$", text, re.MULTILINE)}


def declared() -> dict[str, int]:
    """Return the functions, and how many parameters each has."""
    (table,) = re.findall(r"#define PK_CUBLASLT_FUNCTIONS\(X\)(.*?)\ntypedef", OWN, re.DOTALL)
    found = re.findall(r"X\((\w+), \w+,\s*\((.*?)\)\)", table.replace("\\\n", " "), re.DOTALL)
    return {name: 0 if parameters == "void" else parameters.count(",") + 1 for name, parameters in found}


def test_functions_are_in_one_order() -> None:
    assert tuple(declared()) == FUNCTIONS
    assert f"#define PK_CUBLAS_MAX_ANSWERS {MAX_CANDIDATES}" in (TEMPLATES / "matmul.h").read_text(encoding="utf-8")


@pytest.mark.thorough
@pytest.mark.parametrize("wheel", WHEELS)
def test_nvidia_says_the_same(wheel: str, tmp_path: Path) -> None:
    """Values, layouts and parameters, by NVIDIA's headers, for both major versions of the library."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(tmp_path)]
    done = subprocess.run([*command, wheel], capture_output=True, text=True, check=False, timeout=550)
    if done.returncode:
        pytest.skip(f"{wheel} cannot be had: {done.stderr.strip().splitlines()[-1:]}")
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        for name in archive.namelist():
            if name.endswith(("cublasLt.h", "cublas_api.h")):
                (tmp_path / Path(name).name).write_bytes(archive.read(name))
    header = (tmp_path / "cublasLt.h").read_text(encoding="utf-8")
    for name, count in declared().items():
        (parameters,) = re.findall(rf"CUBLASWINAPI {name}\((.*?)\);", re.sub(r"//.*|/\*.*?\*/", "", header), re.DOTALL)
        assert (0 if parameters in ("", "void") else parameters.count(",") + 1) == count, name
    older, newer = map(enumerators, OWN.split(COLUMNS))
    known = older if "12.4" in wheel else older | newer
    assert len(newer) == 3
    asserts = [f'_Static_assert({name} == {value}, "{name}");' for name, value in known.items()]
    fields = ("algo", "workspaceSize", "state", "wavesCount")
    offsets = (0, 64, 72, 76)
    result = "cublasLtMatmulHeuristicResult_t"
    asserts += [
        f'_Static_assert(offsetof({result}, {field}) == {offset}, "{field}");'
        for field, offset in zip(fields, offsets, strict=True)
    ]
    asserts += [
        f'_Static_assert(sizeof({result}) == 96, "");',
        '_Static_assert(sizeof(cublasLtMatmulAlgo_t) == 64, "");',
    ]
    source = tmp_path / "check.c"
    source.write_text("\n".join(["#include <stddef.h>", "#include <cublasLt.h>", *asserts, ""]))
    include = [f"-I{tmp_path}", *(f"-I{path}" for path in find_cuda_toolkit("").include)]
    subprocess.run(["gcc", "-std=gnu11", "-fsyntax-only", *include, str(source)], check=True)
