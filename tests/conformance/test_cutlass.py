"""The ``cutlass`` backend. Without a GPU its bundles are built and verified, and not run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packager.testing import Case, PartitionConformance
from packager.testing.compiling import Targets

pytestmark = pytest.mark.slow
HEADS = (
    "s = Reshape(x, split) q = Transpose <perm = [0, 2, 1, 3]> (s) k = Transpose <perm = [0, 2, 3, 1]> (s) "
    "v = Transpose <perm = [0, 2, 1, 3]> (s) a = MatMul(q, k) {scores} p = Softmax <axis = -1> (c) o = MatMul(p, v) "
    "t = Transpose <perm = [0, 2, 1, 3]> (o) y = Reshape(t, join)"
)
SHAPES = {"split": np.array([0, 16, 2, 32]), "join": np.array([0, 16, 64]), "root": np.array([0.25], np.float16)}
UPPER = np.triu(np.full((1, 1, 16, 16), -1e4, np.float16), 1)


def half(*shape: int) -> Any:
    return (np.random.default_rng(len(shape)).standard_normal(shape) / 4).astype(np.float16)


def attention(name: str, inputs: str, scores: str, **weights: Any) -> Case:
    body = HEADS.format(scores=scores)
    return Case(name, "attention", f"float16[n, 16, 64] x{inputs}", body, "float16[n, 16, 64] y", {**SHAPES, **weights})


DENSE = Case(
    "dense",
    "dense",
    "float16[n, 32] x",
    "t = MatMul(x, w) y = Add(t, b)",
    "float16[n, 64] y",
    {"w": half(32, 64), "b": half(64)},
)
CONV = Case(
    "conv",
    "conv2d",
    "float16[n, 8, 9, 9] x",
    "t = Conv <pads = [1, 1, 1, 1]> (x, w, b) y = Relu(t)",
    "float16[n, 16, 9, 9] y",
    {"w": half(16, 8, 3, 3), "b": half(16)},
)

ATTENTION = attention("attention", "", "c = Mul(a, root)")


class TestCutlass(PartitionConformance):
    kind = "cutlass"
    values = {
        "operators": ("dense", "attention"),
        "arch": ("sm_80",),
        "candidates": 2,
        "find_first_valid": True,
        "tuning": (str(Path(__file__).parent / "no_records.json"),),
        "packed_weights": 2,
        "use_3xtf32": False,
        "use_fast_math": True,
        "split_k_slices": 2,
        "profile_all_alignments": True,
        "use_multiprocessing": False,
        "threads": 2,
        "tmp_dir": tempfile.gettempdir(),
    }
    cases = (
        DENSE,
        CONV,
        ATTENTION,
        attention("attention_causal", "", "d = Mul(a, root) c = Add(d, upper)", upper=UPPER),
        attention("attention_masked", ", float16[n, 1, 1, 16] mask", "d = Mul(a, root) c = Add(d, mask)"),
    )
    caches = True
    few = (ATTENTION,)  # whose kernel is compiled in the least time

    def targets(self, **attributes: Any) -> Targets:
        return [
            {"kind": "cuda", "arch": list(attributes.get("arch", ["sm_80"]))},
            {"kind": self.kind, "candidates": 1, **attributes},
        ]

    def test_builds_with_attribute(self, attribute: str, tmp_path: Path) -> None:
        """Those that make more kernels have a product alone: nvcc takes half a minute for each."""
        self.cases = (DENSE,) if attribute in ("max_partition_depth", "candidates") else (DENSE, ATTENTION)
        super().test_builds_with_attribute(attribute, tmp_path)

    @pytest.mark.thorough  # test_cutlass_bundles.py has equal builds, test_cuda_toolkit.py equal objects of nvcc
    def test_makes_the_same_everywhere_and_leaves_nothing(self, tmp_path: Path) -> None:
        super().test_makes_the_same_everywhere_and_leaves_nothing(tmp_path)
