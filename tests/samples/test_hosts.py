"""The host programs in all languages: warning free, and byte for byte what ``packager.load`` gives."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import packager

from .conftest import ROOT, SAMPLES, Run, require

pytestmark = pytest.mark.slow

HOSTS = SAMPLES / "hosts"
STUB = ROOT / "runtime_stub"
WARNINGS = ["-O2", "-pedantic", "-Wall", "-Wextra", "-Werror"]
NODE_API = Path("/usr/include/node")
COMMANDS = {
    "c": ["gcc", "-std=c99", *WARNINGS, "-I", STUB / "include", HOSTS / "c" / "host.c", "-ldl", "-o"],
    "cpp": ["g++", "-std=c++17", *WARNINGS, "-I", STUB / "include", HOSTS / "cpp" / "host.cpp", "-ldl", "-o"],
    "rust": ["rustc", "-O", "-D", "warnings", HOSTS / "rust" / "host.rs", "-o"],
    "go": ["go", "build", "-o"],
    "java": ["javac", *sorted((HOSTS / "java").iterdir()), "-d"],
    "node": ["g++", "-std=c++17", *WARNINGS, "-shared", "-fPIC", "-I", NODE_API, "-I", STUB / "include",
             HOSTS / "node" / "addon.cpp", "-ldl", "-o"],
}  # fmt: skip
"""How each host is compiled; the program's path is appended."""

Host = Sequence[object]
"""The command that runs a host."""
JAVA_VERSION = 22


@pytest.fixture(scope="module", params=list(COMMANDS))
def host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Host:
    """The compiled host program of one language."""
    folder = tmp_path_factory.mktemp(request.param)
    command, program = COMMANDS[request.param], folder / "host"
    require(str(command[0]))
    if request.param == "java" and (version := java_version()) < JAVA_VERSION:
        pytest.skip(f"javac is of Java {version}; the foreign function API is in {JAVA_VERSION} and later")
    if request.param == "node":
        require("node")
        if not (NODE_API / "node_api.h").is_file():
            pytest.skip("the headers of Node.js are not installed")
        shutil.copy(HOSTS / "node" / "host.js", folder)
        program = folder / "bundle.node"
    environment = {"PKG_CONFIG_PATH": str(STUB / "pkgconfig"), "GOCACHE": str(folder / "cache")}
    done = subprocess.run(
        [*map(str, command), str(program)],
        cwd=HOSTS / "go" if request.param == "go" else folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    runs = {
        "node": ["node", folder / "host.js"],
        "java": ["java", "--enable-native-access=ALL-UNNAMED", "-cp", program, "Host"],
    }
    return runs.get(request.param, [program])


def java_version() -> int:
    text = subprocess.run(["javac", "-version"], capture_output=True, text=True, check=False).stdout
    return int(re.search(r"\d+", text)[0])


def test_offsets_in_java_are_those_of_the_header(tmp_path: Path) -> None:
    """Also where no Java is installed that compiles the host."""
    text = (HOSTS / "java" / "Abi.java").read_text()
    constants = re.findall(r"static final (?:int|long) (\w+) = (\S+); // (.+)", text)
    assert len(constants) > 30
    lines = ["#include <stddef.h>", "#include <stdio.h>", '#include "packager.h"', "int main(void) {"]
    for _, _, what in constants:
        value = f"offsetof({what.replace('.', ', ', 1)})" if "." in what else what.replace("sizeof ", "sizeof(") + ")"
        value = what if re.fullmatch(r"\w+", what) else value
        lines.append(f'printf("%ld\\n", (long)({value}));')
    (tmp_path / "offsets.c").write_text("\n".join([*lines, "return 0; }"]))
    subprocess.run(["gcc", "-I", STUB / "include", "offsets.c", "-o", "offsets"], cwd=tmp_path, check=True)
    found = subprocess.run([tmp_path / "offsets"], capture_output=True, text=True, check=True).stdout.split()
    assert [f"{name} = {value}" for name, value, _ in constants] == [
        f"{name} = {value}" for (name, _, _), value in zip(constants, found, strict=True)
    ]


@pytest.fixture(scope="module")
def static_bundle(tmp_path_factory: pytest.TempPathFactory, run_cli: Run) -> Path:
    """The digits model with a batch of four and no other."""
    bundle = tmp_path_factory.mktemp("static") / "digits4.so"
    run_cli(["build", SAMPLES / "digits" / "digits.onnx", "-o", bundle, "--dim", "n=4"])
    return bundle


def execute(host: Host, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, host), *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("batch", [1, 5, 64])
def test_same_bytes_as_python(
    host: Host, digits_bundle: Path, digits_images: np.ndarray, tmp_path: Path, batch: int
) -> None:
    images = digits_images[:batch]
    images.tofile(tmp_path / "images.f32")
    done = execute(host, digits_bundle, tmp_path / "images.f32", tmp_path / "logits.f32")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "model digits",
        "input image: float32 [n, 1, 8, 8]",
        "output logits: float32 [n, 10]",
    ]
    wanted = packager.load(digits_bundle).run({"image": images})["logits"]
    assert wanted.std() > 1
    assert (tmp_path / "logits.f32").read_bytes() == wanted.tobytes()


