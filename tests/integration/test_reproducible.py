"""Equal inputs give equal bytes, wherever and whenever they are built."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command_line import Cli, tree
from graphs import graph, normal, save

pytestmark = pytest.mark.slow

FORMS = {
    "shared": ("-o", "model.so", "--header", "model.h", "--golden", "3"),
    "external weights": ("-o", "model.so", "--weights", "external", "--header", "model.h"),
    "archive": ("--static", "--prefix", "model", "--header", "model.h"),
}


@pytest.fixture(scope="module")
def convnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with several kernels of its own, equal and unequal constants, and a dim."""
    text = """convnet (float[n,3,8,8] x) => (float[n,5] y, float[n,4,4,4] r) {
      c = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w, b)  r = Relu(c)  p = GlobalAveragePool(r)
      f = Flatten<axis=1>(p)  g = Gemm<transB=1>(f, v, u)  s = Softmax<axis=1>(g)  y = Add(s, u2) }"""
    weights = {"w": normal(4, 3, 3, 3), "b": normal(4), "v": normal(5, 4), "u": normal(5), "u2": normal(5)}
    return save(graph(text, weights), tmp_path_factory.mktemp("convnet") / "convnet.onnx")


@pytest.mark.parametrize("form", FORMS)
def test_two_builds_are_equal(form: str, convnet: Path, cli: Cli, tmp_path: Path) -> None:
    results = []
    for index, (jobs, seed) in enumerate((("1", "0"), ("7", "4321"))):
        # Folders of different depth and length, a copy of the model with another time stamp.
        work = tmp_path / "/".join(["deep"] * (index * 3) + ["work"])
        (work / "tmp").mkdir(parents=True)
        (work / "out").mkdir()
        model = work / "convnet.onnx"
        shutil.copyfile(convnet, model)
        env = {"TMPDIR": str(work / "tmp"), "PYTHONHASHSEED": seed, "TZ": f"UTC+{index * 5}", "HOME": str(work)}
        done = cli(
            *("build", model, "--dim", "n=1:4", "--no-cache", "--jobs", jobs, *FORMS[form]), cwd=work / "out", env=env
        )
        assert done.returncode == 0, done.stderr
        assert not any((work / "tmp").iterdir())
        results.append(tree(work / "out"))
    assert results[0] == results[1]
    for content in results[0].values():
        assert str(tmp_path).encode() not in content
