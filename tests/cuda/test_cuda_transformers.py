"""Transformers to CUDA bundles, on a machine that has no GPU: what is compiled, and for which architectures.

The models are those of the GPU benchmark: layers of full size, random weights, exported by torch. They have few layers,
which make the same kernels as all in less time: equal layers share them, as the first test of BERT shows. No number is
computed here; that takes a GPU, and ``benchmarks/gpu/check.py``. CI has an encoder and a decoder; smaller models of
test_cuda_bundles.py and test_cuda_models.py have half precision, bounded dims and convolutions.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from model_builds import build_and_compare, calls, having

ROOT = Path(__file__).parents[2]

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def models() -> Iterator[Any]:
    """The module that exports the benchmark's models."""
    pytest.importorskip("transformers")  # takes a second, which collecting should not
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        from benchmarks.gpu import models

        yield models


@pytest.fixture
def work() -> Iterator[Path]:
    """A folder that goes with the test: pytest keeps its own ones for some runs, and a BERT-base is a gigabyte."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_bert_base(models: Any, work: Path) -> None:
    layers = 5
    manifest = build_and_compare(models.bert(work, layers=layers).path, work / "bert.so")
    assert calls(manifest, "matmul") == 8 * layers
    assert calls(manifest, "layer_norm") == 2 * layers + 1
    for op in ("gelu", "softmax"):
        (shared,) = having(manifest, op)
        assert shared.calls == layers
    assert all(primitive.calls % layers == 0 for primitive in having(manifest, "matmul"))
    assert manifest.sizes.constants > 4 * (23e6 + layers * 7e6)  # float32 parameters
    assert [spec.shape for spec in (*manifest.inputs, *manifest.outputs)] == [(1, 128), (1, 128, 768)]


@pytest.mark.thorough
def test_bert_base_in_half_precision(models: Any, work: Path) -> None:
    manifest = build_and_compare(models.bert(work, layers=2).path, work / "bert.so", precision="fp16")
    matrices = [c for c in manifest.constants if ".layer." in c.name and len(c.shape) == 2]
    assert len(matrices) == 6 * 2
    assert {matrix.dtype for matrix in matrices} == {"float16"}
    assert calls(manifest, "matmul") == 8 * 2
    assert [spec.dtype for spec in (*manifest.inputs, *manifest.outputs)] == ["int64", "float32"]


@pytest.mark.thorough
def test_bert_base_with_a_bounded_batch(models: Any, work: Path) -> None:
    model = models.bert(work, layers=2, batch=3, bounds=(1, 8)).path
    manifest = build_and_compare(model, work / "bert.so")
    ((name, least, most),) = [(dim.name, dim.min, dim.max) for dim in manifest.dims]
    assert (least, most) == (1, 8)
    assert [spec.shape for spec in (*manifest.inputs, *manifest.outputs)] == [(name, 128), (name, 128, 768)]
    assert calls(manifest, "matmul") == 8 * 2
    assert manifest.arena_bytes >= 2 * 4 * 8 * 128 * 768  # a layer's input and output, at the greatest batch


@pytest.mark.thorough
def test_vit_b_16(models: Any, work: Path) -> None:
    module = models.torch_models.vit(num_hidden_layers=2)
    made = models.export(module, work / "vit.pt2", torch.zeros(1, 3, 224, 224))
    manifest = build_and_compare(made.path, work / "vit.so")
    assert calls(manifest, "conv2d") == 1
    assert calls(manifest, "matmul") == 8 * 2
    assert calls(manifest, "softmax") == calls(manifest, "gelu") == 2
    assert [spec.shape for spec in manifest.outputs] == [(1, 14 * 14 + 1, 768)]


def test_gpt2_small_prefill(models: Any, work: Path) -> None:
    module = models.torch_models.gpt2(n_layer=2)
    made = models.export(module, work / "gpt2.pt2", torch.zeros(1, 128, dtype=torch.int64))
    manifest = build_and_compare(made.path, work / "gpt2.so")
    assert calls(manifest, "matmul") == 6 * 2  # queries, keys and values are one product
    assert calls(manifest, "softmax") == calls(manifest, "tanh") == 2
    assert [spec.shape for spec in manifest.outputs] == [(1, 128, 768)]
