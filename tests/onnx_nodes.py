"""Builds a model of few ONNX nodes, runs its bundle, and compares with onnxruntime or what the caller expects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import packager
from packager.bundle.arrays import Array
from tests.one_cpu import targets_here


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[Any, Sequence[int | str]]],
    outputs: Mapping[str, int],
    constants: Mapping[str, Array] | None = None,
    opset: int = 20,
) -> onnx.ModelProto:
    """Return a model; ``inputs`` give element types of numpy and shapes, ``outputs`` element types of ONNX."""
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
        for name, (dtype, shape) in inputs.items()
    ]
    made = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()]
    initializers = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "nodes", given, made, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def run_bundle(
    model: onnx.ModelProto, feeds: Mapping[str, Array], folder: Path, dims: Mapping[str, Any] | None = None
) -> dict[str, Array]:
    """Build a model for the CPU and run it once."""
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    packager.build(folder / "model.onnx", folder / "model.so", dims=dims, targets=targets_here())
    with packager.load(folder / "model.so") as bundle:
        return bundle.run(dict(feeds))


def check_with_onnxruntime(
    model: onnx.ModelProto,
    feeds: Mapping[str, Array],
    folder: Path,
    dims: Mapping[str, Any] | None = None,
    tolerance: float = 1e-5,
) -> None:
    """Compare a bundle's outputs with onnxruntime's."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, dict(feeds))
    made = run_bundle(model, feeds, folder, dims)
    for value, want in zip(model.graph.output, expected, strict=True):
        np.testing.assert_allclose(made[value.name], want, rtol=tolerance, atol=tolerance, err_msg=value.name)
        assert made[value.name].dtype == want.dtype


def check_runs(
    model: onnx.ModelProto,
    runs: Sequence[Mapping[str, Array]],
    folder: Path,
    dims: Mapping[str, Any] | None = None,
    tolerance: float = 1e-5,
) -> list[dict[str, Array]]:
    """Compare runs of one session with onnxruntime's: shapes, element types and values. Returns copies of the outputs.

    The bundle is ``folder / "model.so"``, for the best CPU that this machine has all features of.
    """
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    packager.build(folder / "model.onnx", folder / "model.so", dims=dims, targets=targets_here())
    reference = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    results = []
    with packager.load(folder / "model.so") as bundle:
        for number, feeds in enumerate(runs):
            made = bundle.run(dict(feeds))
            assert list(made) == [value.name for value in model.graph.output]
            for (name, have), want in zip(made.items(), reference.run(None, dict(feeds)), strict=True):
                where = f"run {number}, {name}"
                assert (have.shape, have.dtype) == (want.shape, want.dtype), where
                np.testing.assert_allclose(have, want, rtol=tolerance, atol=tolerance, err_msg=where)
            results.append({name: array.copy() for name, array in made.items()})
    return results


FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
