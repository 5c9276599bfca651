"""States: inputs that a session keeps, against onnxruntime, which is given the last run's outputs each time."""

from __future__ import annotations

import ctypes
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from command_line import Cli
from graphs import assert_same, graph, normal, reference, save

import packager
from packager.deploy.load.abi import BundleTable
from packager.errors import RunError, UsageError
from packager.ir.model import ImportedModel, State
from packager.pipeline import build as pipeline
from packager.pipeline.request import Request

Arrays = dict[str, np.ndarray]
LLVM = ("llvm",)
BOTH = ("llvm", "ccompiler")

# One step of attention with a cache of 16 positions; the new key goes to position `at`.
ATTEND = """kt = Transpose<perm=[0,1,3,2]>(keys_out)  s = MatMul(q, kt)  p = Softmax<axis=-1>(s)
            y = MatMul(p, keys_out) }"""
HEAD = """decode (float[1,2,1,4] k, int64[1] at, float[1,2,16,4] keys, float[1,2,1,4] q)
          => (float[1,2,1,4] y, float[1,2,16,4] keys_out) {"""
UPDATES = {
    "elements": "index = Expand(at, sizes)  keys_out = ScatterElements<axis=2>(keys, index, k)",
    "where": "m = Equal(range, at)  c = Unsqueeze(m, last)  keys_out = Where(c, k, keys)",
}
CACHE_BYTES = 2 * 16 * 4 * 4


def decode(update: str) -> onnx.ModelProto:
    weights = {
        "sizes": np.array([1, 2, 1, 4]),
        "range": np.arange(16),
        "last": np.array([1]),
    }
    text = f"{HEAD} {UPDATES[update]} {ATTEND}"
    return graph(text, {name: array for name, array in weights.items() if f"{name})" in text or f"({name}," in text})


def steps_of(model: onnx.ModelProto, count: int, states: Mapping[str, str]) -> list[Arrays]:
    """Return inputs for some runs, the states' aside; an input of one integer counts the runs."""
    rng = np.random.default_rng(3)
    found = []
    for step in range(count):
        arrays = {}
        for value in model.graph.input:
            if value.name in states:
                continue
            tensor = value.type.tensor_type
            shape = [dim.dim_value for dim in tensor.shape.dim]
            counts = tensor.elem_type == onnx.TensorProto.INT64
            arrays[value.name] = np.full(shape, step) if counts else rng.standard_normal(shape).astype(np.float32)
        found.append(arrays)
    return found


def follow(model: onnx.ModelProto, states: Mapping[str, str], steps: Sequence[Arrays]) -> list[tuple[Arrays, Arrays]]:
    """Return the outputs of each run, and the states after it, as onnxruntime has them."""
    session = reference(model)
    names = [output.name for output in session.get_outputs()]
    inputs = {value.name: value.type.tensor_type for value in model.graph.input}
    kept = {
        name: np.zeros(
            [dim.dim_value for dim in inputs[name].shape.dim],
            onnx.helper.tensor_dtype_to_np_dtype(inputs[name].elem_type),
        )
        for name in states
    }
    found = []
    for arrays in steps:
        results = dict(zip(names, session.run(names, {**arrays, **kept}), strict=True))
        kept = {name: results[output] for name, output in states.items()}
        found.append(({name: array for name, array in results.items() if name not in states.values()}, kept))
    return found


def build(model: onnx.ModelProto, folder: Path, states: Mapping[str, str], **options: Any) -> Path:
    path = save(model, folder / "model.onnx")
    return packager.build(
        path, folder / "model.so", states=states, keep_workdir=folder / "work", **{"targets": LLVM, **options}
    )


def plan_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "work" / "4-plan.json").read_text()))


def copies_of(folder: Path) -> list[tuple[str, str, int]]:
    """Return from where to where the plan copies, and how many bytes."""
    return [
        (step["source"]["space"], step["destination"]["space"], step["nbytes"])
        for step in plan_of(folder)["steps"]
        if "source" in step
    ]


def check(
    model: onnx.ModelProto, folder: Path, states: Mapping[str, str], count: int = 5, **options: Any
) -> packager.Bundle:
    """Build a model with states, compare a few runs with onnxruntime, and return the loaded bundle."""
    bundle = packager.load(build(model, folder, states, **options))
    assert [info.name for info in bundle.states] == list(states)
    steps = steps_of(model, count, states)
    with bundle.session() as session:
        for arrays, (outputs, kept) in zip(steps, follow(model, states, steps), strict=True):
            assert_same(session.run(arrays), outputs)
            assert_same(dict(session.states), kept)
    return bundle


