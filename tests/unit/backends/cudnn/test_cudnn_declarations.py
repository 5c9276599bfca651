"""packager's declarations of cuDNN agree with each other, and with the headers of NVIDIA's wheel."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from packager.backends.cudnn.library import FUNCTIONS
from packager.backends.cudnn.options import MAX_CANDIDATES
from packager.backends.cudnn.planner import MAX_KNOBS
from packager.backends.registry import known_libraries
from packager.backends.tensorrt.library import KNOWN
from packager.codegen.cuda_toolkit import find_cuda_toolkit
from packager.deploy.verify.libraries import VERSION_FUNCTIONS
from packager.resources import folder

TEMPLATES = folder("templates") / "cudnn"
OWN = (TEMPLATES / "cudnn.h").read_text(encoding="utf-8")
WHEELS = ("nvidia-cudnn-cu13==9.19.0.56",)


def enumerators() -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"^ +(CUDNN_\w+) = (\d+),?$", OWN, re.MULTILINE)}


def declared() -> dict[str, int]:
    """Return the functions, and how many parameters each has."""
    (table,) = re.findall(r"#define PK_CUDNN_FUNCTIONS\(X\)(.*?)\ntypedef", OWN, re.DOTALL)
    found = re.findall(r"X\((\w+), \w+,\s*\((.*?)\)\)", table.replace("\\\n", " "), re.DOTALL)
    return {name: 0 if parameters == "void" else parameters.count(",") + 1 for name, parameters in found}


def test_functions_are_in_one_order() -> None:
    assert tuple(declared()) == FUNCTIONS
    assert f"#define PK_CUDNN_MAX_CANDIDATES {MAX_CANDIDATES}" in (TEMPLATES / "conv.h").read_text(encoding="utf-8")
    assert f"#define PK_CUDNN_MAX_KNOBS {MAX_KNOBS}" in (TEMPLATES / "graph.h").read_text(encoding="utf-8")


def test_verify_knows_the_libraries_of_own_backends() -> None:
    own = {soname: known.version_function for known in (*known_libraries(), *KNOWN) for soname in known.sonames}
    assert own.items() >= VERSION_FUNCTIONS.items()


@pytest.mark.thorough
@pytest.mark.parametrize("wheel", WHEELS)
def test_nvidia_says_the_same(wheel: str, tmp_path: Path) -> None:
    """Values and parameters, by NVIDIA's headers."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(tmp_path)]
    done = subprocess.run([*command, wheel], capture_output=True, text=True, check=False, timeout=550)
    if done.returncode:
        pytest.skip(f"{wheel} cannot be had: {done.stderr.strip().splitlines()[-1:]}")
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        for name in archive.namelist():
            if name.endswith(".h"):
                (tmp_path / Path(name).name).write_bytes(archive.read(name))
    header = (tmp_path / "cudnn_graph.h").read_text(encoding="utf-8")
    for name, count in declared().items():
        (parameters,) = re.findall(rf"\b{name}\((.*?)\);", re.sub(r"//.*|/\*.*?\*/", "", header), re.DOTALL)
        assert (0 if parameters in ("", "void") else parameters.count(",") + 1) == count, name
    asserts = [f'_Static_assert((int){name} == {value}, "{name}");' for name, value in enumerators().items()]
    source = tmp_path / "check.c"
    source.write_text("\n".join(["#include <stddef.h>", "#include <cudnn_graph.h>", *asserts, ""]))
    include = [f"-I{tmp_path}", *(f"-I{path}" for path in find_cuda_toolkit("").include)]
    subprocess.run(["gcc", "-std=gnu11", "-fsyntax-only", *include, str(source)], check=True)
