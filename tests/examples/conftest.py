"""The example backends, built as wheels and installed in folders of their own, and a Python that finds them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
FOLDERS = [Path("/usr/lib/x86_64-linux-gnu", f"openblas-{variant}") for variant in ("serial", "pthread", "openmp")]

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def install(example: str, folder: Path) -> Path:
    """Build the wheel of an example, install it into ``folder/site``, and return the wheel."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(EXAMPLES / example)]
    subprocess.run(wheel, check=True, cwd=folder)
    (built,) = folder.glob("*.whl")
    into = [*pip, "install", "--no-deps", "--no-index", "--target", str(folder / "site"), str(built)]
    subprocess.run(into, check=True, cwd=folder)
    return built


def runner(site: Path, folder: Path) -> Run:
    """Return a function that runs a Python command with what is installed in ``site``."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(site), str(ROOT)))}
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )

    return run


@pytest.fixture(scope="session")
def openblas_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install("backend-openblas", tmp_path_factory.mktemp("openblas"))


@pytest.fixture(scope="session")
def first_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install("backend-first", tmp_path_factory.mktemp("first"))


@pytest.fixture
def with_openblas(openblas_wheel: Path, tmp_path: Path) -> Run:
    """Run Python where the openblas backend is installed, in an empty folder."""
    return runner(openblas_wheel.parent / "site", tmp_path)


@pytest.fixture
def with_first(first_wheel: Path, tmp_path: Path) -> Run:
    """Run Python where the first backend is installed, in an empty folder."""
    return runner(first_wheel.parent / "site", tmp_path)


@pytest.fixture(scope="session")
def archive() -> Path:
    """OpenBLAS's static archive; where there is none, nothing can be built with it."""
    found = [folder / "libopenblas.a" for folder in FOLDERS if (folder / "libopenblas.a").is_file()]
    if not found:
        reason = "there is no static archive of OpenBLAS: apt-get install libopenblas-serial-dev"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found[0]
