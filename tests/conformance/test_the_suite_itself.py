"""The conformance suite fails where it should: each faulty backend is caught by the test that is there for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
KINDS = (
    *("Lying", "Leaking", "Wrong", "Littering", "Random", "Remembering", "Silent", "Busy", "Greedy"),
    *("Untested", "Unstable"),
)
CAUGHT = [
    "TestLying::test_provides_what_it_defines",
    "TestLeaking::test_provides_what_it_defines",
    "TestWrong::test_computes_what_numpy_does",
    "TestWrong::test_all_cases_in_one_model",
    "TestRandom::test_makes_the_same_everywhere_and_leaves_nothing",
    "TestSilent::test_answers_for_every_partition",
    "TestBusy::test_compiles_an_empty_list",
    "TestGreedy::test_every_pattern_is_hit",
    "TestUntested::test_attribute_has_another_value[level]",
    "TestUntested::test_values_are_of_attributes",
    "TestUnstable::test_canonical_target_is_stable[level]",
    "TestUnstable::test_builds_with_attribute[level]",
    "TestImporting::test_is_found_without_tvm",
]
# Other faults that the same tests find, and faults that a second test finds too.
CAUGHT_TOO = [
    "TestLying::test_computes_what_numpy_does",
    "TestLeaking::test_computes_what_numpy_does",
    "TestLittering::test_makes_the_same_everywhere_and_leaves_nothing",
    "TestRemembering::test_makes_the_same_everywhere_and_leaves_nothing",
]


@pytest.fixture
def registered(tmp_path: Path) -> Path:
    """A folder with the faulty backends as a distribution."""
    shutil.copy(HERE / "faulty_backends.py", tmp_path)
    (tmp_path / "faulty_importing.py").write_text(
        "import tvm\nfrom faulty_backends import Renamed\nclass Importing(Renamed): ...\n"
    )
    metadata = tmp_path / "faulty-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n")
    points = [f"faulty_{kind.lower()} = faulty_backends:{kind}" for kind in KINDS]
    points.append("faulty_importing = faulty_importing:Importing")
    (metadata / "entry_points.txt").write_text("\n".join(["[packager.backends]", *points, ""]))
    return tmp_path


@pytest.mark.parametrize(
    "caught", [CAUGHT, pytest.param(CAUGHT_TOO, marks=pytest.mark.thorough)], ids=["once", "again"]
)
def test_every_fault_is_caught(caught: list[str], registered: Path) -> None:
    path = os.pathsep.join(map(str, (registered, ROOT, ROOT / "examples" / "backend-first")))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "--tb=line"]
        + [f"faulty_backends.py::{test}" for test in caught],
        cwd=registered,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(("PASSED", "FAILED", "ERROR", "SKIPPED"))]
    outcomes = {line.split(" - ")[0].split("faulty_backends.py::")[-1].split("[case")[0]: line for line in lines}
    assert not [line for line in lines if not line.startswith("FAILED")], done.stdout
    for test in caught:
        assert any(name.startswith(test) for name in outcomes), f"{test} did not run: {done.stdout}{done.stderr}"
