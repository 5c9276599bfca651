from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from packager.frontends.onnx.graph import external_data as onnx_data
from packager.frontends.onnx.graph.external_data import detach_large, is_declared, read_external

LARGE = np.arange(4096, dtype=np.float32).reshape(64, 64)
SMALL = np.arange(4, dtype=np.int64)


def model_of(*tensors: TensorProto) -> onnx.ModelProto:
    return helper.make_model(helper.make_graph([], "g", [], [], list(tensors)))


def external(name: str, array: np.ndarray, **place: object) -> TensorProto:
    """An initializer whose data are at ``place``."""
    tensor = numpy_helper.from_array(array, name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in place.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def test_large_data_are_taken_out_of_the_model() -> None:
    model = model_of(numpy_helper.from_array(LARGE, "large"), numpy_helper.from_array(SMALL, "small"))
    arrays = detach_large(model.graph)
    assert arrays.keys() == {"large"}
    np.testing.assert_array_equal(arrays["large"], LARGE)
    large, small = model.graph.initializer
    assert is_declared(large)
    assert (large.name, large.data_type, list(large.dims)) == ("large", TensorProto.FLOAT, [64, 64])
    assert large.ByteSize() < 100
    np.testing.assert_array_equal(numpy_helper.to_array(small), SMALL)


def test_data_in_typed_fields_are_taken_too() -> None:
    model = model_of(helper.make_tensor("large", TensorProto.FLOAT, LARGE.shape, LARGE.reshape(-1)))
    np.testing.assert_array_equal(detach_large(model.graph)["large"], LARGE)


@pytest.mark.parametrize("surplus", [-4, 4])
def test_data_that_do_not_fit_the_shape(surplus: int) -> None:
    tensor = numpy_helper.from_array(LARGE, "large")
    tensor.raw_data = tensor.raw_data[:surplus] if surplus < 0 else tensor.raw_data + bytes(surplus)
    with pytest.raises(ValueError, match="initializer 'large'"):
        detach_large(model_of(tensor).graph)


def test_external_data_are_mapped_once_and_not_read(tmp_path: Path) -> None:
    half = LARGE.astype(np.float16)[:, 1:]
    (tmp_path / "data").write_bytes(bytes(6) + LARGE.tobytes() + half.tobytes() + SMALL.tobytes())
    model = model_of(
        external("large", LARGE, location="data", offset=6, length=LARGE.nbytes),
        external("half", half, location="data", offset=6 + LARGE.nbytes, length=half.nbytes),
        external("small", SMALL, location="data", offset=6 + LARGE.nbytes + half.nbytes, length=SMALL.nbytes),
    )
    arrays = read_external(model, tmp_path, ())
    np.testing.assert_array_equal(arrays["large"], LARGE)
    np.testing.assert_array_equal(arrays["half"], half)
    assert arrays.keys() == {"large", "half"}
    bases = [memory_of(array) for array in arrays.values()]
    assert isinstance(bases[0], mmap.mmap)
    assert bases[0] is bases[1]
    assert not any(array.flags.writeable for array in arrays.values())
    large, _, small = model.graph.initializer
    assert is_declared(large)
    np.testing.assert_array_equal(numpy_helper.to_array(small), SMALL)


def memory_of(array: object) -> object:
    """What owns the memory of a view."""
    while isinstance(array, np.ndarray | memoryview):
        array = array.obj if isinstance(array, memoryview) else array.base
    return array


@pytest.mark.parametrize(
    "place",
    [
        {"location": "data", "offset": 4, "length": LARGE.nbytes},
        {"location": "data", "offset": 0, "length": LARGE.nbytes - 4},
        {"location": "data", "offset": 4},
        {"location": "data", "offset": 1 << 62, "length": LARGE.nbytes},
        {"location": "data", "offset": -4, "length": LARGE.nbytes},
        {"location": "empty"},
    ],
)
def test_a_place_outside_the_file_or_of_another_size(place: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(LARGE.tobytes())
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="'large'"):
        read_external(model_of(external("large", LARGE, **place)), tmp_path, ())


@pytest.mark.parametrize("place", [{}, {"location": "missing"}, {"location": "../data"}, {"location": "link"}])
def test_a_file_that_is_missing_or_outside_the_folder(place: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(LARGE.tobytes())
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path / "data")
    with pytest.raises((OSError, ValueError, onnx.checker.ValidationError)):
        read_external(model_of(external("large", LARGE, **place)), tmp_path / "in", ())


def test_types_of_four_bits_are_read(tmp_path: Path) -> None:
    tensor = helper.make_tensor("four", TensorProto.INT4, [128, 128], bytes(range(128)) * 64, raw=True)
    expected = numpy_helper.to_array(tensor)
    (tmp_path / "data").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="data")
    model = model_of(tensor)
    assert read_external(model, tmp_path, ()) == {}
    np.testing.assert_array_equal(numpy_helper.to_array(model.graph.initializer[0]), expected)
    assert onnx_data.detach_large(model.graph) == {}
