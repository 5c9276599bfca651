"""A product of a flattened image: its weights are put in the order in which the image lies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from graphs import ATOL, RTOL, check, feeds, graph, normal, save

import packager
from tests.one_cpu import targets_here

pytestmark = pytest.mark.slow

CONV = "c = Conv<pads=[1,1,1,1]>(x, k)\n r = MaxPool<kernel_shape=[2,2], strides=[2,2]>(c)\n f = Flatten<axis=1>(r)\n"
K, W, B, AXES = normal(8, 3, 3, 3) / np.float32(5), normal(96, 32) / np.float32(10), normal(32), np.array([1])
PRODUCTS = {
    "as it is": ("y = MatMul(f, w)", {"w": W}),
    "transposed": ("y = Gemm<transB=1>(f, t, b)", {"t": np.ascontiguousarray(W.T), "b": B}),
    "read twice": ("p = MatMul(f, w)\n s = ReduceSum<keepdims=1>(f, a)\n y = Add(p, s)", {"w": W, "a": AXES}),
}


def model(name: str, **others: np.ndarray) -> onnx.ModelProto:
    product, weights = PRODUCTS[name]
    text = f"g (float[n,3,6,8] x) => (float[n,32] y) {{ {CONV} {product} }}"
    return graph(text, {"k": K, **weights, **others})


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str, tmp_path: Path) -> None:
    bundle = check(model(name), tmp_path, {"n": (1, 3)}, ({"n": 1}, {"n": 3}))
    symbols = [primitive.symbol for _, primitive in bundle.manifest.primitives()]
    moves = [symbol for symbol in symbols if "transpose" in symbol or "copy" in symbol]
    assert bool(moves) == (name == "read twice"), moves
    bundle.close()


@pytest.mark.parametrize("name", ["as it is", "transposed"])
def test_weights_can_still_be_swapped(name: str, tmp_path: Path) -> None:
    (weight,) = (key for key in PRODUCTS[name][1] if key in "wt")
    other = {weight: normal(*PRODUCTS[name][1][weight].shape, seed=7)}
    changed = model(name, **other)
    inputs = feeds(changed, {"n": 2})
    (expected,) = onnxruntime.InferenceSession(changed.SerializeToString()).run(None, inputs)
    packager.build(
        save(model(name), tmp_path / "m.onnx"), tmp_path / "m.so", dims={"n": (1, 3)}, targets=targets_here()
    )
    with packager.load(tmp_path / "m.so") as bundle, bundle.session() as session:
        session.set_constants(other)
        np.testing.assert_allclose(session.run(inputs)["y"], expected, RTOL, ATOL)