def test_static_shape(host: Host, static_bundle: Path, digits_images: np.ndarray, tmp_path: Path) -> None:
    images = digits_images[:4]
    images.tofile(tmp_path / "images.f32")
    done = execute(host, static_bundle, tmp_path / "images.f32", tmp_path / "logits.f32")
    assert done.returncode == 0, done.stderr
    assert "input image: float32 [4, 1, 8, 8]" in done.stdout
    wanted = packager.load(static_bundle).run({"image": images})["logits"]
    assert (tmp_path / "logits.f32").read_bytes() == wanted.tobytes()


@pytest.fixture(scope="module")
def narrow_bundle(tmp_path_factory: pytest.TempPathFactory, run_cli: Run) -> Path:
    """1000 numbers, cast to integers of four bits."""
    return build_node(tmp_path_factory.mktemp("narrow"), run_cli, "Cast", 1000, TensorProto.INT4, to=TensorProto.INT4)


@pytest.fixture(scope="module")
def counted_bundle(tmp_path_factory: pytest.TempPathFactory, run_cli: Run) -> Path:
    """Where 1000 numbers are not zero."""
    return build_node(tmp_path_factory.mktemp("counted"), run_cli, "NonZero", 1000, TensorProto.INT64)


def build_node(folder: Path, run_cli: Run, operator: str, size: int, dtype: int, **attributes: object) -> Path:
    """Build a model of one node, whose input is ``size`` numbers."""
    shape = [1, None] if operator == "NonZero" else [size]
    x, y = helper.make_tensor_value_info("x", 1, [size]), helper.make_tensor_value_info("y", dtype, shape)
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"], **attributes)], "node", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, folder / "node.onnx")
    run_cli(["build", folder / "node.onnx", "-o", folder / "node.so", "-t", "llvm"])
    return folder / "node.so"


def test_narrow_outputs_have_a_byte_for_each_element(host: Host, narrow_bundle: Path, tmp_path: Path) -> None:
    (np.arange(1000) % 8).astype(np.float32).tofile(tmp_path / "x.f32")
    done = execute(host, narrow_bundle, tmp_path / "x.f32", tmp_path / "y")
    assert done.returncode == 0, done.stderr
    assert "output y: int4 [1000]" in done.stdout
    assert (tmp_path / "y").read_bytes() == bytes(range(8)) * 125


def test_outputs_have_the_extents_that_the_run_found(host: Host, counted_bundle: Path, tmp_path: Path) -> None:
    (np.arange(1000) % 3 == 0).astype(np.float32).tofile(tmp_path / "x.f32")
    done = execute(host, counted_bundle, tmp_path / "x.f32", tmp_path / "y")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "y").read_bytes() == np.arange(0, 1000, 3, dtype=np.int64).tobytes()


def test_error_of_the_bundle_is_shown(
    host: Host, digits_bundle: Path, digits_images: np.ndarray, tmp_path: Path
) -> None:
    digits_images[:65].tofile(tmp_path / "images.f32")
    done = execute(host, digits_bundle, tmp_path / "images.f32", tmp_path / "logits.f32")
    assert done.returncode == 1
    assert "PACKAGER_ERROR_SHAPE" in done.stderr
    assert "image" in done.stderr
    assert not (tmp_path / "logits.f32").exists()


def test_bad_files_are_refused(host: Host, digits_bundle: Path, digits_images: np.ndarray, tmp_path: Path) -> None:
    images, cut, output = tmp_path / "images.f32", tmp_path / "cut.f32", tmp_path / "logits.f32"
    digits_images[:2].tofile(images)
    cut.write_bytes(images.read_bytes()[:-1])
    foreign = tmp_path / "foreign.so"
    foreign.write_text("no ELF file")
    for arguments, message in (
        ((digits_bundle, cut, output), "its size is"),
        ((digits_bundle, tmp_path / "missing.f32", output), "missing.f32"),
        ((digits_bundle, images, tmp_path / "no folder" / "logits.f32"), "logits.f32"),
        ((foreign, images, output), "foreign.so"),
        ((digits_bundle, images), "usage"),
    ):
        done = execute(host, *arguments)
        assert done.returncode == 1, arguments
        assert message in done.stderr
    assert not output.exists()
