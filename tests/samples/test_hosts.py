"""The host programs in C, C++ and Rust: warning free, and byte for byte what ``packager.load`` gives."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import packager

from .conftest import ROOT, SAMPLES, Run, require

pytestmark = pytest.mark.slow

HOSTS = SAMPLES / "hosts"
INCLUDE = ROOT / "runtime_stub" / "include"
WARNINGS = ["-O2", "-pedantic", "-Wall", "-Wextra", "-Werror"]
COMMANDS = {
    "c": ["gcc", "-std=c99", *WARNINGS, "-I", INCLUDE, HOSTS / "c" / "host.c", "-ldl"],
    "cpp": ["g++", "-std=c++17", *WARNINGS, "-I", INCLUDE, HOSTS / "cpp" / "host.cpp", "-ldl"],
    "rust": ["rustc", "-O", "-D", "warnings", HOSTS / "rust" / "host.rs"],
}


@pytest.fixture(scope="module", params=list(COMMANDS))
def host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled host program of one language."""
    command = COMMANDS[request.param]
    require(command[0])
    program = tmp_path_factory.mktemp(request.param) / "host"
    done = subprocess.run([*map(str, command), "-o", str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return program


@pytest.fixture(scope="module")
def static_bundle(tmp_path_factory: pytest.TempPathFactory, run_cli: Run) -> Path:
    """The digits model with a batch of four and no other."""
    bundle = tmp_path_factory.mktemp("static") / "digits4.so"
    run_cli(["build", SAMPLES / "digits" / "digits.onnx", "-o", bundle, "--dim", "n=4"])
    return bundle


def execute(host: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(host), *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("batch", [1, 5, 64])
def test_same_bytes_as_python(
    host: Path, digits_bundle: Path, digits_images: np.ndarray, tmp_path: Path, batch: int
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


def test_static_shape(host: Path, static_bundle: Path, digits_images: np.ndarray, tmp_path: Path) -> None:
    images = digits_images[:4]
    images.tofile(tmp_path / "images.f32")
    done = execute(host, static_bundle, tmp_path / "images.f32", tmp_path / "logits.f32")
    assert done.returncode == 0, done.stderr
    assert "input image: float32 [4, 1, 8, 8]" in done.stdout
    wanted = packager.load(static_bundle).run({"image": images})["logits"]
    assert (tmp_path / "logits.f32").read_bytes() == wanted.tobytes()


def test_narrow_outputs_have_a_byte_for_each_element(host: Path, tmp_path: Path, run_cli: Run) -> None:
    x, y = (helper.make_tensor_value_info(*info) for info in (("x", 1, [1000]), ("y", onnx.TensorProto.INT4, [1000])))
    node = helper.make_node("Cast", ["x"], ["y"], to=onnx.TensorProto.INT4)
    graph = helper.make_graph([node], "narrow", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "n.onnx")
    run_cli(["build", tmp_path / "n.onnx", "-o", tmp_path / "n.so", "-t", "llvm"])
    (np.arange(1000) % 8).astype(np.float32).tofile(tmp_path / "x.f32")
    done = execute(host, tmp_path / "n.so", tmp_path / "x.f32", tmp_path / "y")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "y").read_bytes() == bytes(range(8)) * 125


def test_error_of_the_bundle_is_shown(
    host: Path, digits_bundle: Path, digits_images: np.ndarray, tmp_path: Path
) -> None:
    digits_images[:65].tofile(tmp_path / "images.f32")
    done = execute(host, digits_bundle, tmp_path / "images.f32", tmp_path / "logits.f32")
    assert done.returncode == 1
    assert "PACKAGER_ERROR_SHAPE" in done.stderr
    assert "image" in done.stderr
    assert not (tmp_path / "logits.f32").exists()


def test_bad_files_are_refused(host: Path, digits_bundle: Path, digits_images: np.ndarray, tmp_path: Path) -> None:
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
