"""Bundles whose products are cuBLASLt's: run with no GPU, by stand-ins for the driver and for the library.

The library's stand-in computes what its descriptions say, so that numbers tell whether they are right. Models consist
of products alone, since no kernel runs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest

import packager

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MODEL = """
<ir_version: 10, opset_import: ["": 21]>
net (float16[n,16] x, float16[n,24] r, float16[n,2,3,8] u, float16[n,2,8,5] v, float16[16,9] matrix, bfloat16[n,7] h,
     float[n,10] s, int8[n,3,32] q, float8e4m3fn[n,2,32] f, float16[n,2,48] t)
    => (int32[n,3,12] whole, float16[n,2,48] columns, float16[n,2,48] rest,
        float16[n,24] relu, float16[n,24] sum, float16[n,24] gelu, float16[n,5] odd, float16[n,2,3,5] batched,
        float16[n,9] matmul, bfloat16[n,6] brain, float[n,10] wide) {
  p0 = MatMul(x, w0) p1 = Add(p0, b) relu = Relu(p1)
  q0 = MatMul(x, w1) q1 = Mul(q0, scale) q2 = Add(q1, b) sum = Add(q2, r)
  g0 = MatMul(x, w2) g1 = Add(g0, b) gelu = Gelu<approximate = "tanh">(g1)
  odd = MatMul(x, w3)
  batched = MatMul(u, v)
  matmul = MatMul(x, matrix)
  h0 = MatMul(h, w4) brain = Add(h0, c)
  s0 = MatMul(x, w5) s1 = Cast<to = 1>(s0) wide = Add(s1, s)
  whole = MatMulInteger(q, w6)
  fd = DequantizeLinear(f, scale)
  d0 = DequantizeLinear<axis = 1>(w7, each) c0 = MatMul(fd, d0) c1 = Add(c0, e) columns = Relu(c1)
  d1 = DequantizeLinear<axis = 1>(w8, each) t0 = MatMul(fd, d1) rest = Add(t0, t)
}
"""
SHAPES = {"x": (16,), "r": (24,), "u": (2, 3, 8), "v": (2, 8, 5), "matrix": (16, 9), "h": (7,), "s": (10,)}
SHAPES |= {"q": (3, 32), "f": (2, 32), "t": (2, 48)}
WEIGHTS = {
    "w0": (16, 24),
    "w1": (16, 24),
    "w2": (16, 24),
    "w3": (16, 5),
    "w4": (7, 6),
    "w5": (16, 10),
    "b": (24,),
    "c": (6,),
    "w6": (32, 12),
    "w7": (32, 48),
    "w8": (32, 48),
    "each": (48,),
    "e": (48,),
}
E4M3 = ml_dtypes.float8_e4m3fn
TYPES = dict.fromkeys(("h", "w4", "c"), ml_dtypes.bfloat16) | dict.fromkeys(("f", "w7", "w8"), E4M3)
TYPES |= {"s": np.float32, "q": np.int8, "w6": np.int8}
PROBLEMS = 11
SCRIPT = """
import ctypes, json, os, sys
import numpy as np, ml_dtypes
import packager
bundle_path, folder, rows, options = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
recorder = ctypes.CDLL("libcuda.so.1")
library = ctypes.CDLL("libcublasLt.so.13")
recorder.recorder_take.restype = recorder.recorder_live.restype = library.fake_state.restype = ctypes.c_char_p
state = lambda: [int(word) for word in library.fake_state().split()]
inputs = dict(np.load(folder + "/inputs.npz"))
inputs["h"], inputs["f"] = inputs["h"].view(ml_dtypes.bfloat16), inputs["f"].view(ml_dtypes.float8_e4m3fn)
told = {}
with packager.load(bundle_path) as bundle:
    try:
        with bundle.session(**options) as session:
            told["created"] = state()
            for _ in range(3):
                outputs = session.run(inputs)
            told["run"], told["log"] = state(), recorder.recorder_take().decode()
            np.savez(folder + "/outputs.npz", **{name: np.asarray(a, np.float32) for name, a in outputs.items()})
    except packager.PackagerError as error:
        told["error"] = str(error)
