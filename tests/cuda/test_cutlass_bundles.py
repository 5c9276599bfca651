"""Bundles with kernels of CUTLASS: compiled and linked with no GPU, their launches seen by the recording stand-in."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import packager
from packager.bundle.elf.file import read_elf
from packager.bundle.manifest import Manifest
from packager.bundle.tuning_records import Record, Timing, make_records, read_records
from packager.deploy.load.selection import by_records, write_selected
from packager.deploy.verify.verifier import verify
from packager.errors import PackagerError, UsageError

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LAYER = """
<ir_version: 8, opset_import: ["": 17]>
net (float[n,16,64] x) => (float[n,16,64] y) {
  q0 = MatMul(x, wq) q1 = Add(q0, b) q2 = Reshape(q1, split) q = Transpose <perm = [0, 2, 1, 3]> (q2)
  k0 = MatMul(x, wk) k1 = Add(k0, b) k2 = Reshape(k1, split) k = Transpose <perm = [0, 2, 3, 1]> (k2)
  v0 = MatMul(x, wv) v1 = Add(v0, b) v2 = Reshape(v1, split) v = Transpose <perm = [0, 2, 1, 3]> (v2)
  a = MatMul(q, k) s = Mul(a, scale) p = Softmax <axis = -1> (s) o = MatMul(p, v)
  t = Transpose <perm = [0, 2, 1, 3]> (o) j = Reshape(t, join)
  m = MatMul(j, wo) d = Add(m, b) y = Softmax <axis = -1> (d)
}
"""
DENSE = """
<ir_version: 8, opset_import: ["": 17]>
net (float[n,64] x) => (float[n,64] y) { p = MatMul(x, w) a = Add(p, b) y = Add(a, x) }
"""
# Its first kernel is LAYER's, which nvcc compiles once.
PLAIN = DENSE.replace("a = Add(p, b) y = Add(a, x)", "y = Add(p, b)").replace("[n,64] y", "[n,128] y")
QUANTIZED = """
<ir_version: 10, opset_import: ["": 21]>
net (float[n,64] x) => (float[n,32] y) {
  q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear <axis = 1> (w, t, u)
  p = MatMul(d, v) a = Add(p, b) r = Relu(a) c = QuantizeLinear(r, s, z) y = DequantizeLinear(c, s, z)
}
"""
RECORDED = """
import ctypes, json, sys
import numpy as np
import packager
recorder = ctypes.CDLL("libcuda.so.1")
recorder.recorder_take.restype = recorder.recorder_live.restype = ctypes.c_char_p
logs = {}
with packager.load(sys.argv[1]) as bundle, bundle.session(graph="off") as session:
    for n in (1, 5, 5):
        recorder.recorder_take()
        session.run([np.zeros((n, *json.loads(sys.argv[2])), np.float32)])
        logs.setdefault(str(n), []).append(recorder.recorder_take().decode().splitlines())
logs["left"] = recorder.recorder_live().decode()
print(json.dumps(logs))
"""


def save(text: str, path: Path, **shapes: tuple[int, ...]) -> Path:
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(text)
    arrays = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    if "split" in text:
        arrays |= {"split": np.array([0, 16, 4, 16]), "join": np.array([0, 16, 64]), "scale": np.float32([0.25])}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items())
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Attention with its projections; for sm_80."""
    folder = tmp_path_factory.mktemp("layer")
    shapes = {"wq": (64, 64), "wk": (64, 64), "wv": (64, 64), "wo": (64, 64), "b": (64,)}
    model = save(LAYER, folder / "layer.onnx", **shapes)
    targets = ["cuda -arch=sm_80", "cutlass -candidates=1"]
    return packager.build(model, folder / "layer.so", targets=targets, precision="fp16", dims={"n": (1, 8)}, golden=0)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One product with a residual, for two architectures: two kernels."""
    folder = tmp_path_factory.mktemp("dense")
    model = save(DENSE, folder / "dense.onnx", w=(64, 64), b=(64,))
    targets = ["cuda -arch=sm_80,sm_90a", "cutlass -candidates=1"]
    return packager.build(model, folder / "dense.so", targets=targets, precision="fp16", dims={"n": (1, 8)})


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One product with two candidates."""
    folder = tmp_path_factory.mktemp("several")
    model = save(PLAIN, folder / "plain.onnx", w=(64, 128), b=(128,))
    targets = ["cuda -arch=sm_80", "cutlass -candidates=2"]
    return packager.build(model, folder / "plain.so", targets=targets, precision="fp16", dims={"n": (1, 8)})


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A product of int8 that is rounded to int8 again."""
    folder, rng = tmp_path_factory.mktemp("quantized"), np.random.default_rng(0)
    model = onnx.parser.parse_model(QUANTIZED)
    arrays = {"s": np.float32(0.1), "z": np.int8(0), "w": rng.integers(-127, 127, (64, 32)).astype(np.int8)}
    arrays |= {"t": rng.random(32, np.float32), "u": np.zeros(32, np.int8), "b": rng.random(32, np.float32)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items())
    onnx.save(model, folder / "quantized.onnx")
    targets = ["cuda -arch=sm_80", "cutlass -candidates=1"]
    return packager.build(folder / "quantized.onnx", folder / "quantized.so", targets=targets, dims={"n": (1, 8)})


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the recording stand-in."""
    folder = tmp_path_factory.mktemp("recorder")
    flags = ["-D_GNU_SOURCE", "-std=c11", "-O1", "-fPIC", "-shared", "-fvisibility=hidden"]
    source = HERE / "recorder" / "libcuda.c"
    subprocess.run(["gcc", *flags, source, "-o", folder / "libcuda.so.1", "-lpthread"], check=True)
    return folder


