"""Partitions of models with symbolic dims and with buckets: their profiles, and what is built of them, with no GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from stages import placed_file

import packager
from packager.backends.tensorrt.options import TensorrtOptions
from packager.backends.tensorrt.subgraph import Subgraph, write_subgraph
from packager.bundle.gpu.engine_graphs import read_graphs
from packager.bundle.gpu.engine_job import Builder, build_engine, find_builder
from packager.bundle.gpu.engines import read_engines
from packager.deploy.finalize.finalizer import finalize
from packager.errors import UsageError
from packager.graph.dataflow import bindings_of, operator_of
from packager.ir.primitives import Partition

pytest.importorskip("tensorrt_rtx_bindings")
pytestmark = pytest.mark.slow
TARGETS = ("cuda -arch=sm_86", "tensorrt -library=tensorrt_rtx -min_partition_flops=0 -engines=pending")
HEADS = """
<ir_version: 8, opset_import: ["": 17]>
heads (float[n,seq,32] x) => (float[n,seq,32] y) {
  q = MatMul(x, wq) q3 = Add(q, b) s = Shape(x) n = Gather(s, zero) m = Gather(s, one)
  h0 = Unsqueeze(n, axis) h1 = Unsqueeze(m, axis) split = Concat<axis=0>(h0, h1, four, eight)
  back = Concat<axis=0>(h0, h1, all)
  q4 = Reshape(q3, split) qt = Transpose<perm=[0,2,1,3]>(q4) kt = Transpose<perm=[0,2,3,1]>(q4)
  p = MatMul(qt, kt) a = Softmax<axis=-1>(p) v = MatMul(a, qt) vt = Transpose<perm=[0,2,1,3]>(v) r = Reshape(vt, back)
  y = MatMul(r, wo)
}
"""
JOINED = """
<ir_version: 8, opset_import: ["": 17]>
joined (float[n,8] x, float[m,8] past) => (float[t,8] y) { c = Concat<axis=0>(past, x) y = MatMul(c, w) }
"""


def constants(**shapes: tuple[int, ...]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {name: (rng.standard_normal(shape) / 4).astype(np.float32) for name, shape in shapes.items()}


CONSTANTS: dict[str, dict[str, Any]] = {
    HEADS: constants(wq=(32, 32), wo=(32, 32), b=(32,))
    | {"zero": np.int64(0), "one": np.int64(1), "axis": np.int64([0])}
    | {"four": np.int64([4]), "eight": np.int64([8]), "all": np.int64([32])},
    JOINED: constants(w=(8, 8)),
}


def save(text: str, path: Path) -> Path:
    model = onnx.parser.parse_model(text)
    arrays = CONSTANTS[text].items()
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in arrays)
    onnx.save(model, path)
    return path


def partitions(path: Path, leave: str = "", **options: Any) -> tuple[list[Partition], list[str]]:
    """Return the partitions of a model, and the operators that are in none."""
    base, target = TARGETS
    model = placed_file(path, targets=(base, f"{target} -leave={leave}" if leave else target), **options)
    placed = [one.partition for one in model.partitions.values() if one.backend == "tensorrt"]
    left = [operator_of(binding.value) for binding in bindings_of(model.module["main"])]
    return placed, [name for name in left if name not in ("", "call_dps_packed")]


@pytest.fixture(scope="module")
def builder() -> Builder:
    found = find_builder(Path(sys.executable), "tensorrt_rtx")
    assert isinstance(found, Builder), found
    return found


def built(builder: Builder, graph: Subgraph, folder: Path) -> Any:
    return build_engine(
        builder,
        graph.model,
        library="tensorrt_rtx",
        settings=graph.graph.settings,
        workdir=folder,
        archs=[86],
    )


def test_a_reshape_whose_extents_others_know_joins_them(builder: Builder, tmp_path: Path) -> None:
    """Rows of all sequences become sequences again: alone it could not say how many."""
    placed, left = partitions(save(HEADS, tmp_path / "m.onnx"), dims={"n": (1, 4), "seq": (2, 16)})
    assert (len(placed), left) == (1, [])
    assert sorted(placed[0].bounds) == [(1, 4), (2, 16)]
    graph = write_subgraph(placed[0], TensorrtOptions(optimize_for="middle"))
    assert graph.graph.settings["profile"] == {"input_0": [[1, 2, 32], [2, 6, 32], [4, 16, 32]]}
    engine = built(builder, graph, tmp_path)
    assert [shape for _, _, shape in engine.tensors] == [(-1, -1, 32), (-1, -1, 32)]
    (ours, source) = (onnxruntime.InferenceSession(model) for model in (graph.model, str(tmp_path / "m.onnx")))
    for shape in ((1, 2, 32), (3, 7, 32), (4, 16, 32)):
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(ours.run(None, {"input_0": x})[0], source.run(None, {"x": x})[0], atol=1e-5)


def test_extents_that_are_sums_of_dims(builder: Builder, tmp_path: Path) -> None:
    placed, _ = partitions(save(JOINED, tmp_path / "m.onnx"), dims={"n": (1, 4), "m": (2, 16)})
    (partition,) = placed
    assert partition.bounds == ((2, 16), (1, 4))
    graph = write_subgraph(partition, TensorrtOptions())
    assert graph.graph.settings["profile"] == {
        "input_0": [[2, 8], [16, 8], [16, 8]],
        "input_1": [[1, 8], [4, 8], [4, 8]],
    }
    assert built(builder, graph, tmp_path).data


@pytest.mark.parametrize("optimum", ["largest", "smallest"])
def test_the_sizes_that_an_engine_is_fastest_for_are_part_of_its_key(optimum: str, tmp_path: Path) -> None:
    (partition,), _ = partitions(save(HEADS, tmp_path / "m.onnx"), dims={"n": (1, 4), "seq": (2, 16)})
    one, other = (write_subgraph(partition, TensorrtOptions(optimize_for=way)) for way in (optimum, "middle"))
    assert one.graph.key != other.graph.key
    assert one.graph.settings["profile"]["input_0"][1] == ([4, 16, 32] if optimum == "largest" else [1, 2, 32])


def test_buckets_have_engines_of_their_own(builder: Builder, tmp_path: Path) -> None:
    """With fixed extents in each; the other dim is symbolic in both."""
    dims = {"n": (1, 4), "seq": packager.Buckets(8, 16)}
    placed, _ = partitions(save(HEADS, tmp_path / "m.onnx"), dims=dims)
    graphs = [write_subgraph(partition, TensorrtOptions()) for partition in placed]
    assert [graph.graph.settings["profile"]["input_0"] for graph in graphs] == [
        [[1, 8, 32], [4, 8, 32], [4, 8, 32]],
        [[1, 16, 32], [4, 16, 32], [4, 16, 32]],
    ]
    assert all(built(builder, graph, tmp_path).data for graph in graphs)


def test_a_bundle_with_dims_and_buckets_is_finalized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    dims = {"n": (1, 4), "seq": packager.Buckets(8, 16)}
    bundle = packager.build(save(HEADS, tmp_path / "m.onnx"), tmp_path / "m.so", targets=TARGETS, dims=dims, golden=0)
    assert {record.state for record in read_engines(bundle)} == {"pending"}
    profiles = [graph.settings["profile"] for graph in read_graphs(packager.inspect(bundle)).values()]
    assert len(profiles) == 2
    finalize(bundle, tmp_path / "out.so", use="engines")
    assert [record.state for record in read_engines(tmp_path / "out.so")] == ["appended"] * 2
    assert all(choice.chosen == 0 for choice in packager.inspect(tmp_path / "out.so").manifest.choices)
    checks = {check.name: check.status for check in packager.verify(tmp_path / "out.so").checks}
    assert (checks["integrity"], checks["elf"], checks["manifest"]) == ("passed",) * 3


def test_what_is_built_is_used_where_another_engine_is_pending(tmp_path: Path) -> None:
    """Each bucket is a choice of its own: the first has its engine, the second keeps the fallback."""
    dims = {"n": (1, 4), "seq": packager.Buckets(8, 16)}
    bundle = packager.build(save(HEADS, tmp_path / "m.onnx"), tmp_path / "m.so", targets=TARGETS, dims=dims, golden=0)
    python, once = tmp_path / "python", tmp_path / "once"  # builds one engine
    fails = (
        f'case "$3" in *.job) if [ -e {once} ]; then echo "matmul#1 has no kernel" >&2; exit 1; fi; touch {once};; esac'
    )
    python.write_text(f'#!/bin/sh\n{fails}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    result = finalize(bundle, tmp_path / "out.so", use="engines", python=python, cache=False)
    assert [record.state for record in result.records] == ["appended", "pending"]
    assert [one.refused.rpartition(": ")[2] for one in result.outcomes] == ["", "matmul#1 has no kernel"]
    choices = packager.inspect(tmp_path / "out.so").manifest.choices
    assert sorted(choice.chosen for choice in choices) == [0, 1]
    again = finalize(tmp_path / "out.so", tmp_path / "again.so", use="engines", cache=False)
    assert [record.state for record in again.records] == ["appended"] * 2


def test_integers_of_64_bits_where_they_are_asked_for(builder: Builder, tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["": 17]>
    words (int64[n,seq] ids) => (float[n,seq,8] y, float[9,8] z) {
      e = Gather(table, ids) y = MatMul(e, w) one = Add(ids, ids) z = ScatterND<reduction="add">(table, place, row)
    }
    """
    CONSTANTS[text] = constants(table=(9, 8), w=(8, 8), row=(1, 8)) | {"place": np.int64([[2]])}
    dims: Any = {"n": (1, 4), "seq": (1, 16)}
    placed, _ = partitions(save(text, tmp_path / "m.onnx"), dims=dims)
    assert [composite.ops for partition in placed for composite in partition.composites] == [("matmul",)]
    base, target = TARGETS
    model = placed_file(tmp_path / "m.onnx", targets=(base, f"{target} -int64=1"), dims=dims)
    (placed_one,) = [one.partition for one in model.partitions.values()]
    assert [composite.ops for composite in placed_one.composites] == [("take",), ("matmul",)]
    graph = write_subgraph(placed_one, TensorrtOptions(int64=True))
    assert [one.dtype for one in graph.inputs] == ["int64"]
    assert built(builder, graph, tmp_path).tensors[0][1:] == ("int64", (-1, -1))


