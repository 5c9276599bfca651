"""CumSum and CumProd: along every axis, forwards and backwards, of fixed and of symbolic extents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from graphs import graph, save

import packager
from tests.one_cpu import targets_here

SHAPE = (3, 70, 5, 40)
# 2,080 columns behind the axis are computed in two bands.
WIDE = (2, 9, 2080)


def model(kind: str, shape: tuple[int, ...], dtype: str, axis: int, attributes: str, *, symbolic: bool) -> str:
    extents = ",".join(f"d{i}" if symbolic else str(extent) for i, extent in enumerate(shape))
    return f"""g ({dtype}[{extents}] x) => ({dtype}[{extents}] y) {{
        axis = Constant <value = int64 {{{axis}}}> ()
        y = {kind} {f"<{attributes}>" if attributes else ""} (x, axis)
    }}"""


def cumulated(kind: str, x: np.ndarray, axis: int, *, exclusive: bool, backwards: bool) -> np.ndarray:
    ordered = np.flip(x, axis) if backwards else x
    if exclusive:
        neutral = np.full_like(ordered.take([0], axis), 0 if kind == "CumSum" else 1)
        ordered = np.concatenate([neutral, ordered.take(range(x.shape[axis] - 1), axis)], axis)
    result = (np.cumsum if kind == "CumSum" else np.cumprod)(ordered, axis, dtype=x.dtype)
    return np.flip(result, axis) if backwards else result


def check(tmp_path: Path, kind: str, x: np.ndarray, axis: int, attributes: str, *, symbolic: bool = False) -> None:
    names = {"float32": "float", "float16": "float16", "int64": "int64", "int32": "int32"}
    text = model(kind, x.shape, names[x.dtype.name], axis, attributes, symbolic=symbolic)
    path = save(graph(text, opset=17 if kind == "CumSum" else 26), tmp_path / "m.onnx")
    dims = {f"d{i}": (1, extent) for i, extent in enumerate(x.shape)} if symbolic else None
    got = packager.load(packager.build(path, tmp_path / "m.so", dims=dims, targets=targets_here())).run({"x": x})["y"]
    wide = x.astype(np.float64) if x.dtype.kind == "f" else x
    flags = {"exclusive": "exclusive = 1" in attributes, "backwards": "reverse = 1" in attributes}
    wanted = cumulated(kind, wide, axis, **flags)
    tolerance = {"float16": 1e-3, "float32": 1e-5}.get(x.dtype.name, 0)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * max(np.abs(wanted).max(), 1))


@pytest.mark.parametrize("attributes", ["", "exclusive = 1", "reverse = 1", "exclusive = 1, reverse = 1"])
@pytest.mark.parametrize("axis", [0, -1, 1])
def test_sums(tmp_path: Path, axis: int, attributes: str) -> None:
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    check(tmp_path, "CumSum", x, axis, attributes)


@pytest.mark.parametrize("dtype", ["float16", "int32", "int64"])
def test_sums_of_other_types(tmp_path: Path, dtype: str) -> None:
    """float16 is added up in float32: 2,080 ones are 2,080, where float16 alone would stop at 2,048."""
    x = np.ones(WIDE, dtype) if dtype == "float16" else np.random.default_rng(0).integers(-9, 9, WIDE).astype(dtype)
    check(tmp_path, "CumSum", x, 2, "")


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_sums_of_symbolic_extents(tmp_path: Path, axis: int) -> None:
    x = np.random.default_rng(0).standard_normal((4, 7, 33)).astype(np.float32)
    check(tmp_path, "CumSum", x, axis, "exclusive = 1", symbolic=True)


def test_bands_of_columns(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal(WIDE).astype(np.float32)
    check(tmp_path, "CumSum", x, 1, "")


def test_products(tmp_path: Path) -> None:
    x = np.random.default_rng(0).uniform(0.8, 1.25, (5, 60, 7)).astype(np.float32)
    check(tmp_path, "CumProd", x, 1, "exclusive = 1")


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.parametrize("dtype", ["float", "float16", "int64"])
@pytest.mark.parametrize("shape", ["3,300,50", "2,8,50"])
def test_gpus_get_reductions(tmp_path: Path, shape: str, dtype: str) -> None:
    """Of each element, in chunks of a long axis; compiled here, and computed where there is a GPU."""
    pytest.importorskip("nvidia.cu13", reason="packager[cuda] is not installed")
    text = model("CumSum", tuple(map(int, shape.split(","))), dtype, 1, "reverse = 1", symbolic=False)
    path = save(graph(text), tmp_path / "m.onnx")
    bundle = packager.build(path, tmp_path / "m.so", targets=["cuda -arch=sm_80"])
    assert all(kind == "cuda" for kind, _ in packager.inspect(bundle).manifest.primitives())


@pytest.mark.parametrize("set_elements", [0, 1, 5])
def test_sums_of_as_many_as_data_say(tmp_path: Path, set_elements: int) -> None:
    text = """g (float[6] x) => (int64[1,k] y) {
        axis = Constant <value = int64 {1}> ()
        places = NonZero (x)
        y = CumSum (places, axis)
    }"""
    path = save(graph(text), tmp_path / "m.onnx")
    x = np.zeros(6, np.float32)
    x[:set_elements] = 1
    got = packager.load(packager.build(path, tmp_path / "m.so", targets=targets_here())).run({"x": x})["y"]
    np.testing.assert_array_equal(got, np.cumsum(np.nonzero(x), axis=1))