def run_recorded(driver: Path, arch: int, script: str, *arguments: str) -> Any:
    """Run a script with the stand-in's GPU of this architecture; return the JSON that it prints."""
    own = {"LD_LIBRARY_PATH": str(driver), "PYTHONPATH": str(ROOT), "RECORDER_ARCH": str(arch), "RECORDER_MAPS": "1"}
    argv = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(argv, env=os.environ | own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def record(bundle: Path, shape: list[int], driver: Path, arch: int) -> dict[str, list[list[str]]]:
    """Return the launches of runs with 1, 5 and 5 rows on a GPU of this architecture."""
    logs = run_recorded(driver, arch, RECORDED, str(bundle), json.dumps(shape))
    assert logs.pop("left") == ""
    return {n: [[line for line in log if line.startswith("launch")] for log in runs] for n, runs in logs.items()}


def composites(manifest: Manifest) -> list[str]:
    return sorted(p.composite or "" for kind, p in manifest.primitives() if kind == "cutlass")


def test_what_is_in_the_bundle(layer: Path) -> None:
    manifest = packager.inspect(layer).manifest
    assert composites(manifest) == ["cutlass.attention", "cutlass.attention", "cutlass.dense"]
    assert manifest.golden is not None
    assert "BSD-3-Clause" in {found.spdx for found in manifest.licenses}
    assert not [finding.check for finding in verify(layer).findings if not finding.check.startswith("machine")]


@pytest.mark.parametrize("name", ["layer", "dense"])
def test_it_needs_libc_alone_and_runs_nothing_when_loaded(name: str, request: pytest.FixtureRequest) -> None:
    elf = read_elf(request.getfixturevalue(name))
    assert set(elf.needed) <= {"libc.so.6", "ld-linux-x86-64.so.2"}
    assert not [name for name in elf.sections if name in (".init_array", ".ctors", ".fini_array")]


def test_the_driver_is_needed_to_create_a_session_only(dense: Path) -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
        pytest.skip("this machine has a driver")
    except OSError:
        pass
    with packager.load(dense) as bundle, pytest.raises(PackagerError, match=r"libcuda\.so\.1"):
        bundle.session()


def test_launches_of_a_layer(layer: Path, driver: Path) -> None:
    logs = record(layer, [16, 64], driver, 80)
    names = [line.split()[1] for line in logs["1"][0]]
    kernels = [name for name in names if name.startswith("pk_")]
    assert [name.split("_")[1] for name in kernels] == ["gemm", "attention", "gemm"]
    assert logs["5"][0] == logs["5"][1], "the same launches for the same sizes"
    grids = {n: [re.search(r"grid=(\S+)", line)[1] for line in runs[0] if " pk_" in line] for n, runs in logs.items()}  # type: ignore[index]
    assert grids["1"] != grids["5"]


def test_a_quantized_product_rounds_its_own_result(quantized: Path, driver: Path) -> None:
    logs = record(quantized, [64], driver, 80)
    names = [line.split()[1] for line in logs["5"][0]]
    assert [name for name in names if name.startswith("pk_")] == [
        "pk_gemm_sm80_s8_s8_scaled_64x64x64_w32x32_s4_a16x16_none"
    ]


@pytest.mark.parametrize(("arch", "family"), [(80, "sm80"), (90, "sm90")])
def test_each_gpu_has_its_kernel(dense: Path, driver: Path, arch: int, family: str) -> None:
    logs = record(dense, [64], driver, arch)
    kernels = [line.split()[1] for line in logs["5"][0] if line.split()[1].startswith("pk_gemm")]
    assert [name.split("_")[2] for name in kernels] == [family]
    assert packager.inspect(dense).manifest.requirements.cuda is not None


def test_a_session_launches_the_candidate_that_it_has_chosen(several: Path, driver: Path, tmp_path: Path) -> None:
    """As it is sealed, and bound to the other one by records, which a build takes too."""
    (entry,) = packager.inspect(several).manifest.selection
    assert entry.problem == "gemm float16->float16 nt 8x128x64 batch 1 aligned 8 none"
    assert len(entry.candidates) == 2
    first, second = entry.candidates
    kernels = {line.split()[1] for line in record(several, [64], driver, 80)["5"][0]}
    assert kernels & {first, second} == {first}
    timings = (Timing(second, 0.0, 0.1), Timing(first, 1.0, 0.1))
    found = Record(entry.problem, entry.revision, "a GPU", timings)
    records = tmp_path / "tuning.json"
    records.write_bytes(make_records([found]).to_json())
    bound = tmp_path / "bound.so"
    with bound.open("w+b") as stream:
        write_selected(several, stream, by_records(packager.inspect(several).manifest, read_records([records])))
    kernels = {line.split()[1] for line in record(bound, [64], driver, 80)["5"][0]}
    assert kernels & {first, second} == {second}
    tuned = packager.build(
        several.with_suffix(".onnx"),
        tmp_path / "tuned.so",
        targets=["cuda -arch=sm_80", "cutlass"],
        precision="fp16",
        dims={"n": (1, 8)},
        tuning=[records],
    )
    (entry,) = packager.inspect(tuned).manifest.selection
    assert entry.candidates == (second,)
    kernels = {line.split()[1] for line in record(tuned, [64], driver, 80)["5"][0]}
    assert kernels & {first, second} == {second}


TUNED = """
import ctypes, json, sys
from packager.deploy.measure.tune import tune
recorder = ctypes.CDLL("libcuda.so.1")
recorder.recorder_take.restype = recorder.recorder_live.restype = ctypes.c_char_p
result = tune(sys.argv[1], rounds=3)
log = recorder.recorder_take().decode().splitlines()
print(json.dumps([result.to_json(), log, recorder.recorder_live().decode()]))
"""


def test_candidates_are_measured_in_graphs_of_their_own(several: Path, driver: Path) -> None:
    """The stand-in's GPU takes as long for all of them, so that nothing is changed."""
    result, log, left = run_recorded(driver, 80, TUNED, str(several))
    assert left == ""
    (entry,) = packager.inspect(several).manifest.selection
    (function,) = result["functions"]
    assert function["record"]["device"] == result["device"] == "Recorder 0"
    assert [timing["candidate"] for timing in function["record"]["timings"]] == list(entry.candidates)
    assert {timing["slower_us"] for timing in function["record"]["timings"]} == {0.0}
    captured = [line.split()[1] for line in log if line.startswith("launch pk_gemm")]
    assert set(captured) == set(entry.candidates)
    assert any("graph" in line for line in log)


def test_equal_builds_are_equal(layer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are taken from the cache, the bundle that it has is not."""
    ours, unfinished = Path(os.environ["XDG_CACHE_HOME"], "packager"), shutil.ignore_patterns("packager-*")
    shutil.copytree(ours / "object", tmp_path / "packager" / "object", ignore=unfinished)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    again = packager.build(
        layer.with_suffix(".onnx"),
        tmp_path / "layer.so",
        targets=["cuda -arch=sm_80", "cutlass -candidates=1"],
        precision="fp16",
        dims={"n": (1, 8)},
        golden=0,
        jobs=1,
    )
    assert again.read_bytes() == layer.read_bytes()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("cutlass -operators=dense,pool", "operators"),
        ("cutlass -sm=90", "no attribute 'sm'"),
    ],
)
def test_wrong_targets(tmp_path: Path, target: str, message: str) -> None:
    model = save(DENSE, tmp_path / "dense.onnx", w=(64, 64), b=(64,))
    with pytest.raises(UsageError, match=message):
        packager.build(model, tmp_path / "out.so", targets=["cuda -arch=sm_80", target])
    with pytest.raises(UsageError, match="no base Target for that device is given"):
        packager.build(model, tmp_path / "out.so", targets=["cutlass"])
