"""Nine well-known image classifiers with random weights: the models, and their bundles against onnxruntime."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from one_cpu import targets_here

import packager

from .conftest import assert_close, import_sample

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
make_model = import_sample("resnet50/make_model.py")
# Together these have the operators of all; the sample has a ResNet.
SAMPLE = {"light_densenet121", "light_inception_v1", "light_shufflenet"}
NAMES = [n if n in SAMPLE else pytest.param(n, marks=pytest.mark.thorough) for n in make_model.MODEL_NAMES]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that goes with the test: pytest keeps those of ``tmp_path``, which here would be gigabytes."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def random_input(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """One standard normal input of the model's shape."""
    (value,) = model.graph.input
    shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    return {value.name: np.random.default_rng(7).standard_normal(shape, dtype=np.float32)}


def test_equal_seeds_give_equal_bytes() -> None:
    def serialize(seed: int) -> bytes:
        return make_model.make_light_model("light_squeezenet", seed).SerializeToString(deterministic=True)

    assert serialize(3) == serialize(3)
    assert serialize(3) != serialize(4)


def test_unknown_model_is_refused() -> None:
    with pytest.raises(ValueError, match="light_resnet50"):
        make_model.make_light_model("resnet")


@pytest.mark.parametrize("name", ["light_squeezenet", "light_shufflenet", "light_densenet121"])
def test_parameters_are_stored_and_answers_vary(name: str) -> None:
    model = make_model.make_light_model(name)
    assert not any(node.op_type == "ConstantOfShape" for node in model.graph.node)
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert len(model.graph.input) == 1
    assert all(tensor.raw_data for tensor in model.graph.initializer)
    assert all(array.std() > 0 for array in stored.values() if array.dtype == np.float32 and array.size > 1)

    inputs = random_input(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (one,) = session.run(None, inputs)
    (other,) = session.run(None, {key: value / 2 for key, value in inputs.items()})
    assert np.isfinite(one).all()
    assert np.abs(one - other).max() > 0.1 * np.abs(one).max()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_bundle_equals_onnxruntime(name: str, folder: Path) -> None:
    path = folder / f"{name}.onnx"
    model = make_model.make_light_model(name)
    onnx.save(model, path)
    inputs = random_input(model)
    (wanted,) = onnxruntime.InferenceSession(path).run(None, inputs)

    bundle = folder / f"{name}.so"
    packager.build(path, output=bundle, targets=targets_here())
    outputs = packager.load(bundle).run(inputs)
    assert list(outputs) == [model.graph.output[0].name]
    (got,) = outputs.values()
    assert got.shape == wanted.shape
    assert_close(got, wanted)
