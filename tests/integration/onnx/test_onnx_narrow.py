"""Tensors of narrow element types as inputs, outputs, constants and in between, through whole bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import packager
from packager.bundle.arrays import Array
from packager.deploy.load import tensors
from packager.errors import ModelError, RunError
from tests.one_cpu import targets_here
from tests.onnx_nodes import model_of

pytestmark = pytest.mark.slow


node = helper.make_node
CODES = np.arange(256, dtype=np.uint8).reshape(16, 16)
FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
FOUR_BITS = ("float4_e2m1fn", "int4", "uint4")


def built(model: onnx.ModelProto, folder: Path, **options: Any) -> Path:
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return packager.build(folder / "model.onnx", folder / "model.so", **{"targets": targets_here(), **options})


def values(name: str) -> Array:
    """Return all values of a type."""
    codes = CODES if name in FLOAT8 else CODES % 16
    return codes.view(getattr(ml_dtypes, name))


def test_every_type_goes_in_and_out(tmp_path: Path) -> None:
    """Each is moved and comes out with all its codes, and is cast to float32 and back."""
    names = [*FLOAT8, *FOUR_BITS]
    inputs = {name: (getattr(ml_dtypes, name), ("n", 16)) for name in names}
    kinds = {name: helper.np_dtype_to_tensor_dtype(np.dtype(dtype)) for name, (dtype, _) in inputs.items()}
    nodes, outputs = [], {}
    for name, kind in kinds.items():
        nodes += [
            node("Transpose", [name], [f"{name}_moved"], perm=[1, 0]),
            node("Cast", [name], [f"{name}_wide"], to=TensorProto.FLOAT),
            node("Neg" if name != "float8_e8m0fnu" else "Identity", [f"{name}_wide"], [f"{name}_negated"]),
            node("Cast", [f"{name}_negated"], [f"{name}_back"], to=kind, saturate=0),
        ]
        outputs |= {f"{name}_moved": kind, f"{name}_wide": TensorProto.FLOAT, f"{name}_back": kind}
    path = built(model_of(nodes, inputs, outputs, opset=25), tmp_path, dims={"n": (1, 16)}, golden=0)
    assert packager.verify(path, run=True).ok
    feeds = {name: values(name) for name in names}
    with packager.load(path) as bundle:
        specs = {spec.name: spec.dtype for spec in (*bundle.manifest.inputs, *bundle.manifest.outputs)}
        assert all(specs[name] == specs[f"{name}_moved"] == name for name in names)
        made = bundle.run(feeds)
        raw = bundle.run({name: array.view(np.uint8) for name, array in feeds.items()})
        with pytest.raises(RunError, match="'int4' has dtype int8, expected int4"):
            bundle.run({**feeds, "int4": np.zeros((1, 16), np.int8)})
    for name, array in feeds.items():
        wide = array.astype(np.float32)
        assert made[f"{name}_moved"].dtype == array.dtype
        np.testing.assert_array_equal(made[f"{name}_moved"].view(np.uint8), array.T.view(np.uint8))
        np.testing.assert_array_equal(made[f"{name}_wide"], wide)
        back = (wide if name == "float8_e8m0fnu" else -wide).astype(array.dtype)
        np.testing.assert_array_equal(made[f"{name}_back"].astype(np.float32), back.astype(np.float32))
        np.testing.assert_array_equal(raw[f"{name}_wide"], wide)


def test_without_ml_dtypes_outputs_are_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    tensors._numpy_dtype.cache_clear()
    try:
        assert tensors.empty("y", "int4", (3,)).dtype == np.uint8
        for dtype in (np.uint8, "V1"):
            assert tensors.borrow(np.zeros(3, dtype), "x", "int4", writable=False).tensor.dtype.bits == 4
        with pytest.raises(RunError, match="expected int4"):
            tensors.borrow(np.zeros(3, np.float32), "x", "int4", writable=False)
    finally:
        tensors._numpy_dtype.cache_clear()


def test_weights_of_four_bits_in_blocks(tmp_path: Path) -> None:
    """Constants come into the bundle as what they are dequantized from; a session swaps their bytes."""
    generator = np.random.default_rng(0)
    weight = generator.integers(-8, 8, (32, 8)).astype(ml_dtypes.int4)
    scale = generator.standard_normal((4, 8)).astype(np.float32)
    table = values("float8_e5m2")[:8].copy()
    nodes = [
        node("DequantizeLinear", ["weight", "scale"], ["wide"], axis=0, block_size=8),
        node("MatMul", ["x", "wide"], ["product"]),
        node("Gather", ["table", "rows"], ["taken"]),
        node("Cast", ["taken"], ["taken_wide"], to=TensorProto.FLOAT),
    ]
    outputs = {"product": TensorProto.FLOAT, "taken_wide": TensorProto.FLOAT}
    inputs = {"x": (np.float32, (2, 32)), "rows": (np.int64, (2,))}
    model = model_of(nodes, inputs, outputs, {"weight": weight, "scale": scale, "table": table}, opset=21)
    x, rows = generator.standard_normal((2, 32)).astype(np.float32), np.array([3, 0])
    with packager.load(built(model, tmp_path)) as bundle, bundle.session() as session:
        made = session.run({"x": x, "rows": rows})
        other = np.flip(table, 0).copy()
        session.set_constants({"table": other.view(np.uint8)})
        swapped = session.run({"x": x, "rows": rows})
    expected = x @ (weight.astype(np.float32) * np.repeat(scale, 8, 0))
    np.testing.assert_allclose(made["product"], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(made["taken_wide"], table[rows].astype(np.float32))
    np.testing.assert_array_equal(swapped["taken_wide"], other[rows].astype(np.float32))


def test_predicates_read_float8(tmp_path: Path) -> None:
    given = values("float8_e5m2")
    nodes = [node("IsNaN", ["x"], ["nan"]), node("IsInf", ["x"], ["inf"])]
    outputs = {"nan": TensorProto.BOOL, "inf": TensorProto.BOOL}
    path = built(model_of(nodes, {"x": (given.dtype, given.shape)}, outputs, opset=20), tmp_path)
    with packager.load(path) as bundle:
        made = bundle.run({"x": given})
    wide = given.astype(np.float32)
    np.testing.assert_array_equal(made["nan"], np.isnan(wide))
    np.testing.assert_array_equal(made["inf"], np.isinf(wide))


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_sums_of_squares_and_exponentials_of_half_precision(kind: int, tmp_path: Path) -> None:
    """Parts of a sum may be infinite in half precision where its result is not."""
    names = ("L2", "SumSquare", "LogSum", "LogSumExp")
    nodes = [node(f"Reduce{name}", ["x", "axes"], [name], keepdims=0) for name in names]
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    model = model_of(nodes, {"x": (dtype, (3, 40))}, dict.fromkeys(names, kind), opset=18)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "axes"))
    given = np.stack([np.full(40, 300), np.linspace(4, 41, 40), np.linspace(1, 2, 40)]).astype(dtype)
    with packager.load(built(model, tmp_path, golden=0)) as bundle:
        made = bundle.run({"x": given})
    x = given.astype(np.float64)
    squares, most = (x * x).sum(1), x.max(1)
    wanted = {"L2": np.sqrt(squares), "SumSquare": squares, "LogSum": np.log(x.sum(1))}
    wanted["LogSumExp"] = most + np.log(np.exp(x - most[:, None]).sum(1))
    with np.errstate(over="ignore"):
        for name in names:
            expected = wanted[name].astype(dtype).astype(np.float64)
            np.testing.assert_allclose(made[name].astype(np.float64), expected, rtol=1e-2, err_msg=name)


def test_other_operators_are_refused_by_name(tmp_path: Path) -> None:
    branch = [node("ScatterElements", ["x", "i", "x"], ["y"], name="scatter", reduction="max")]
    inputs = {"x": (ml_dtypes.float8_e5m2, (4,)), "i": (np.int64, (4,))}
    with pytest.raises(ModelError, match="node 'scatter' of operator ScatterElements computes with float8_e5m2"):
        built(model_of(branch, inputs, {"y": TensorProto.FLOAT8E5M2}, opset=18), tmp_path)