told["left"], told["live"] = state()[:2], recorder.recorder_live().decode()
print(json.dumps(told))
"""


def cast(name: str, array: Any) -> Any:
    kind = TYPES.get(name, np.float16)
    return np.clip(np.rint(array * 100), -128, 127).astype(kind) if kind == np.int8 else array.astype(kind)


@pytest.fixture(scope="module")
def weights() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {name: cast(name, rng.standard_normal(shape) / 2) for name, shape in WEIGHTS.items()}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, weights: dict[str, Any]) -> Path:
    folder = tmp_path_factory.mktemp("products")
    model = onnx.parser.parse_model(MODEL)
    arrays = {**weights, "scale": np.float16(0.25)}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()
    )
    onnx.save(model, folder / "products.onnx")
    targets = ["cuda -arch=sm_90a", "cublas"]
    return packager.build(
        folder / "products.onnx", folder / "products.so", targets=targets, dims={"n": (1, 8)}, golden=0
    )


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stand-ins")
    flags = ["-D_GNU_SOURCE", "-std=gnu11", "-O1", "-fPIC", "-shared", "-fvisibility=hidden"]
    for source, name in (("recorder/libcuda.c", "libcuda.so.1"), ("cublaslt/cublaslt.c", "libcublasLt.so.13")):
        command = ["gcc", *flags, HERE / source, "-o", folder / name, "-lm", "-ldl", "-lpthread"]
        subprocess.run(command, check=True)
    return folder


def run(bundle: Path, stand_ins: Path, folder: Path, rows: int = 5, /, **options: Any) -> dict[str, Any]:
    """Run the bundle three times in a process of its own; upper-case options are environment variables."""
    rng = np.random.default_rng(1)
    inputs = {}
    for name, shape in SHAPES.items():
        full = shape if name == "matrix" else (rows, *shape)
        inputs[name] = cast(name, rng.standard_normal(full) / 2)
    stored = {name: array.view({"h": "V2", "f": "V1"}.get(name, array.dtype)) for name, array in inputs.items()}
    np.savez(folder / "inputs.npz", **stored)
    own = {"LD_LIBRARY_PATH": str(stand_ins), "PYTHONPATH": str(ROOT), "RECORDER_MAPS": "1"}
    own |= {name: options.pop(name) for name in list(options) if name.isupper()}
    argv = [sys.executable, "-c", SCRIPT, str(bundle), str(folder), str(rows), json.dumps(options)]
    done = subprocess.run(argv, env=os.environ | own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert told["left"] == [0, 0]
    assert told["live"] == ""
    return {**told, "inputs": inputs}


def expected(inputs: dict[str, Any], weights: dict[str, Any]) -> dict[str, Any]:
    wide = {name: array.astype(np.float64) for name, array in {**inputs, **weights}.items()}
    x, b = wide["x"], wide["b"]
    g = x @ wide["w2"] + b
    return {
        "relu": np.maximum(x @ wide["w0"] + b, 0),
        "sum": x @ wide["w1"] * 0.25 + b + wide["r"],
        "gelu": 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3))),
        "odd": x @ wide["w3"],
        "batched": wide["u"] @ wide["v"],
        "matmul": x @ wide["matrix"],
        "brain": wide["h"] @ wide["w4"] + wide["c"],
        "wide": x @ wide["w5"] + wide["s"],
        "whole": wide["q"] @ wide["w6"],
        "columns": np.maximum(wide["f"] @ wide["w7"] * 0.25 * wide["each"] + wide["e"], 0),
        "rest": wide["f"] @ wide["w8"] * 0.25 * wide["each"] + wide["t"],
    }


@pytest.mark.parametrize("rows", [1, 5, 8])
def test_numbers(bundle: Path, stand_ins: Path, tmp_path: Path, weights: dict[str, Any], rows: int) -> None:
    """Orders of rows and columns, strides of batches, bias, residual, scales and activation; integers exactly."""
    told = run(bundle, stand_ins, tmp_path, rows, graph="off")
    outputs = dict(np.load(tmp_path / "outputs.npz"))
    for name, wanted in expected(told["inputs"], weights).items():
        rtol = {"brain": 0.02, "whole": 0}.get(name, 3e-3)
        np.testing.assert_allclose(outputs[name], wanted, rtol=rtol, atol=3e-3 * (name != "whole"))
    assert set(outputs) == set(expected(told["inputs"], weights))


def test_the_choice_is_made_once(bundle: Path, stand_ins: Path, tmp_path: Path) -> None:
    """At session creation for the largest sizes, and for others in the first run that has them."""
    told = run(bundle, stand_ins, tmp_path, 8, graph="off")
    handles, _, asked, products, _ = told["created"]
    assert (handles, asked, products) == (1, PROBLEMS, PROBLEMS)
    assert told["run"][2:4] == [PROBLEMS, 4 * PROBLEMS]
    assert run(bundle, stand_ins, tmp_path, 5, graph="off")["run"][2] == 2 * PROBLEMS


def test_graphs(bundle: Path, stand_ins: Path, tmp_path: Path) -> None:
    told = run(bundle, stand_ins, tmp_path, 5, graph="on")
    assert told["log"].count("add a graph of 2 nodes") == PROBLEMS
    assert told["run"][3] == 2 * PROBLEMS


def test_candidates(bundle: Path, stand_ins: Path, tmp_path: Path) -> None:
    """Ranks of the library's answers; the last stands for those that it does not give."""
    entries = packager.inspect(bundle).manifest.selection
    selection = {entry.symbol: "cublaslt_3" for entry in entries if "cublaslt_3" in entry.candidates}
    assert len(selection) == PROBLEMS
    assert run(bundle, stand_ins, tmp_path, graph="off", selection=selection)["run"][4] == 3
    few = run(bundle, stand_ins, tmp_path, graph="off", selection=selection, FAKE_ANSWERS="2")
    assert few["run"][4] == 1
    assert run(bundle, stand_ins, tmp_path, graph="off")["run"][4] == 0


def test_what_the_library_refuses(bundle: Path, stand_ins: Path, tmp_path: Path) -> None:
    told = run(bundle, stand_ins, tmp_path, FAKE_REFUSES="7")
    assert "the library that it calls failed with status 15" in told["error"]


def test_without_the_library(bundle: Path, stand_ins: Path, tmp_path: Path) -> None:
    """Sessions take what TVM makes of the products, and say so."""
    manifest = packager.inspect(bundle).manifest
    (library,) = manifest.requirements.libraries
    assert library.optional
    assert library.least == "12.9"  # for scales of columns
    assert library.sonames == ("libcublasLt.so.13", "libcublasLt.so.12")
    shutil.copy(stand_ins / "libcuda.so.1", tmp_path)
    script = """
import sys, warnings, packager
with warnings.catch_warnings(record=True) as told, packager.load(sys.argv[1], libraries=[]) as bundle:
    warnings.simplefilter("always")
    with bundle.session():
        print([str(warning.message) for warning in told])
"""
    own = {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(ROOT), "RECORDER_MAPS": "1"}
    argv = [sys.executable, "-c", script, str(bundle)]
    done = subprocess.run(argv, env=os.environ | own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "libcublasLt.so.13" in done.stdout
