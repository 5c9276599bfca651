"""How build systems find the header: the CMake package and the pkg-config file, by the hosts in C and C++."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest

import packager

from .conftest import SAMPLES, Run, require

pytestmark = pytest.mark.slow

HOSTS = SAMPLES / "hosts"


def execute(*command: object, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | variables
    return subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=False)


def check_host(host: Path, bundle: Path, images: np.ndarray, folder: Path) -> None:
    images[:3].tofile(folder / "images.f32")
    done = execute(host, bundle, folder / "images.f32", folder / "logits.f32")
    assert done.returncode == 0, done.stderr
    wanted = packager.load(bundle).run({"image": images[:3]})["logits"]
    assert (folder / "logits.f32").read_bytes() == wanted.tobytes()


def test_cmake_package(digits_bundle: Path, digits_images: np.ndarray, tmp_path: Path, run_cli: Run) -> None:
    require("cmake")
    package = run_cli(["sdk", "--cmake"]).stdout.strip()
    for command in (
        ["cmake", "-S", HOSTS, "-B", tmp_path / "build", f"-Dpackager_DIR={package}", "-DCMAKE_BUILD_TYPE=Release"],
        ["cmake", "--build", tmp_path / "build", "--parallel", "2"],
    ):
        done = execute(*command)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "warning" not in (done.stdout + done.stderr).lower()
    for host in ("host_c", "host_cpp"):
        check_host(tmp_path / "build" / host, digits_bundle, digits_images, tmp_path)


@pytest.mark.parametrize(
    ("version", "found"), [("0.1", True), ("0.1.0", True), ("0.2", False), ("1", False), ("", True)]
)
def test_cmake_package_of_a_version(tmp_path: Path, run_cli: Run, version: str, found: bool) -> None:
    require("cmake")
    package = run_cli(["sdk", "--cmake"]).stdout.strip()
    (tmp_path / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.16)\nproject(host LANGUAGES NONE)\n"
        f"find_package(packager {version} CONFIG REQUIRED)\n"
    )
    done = execute("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-Dpackager_DIR={package}")
    assert (done.returncode == 0) == found, done.stderr


def test_pkg_config(digits_bundle: Path, digits_images: np.ndarray, tmp_path: Path, run_cli: Run) -> None:
    require("pkg-config")
    path = run_cli(["sdk", "--pkgconfig"]).stdout.strip()
    flags = execute("pkg-config", "--cflags", "--libs", "packager", PKG_CONFIG_PATH=path)
    assert flags.returncode == 0, flags.stderr
    host = tmp_path / "host"
    done = execute("gcc", "-std=c99", HOSTS / "c" / "host.c", "-o", host, *shlex.split(flags.stdout))
    assert (done.returncode, done.stderr) == (0, "")
    check_host(host, digits_bundle, digits_images, tmp_path)
