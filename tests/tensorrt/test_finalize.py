"""Bundles with engines, built by TensorRT for RTX with no GPU: pending, finalized, and what is refused."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import packager
from packager.backends.tensorrt import patterns
from packager.bundle.gpu.engine_graphs import read_constants, read_graphs, with_initializers
from packager.bundle.gpu.engines import read_engines
from packager.deploy.finalize.finalizer import FinalizeResult, finalize
from packager.errors import BundleError, ToolchainError, UsageError
from packager.progress import Event
from packager.targets.target_list import parse_targets

pytestmark = pytest.mark.slow
pytest.importorskip("tensorrt_rtx_bindings")
MODEL = """
<ir_version: 10, opset_import: ["": 21]>
net (float[8,32] x) => (float[8,4] y) {
  a = MatMul(x, w0) b = Add(a, b0) c = Relu(b) d = MatMul(c, w1) e = Add(d, b1) y = Softmax<axis=-1>(e)
}
"""
SHAPES = {"w0": (32, 64), "b0": (64,), "w1": (64, 4), "b1": (4,)}
TARGET = "tensorrt -library=tensorrt_rtx -min_partition_flops=0"


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype(np.float32) / 8 for name, shape in SHAPES.items()}


def build(folder: Path, *targets: str, place: str = "greedy") -> Path:
    model = onnx.parser.parse_model(MODEL)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays().items())
    onnx.save(model, folder / "model.onnx")
    targets = ("cuda -arch=sm_86", *targets)
    return packager.build(folder / "model.onnx", folder / "model.so", targets=targets, golden=0, place=place)


def finalized(bundle: Path, output: Path, **options: Any) -> FinalizeResult:
    return finalize(bundle, output, use="engines", **options)


@pytest.fixture(scope="module")
def pending(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("pending"), f"{TARGET} -engines=pending")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_an_engine_is_built_with_no_gpu(tmp_path: Path) -> None:
    bundle = packager.inspect(build(tmp_path, TARGET))
    (record,) = read_engines(bundle.path)
    assert (record.state, record.library, record.arch) == ("embedded", "tensorrt_rtx", 86)
    (choice,) = bundle.manifest.choices
    assert [way.backends for way in choice.alternatives] == [("tensorrt",), ("cuda",)]
    assert (choice.chosen, choice.fallback) == (0, 1)
    assert bundle.manifest.toolchain["tensorrt_rtx"].startswith("1.7.")
    with pytest.raises(UsageError, match="all engines are built"):
        finalized(bundle.path, tmp_path / "out.so")


def test_a_pending_engine_is_not_used_and_has_a_graph(pending: Path) -> None:
    bundle = packager.inspect(pending)
    (record,) = read_engines(pending)
    assert (record.state, record.bytes) == ("pending", 0)
    (choice,) = bundle.manifest.choices
    assert choice.chosen == choice.fallback == 1
    (graph,) = read_graphs(bundle).values()
    assert (graph.key, set(graph.constants)) == (record.key, set(SHAPES))
    constants = read_constants(bundle, graph.constants)
    for name, array in arrays().items():
        np.testing.assert_array_equal(constants[name], array)
    x = np.random.default_rng(1).standard_normal((8, 32)).astype(np.float32)
    session = onnxruntime.InferenceSession(with_initializers(graph.model, constants))
    (given,) = session.get_inputs()
    (got,) = session.run(None, {given.name: x})
    (want,) = onnxruntime.InferenceSession(pending.with_name("model.onnx")).run(None, {"x": x})
    np.testing.assert_allclose(got, want, rtol=1e-5)
    findings = [one for one in packager.verify(pending).findings if one.check == "manifest.engines"]
    assert [one.severity for one in findings] == ["warning"]


@pytest.mark.usefixtures("cache")
def test_constants_of_a_pending_engine_are_in_the_form_that_its_graph_has(tmp_path: Path) -> None:
    """A convolution's weights are channels last in the bundle, for the fallback, and channels first in the graph."""
    text = """
    <ir_version: 10, opset_import: ["": 21]>
    net (float[1,16,12,12] x) => (float[1,16,12,12] y) { a = Conv<pads=[1,1,1,1]>(x, w, b) c = Relu(a) y = Add(c, x) }
    """
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in {"w": (16, 16, 3, 3), "b": (16,)}.items():
        array = rng.standard_normal(shape).astype(np.float32) / 8
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, tmp_path / "conv.onnx")
    targets = ("cuda -arch=sm_86", f"{TARGET} -engines=pending")
    packager.build(tmp_path / "conv.onnx", tmp_path / "conv.so", targets=targets, golden=0, precision="fp16")
    bundle = packager.inspect(tmp_path / "conv.so")
    (graph,) = read_graphs(bundle).values()
    arrays = graph.initializers(read_constants(bundle, graph.sources))
    whole = with_initializers(graph.model, arrays)
    assert "Transpose" not in {node.op_type for node in onnx.load_from_string(whole).graph.node}
    assert {form.steps for form in graph.forms.values()} == {(("transpose", (0, 3, 1, 2)),)}
    x = rng.standard_normal((1, 16, 12, 12)).astype(np.float32)
    session = onnxruntime.InferenceSession(whole)
    (given,) = session.get_inputs()
    (got,) = session.run(None, {given.name: x.astype(np.float16 if "float16" in given.type else np.float32)})
    (want,) = onnxruntime.InferenceSession(tmp_path / "conv.onnx").run(None, {"x": x})
    np.testing.assert_allclose(got.astype(np.float32), want, atol=1e-2)
    finalized(bundle.path, tmp_path / "out.so")
    assert [record.state for record in read_engines(tmp_path / "out.so")] == ["appended"]


