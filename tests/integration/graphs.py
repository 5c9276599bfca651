"""What the integration tests share: small ONNX models written as text, and the comparison with onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
from one_cpu import targets_here

import packager

RTOL, ATOL = 1e-4, 1e-5
DimBounds = Mapping[str, "int | tuple[int, int]"]
Arrays = dict[str, np.ndarray]


def graph(text: str, weights: Mapping[str, np.ndarray] | None = None, opset: int = 17) -> onnx.ModelProto:
    """Return a checked model from ONNX's text form of a graph; ``weights`` become initializers."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]>\n{text}')
    for name, array in (weights or {}).items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.checker.check_model(model)
    return model


def normal(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    """Return reproducible normally distributed weights of about unit gain."""
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) * 0.4).astype(dtype)


def save(model: onnx.ModelProto, path: Path) -> Path:
    """Write a model and return its path."""
    path.write_bytes(model.SerializeToString())
    return path


def feeds(model: onnx.ModelProto, sizes: Mapping[str, int], seed: int = 0) -> Arrays:
    """Return random inputs of a model for these sizes of its symbolic dims."""
    rng = np.random.default_rng(seed)
    initialized = {tensor.name for tensor in model.graph.initializer}
    arrays = {}
    for value in model.graph.input:
        if value.name in initialized:
            continue
        tensor = value.type.tensor_type
        shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if dtype.kind == "f":
            array = rng.standard_normal(shape)
        elif dtype.kind == "b":
            array = rng.integers(0, 2, shape)
        else:
            array = rng.integers(0 if dtype.kind == "u" else -4, 5, shape)
        arrays[value.name] = np.asarray(array).astype(dtype)
    return arrays


def reference(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Return onnxruntime's session of a model, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def assert_same(actual: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], context: str = "") -> None:
    """Compare outputs: names, dtypes and shapes exactly, floats to the tolerance of fp32 (or of float16)."""
    assert list(actual) == list(expected)
    for name, want in expected.items():
        got = actual[name]
        assert (got.dtype, got.shape) == (want.dtype, want.shape), f"{name} {context}"
        if want.dtype.kind in "iub":
            np.testing.assert_array_equal(got, want, err_msg=f"{name} {context}")
        else:
            rtol, atol = (2e-2, 2e-3) if want.dtype == np.float16 else (RTOL, ATOL)
            np.testing.assert_allclose(got, want, rtol=rtol, atol=atol, err_msg=f"{name} {context}")


def check(
    model: onnx.ModelProto,
    folder: Path,
    dims: DimBounds | None = None,
    points: Sequence[Mapping[str, int]] = ({},),
    **options: object,
) -> packager.Bundle:
    """Build a model, run it at several sizes of its dims and compare with onnxruntime; return the loaded bundle.

    Unless Targets are given it has the code for one CPU, which runs here.
    """
    path = save(model, folder / "model.onnx")
    options = {"targets": targets_here()} | options
    bundle = packager.load(packager.build(path, folder / "model.so", dims=dims, **options))
    session = reference(model)
    names = [output.name for output in session.get_outputs()]
    fixed = {name: size for name, size in (dims or {}).items() if isinstance(size, int)}
    for seed, point in enumerate(points):
        arrays = feeds(model, {**fixed, **point}, seed)
        expected = dict(zip(names, session.run(names, arrays), strict=True))
        assert_same(bundle.run(arrays), expected, f"at {dict(point)}")
    return bundle
