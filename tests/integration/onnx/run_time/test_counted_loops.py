"""Loops that count in their condition, whose number of iterations is known before they run, against onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import packager
from tests.integration.onnx.run_time.test_run_time_loops import compare

pytestmark = pytest.mark.slow

# Body, start of the counter, limit: of 5 rows as many as it says are added up; the number of iterations is in the name.
BODIES = {
    "less, 4": ("n = Add(k, one) c2 = Less(n, top)", 1),
    "less or equal, 5": ("n = Add(one, k) c2 = LessOrEqual(n, top)", 1),
    "greater, 5": ("n = Add(k, one) c2 = Greater(top, k)", 1),
    "greater or equal, 5": ("n = Add(k, one) c2 = GreaterOrEqual(top, n)", 1),
    "cast, 3": ("n = Add(k, one) f = Cast<to=1>(n) g = Cast<to=1>(top) c2 = Less(f, g)", 2),
    "number, 5": ("n = Add(k, one) m = Add(i, one) c2 = Less(m, top)", 0),
    "beyond the limit, 1": ("n = Add(k, one) c2 = Less(n, top)", 9),
    "and, 3": ("n = Add(k, one) a = Less(n, top) s = Less(n, three) c2 = And(s, a)", 0),
}
SCAN = "t = Add(v, row) u = Identity(t)"


def save(path: Path, text: str, start: int, limit: str) -> Path:
    body = f"""
      body (int64 i, bool c, int64 k, float[4] v, int64 top)
        => (bool c2, int64 n, float[4] t, int64 top2, float[4] u) {{
        row = Gather(x, k0) top2 = Identity(top) k0 = Mod(k, rows) {text} {SCAN}
      }}"""
    nodes = f"{limit} a, b, e, y = Loop<body={body}>(, go, start, zeros, most)"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> net (float[N,4] x) => (float[4] b, float[M,4] y) {{ {nodes} }}'
    )
    loop = next(node for node in model.graph.node if node.op_type == "Loop")
    part = loop.attribute[0].g
    part.node.insert(0, part.node.pop(2))  # k0 first
    arrays: dict[str, Any] = {"one": 1, "three": 3, "rows": 5, "start": start, "axis": 0, "limit": 5}
    constants = {name: np.int64(array) for name, array in arrays.items()}
    constants |= {"go": np.array(True), "zeros": np.zeros(4, np.float32)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items())
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("name", BODIES)
def test_of_known_limits_they_are_unrolled_or_bounded(name: str, tmp_path: Path) -> None:
    """No bound has to be given for the rows that they collect."""
    text, start = BODIES[name]
    path = save(tmp_path / "m.onnx", text, start, "most = Identity(limit)")
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    (got,) = compare(path, [{"x": x}], {"N": (5, 5)})
    assert len(got["y"]) == int(name.rpartition(" ")[2])


def test_a_limit_that_inputs_have(tmp_path: Path) -> None:
    limit = "shape = Shape(x) most = Gather<axis=0>(shape, axis)"
    path = save(tmp_path / "m.onnx", BODIES["less, 4"][0], 0, limit)
    runs = [{"x": np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32)} for n in (1, 3, 5)]
    got = compare(path, runs, {"N": (1, 5)})
    assert [len(one["y"]) for one in got] == [1, 3, 5]


def test_a_counter_that_does_not_count_by_one_needs_a_bound(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", "n = Add(k, three) c2 = Less(n, top)", 0, "most = Identity(limit)")
    with pytest.raises(packager.PackagerError, match="nothing bounds it"):
        packager.build(path, tmp_path / "m.so", dims={"N": 5})