def test_operators_that_are_left(tmp_path: Path) -> None:
    placed, left = partitions(save(JOINED, tmp_path / "m.onnx"), dims={"n": (1, 4), "m": (2, 16)}, leave="concat")
    assert [composite.ops for partition in placed for composite in partition.composites] == [("matmul",)]
    assert "concat" in left
    with pytest.raises(UsageError, match="leave: there is no operator 'conv'"):
        partitions(tmp_path / "m.onnx", dims={"n": (1, 4), "m": (2, 16)}, leave="conv")


@pytest.mark.parametrize(
    "name", ["bert.torchscript", "llama_past.torchscript", "resnet_sized.torchscript", "t5.dynamo"]
)
def test_models_that_torch_exports(name: str, builder: Builder, tmp_path: Path) -> None:
    """Of most operators one engine is made, whatever dims there are."""
    for module in ("torch", "transformers"):
        pytest.importorskip(module)
    from tests.corpus.files import CASES

    CASES[name].make(tmp_path / "source.onnx")
    placed, _ = partitions(tmp_path / "source.onnx", dims=dict(CASES[name].dims))
    largest = max(placed, key=lambda partition: len(partition.composites))
    assert 2 * len(largest.composites) > sum(len(partition.composites) for partition in placed)
    for partition in placed:
        graph = write_subgraph(partition, TensorrtOptions())
        assert "profile" in graph.graph.settings
        assert built(builder, graph, tmp_path).data