@pytest.mark.slow
@pytest.mark.parametrize("update", UPDATES)
def test_decode_step_is_in_place(update: str, tmp_path: Path) -> None:
    with check(decode(update), tmp_path, {"keys": "keys_out"}, 16):
        assert copies_of(tmp_path) == []
        plan = plan_of(tmp_path)
        (changed,) = [step for step in plan["steps"] if "in_place" in step["symbol"]]
        assert {"space": "state", "value": 0} in changed["operands"]
        (primitive,) = [item for item in plan["primitives"] if item["symbol"] == changed["symbol"]]
        if update == "elements":  # it writes the new key and nothing else
            assert primitive["bytes_written"] == 2 * 4 * 4
            assert primitive["bytes_read"] < CACHE_BYTES


def test_scatter_nd_is_in_place(tmp_path: Path) -> None:
    model = graph(
        """rows (float[1,8] k, int64[1] at, float[16,8] keys) => (float[8] y, float[16,8] keys_out) {
          i = Unsqueeze(at, last)  keys_out = ScatterND(keys, i, k)  y = ReduceSum<keepdims=0>(keys_out, first) }""",
        {"last": np.array([1]), "first": np.array([0])},
    )
    with check(model, tmp_path, {"keys": "keys_out"}):
        assert copies_of(tmp_path) == []


@pytest.mark.parametrize("update", ["elements", "nd"])
def test_scatters_on_gpus_are_in_place(update: str, tmp_path: Path) -> None:
    """There it is two kernels, the first of which copies all of the state."""
    model = (
        decode("elements")
        if update == "elements"
        else graph(
            """rows (float[1,8] k, int64[1,1] at, float[16,8] keys) => (float[16,8] y, float[16,8] keys_out) {
              keys_out = ScatterND(keys, at, k)  y = Add(keys_out, keys_out) }"""
        )
    )
    build(model, tmp_path, {"keys": "keys_out"}, targets=("cuda -arch=sm_80",))
    assert copies_of(tmp_path) == []
    called = [step["symbol"] for step in plan_of(tmp_path)["steps"] if "scatter" in step.get("symbol", "")]
    assert len(called) == 1


@pytest.mark.slow
def test_updates_one_after_the_other(tmp_path: Path) -> None:
    """All layers in one cache: each layer's update is in place of the one before."""
    model = graph(
        """stack (float[1,8] k, float[4,8] keys) => (float[8] y, float[4,8] keys_out) {
          a = ScatterND(keys, first, k)  s = ReduceSum<keepdims=0>(a, axis)  t = Unsqueeze(s, axis)
          b = ScatterND(a, second, t)  y = ReduceSum<keepdims=0>(b, axis)  z = Unsqueeze(y, axis)
          keys_out = ScatterND(b, third, z) }""",
        {"first": np.array([[0]]), "second": np.array([[2]]), "third": np.array([[3]]), "axis": np.array([0])},
    )
    with check(model, tmp_path, {"keys": "keys_out"}):
        assert copies_of(tmp_path) == []


@pytest.mark.slow
def test_next_value_that_reads_the_old_one_elsewhere(tmp_path: Path) -> None:
    """A product reads all of the state for each element: its next value is computed apart, and copied."""
    model = graph(
        """turn (float[4,4] x, float[4,4] s) => (float[4,4] y, float[4,4] n) {
          m = MatMul(s, s)  n = Add(m, x)  y = Neg(s) }"""
    )
    with check(model, tmp_path, {"s": "n"}):
        assert copies_of(tmp_path) == [("arena", "state", 64)]


@pytest.mark.slow
def test_reader_of_the_old_value_after_the_update(tmp_path: Path) -> None:
    model = graph(
        """late (float[4,4] x, float[4,4] s) => (float[4,4] y, float[4,4] n) {
          n = Add(s, x)  c = MatMul(n, n)  y = Mul(c, s) }"""
    )
    with check(model, tmp_path, {"s": "n"}):
        assert copies_of(tmp_path) == [("arena", "state", 64)]


def test_states_that_change_places(tmp_path: Path) -> None:
    model = graph(
        """swap (float[4] x, float[4] a, float[4] b, float[4] c)
          => (float[4] y, float[4] a_out, float[4] b_out, float[4] c_out) {
          a_out = Identity(b)  b_out = Add(a, x)  c_out = Identity(c)  y = Sub(a, b) }"""
    )
    check(model, tmp_path, {"a": "a_out", "b": "b_out", "c": "c_out"}).close()


def test_one_value_for_two_states_and_an_output(tmp_path: Path) -> None:
    model = graph(
        """both (float[4] x, float[4] a, float[4] b) => (float[4] y, float[4] old, float[4] a_out, float[4] b_out) {
          y = Add(a, x)  a_out = Identity(y)  b_out = Identity(y)  old = Identity(b) }"""
    )
    check(model, tmp_path, {"a": "a_out", "b": "b_out"}).close()


