"""The C that the cudnn backend renders, word for word: a convolution with plans for two GPUs, and one without any.

A change here is a change of the bundles: look at the difference, then ``pytest tests/golden --rewrite-golden``.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

pytest.importorskip("tvm")
from packager.backends.cudnn.module import draft_partition, render_module
from packager.backends.cudnn.options import CudnnOptions
from packager.backends.cudnn.planner import Choice
from packager.backends.problem_module import include_flags
from tests.stages import placed_file

EXPECTED = Path(__file__).parent / "expected" / "cudnn.c.expected"
MODEL = """<ir_version: 10, opset_import: ["": 21]>
net (float16[n,8,9,10] x, float16[n,4,3,4,5] v) => (float16[n,12,9,10] y, float16[n,6,6,8,10] z) {
  c = Conv<pads=[1,1,1,1], group=2>(x, w, b) y = Relu(c)
  z = ConvTranspose<pads=[1,1,1,1,1,1], strides=[2,2,2]>(v, t)
}"""
SHAPES = {"w": (12, 4, 3, 3), "b": (12,), "t": (4, 6, 4, 4, 4)}
CHOICES = [(80, Choice(10, ((2, 5), (13, 1)))), (90, Choice(41, ((2, 5), (13, 1), (18, 0)))), (90, Choice(0, ()))]


def rendered(folder: Path) -> str:
    """Return the C of the model's convolutions."""
    model = onnx.parser.parse_model(MODEL)
    for name, shape in SHAPES.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(shape, np.float16), name))
    onnx.save(model, folder / "model.onnx")
    placed = placed_file(folder / "model.onnx", targets=("cuda -arch=sm_80,sm_90a", "cudnn"), dims={"n": (1, 8)})
    drafts = [draft_partition(one.partition, CudnnOptions()) for one in placed.partitions.values()]
    views = [draft.view(CHOICES if index == 0 else ()) for index, draft in enumerate(drafts)]
    return render_module(views, "9.19.0")


def test_the_module_is_as_expected(tmp_path: Path, rewrite: bool) -> None:
    """It compiles without warnings, too."""
    text = rendered(tmp_path)
    if rewrite:
        EXPECTED.write_text(text)
    assert text == EXPECTED.read_text()
    (tmp_path / "cudnn.c").write_text(text)
    strict = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", *include_flags("cudnn"), "-c", "cudnn.c"]
    subprocess.run(strict, cwd=tmp_path, check=True)
