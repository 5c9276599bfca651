"""What an index gets, and the versions of Python that it says it is for."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from packaging.specifiers import SpecifierSet

from .conftest import ROOT, Execute, build_wheel

pytestmark = pytest.mark.slow

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSIONS = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_sdist_makes_the_same_wheel(source: Path, wheel: Path, tmp_path: Path, execute: Execute) -> None:
    execute([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path], source)
    (sdist,) = tmp_path.glob("*.tar.gz")
    assert contents(build_wheel(sdist, tmp_path / "wheel", execute)) == contents(wheel)


def test_metadata_are_valid_and_shown(wheel: Path) -> None:
    (text,) = [text for name, text in contents(wheel).items() if name.endswith(".dist-info/METADATA")]
    metadata = Metadata.from_email(text, validate=True)
    assert metadata.description_content_type == "text/markdown"
    assert metadata.license_expression == "Apache-2.0"
    assert metadata.description == (ROOT / "README.md").read_text()


def test_versions_of_python() -> None:
    assert VERSIONS[0] == PROJECT["requires-python"].removeprefix(">=")
    assert all(SpecifierSet(PROJECT["requires-python"]).contains(version) for version in VERSIONS)
    minors = [int(version.partition(".")[2]) for version in VERSIONS]
    assert minors == list(range(minors[0], minors[0] + len(minors)))


@pytest.mark.parametrize(
    "version", [*(pytest.param(version, marks=pytest.mark.thorough) for version in VERSIONS[1:-1]), VERSIONS[-1]]
)
def test_what_a_build_needs_has_wheels_for(version: str, tmp_path: Path, execute: Execute) -> None:
    """The pins of the lock file, for a Python that need not be here: no compiler is asked for."""
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--dry-run", "--no-deps"]
    there = ["--ignore-installed", "--target", tmp_path, "--python-version", version, "--only-binary", ":all:"]
    execute([*pip, *there, "--require-hashes", "-r", ROOT / "requirements-build.lock"], tmp_path)


def interpreter(version: str) -> str:
    """Return an interpreter of this machine, or skip the test."""
    found = shutil.which(f"python{version}")
    if found is None or subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip(f"no Python {version} here")
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("version", VERSIONS)
def test_wheel_and_sdist_build_and_run_on(
    version: str, wheel: Path, source: Path, tmp_path: Path, execute: Execute
) -> None:
    """Each installed in turn into one environment, with what a build needs as locked."""
    execute([interpreter(version), "-m", "venv", tmp_path / "venv"], tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    execute([*pip, "--no-deps", "--require-hashes", "-r", ROOT / "requirements-build.lock"], tmp_path)
    execute([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path], source)
    (sdist,) = tmp_path.glob("*.tar.gz")
    digits = ROOT / "samples" / "digits"
    for number, package in enumerate((wheel, sdist)):
        execute([*pip, "--force-reinstall", "--no-deps", package], tmp_path)
        bundle = tmp_path / f"digits{number}.so"
        build = ["build", digits / "digits.onnx", "-o", bundle, "--dim", "n=1:64", "--golden", "0", "--no-cache", "-q"]
        execute([python.with_name("packager"), *build], tmp_path)
        execute([python.with_name("packager"), "verify", bundle, "--run"], tmp_path)
        assert "accuracy: 98.9 %" in execute([python, digits / "run.py", bundle], tmp_path)
    assert f"Python {version}." in execute([python, "-V"], tmp_path)
