"""The root file system of the container sample: what is in it, and that it runs a bundle, in a chroot of its own."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import packager

from .conftest import SAMPLES

pytestmark = pytest.mark.slow

CONTAINER = SAMPLES / "container"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, digits_bundle: Path) -> Path:
    folder = tmp_path_factory.mktemp("container") / "root"
    done = subprocess.run([CONTAINER / "root.sh", folder, digits_bundle], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


def test_it_has_the_bundle_the_host_and_libc(root: Path, digits_bundle: Path) -> None:
    files = [path for path in root.rglob("*") if path.is_file()]
    names = sorted(re.sub(r"^ld-linux.*", "ld-linux", path.name) for path in files)
    # Before glibc 2.34 dlopen is in a library of its own.
    assert names in (["host", "ld-linux", "libc.so.6", "model.so"],
                     ["host", "ld-linux", "libc.so.6", "libdl.so.2", "model.so"])  # fmt: skip
    assert (root / "model.so").read_bytes() == digits_bundle.read_bytes()
    assert sum(path.stat().st_size for path in files) < 5_000_000


def test_it_runs_the_bundle(root: Path, digits_bundle: Path, digits_images: np.ndarray) -> None:
    """As user and group nobody and without environment, as the image does."""
    digits_images[:9].tofile(root / "data" / "input.f32")
    (root / "data").chmod(0o777)
    chroot = ["chroot", "--userspec=65534:65534"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "chroot"]
    command = [*chroot, root, "/host", "/model.so", "/data/input.f32", "/data/output.f32"]
    done = subprocess.run(
        list(map(str, command)), env={"PATH": "/usr/sbin:/usr/bin"}, capture_output=True, text=True, check=False
    )
    if done.returncode == 125 or done.stderr.startswith(("chroot:", "unshare:")):
        pytest.skip(f"this machine has no chroot: {done.stderr.strip()}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("model digits\n")
    wanted = packager.load(digits_bundle).run({"image": digits_images[:9]})["logits"]
    assert (root / "data" / "output.f32").read_bytes() == wanted.tobytes()


def test_weights_beside_the_bundle_come_along_and_nothing_is_overwritten(tmp_path: Path, digits_bundle: Path) -> None:
    (tmp_path / "model.so").write_bytes(digits_bundle.read_bytes())
    (tmp_path / "model.safetensors").write_text("weights")
    command = [CONTAINER / "root.sh", tmp_path / "root", tmp_path / "model.so"]
    assert subprocess.run(command, check=False).returncode == 0
    assert (tmp_path / "root" / "model.safetensors").read_text() == "weights"
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (again.returncode, again.stderr) == (1, f"error: {tmp_path / 'root'} exists already\n")


def test_the_image_is_the_root_file_system() -> None:
    lines = (CONTAINER / "Dockerfile").read_text().splitlines()
    instructions = [line for line in lines if line and not line.startswith("#")]
    assert instructions == [
        "FROM scratch", "COPY root/ /", "USER 65534:65534", 'ENTRYPOINT ["/host", "/model.so"]'
    ]  # fmt: skip