def test_finalize_adds_the_engine_and_leaves_the_bundle(pending: Path, tmp_path: Path, cache: Path) -> None:
    before = hashlib.sha256(pending.read_bytes()).hexdigest()
    result = finalized(pending, tmp_path / "out.so")
    assert hashlib.sha256(pending.read_bytes()).hexdigest() == before
    bundle = packager.inspect(tmp_path / "out.so")
    (record,) = read_engines(bundle.path)
    assert (record.state, record.arch) == ("appended", 86)
    assert bundle.manifest.choices[0].chosen == 0
    assert [one.cached for one in result.outcomes] == [False]
    checks = {check.name: check.status for check in packager.verify(bundle.path).checks}
    assert (checks["integrity"], checks["elf"], checks["manifest"]) == ("passed",) * 3
    again = finalized(bundle.path, tmp_path / "again.so")
    assert [one.cached for one in again.outcomes] == [True]
    assert read_engines(tmp_path / "again.so")[0].sha256 == record.sha256
    assert (tmp_path / "again.so").stat().st_size == bundle.path.stat().st_size
    (facts,) = cache.rglob("facts.json")
    facts.write_text("damaged")
    assert [one.cached for one in finalized(pending, tmp_path / "third.so").outcomes] == [False]


@pytest.mark.usefixtures("cache")
def test_a_damaged_engine_is_found(pending: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.so"
    finalized(pending, output)
    (record,) = read_engines(output)
    with output.open("r+b") as file:
        file.seek(record.offset + record.bytes // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(BundleError, match="damaged"):
        packager.inspect(output)


@pytest.mark.usefixtures("cache")
def test_what_finalize_refuses(pending: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is the bundle itself"):
        finalized(pending, pending)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no module of that name >&2; exit 1\n")
    python.chmod(0o755)
    with pytest.raises(UsageError, match="no module of that name"):
        finalized(pending, tmp_path / "out.so", python=python)
    with pytest.raises(UsageError, match="cannot be run"):
        finalized(pending, tmp_path / "out.so", python=tmp_path / "nothing")
    assert not (tmp_path / "out.so").exists()


@pytest.mark.usefixtures("cache")
def test_an_engine_that_is_refused_leaves_no_copy(pending: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"  # answers what there is, and fails to build
    fails = 'case "$3" in *.job) echo "out of luck" >&2; exit 1;; esac'
    python.write_text(f'#!/bin/sh\n{fails}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with pytest.raises(ToolchainError, match="none of 1 engines") as failure:
        finalized(pending, tmp_path / "out.so", python=python)
    assert "out of luck" in str(failure.value.render())
    assert not (tmp_path / "out.so").exists()


@pytest.mark.usefixtures("cache")
def test_the_command_says_what_it_did(pending: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "packager", "finalize", str(pending), "-o", str(tmp_path / "out.so")]
    done = subprocess.run([*command, "--use", "engines", "--json"], capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    assert [one["state"] for one in said["engines"]] == ["appended"]
    assert said["builder"].startswith("TensorRT for RTX 1.7")
    shown = subprocess.run(
        [sys.executable, "-m", "packager", "inspect", str(tmp_path / "out.so")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "appended" in shown.stdout
    assert re.search(r"  engines +1, \d\.\d MiB, with copies of their weights\n", shown.stdout)


def test_the_targets_attributes_are_checked_together() -> None:
    def refused(*targets: str) -> str:
        with pytest.raises(UsageError) as error:
            parse_targets(list(targets))
        return str(error.value.message)

    assert "has no engines for sm_90a" in refused("cuda -arch=sm_90a", "tensorrt -library=tensorrt_rtx")
    assert "computes in the types" in refused("cuda -arch=sm_86", "tensorrt -library=tensorrt_rtx -precision=fp16")
    assert "optimization_level is 6" in refused("cuda -arch=sm_86", "tensorrt -optimization_level=6")
    assert "no timing cache" in refused("cuda -arch=sm_86", "tensorrt -timing_cache=/nowhere")


def test_what_is_pending_is_in_no_trial(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="tensorrt has pending ones"):
        build(tmp_path, f"{TARGET} -engines=pending", place="trial")


def test_small_partitions_are_left(tmp_path: Path) -> None:
    bundle = packager.inspect(build(tmp_path, "tensorrt -engines=pending -min_partition_flops=1000000000"))
    assert bundle.manifest.choices == ()
    assert read_engines(bundle.path) == ()
    with pytest.raises(UsageError, match="it has no engines"):
        finalized(bundle.path, tmp_path / "out.so")


def test_an_operator_that_cannot_be_built_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two layers around one that TensorRT does not know, two engines are made."""
    monkeypatch.setattr(patterns, "NOT_SEARCHED", patterns.NOT_SEARCHED - {"bitwise_and"})
    text = """
    <ir_version: 10, opset_import: ["": 21]>
    net (float[8,32] x) => (float[8,4] y) {
      a = MatMul(x, w0) b = Add(a, b0) c = Cast<to=6>(b) e = BitwiseAnd(c, mask)
      f = Cast<to=1>(e) d = MatMul(f, w1) y = Add(d, b1)
    }
    """
    model = onnx.parser.parse_model(text)
    constants = arrays() | {"mask": np.full((1,), 15, np.int32)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    onnx.save(model, tmp_path / "model.onnx")
    events: list[Event] = []
    packager.build(
        tmp_path / "model.onnx",
        tmp_path / "m.so",
        targets=("cuda -arch=sm_86", TARGET),
        golden=0,
        cache=False,
        progress=events.append,
    )
    (warning,) = [event.text for event in events if event.warning]
    assert warning.startswith("tensorrt left out bitwise_and of 4 operators: TensorRT for RTX")
    assert "BitwiseAnd" in warning
    assert [record.state for record in read_engines(tmp_path / "m.so")] == ["embedded"] * 2
    choices = packager.inspect(tmp_path / "m.so").manifest.choices
    assert sum(choice.alternatives[choice.chosen].name.count("tensorrt(") for choice in choices) == 2
