"""`packager inspect --graph`: files for Graphviz and Netron."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from sealing import WEIGHT, build_bundle
from typer.testing import CliRunner

from packager.bundle.graph.call_graph import CallGraph, GraphCall, GraphTensor, RunGraph
from packager.bundle.manifest import Manifest, TensorSpec
from packager.cli.main import app
from packager.errors import UsageError

TENSORS = (
    GraphTensor("input", 0, 32, "float32", ("n", 2)),
    GraphTensor("constant", 0, 64, "float32", (16,)),
    GraphTensor("arena", 0, 32, "float32", ("n", 2)),
    GraphTensor("output", 0, 32, "float32", ("n", 2)),
)
# The second call updates what the first has written.
CALLS = (
    GraphCall("pk_scale", ("Mul_0",), (0, 1), (2,), {}),
    GraphCall("pk_scale", ("Mul_1",), (2, 1), (2,), {}),
    GraphCall("copy", (), (2,), (3,), {}),
)
RUN = RunGraph("scale", {}, TENSORS, CALLS)


def export(bundle: Path, name: str) -> Path:
    path = bundle.parent / name
    result = CliRunner().invoke(app, ["inspect", str(bundle), "--graph", str(path)])
    if result.exception is not None:
        raise result.exception
    return path


def test_onnx(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    bundle = build_bundle(tmp_path / "scale.so", graph=CallGraph(1, (RUN,)).to_json())
    model = onnx.load(export(bundle, "graph.onnx"))
    onnx.checker.check_model(model)
    graph = model.graph
    assert [(node.op_type, node.domain, list(node.input), list(node.output)) for node in graph.node] == [
        ("multiply", "packager.llvm", ["x", "scale"], ["arena.2"]),
        ("multiply", "packager.llvm", ["arena.2", "scale"], ["arena.2.1"]),
        ("copy", "packager", ["arena.2.1"], ["y"]),
    ]
    (weight,) = graph.initializer
    assert (onnx.numpy_helper.to_array(weight) == WEIGHT).all()  # read from the bundle
    (x,) = graph.input
    assert (x.name, [d.dim_param or d.dim_value for d in x.type.tensor_type.shape.dim]) == ("x", ["n", 2])
    assert [output.name for output in graph.output] == ["y"]
    about = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in graph.node[0].attribute}
    assert about == {"symbol": b"pk_scale", "nodes": [b"Mul_0"], "flops": 8, "bytes_read": 96, "bytes_written": 32}


def test_onnx_elsewhere_has_weights_as_inputs(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    bundle = build_bundle(tmp_path / "scale.so", graph=CallGraph(1, (RUN,)).to_json())
    (tmp_path / "other").mkdir()
    model = onnx.load(export(bundle, "other/graph.onnx"))
    onnx.checker.check_model(model)
    assert [value.name for value in model.graph.input] == ["x", "scale"]
    assert not model.graph.initializer


def test_onnx_of_several_runs_and_of_archives(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    runs = tuple(dataclasses.replace(RUN, sizes={"n": size}) for size in (1, 2))
    bundle = build_bundle(tmp_path / "libscale.a", graph=CallGraph(1, runs).to_json())
    model = onnx.load(export(bundle, "graph.onnx"))
    onnx.checker.check_model(model)
    assert [value.name for value in model.graph.input] == [
        "scale[n=1]/x", "scale[n=1]/scale", "scale[n=2]/x", "scale[n=2]/scale",
    ]  # fmt: skip
    assert not model.graph.initializer


def test_dot(tmp_path: Path) -> None:
    bundle = build_bundle(tmp_path / "scale.so", graph=CallGraph(1, (RUN,)).to_json())
    text = export(bundle, "graph.dot").read_text()
    assert re.findall(r"^ +(\w+ -> \w+) ", text, flags=re.MULTILINE) == [
        "r0i0 -> r0c0", "r0c0 -> r0c1", "r0c1 -> r0c2", "r0c2 -> r0o0",
    ]  # fmt: skip
    assert export(bundle, "graph.gv").read_text() == text


def test_names_stay_inside_their_quotes(tmp_path: Path) -> None:
    def patch(manifest: Manifest) -> Manifest:
        return dataclasses.replace(manifest, inputs=(TensorSpec('x"]; evil [label="\\', "float32", ("n", 2)),))

    bundle = build_bundle(tmp_path / "scale.so", graph=CallGraph(1, (RUN,)).to_json(), patch=patch)
    text = export(bundle, "graph.dot").read_text()
    plain = re.sub(r'"(\\.|[^"\\])*"', '""', text)
    assert '"' not in plain.replace('""', "")
    assert "evil" not in plain


def test_json(tmp_path: Path) -> None:
    graph = CallGraph(1, (RUN,))
    bundle = build_bundle(tmp_path / "scale.so", graph=graph.to_json())
    assert json.loads(export(bundle, "graph.json").read_text()) == json.loads(graph.to_json())


def test_refusals(tmp_path: Path) -> None:
    bundle = build_bundle(tmp_path / "scale.so")
    with pytest.raises(UsageError, match="does not say what its calls are"):
        export(bundle, "graph.dot")
    with pytest.raises(UsageError, match="no format has this name"):
        export(bundle, "graph.png")


def test_a_model_is_not_overwritten(tmp_path: Path) -> None:
    bundle = build_bundle(tmp_path / "scale.so", graph=CallGraph(1, (RUN,)).to_json())
    (tmp_path / "scale.onnx").write_bytes(b"a model")
    with pytest.raises(UsageError, match="may be a model"):
        export(bundle, "scale.onnx")
    assert (tmp_path / "scale.onnx").read_bytes() == b"a model"
