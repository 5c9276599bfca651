"""Attention and rotary embeddings of ONNX against its reference, with symbolic sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model
from onnx.reference import ReferenceEvaluator

import packager
from tests.one_cpu import targets_here

pytestmark = pytest.mark.slow

HEADER = '<ir_version: 10, opset_import: ["" : 24]>\n'


def _compare(text: str, inputs: dict[str, np.ndarray], dims: dict[str, tuple[int, int]], folder: Path) -> None:
    model = parse_model(HEADER + text)
    onnx.save(model, folder / "model.onnx")
    packager.build(folder / "model.onnx", folder / "model.so", dims=dims, targets=targets_here())
    with packager.load(folder / "model.so") as bundle:
        made = bundle.run(inputs)
    expected = ReferenceEvaluator(model).run(None, inputs)
    for have, want in zip(made.values(), expected, strict=True):
        assert have.shape == want.shape
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("mask", [np.tri(5, 5, dtype=bool), np.zeros((5, 5), dtype=bool)], ids=["some", "none"])
def test_grouped_queries_with_symbolic_rows_and_a_boolean_mask(mask: np.ndarray, tmp_path: Path) -> None:
    text = """attention (float[b, s, 32] q, float[b, s, 16] k, float[b, s, 16] v, bool[s, s] mask)
        => (float[b, s, 32] y) { y = Attention <q_num_heads: int = 4, kv_num_heads: int = 2> (q, k, v, mask) }"""
    inputs = {"q": _random(2, 5, 32), "k": _random(2, 5, 16), "v": _random(2, 5, 16), "mask": mask}
    _compare(text, inputs, {"b": (1, 3), "s": (1, 8)}, tmp_path)


def test_a_decode_step_with_a_cache_whose_length_is_symbolic(tmp_path: Path) -> None:
    text = """attention (float[1, 2, 3, 8] q, float[1, 2, 3, 8] k, float[1, 2, 3, 8] v, float[1, 2, past, 8] past_k,
        float[1, 2, past, 8] past_v) => (float[1, 2, 3, 8] y, float[1, 2, total, 8] keys, float[1, 2, total, 8] values)
    { y, keys, values = Attention <is_causal: int = 1, softcap: float = 5.0> (q, k, v, "", past_k, past_v) }"""
    inputs = {name: _random(1, 2, 3, 8) for name in "qkv"} | {
        name: _random(1, 2, 6, 8) for name in ("past_k", "past_v")
    }
    _compare(text, inputs, {"past": (1, 10)}, tmp_path)


def test_a_cache_with_lengths_of_its_own_and_symbolic_queries(tmp_path: Path) -> None:
    text = """attention (float[2, 2, s, 8] q, float[2, 2, 9, 8] k, float[2, 2, 9, 8] v, int64[2] used)
        => (float[2, 2, s, 8] y) { y = Attention <is_causal: int = 1> (q, k, v, "", "", "", used) }"""
    inputs = {"q": _random(2, 2, 4, 8), "k": _random(2, 2, 9, 8), "v": _random(2, 2, 9, 8), "used": np.array([7, 3])}
    _compare(text, inputs, {"s": (1, 9)}, tmp_path)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding_of_a_part_with_symbolic_rows(interleaved: int, tmp_path: Path) -> None:
    text = f"""rotary (float[b, s, 24] x, float[16, 2] cosine, float[16, 2] sine, int64[b, s] places)
        => (float[b, s, 24] y) {{ y = RotaryEmbedding <num_heads: int = 3, rotary_embedding_dim: int = 4,
        interleaved: int = {interleaved}> (x, cosine, sine, places) }}"""
    places = np.arange(10).reshape(2, 5)
    inputs = {"x": _random(2, 5, 24), "cosine": _random(16, 2), "sine": _random(16, 2), "places": places}
    _compare(text, inputs, {"b": (1, 3), "s": (1, 16)}, tmp_path)
