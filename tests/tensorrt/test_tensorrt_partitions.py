"""What the tensorrt backend takes of models with fixed dims: TensorRT for RTX builds every partition, with no GPU."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from stages import placed_file

from packager.backends.tensorrt.options import TensorrtOptions
from packager.backends.tensorrt.subgraph import Subgraph, write_subgraph
from packager.bundle.gpu.engine_job import Builder, build_engine, find_builder
from packager.errors import ToolchainError
from packager.graph.dataflow import bindings_of, operator_of
from tests.samples.conftest import import_sample

pytest.importorskip("tensorrt_rtx_bindings")
pytestmark = pytest.mark.slow
TARGETS = ("cuda -arch=sm_90a", "tensorrt -min_partition_flops=0")


@pytest.fixture(scope="module")
def builder() -> Builder:
    found = find_builder(Path(sys.executable), "tensorrt_rtx")
    assert isinstance(found, Builder), found
    return found


def partitions(path: Path, targets: Sequence[str] = TARGETS, **options: object) -> tuple[list[Subgraph], list[str]]:
    """Return the partitions of a model, and the operators that are in none."""
    model = placed_file(path, targets=targets, **options)
    placed = [one.partition for one in model.partitions.values() if one.backend == "tensorrt"]
    left = [operator_of(binding.value) for binding in bindings_of(model.module["main"])]
    left = [name for name in left if name not in ("", "call_dps_packed")]
    return [write_subgraph(one, TensorrtOptions()) for one in placed], left


def bert(
    folder: Path, targets: Sequence[str] = TARGETS, precision: str | None = None
) -> tuple[list[Subgraph], list[str]]:
    """Return the partitions of a small BERT of batch 2."""
    onnx.save(import_sample("bert_cutlass/make_model.py").make_model(2, 64, 4, 16, 0), folder / "bert.onnx")
    return partitions(folder / "bert.onnx", targets, dims={"n": 2}, precision=precision)


def built(builder: Builder, graphs: Sequence[Subgraph], folder: Path) -> list[int]:
    return [
        len(
            build_engine(
                builder,
                graph.model,
                library="tensorrt_rtx",
                settings=graph.graph.settings,
                workdir=folder,
                archs=[86, 89],
            ).data
        )
        for graph in graphs
    ]


@pytest.mark.parametrize("precision", [None, "fp16"])
def test_bert(precision: str | None, builder: Builder, tmp_path: Path) -> None:
    graphs, left = bert(tmp_path, precision=precision)
    assert len(graphs) == 1
    assert set(left) <= {"take", "astype"}  # token ids are 64-bit integers
    assert all(built(builder, graphs, tmp_path))


@pytest.mark.parametrize("name", ["unet", "llama_past", "resnet", "vit", "gpt2"])
def test_models_that_torch_exports(name: str, builder: Builder, tmp_path: Path) -> None:
    for module in ("torch", "transformers"):
        pytest.importorskip(module)
    from tests.corpus.files import CASES

    case = CASES[f"{name}.torchscript"]
    case.make(tmp_path / "source.onnx")
    sizes = {dim: size if isinstance(size, int) else max(size) for dim, size in dict(case.dims).items()}
    graphs, left = partitions(tmp_path / "source.onnx", dims=sizes)
    assert graphs
    assert len(left) <= 6, left
    assert all(built(builder, graphs, tmp_path))


def test_operators_of_bools_and_integers(builder: Builder, tmp_path: Path) -> None:
    text = """
    <ir_version: 10, opset_import: ["": 21]>
    net (float[2,6] x, int32[2,6] i) => (float[2,6] y, int32[2,6] j, bool[2,6] b, float[2,2] s0, float[2,4] s1) {
      c = Greater(x, zero) d = IsNaN(x) n = Not(d) b = And(c, n) y = Where(b, x, zero)
      k = Mul(i, i) j = Max(k, i)
      s0, s1 = Split<axis=1>(y, parts)
    }
    """
    model = onnx.parser.parse_model(text)
    constants = {"zero": np.float32(0), "parts": np.int64([2, 4])}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.array(a), name) for name, a in constants.items())
    onnx.save(model, tmp_path / "m.onnx")
    graphs, left = partitions(tmp_path / "m.onnx")
    assert left == []
    assert all(built(builder, graphs, tmp_path))


def test_engines_of_blocks(tmp_path: Path) -> None:
    graphs, _ = bert(tmp_path, ("cuda -arch=sm_90a", "tensorrt -min_partition_flops=0 -max_partition_depth=12"))
    assert len(graphs) > 2
    assert len({graph.graph.key for graph in graphs}) == len(graphs)  # weights are inside, so none is shared


def test_what_a_builder_says_is_passed_on(builder: Builder, tmp_path: Path) -> None:
    options = TensorrtOptions()
    settings = {name: getattr(options, name) for name in ("precision", "allow_tf32", "workspace_mb", "refit")}
    settings["optimization_level"] = 3
    with pytest.raises(ToolchainError, match="cannot read the graph"):
        build_engine(builder, b"no model", library="tensorrt_rtx", settings=settings, workdir=tmp_path, archs=[86])
    assert not list(tmp_path.iterdir())
    graph = bert(tmp_path)[0][0]
    with pytest.raises(ToolchainError, match="builds no engines for sm_90"):
        build_engine(builder, graph.model, library="tensorrt_rtx", settings=settings, workdir=tmp_path, archs=[90])
