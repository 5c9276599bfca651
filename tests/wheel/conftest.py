"""The wheel, built once, and fresh environments to install it in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Execute = Callable[[Sequence[object], Path], str]


@pytest.fixture(scope="session")
def execute() -> Execute:
    """Run a command in a folder, without this checkout on Python's path; return its stdout, fail if it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}

    def run(command: Sequence[object], folder: Path) -> str:
        argv = [str(part) for part in command]
        done = subprocess.run(
            argv, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600
        )
        assert done.returncode == 0, f"{' '.join(argv)}\nexit code {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    return run


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, so that nothing else than what is in it can get into what is built."""
    source = tmp_path_factory.mktemp("source") / "source"
    ignored = shutil.ignore_patterns(".git", ".venv", "build", "dist", "__pycache__", ".*_cache", ".hypothesis")
    shutil.copytree(ROOT, source, ignore=ignored)
    return source


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory, source: Path, execute: Execute) -> Path:
    """The wheel, built from the checkout."""
    return build_wheel(source, tmp_path_factory.mktemp("wheel"), execute)


def build_wheel(source: Path, folder: Path, execute: Execute) -> Path:
    """Build the wheel of a folder or of an sdist, and return its path."""
    folder.mkdir(exist_ok=True)
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    execute([*pip, "--wheel-dir", folder, source], folder)
    (found,) = folder.glob("*.whl")
    return found


def make_environment(folder: Path) -> Path:
    """Create an empty virtual environment, without pip, and return its Python."""
    venv.create(folder, symlinks=True)
    return folder / "bin" / "python"


def pip_for(python: Path, *arguments: object) -> list[object]:
    """Return the command line of this environment's pip that acts on another environment."""
    return [sys.executable, "-m", "pip", "--python", python, *arguments]
