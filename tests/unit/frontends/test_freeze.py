"""``--freeze``: inputs of ONNX models that become constants."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import packager
from packager.errors import UsageError
from packager.frontends.freeze import parse_frozen
from tests.one_cpu import targets_here


@pytest.fixture
def model(tmp_path: Path) -> Path:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[2,3] x, int64[2] shape, float[k] scale) => (float[3,2] y) { r = Reshape(x, shape)  y = Mul(r, scale) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_a_frozen_input_is_no_input_any_more(model: Path, tmp_path: Path) -> None:
    freeze = {"shape": [3, -1], "scale": np.array([2, 3], np.float32)}
    with packager.load(packager.build(model, tmp_path / "model.so", freeze=freeze, targets=targets_here())) as bundle:
        assert [spec.name for spec in bundle.manifest.inputs] == ["x"]
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        np.testing.assert_array_equal(bundle.run({"x": x})["y"], x.reshape(3, 2) * [2, 3])


def test_values_are_part_of_the_key_of_a_build(model: Path, tmp_path: Path) -> None:
    x = np.ones((2, 3), np.float32)
    for scale in (2, 5):
        path = packager.build(
            model, tmp_path / f"{scale}.so", freeze={"shape": [3, 2], "scale": [scale, scale]}, targets=targets_here()
        )
        with packager.load(path) as bundle:
            np.testing.assert_array_equal(bundle.run({"x": x})["y"], np.full((3, 2), scale))


@pytest.mark.parametrize(
    ("freeze", "message"),
    [
        ({"shap": [3, 2]}, "the model has no such input"),
        ({"shape": [3, 2, 1]}, r"the value has shape \[3\], the input \[2\]"),
        ({"shape": [3, 0.5]}, "cannot be represented as int64"),
        ({"shape": "3,2"}, "is not a number or list of numbers"),
        ({"shape": [[3], [2, 1]]}, "not an array"),
    ],
)
def test_what_cannot_be_frozen(model: Path, tmp_path: Path, freeze: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        packager.build(model, tmp_path / "model.so", freeze=freeze, targets=targets_here())
    assert not (tmp_path / "model.so").exists()


@pytest.mark.parametrize("texts", [["shape"], ["=1"], ["shape=[1"], ["axis=1", "axis=2"]])
def test_what_cannot_be_read(texts: list[str]) -> None:
    with pytest.raises(UsageError, match="--freeze"):
        parse_frozen(texts)


def test_a_list_of_texts_is_read() -> None:
    assert parse_frozen(["shape=[2, 3]", "axis=1"]) == {"shape": [2, 3], "axis": 1}
