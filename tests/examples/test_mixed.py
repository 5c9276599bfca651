"""Bundles of four backends at once: llvm, ccompiler, the OpenBLAS example and a library of custom operators."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import packager

from .conftest import ROOT, Run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("archive")]

TARGETS = ("llvm", "openblas", "ccompiler -operators=conv2d,dense,softmax,layer_norm")

TOP_C = """
#include <stdint.h>

static int64_t larger(const float *row, int64_t columns, float value) {
  int64_t count = 0;
  for (int64_t k = 0; k < columns; k++) count += row[k] > value;
  return count;
}

int32_t acme_keep_largest(const float *x, float *y, int64_t rows, int64_t columns, int64_t keep) {
  for (int64_t i = 0; i < rows * columns; i++) {
    y[i] = larger(x + i / columns * columns, columns, x[i]) < keep ? x[i] : 0;
  }
  return 0;
}
"""
UNUSED_C = "int acme_unused(int x);\nint acme_unused(int x) { return x + 1; }\n"
TOP_TOML = """
[library]
name = "acme"
archive = "libacme.a"
license = "MIT"

[[operator]]
domain = "com.acme"
op_type = "KeepLargest"
symbol = "acme_keep_largest"
signature = "pointers"
inputs = [{ name = "x", dtype = "float32", shape = ["rows", "columns"] }]
outputs = [{ name = "y", dtype = "float32", shape = ["rows", "columns"] }]
attributes = { keep = { type = "int", default = 1 } }
arguments = ["x", "y", "rows", "columns", "keep"]
"""


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The description of a library with one operator, and an archive with a member that nothing needs."""
    folder = tmp_path_factory.mktemp("acme")
    for name, text in (("top.c", TOP_C), ("unused.c", UNUSED_C)):
        (folder / name).write_text(text)
    subprocess.run(["gcc", "-O2", "-fPIC", "-c", "top.c", "unused.c"], check=True, cwd=folder)
    subprocess.run(["ar", "rcsD", "libacme.a", "top.o", "unused.o"], check=True, cwd=folder)
    (folder / "acme.toml").write_text(TOP_TOML)
    return folder / "acme.toml"


def build(run: Run, model: Path, *options: object) -> Path:
    """Build a bundle with the command line, check it with ``verify``, and return its path."""
    bundle = model.with_suffix(".so")
    targets = [part for target in TARGETS for part in ("-t", target)]
    done = run("-m", "packager", "build", model, "-o", bundle, *targets, *options)
    assert done.returncode == 0, done.stderr
    done = run("-m", "packager", "verify", bundle)
    assert done.returncode == 0, done.stdout
    return bundle


def providers(bundle: Path) -> dict[str, set[str]]:
    """Return the composites, or for TVM's code the operators, that each backend provides."""
    found: dict[str, set[str]] = {}
    for kind, primitive in packager.inspect(bundle).manifest.primitives():
        names = primitive.composite.split("+") if primitive.composite else primitive.ops
        found.setdefault(kind, set()).update(names)
    return found


def assert_only_what_is_needed(bundle: Path) -> None:
    """The symbols of the archives' dead members are not in the file."""
    names = subprocess.run(["nm", bundle], capture_output=True, text=True, check=True).stdout
    assert "acme_unused" not in names
    assert "gotoblas" not in names
    assert "dgemm" not in names


def keep_largest(rows: np.ndarray, keep: int) -> np.ndarray:
    """What the custom operator computes."""
    larger = (rows[:, None, :] > rows[:, :, None]).sum(axis=2)
    return np.where(larger < keep, rows, 0)


def with_custom_node(model: onnx.ModelProto, keep: int) -> onnx.ModelProto:
    """Put KeepLargest behind the one output of a model, which must have the shape [rows, columns]."""
    (output,) = model.graph.output
    model.graph.node.append(onnx.helper.make_node("KeepLargest", [output.name], ["top"], domain="com.acme", keep=keep))
    model.opset_import.append(onnx.helper.make_opsetid("com.acme", 1))
    output.name = "top"
    return model


