"""``packager export`` as a user runs it, and what it keeps of a model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from command_line import Cli, assert_refused
from graphs import graph, normal, save

import packager
from packager.bundle import safetensors
from packager.errors import ModelError, UsageError
from packager.pipeline.export import Export, export


def run(path: Path, **feeds: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def test_it_prints_the_path_and_keeps_names(warm_cli: Cli, models: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    done = warm_cli("export", models / "batched.onnx", "-o", out, "-q")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{out}\n", "")
    written, source = onnx.load(out), onnx.load(models / "batched.onnx")
    assert written.producer_name == "packager"
    assert {tensor.name for tensor in written.graph.initializer} >= {"w", "b"}
    assert [value.name for value in written.graph.input] == ["x"]
    assert [value.name for value in written.graph.output] == ["y"]
    assert written.graph.input[0].type == source.graph.input[0].type
    for rows in (1, 3):
        x = normal(rows, 6)
        np.testing.assert_allclose(run(out, x=x)[0], run(models / "batched.onnx", x=x)[0], rtol=1e-6)


def test_json_says_what_was_written(warm_cli: Cli, models: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    done = warm_cli("export", models / "batched.onnx", "-o", out, "--dim", "n=1:8", "--weights", "external", "--json")
    found = json.loads(done.stdout)
    assert found == {
        "schema_version": 1,
        "model": str(out),
        "weights": str(tmp_path / "out.safetensors"),
        "opset": 17,
        "nodes": found["nodes"],
        "initializers": found["initializers"],
        "dims": {"n": [1, 8]},
    }
    assert found["nodes"] == len(onnx.load(out, load_external_data=False).graph.node)
    assert {prop.key: prop.value for prop in onnx.load(out).metadata_props} == {"packager.dim.n": "1:8"}


def test_bounds_that_the_file_holds_for_are_said(warm_cli: Cli, models: Path, tmp_path: Path) -> None:
    done = warm_cli("export", models / "batched.onnx", "-o", tmp_path / "out.onnx", "--dim", "n=1:8", "-q")
    assert done.stderr == "dim n: the file holds for 1 to 8\n"


def test_weights_outside_are_a_safetensors_file(tmp_path: Path) -> None:
    weights = {"w": normal(64, 32), "b": normal(32)}
    model = graph("m (float[2,64] x) => (float[2,32] y) { y = Gemm(x, w, b) }", weights)
    out = tmp_path / "out.onnx"
    made = export(save(model, tmp_path / "m.onnx"), out, weights="external")
    assert made.weights == tmp_path / "out.safetensors"
    onnx.checker.check_model(str(out), full_check=True)
    np.testing.assert_array_equal(safetensors.decode(made.weights.read_bytes())["w"], weights["w"])
    x = normal(2, 64)
    np.testing.assert_allclose(run(out, x=x)[0], x @ weights["w"] + weights["b"], rtol=1e-4, atol=1e-5)
    # packager reads what it wrote, and replaces it.
    again = export(out, tmp_path / "again.onnx")
    assert again.weights is None
    np.testing.assert_array_equal(run(again.model, x=x)[0], run(out, x=x)[0])
    assert export(tmp_path / "m.onnx", out, weights="external") == made


def test_options_of_a_build(tmp_path: Path) -> None:
    model = graph("m (float[n,4] x) => (float[n,4] y) { y = MatMul(x, w) }", {"w": normal(4, 4)})
    path, other = save(model, tmp_path / "m.onnx"), normal(4, 4, seed=1)
    np.savez(tmp_path / "c.npz", w=other)
    made = export(path, tmp_path / "o.onnx", dims={"n": 2}, name="other", constants=tmp_path / "c.npz")
    assert made.dims == {}
    assert onnx.load(made.model).graph.name == "other"
    x = normal(2, 4)
    np.testing.assert_allclose(run(made.model, x=x)[0], x @ other, rtol=1e-5)
    half = export(path, tmp_path / "h.onnx", precision="fp16")
    casts = [node for node in onnx.load(half.model).graph.node if node.op_type == "Cast"]
    assert onnx.TensorProto.FLOAT16 in [cast.attribute[0].i for cast in casts]
    np.testing.assert_allclose(run(half.model, x=x)[0], x @ model_weight(model), rtol=2e-2, atol=2e-3)


def model_weight(model: onnx.ModelProto) -> np.ndarray:
    return onnx.numpy_helper.to_array(model.graph.initializer[0])


def test_files_of_others_stay(warm_cli: Cli, models: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "theirs.onnx"
    foreign.write_bytes((models / "mlp.onnx").read_bytes())
    done = warm_cli("export", models / "batched.onnx", "-o", foreign)
    assert_refused(done, 2, "exists and is not an ONNX model that packager wrote", hint="give another output")
    assert foreign.read_bytes() == (models / "mlp.onnx").read_bytes()
    (tmp_path / "out.safetensors").write_text("mine")
    done = warm_cli("export", models / "mlp.onnx", "-o", tmp_path / "out.onnx", "--weights", "external")
    assert_refused(done, 2, "out.safetensors exists and is not a weights file")
    assert not (tmp_path / "out.onnx").exists()


def test_its_own_input_stays(models: Path, tmp_path: Path) -> None:
    made = export(models / "mlp.onnx", tmp_path / "a.onnx").model
    before = made.read_bytes()
    with pytest.raises(UsageError, match="is the model that is read"):
        export(made, made)
    assert made.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output": "m.bin"}, "is not that of an ONNX file"),
        ({"output": "none/m.onnx"}, "does not exist"),
        ({"weights": "inside"}, "--weights 'inside' is unknown"),
        ({"dims": {"n": packager.Buckets(1, 2)}}, "a list of sizes would be several graphs"),
        ({"dims": {"m": 2}}, "has no such dim"),
    ],
)
def test_wrong_arguments(models: Path, tmp_path: Path, options: dict[str, object], message: str) -> None:
    given: dict[str, object] = {"output": "m.onnx"} | options
    with pytest.raises(packager.PackagerError, match=message) as caught:
        export(models / "batched.onnx", tmp_path / str(given.pop("output")), **given)  # type: ignore[arg-type]
    assert caught.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_what_onnx_lacks_is_refused_with_its_nodes(warm_cli: Cli, tmp_path: Path) -> None:
    model = graph(
        "m (float[1,2,4,4] x) => (float[1,2,3,3] y) { y = LpPool <kernel_shape = [2, 2]> (x) }",
    )
    done = warm_cli("export", save(model, tmp_path / "m.onnx"), "-o", tmp_path / "out.onnx")
    assert_refused(done, 3, "1 operator cannot be written as ONNX", "lp_pool: y", hint="packager build")
    assert not (tmp_path / "out.onnx").exists()


def test_extents_from_data_are_refused(tmp_path: Path) -> None:
    model = graph("m (float[4] x) => (int64[1,k] y) { y = NonZero(x) }")
    with pytest.raises(ModelError, match="extents are computed from data, by y"):
        export(save(model, tmp_path / "m.onnx"), tmp_path / "out.onnx")


def test_symbolic_shapes_are_computed(tmp_path: Path) -> None:
    """Two extents move in one reshape, and an extent is an expression."""
    text = """m (float[n,s,6] x) => (float[a,b] y, float[c,n,6] z) {
        shape = Shape(x)
        zero = Constant <value = int64[1] {0}> ()
        one = Constant <value = int64[1] {1}> ()
        three = Constant <value = int64[1] {3}> ()
        n = Gather(shape, zero)
        s = Gather(shape, one)
        more = Mul(s, three)
        left = Mul(n, three)
        two = Constant <value = int64[1] {2}> ()
        right = Mul(s, two)
        wanted = Concat <axis = 0> (right, left)
        y = Reshape(x, wanted)
        doubled = Concat <axis = 1> (x, x)
        z = Transpose <perm = [1, 0, 2]> (doubled)
    }"""
    path = save(graph(text), tmp_path / "m.onnx")
    made: Export = export(path, tmp_path / "out.onnx")
    assert set(made.dims) == {"n", "s"}
    for n, s in ((1, 1), (2, 5), (3, 4)):
        x = normal(n, s, 6)
        for want, have in zip(run(path, x=x), run(made.model, x=x), strict=True):
            np.testing.assert_array_equal(have, want)