def test_next_value_that_is_an_input_or_a_constant(tmp_path: Path) -> None:
    model = graph(
        """last (float[4] x, float[4] a, float[4] b) => (float[4] y, float[4] a_out, float[4] b_out) {
          s = Add(a, b)  y = Neg(s)  a_out = Identity(x)  b_out = Identity(w) }""",
        {"w": normal(4)},
    )
    check(model, tmp_path, {"a": "a_out", "b": "b_out"}).close()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "int64", "bool"])
def test_types(dtype: str, tmp_path: Path) -> None:
    update = "Xor(s, t)" if dtype == "bool" else "Add(s, t)"
    cast = {"float16": 10, "int64": 7, "bool": 9}[dtype]
    model = graph(
        f"""types (float[4] x, {dtype}[4] s) => ({dtype}[4] y, {dtype}[4] n) {{
          t = Cast<to={cast}>(x)  n = {update}  y = Identity(s) }}"""
    )
    check(model, tmp_path, {"s": "n"}).close()


@pytest.mark.slow
def test_with_another_backend(tmp_path: Path) -> None:
    """What ccompiler computes is not known to work in place, and right all the same."""
    with check(decode("where"), tmp_path, {"keys": "keys_out"}, targets=BOTH) as bundle:
        assert {backend.kind for backend in bundle.manifest.backends} == {"llvm", "ccompiler"}
        assert copies_of(tmp_path) == [("arena", "state", CACHE_BYTES)]


@pytest.mark.slow
def test_scatter_beside_another_backend_is_in_place(tmp_path: Path) -> None:
    with check(decode("elements"), tmp_path, {"keys": "keys_out"}, targets=BOTH):
        assert copies_of(tmp_path) == []


