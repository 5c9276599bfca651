"""A sample of what ``python -m tests.conformance.onnx.fuzz_files`` does, and faults that it has found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from packager.errors import EXIT_CODES, ModelError
from packager.frontends.load import load_model
from tests.onnx_runs import check

ML = Path(__file__).parents[2] / "corpus" / "ml"
HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
# What is read: the node's name comes from its output.
BROKEN = {
    "an element of what is no sequence": ("SequenceAt", "y = SequenceAt (x, zero)"),
    "what is no sequence, joined": ("ConcatFromSequence", "y = ConcatFromSequence <axis = 0> (x)"),
    "an operand that is left out": ("Concat", "y = Concat <axis = 0> (, x)"),
    "too few operands": ("Add", "y = Add (x)"),
    "no attribute": ("Concat", "y = Concat (x, x)"),
    "an attribute of another type": ("Softmax", 'y = Softmax <axis = "last"> (x)'),
    "a list that is joined without an axis": (
        "ConcatFromSequence",
        "list = SequenceConstruct (x, x) y = ConcatFromSequence (list)",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_node_is_named(name: str, tmp_path: Path) -> None:
    operator, text = BROKEN[name]
    model = parse_model(f"{HEADER}g (float[2, 3] x) => (float[a, b] y) <int64 zero = {{0}}> {{ {text} }}")
    path = tmp_path / "broken.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=f"node 'y' of operator {operator}") as error:
        load_model(path, {}, None)
    assert error.value.hint
    assert EXIT_CODES[error.value.exit_code]


@pytest.mark.slow
def test_altered_files_are_imported_or_refused_by_name() -> None:
    command = [sys.executable, "-m", "tests.conformance.onnx.fuzz_files", str(ML), "--seeds", "0:40"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "refused" in done.stdout


@pytest.mark.slow
def test_extents_that_only_indices_have(tmp_path: Path) -> None:
    """NonZero divides positions by extents that are in none of its operands' shapes."""
    text = """
indices (float[n, m, k] x) => (int64[3, c] y)
{ positive = Relu (x) y = NonZero (positive) }
"""
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.standard_normal(shape).astype(np.float32)} for shape in ((1, 1, 1), (2, 3, 5), (5, 6, 2))]
    check(tmp_path, text, "nmk", feeds)
    assert onnx.load(tmp_path / "m.onnx").graph.node[1].op_type == "NonZero"