def test_resnet50_and_a_custom_operator(with_openblas: Run, acme: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain.onnx"
    done = with_openblas(ROOT / "samples" / "resnet50" / "make_model.py", "-o", plain)
    assert done.returncode == 0, done.stderr
    model = onnx.load(plain)
    path = tmp_path / "resnet50.onnx"
    (before,) = [output.name for output in model.graph.output]
    onnx.save(with_custom_node(model, 5), path)
    bundle = build(with_openblas, path, "--op-library", acme)
    provided = providers(bundle)
    assert provided["external"] == {"com.acme::KeepLargest"}
    assert "openblas.matmul_bias" in provided["openblas"]
    assert {"ccompiler.conv2d", "ccompiler.softmax"} <= provided["ccompiler"]
    assert "conv2d" not in provided["llvm"]
    assert "max_pool2d" in provided["llvm"]
    assert_only_what_is_needed(bundle)
    licenses = {one.component: one.spdx for one in packager.inspect(bundle).manifest.licenses}
    assert licenses["acme"] == "MIT"
    name = model.graph.input[0].name
    image = np.random.default_rng(5).standard_normal((1, 3, 224, 224), dtype=np.float32)
    (scores,) = onnxruntime.InferenceSession(plain).run([before], {name: image})
    with packager.load(bundle) as loaded:
        (top,) = loaded.run({name: image}).values()
    np.testing.assert_allclose(top, keep_largest(scores, 5), rtol=1e-4, atol=1e-5 * float(np.abs(scores).max()))
    assert np.count_nonzero(top) == 5


@pytest.mark.thorough  # the backends as in the other models; test_minilm.py of the samples has its numbers
def test_minilm(with_openblas: Run, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "minilm.pt2"
    done = with_openblas(ROOT / "samples" / "minilm" / "export.py", "-o", path, "--length", "2:64", "--batch", "2")
    assert done.returncode == 0, done.stderr
    bundle = build(with_openblas, path)
    provided = providers(bundle)
    assert {"openblas.matmul", "openblas.matmul_bias"} <= provided["openblas"]
    assert {"ccompiler.layer_norm", "ccompiler.softmax"} <= provided["ccompiler"]
    assert "gelu" in provided["llvm"]
    assert_only_what_is_needed(bundle)
    program = torch.export.load(path).module()
    random = np.random.default_rng(6)
    with packager.load(bundle) as loaded:
        for length in (2, 33, 64):
            ids = random.integers(1000, 20000, (2, length))
            mask = np.ones_like(ids)
            mask[1, length // 2 :] = 0
            with torch.no_grad():
                wanted = program(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()
            (got,) = loaded.run([ids, mask]).values()
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_every_backend_in_a_small_model_with_a_symbolic_batch(with_openblas: Run, acme: Path, tmp_path: Path) -> None:
    weights = {
        name: np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / 5
        for seed, (name, shape) in enumerate({"k": (8, 3, 3, 3), "w": (128, 32), "b": (32,)}.items())
    }
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[n,3,8,8] x) => (float[n,32] z) {
            c = Conv <pads = [1, 1, 1, 1]> (x, k)
            r = Relu(c)
            p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
            f = Flatten(p)
            m = MatMul(f, w)
            s = Add(m, b)
            z = Softmax(s)
        }""")
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    session = onnxruntime.InferenceSession(model.SerializeToString())
    path = tmp_path / "small.onnx"
    onnx.save(with_custom_node(model, 3), path)
    bundle = build(with_openblas, path, "--op-library", acme, "--dim", "n=1:8")
    assert set(providers(bundle)) == {"external", "openblas", "ccompiler", "llvm"}
    assert_only_what_is_needed(bundle)
    with packager.load(bundle, threads=2) as loaded:
        for n in (1, 5, 8):
            x = np.random.default_rng(n).standard_normal((n, 3, 8, 8), dtype=np.float32)
            (scores,) = session.run(None, {"x": x})
            np.testing.assert_allclose(loaded.run({"x": x})["top"], keep_largest(scores, 3), rtol=1e-4, atol=1e-6)
