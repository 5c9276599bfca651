"""What third parties import of packager: the example backends, and the tests' own small one."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PUBLIC = {"packager", "packager.backends.api", "packager.errors", "packager.testing"}
SOURCES = [*sorted((ROOT / "examples").rglob("*.py")), ROOT / "tests" / "third_party" / "toy_backend.py"]


def imported(source: Path) -> set[str]:
    """Return the modules that a file imports, wherever it does."""
    found = set()
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module)
    return found


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_nothing_but_what_is_public(source: Path) -> None:
    own = {module for module in imported(source) if module.partition(".")[0] == "packager"}
    assert own <= PUBLIC


def test_there_is_something_to_look_at() -> None:
    assert len({module for source in SOURCES for module in imported(source)} & PUBLIC) > 2


def test_all_names_are_there_and_no_tvm_is_loaded() -> None:
    script = (
        "import sys, packager.backends.api as api;"
        "print([name for name in api.__all__ if name != 'Dataflow' and not hasattr(api, name)]);"
        "print([name for name in ('tvm', 'onnx', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]\n[]"


def test_the_graph_of_searches() -> None:
    pytest.importorskip("tvm")
    from packager.backends.api import Dataflow
    from packager.graph import dataflow

    assert Dataflow is dataflow.Dataflow
