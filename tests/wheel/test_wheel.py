"""The wheel by itself: what is in it, and that each half of packager works from it in a fresh environment."""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

import pytest

from .conftest import ROOT, Execute, make_environment, pip_for

pytestmark = pytest.mark.slow

DIGITS = ROOT / "samples" / "digits"
# What the deploy side may bring along; everything else belongs to extras.
DEPLOY_DEPENDENCIES = {"numpy", "rich", "typer"}


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory, wheel: Path, execute: Execute) -> Path:
    """The Python of an environment with the wheel and what the build side needs, as locked."""
    python = make_environment(tmp_path_factory.mktemp("builder") / "venv")
    install = pip_for(python, "install", "-q")
    execute([*install, "--no-deps", "--require-hashes", "-r", ROOT / "requirements-build.lock"], python.parent)
    execute([*install, f"{wheel}[build]"], python.parent)
    return python


@pytest.fixture(scope="module")
def deployer(tmp_path_factory: pytest.TempPathFactory, wheel: Path, execute: Execute) -> Path:
    """The Python of an environment with the wheel and nothing but its own dependencies."""
    python = make_environment(tmp_path_factory.mktemp("deployer") / "venv")
    # The wheel has no hash in the lock, and pip wants one of all that it installs if it has one of any.
    pins = re.findall(r"^[\w.-]+==[\w.]+", (ROOT / "requirements-build.lock").read_text(), re.MULTILINE)
    constraints = python.parent / "constraints.txt"
    constraints.write_text("\n".join(pins))
    execute(pip_for(python, "install", "-q", "-c", constraints, wheel), python.parent)
    return python


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, builder: Path, execute: Execute) -> Path:
    """The digits bundle, built by the installed packager."""
    folder = tmp_path_factory.mktemp("bundle")
    command = [builder.with_name("packager"), "build", DIGITS / "digits.onnx", "-o", "digits.so", "--dim", "n=1:64"]
    assert execute([*command, "--golden", "0", "--header", "digits.h"], folder) == "digits.so\n"
    return folder / "digits.so"


def test_wheel_holds_all_that_a_build_reads(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    for folder, patterns in {
        "templates": ["*.j2", "*.html", "*.css", "*.js"],
        "runtime_stub": ["*.c", "*.h", "*.cmake", "*.pc"],
        "packager": ["*.py", "*.toml", "*.json"],
    }.items():
        files = [path for pattern in patterns for path in (ROOT / folder).rglob(pattern)]
        assert files
        prefix = "" if folder == "packager" else "packager/"
        assert {prefix + path.relative_to(ROOT).as_posix() for path in files} <= names
    assert any(name.endswith("/licenses/LICENSE") for name in names)


def test_wheel_holds_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    kinds = r"py|toml|json|j2|c|h|cmake|pc"
    ours = rf"packager/(.*\.({kinds})|py\.typed|templates/cutlass/common/host/iostream|templates/report/.*)$"
    strange = [n for n in names if not re.match(rf"{ours}|packager-[^/]*\.dist-info/", n)]
    assert not strange
    assert wheel.stat().st_size < 2_500_000


def test_wheel_asks_for_the_deploy_side_only(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = archive.read(name).decode()
    required = re.findall(r"^Requires-Dist: ([\w-]+)(?![^\n]*extra ==)", metadata, flags=re.MULTILINE)
    assert set(required) == DEPLOY_DEPENDENCIES


def test_installed_packager_builds_and_the_bundle_is_right(bundle: Path, builder: Path, execute: Execute) -> None:
    where = execute([builder, "-c", "import packager; print(packager.__file__)"], bundle.parent)
    assert not Path(where.strip()).is_relative_to(ROOT)
    assert (bundle.parent / "digits.h").read_text().count("packager_bundle_v1") > 1
    output = execute([builder, DIGITS / "run.py", bundle], bundle.parent)
    match = re.fullmatch(r"accuracy: (\d+\.\d) % .*\n", output)
    assert match, output
    assert float(match[1]) > 97


def test_installed_packager_gives_the_same_bytes_as_the_checkout(
    bundle: Path, tmp_path: Path, execute: Execute
) -> None:
    output = tmp_path / "digits.so"
    command = [sys.executable, "-m", "packager", "build", DIGITS / "digits.onnx", "-o", output, "--dim", "n=1:64"]
    execute([*command, "--golden", "0", "--no-cache"], ROOT)
    assert output.read_bytes() == bundle.read_bytes()


def test_deploy_environment_has_no_build_side(deployer: Path, execute: Execute) -> None:
    listed = execute(pip_for(deployer, "list", "--format", "freeze"), deployer.parent)
    installed = {line.partition("==")[0].lower() for line in listed.splitlines()}
    assert {"packager", *DEPLOY_DEPENDENCIES} <= installed
    build_side = {"apache-tvm", "apache-tvm-ffi", "onnx", "jinja2", "capstone", "iced-x86", "torch", "pyelftools"}
    assert not installed & build_side


@pytest.mark.parametrize(
    "arguments",
    [["inspect"], ["inspect", "--json"], ["verify", "--run"], ["run", "--random", "1"], ["bench", "--runs", "3"]],
    ids=" ".join,
)
def test_deploy_environment_handles_bundles(
    arguments: list[str], bundle: Path, deployer: Path, execute: Execute, tmp_path: Path
) -> None:
    assert execute([deployer.with_name("packager"), arguments[0], bundle, *arguments[1:]], tmp_path)


def test_deploy_environment_writes_reports(bundle: Path, deployer: Path, execute: Execute, tmp_path: Path) -> None:
    execute([deployer.with_name("packager"), "report", bundle, "--run", "-o", "report.html"], tmp_path)
    execute([deployer.with_name("packager"), "inspect", bundle, "--graph", "graph.onnx"], tmp_path)
    assert (tmp_path / "report.html").stat().st_size > 50_000
    assert (tmp_path / "graph.onnx").stat().st_size > 1_000


def test_deploy_environment_runs_the_sample(bundle: Path, deployer: Path, execute: Execute, tmp_path: Path) -> None:
    assert "accuracy: 98.9 %" in execute([deployer, DIGITS / "run.py", bundle], tmp_path)


def test_deploy_environment_says_what_a_build_needs(deployer: Path, tmp_path: Path) -> None:
    import subprocess

    done = subprocess.run(
        [deployer.with_name("packager"), "build", DIGITS / "digits.onnx", "--dim", "n=1:64"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 4, done.stderr
    assert "hint:" in done.stderr
    assert "packager[build]" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
