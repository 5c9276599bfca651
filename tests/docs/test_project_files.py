"""The lock files, the Makefile, the CI script and the pre-commit hooks."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections import Counter

import pytest
from markdown_blocks import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKS = {
    "requirements-build.lock": ["build"],
    "requirements-docs.lock": ["docs"],
    "requirements-test.lock": ["build", "cuda", "torch", "sign", "tensorrt-rtx", "test", "samples", "dev"],
}


TORCH = dict(re.findall(r"^TORCH := (torch)==([\w.]+)$", (ROOT / "Makefile").read_text(), re.MULTILINE))


def pins(lock: str) -> dict[str, str]:
    """Return the versions by name; each pin must name the hashes of its files."""
    text = (ROOT / lock).read_text().replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    matches = [re.fullmatch(r"([\w.-]+)==([\w.]+)(?: +--hash=sha256:[0-9a-f]{64})+", line) for line in lines]
    assert all(matches), [line for line, match in zip(lines, matches, strict=True) if not match]
    found = {canonicalize_name(match[1]): match[2] for match in matches if match}
    assert len(found) == len(lines)
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_pins_every_dependency_within_its_range(lock: str) -> None:
    locked = pins(lock) | TORCH
    extras = [text for extra in LOCKS[lock] for text in PROJECT["optional-dependencies"][extra]]
    for text in [*PROJECT["dependencies"], *extras]:
        requirement = Requirement(text)
        if requirement.name == "packager":  # its other extras
            continue
        if requirement.marker and not requirement.marker.evaluate({"platform_machine": "x86_64"}):  # as the locks are
            continue
        name = canonicalize_name(requirement.name)
        assert name in locked, f"{lock} does not pin {name}"
        assert requirement.specifier.contains(locked[name], prereleases=True), f"{text}, locked {locked[name]}"


def test_build_lock_is_part_of_the_test_lock() -> None:
    assert pins("requirements-build.lock").items() <= pins("requirements-test.lock").items()
    assert "torch" not in pins("requirements-test.lock")  # the Makefile pins it: its builds differ by machine


@pytest.mark.parametrize(
    "target",
    [
        "demo",
        "test",
        "tests",
        "fast",
        "slow",
        "thorough",
        "lint",
        "format",
        "lock",
        "dist",
        "site",
        "clean",
        "env",
        "help",
    ],
)
def test_make_targets_can_be_planned(target: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "-n", target], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_ci_script_is_executable_bash_and_runs_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    assert re.search(r"^set -euo pipefail$", script.read_text(), flags=re.MULTILINE)
    assert re.search(r"\bmake test\b", script.read_text())


def test_hooks_are_local() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"repo: (\S+)", text) == ["local"]
    for tool in ("ruff check", "ruff format", "mypy", "clang-format"):
        assert f".venv/bin/{tool}" in text


def test_a_folder_has_twenty_modules_at_most_and_a_module_three_hundred_lines() -> None:
    """More is a second subject (CONTRIBUTING.md). Tests may be longer: cases of one subject make long files."""
    modules = [path for folder in ("packager", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    folders = Counter(path.parent for path in (*modules, *(ROOT / "tests").rglob("*.py")))
    assert not {str(folder.relative_to(ROOT)): count for folder, count in folders.items() if count > 20}
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in modules}
    assert not {name: count for name, count in lines.items() if count > 300}


def test_what_ci_leaves_out_exists() -> None:
    """A renamed test must not come back into CI, or be lost, in silence."""
    for line in (ROOT / "tests/thorough.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        file, *names = line.partition("[")[0].split("::")
        assert (ROOT / file).is_file(), line
        sources = [ROOT / file, *(ROOT / "packager" / "testing").glob("*.py")]  # suites inherit tests
        assert not names or any(f"def {names[-1]}" in path.read_text() for path in sources), line
