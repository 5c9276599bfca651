"""Scales and shifts of rows that products with constant matrices take."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tvm")
from tvm import relax

from packager.transforms.products.scaled_rows import scale_matrices
from tests.unit.transforms.simplify.test_fold_arithmetic import arrays_of, make, operators, run

ROWS = 'x: R.Tensor((5, 6), "float32"), w: R.Tensor((6, 4), "float32"), v: R.Tensor((6, 3), "float32")'
VECTORS = 's: R.Tensor((6,), "float32"), b: R.Tensor((1, 6), "float32")'
IMAGE = 'x: R.Tensor((2, 6, 5, 4), "float32"), w: R.Tensor((3, 6, 1, 2), "float32")'
CHANNELS = 's: R.Tensor((6, 1, 1), "float32"), b: R.Tensor((1, 6, 1, 1), "float32")'
NORM = ("r = R.nn.relu(x)", "t = R.multiply(r, s)", "u = R.add(b, t)")
FORMS = {
    "matrix": (ROWS, VECTORS, (*NORM, "z = R.matmul(u, w)"), ["nn.relu", "matmul", "add"]),
    "input": (
        ROWS,
        VECTORS,
        ("t = R.multiply(s, x)", "u = R.add(t, b)", "z = R.matmul(u, w)"),
        ["matmul", "add"],
    ),
    "two matrices": (
        ROWS,
        VECTORS,
        (*NORM, "p = R.matmul(u, w)", "q = R.matmul(u, v)", "z = R.concat((p, q), axis=1)"),
        ["nn.relu", "matmul", "add", "matmul", "add", "concat"],
    ),
    "convolution": (IMAGE, CHANNELS, (*NORM, "z = R.nn.conv2d(u, w)"), ["nn.relu", "nn.conv2d", "add"]),
}
REFUSED = {
    "padding": (IMAGE, CHANNELS, (*NORM, "z = R.nn.conv2d(u, w, padding=[0, 1])")),
    "what others read": (ROWS, VECTORS, (*NORM, "p = R.matmul(u, w)", "q = R.sum(u)", "z = R.add(p, q)")),
    "a normalization": (
        ROWS,
        VECTORS,
        ("r = R.multiply(x, x)", "t = R.multiply(r, s)", "u = R.add(b, t)", "z = R.matmul(u, w)"),
    ),
    "another axis": (
        ROWS,
        's: R.Tensor((5, 1), "float32"), b: R.Tensor((5, 1), "float32")',
        (*NORM, "z = R.matmul(u, w)"),
    ),
    "no constant matrix": (ROWS, VECTORS, (*NORM, "y = R.permute_dims(u)", "z = R.matmul(u, y)")),
}


@pytest.mark.parametrize("name", FORMS)
def test_products_take_scales_and_shifts(name: str) -> None:
    tensors, vectors, lines, wanted = FORMS[name]
    module = relax.transform.Normalize()(make(f"{tensors}, {vectors}", *lines, result="z"))
    scaled = scale_matrices(module, 1)
    assert operators(scaled) == wanted
    arrays = arrays_of(module)
    np.testing.assert_allclose(run(scaled, arrays), run(module, arrays), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", REFUSED)
def test_others_stay(name: str) -> None:
    tensors, vectors, lines = REFUSED[name]
    module = relax.transform.Normalize()(make(f"{tensors}, {vectors}", *lines, result="z"))
    assert scale_matrices(module, 1).same_as(module)
