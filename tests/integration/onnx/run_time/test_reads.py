"""Reads of run-time extents wait until one is needed, and are then done together."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from packager.ir.call_plan import Call, ReadExtent
from packager.lower.lowering import lower
from packager.plan.planner import plan
from tests.stages import placed_file

pytestmark = pytest.mark.slow

TWO = """
<ir_version: 9, opset_import: ["" : 17]>
g (float[40] x, float[30] y) => (float[p] a, float[q] b) {
    i = NonZero (x)
    j = NonZero (y)
    t = Transpose (i)
    u = Transpose (j)
    c = GatherND (x, t)
    d = GatherND (y, u)
    a = Exp (c)
    b = Exp (d)
}
"""


def test_independent_extents_are_read_together(tmp_path: Path) -> None:
    path = tmp_path / "two.onnx"
    onnx.save(onnx.parser.parse_model(TWO), path)
    (entry,) = plan(lower(placed_file(path))).entries
    reads = [place for place, step in enumerate(entry.steps) if isinstance(step, ReadExtent)]
    assert len(reads) == 2
    assert not any(isinstance(step, Call) for step in entry.steps[reads[0] : reads[1]])
    assert isinstance(entry.steps[0], Call)