@pytest.mark.slow
def test_dims_threads_and_external_weights(tmp_path: Path) -> None:
    """A batch of symbolic size beside a state, large enough for parallel loops."""
    model = graph(
        """big (float[n,256] x, float[512,256] s) => (float[n,256] y, float[512,256] out) {
          p = MatMul(s, w)  t = Tanh(p)  out = Add(t, s)  y = Add(x, b) }""",
        {"w": normal(256, 256), "b": normal(256)},
    )
    path = build(model, tmp_path, {"s": "out"}, dims={"n": (1, 4)}, weights="external")
    session = reference(model)
    rng = np.random.default_rng(0)
    kept = np.ones((512, 256), np.float32)
    with packager.load(path, threads=3) as bundle, bundle.session() as ours:
        ours.states["s"] = kept
        for n in (1, 4, 2):
            x = rng.standard_normal((n, 256)).astype(np.float32)
            y, kept = session.run(["y", "out"], {"x": x, "s": kept})
            np.testing.assert_allclose(ours.run({"x": x})["y"], y, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(ours.states["s"], kept, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_sessions_reset_and_setting(tmp_path: Path) -> None:
    model = graph("sum (float[4] x, float[4] s) => (float[4] y, float[4] n) { n = Add(s, x) y = Neg(n) }")
    bundle = packager.load(build(model, tmp_path, {"s": "n"}))
    ones = {"x": np.ones(4, np.float32)}
    first, second = bundle.session(), bundle.session()
    for _ in range(3):
        first.run(ones)
    second.run(ones)
    assert first.states["s"].tolist() == [3] * 4
    assert second.states["s"].tolist() == [1] * 4
    assert [step.symbol for step in first.profile(ones)]
    assert first.states["s"].tolist() == [4] * 4, "a profile is one run"
    first.reset()
    assert first.run(ones)["y"].tolist() == [-1] * 4
    value = np.arange(8, dtype=np.float32)
    first.states["s"] = value[::2]
    value[:] = 0
    assert first.run(ones)["y"].tolist() == [-1, -3, -5, -7]
    with pytest.raises(RunError, match=r"axis 0 is 3, expected 4"):
        first.states["s"] = np.zeros(3, np.float32)
    with pytest.raises(RunError, match=r"dtype float64, expected float32"):
        first.states["s"] = np.zeros(4)
    with pytest.raises(RunError, match=r"there is no state 't'"):
        _ = first.states["t"]
    assert "t" not in first.states
    assert len(first.states) == 1
    first.close()
    with pytest.raises(UsageError, match="the session is closed"):
        _ = first.states["s"]
    second.close()
    bundle.close()


def test_initial_values_and_their_weights_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frontend says what states begin with; zeros need no constant."""
    ones, zeros = np.full(4, 5, np.float32), np.zeros(4, np.float32)
    import_model = pipeline.import_model
    states = (State("a", "m", ones), State("b", "n", zeros))

    def with_states(request: Request) -> ImportedModel:
        model = import_model(request)
        return replace(model, signature=replace(model.signature, states=states))

    monkeypatch.setattr(pipeline, "import_model", with_states)
    model = graph(
        """begun (float[4] x, float[4] a, float[4] b) => (float[4] y, float[4] m, float[4] n) {
          m = Add(a, x)  n = Mul(b, w)  y = Add(m, n) }""",
        {
            "w": normal(4),
        },
    )
    with packager.load(build(model, tmp_path, {}, weights="external")) as bundle, bundle.session() as session:
        first, second = bundle.manifest.states
        assert (first.initial, second.initial) == ("a.initial", None)
        assert session.states["a"].tolist() == [5] * 4
        assert session.states["b"].tolist() == [0] * 4
        session.run({"x": zeros + 1})
        assert session.states["a"].tolist() == [6] * 4
        session.reset()
        assert session.states["a"].tolist() == [5] * 4


@pytest.mark.slow
def test_manifest_inspect_verify_and_golden(tmp_path: Path, warm_cli: Cli) -> None:
    model = save(decode("elements"), tmp_path / "model.onnx")
    output = tmp_path / "model.so"
    built = warm_cli("build", model, "-o", output, "--state", "keys=keys_out", "-t", "llvm", "--golden", "1")
    assert built.returncode == 0, built.stderr
    with packager.load(output) as bundle:
        (state,) = bundle.manifest.states
        assert (state.name, state.output, state.shape, state.bytes) == ("keys", "keys_out", (1, 2, 16, 4), CACHE_BYTES)
        assert [item.name for item in bundle.inputs] == ["k", "at", "q"]
        assert [item.name for item in bundle.outputs] == ["y"]
    told = warm_cli("inspect", output).stdout
    assert "state   keys  float32  [1, 2, 16, 4]" in told
    verified = warm_cli("verify", output, "--run")
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.slow
def test_static_archive(tmp_path: Path) -> None:
    model = graph("sum (float[4] x, float[4] s) => (float[4] y, float[4] n) { n = Add(s, x) y = Neg(n) }")
    archive = packager.build(
        save(model, tmp_path / "sum.onnx"), tmp_path / "libsum.a", static=True, prefix="sum", states={"s": "n"}
    )
    linked = tmp_path / "linked.so"
    keep = ["-Wl,--whole-archive", str(archive), "-Wl,--no-whole-archive", "-lm", "-lpthread"]
    subprocess.run(["gcc", "-shared", "-o", str(linked), *keep], check=True)
    entry = ctypes.CDLL(str(linked)).sum_bundle_v1
    entry.restype = ctypes.POINTER(BundleTable)
    table = entry().contents
    assert (table.num_states, table.state_bytes) == (1, 64)
    session = ctypes.c_void_p()
    assert table.session_create(None, ctypes.byref(session)) == 0
    assert table.session_reset(session) == 0
    assert table.session_destroy(session) == 0


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ({"t": "n"}, r"--state t=n: the model has no input 't'"),
        ({"s": "m"}, r"--state s=m: the model has no output 'm'"),
        ({"x": "n"}, r"--state x=n: the input is float32\[4\], but the output is float32\[1, 4\]"),
        ({"i": "n"}, r"--state i=n: the input is int64\[1, 4\], but the output is float32\[1, 4\]"),
        ({"s": "n", "r": "n"}, r"output 'n' is the next value of both 's' and 'r'"),
        ({"b": "y"}, r"axis 0 of input 'b' is symbolic \(k\), but a state's shape is static"),
    ],
)
def test_refusals(states: dict[str, str], message: str, tmp_path: Path) -> None:
    text = """f (float[4] x, float[1,4] s, float[1,4] r, int64[1,4] i, float[k] b) => (float[1,4] n, float[k] y) {
      t = Add(s, x)  j = Cast<to=1>(i)  u = Add(t, j)  n = Add(u, r)  y = Neg(b) }"""
    path = save(graph(text), tmp_path / "model.onnx")
    with pytest.raises(UsageError, match=message):
        packager.build(path, tmp_path / "model.so", states=states, dims={"k": (1, 4)}, targets=LLVM)


@pytest.mark.slow
@pytest.mark.parametrize("option", ["s", "=n", "s=", "s=n=m"])
def test_option_that_cannot_be_read(option: str, tmp_path: Path, warm_cli: Cli) -> None:
    path = save(graph("f (float[4] s) => (float[4] n) { n = Neg(s) }"), tmp_path / "model.onnx")
    done = warm_cli("build", path, "--state", option)
    assert done.returncode == 2
    assert f"--state {option!r} cannot be read" in done.stderr
