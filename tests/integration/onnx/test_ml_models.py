"""Models as skl2onnx and onnxmltools write them (tests/corpus/ml), against onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from one_cpu import targets_here

import packager
from packager.bundle.manifest import TensorSpec

pytestmark = pytest.mark.slow
CORPUS = Path(__file__).parents[2] / "corpus" / "ml"
SIZES = (1, 2, 17, 64)


def rows_for(path: Path) -> np.ndarray:
    """Return rows that a model can have: with NaN for those that are made for missing values."""
    rng = np.random.default_rng(9)
    if path.stem in ("one_hot", "ordinal"):
        return rng.integers(0, 4, size=(max(SIZES), 3))
    x = rng.normal(size=(max(SIZES), 4)).astype(np.float32)
    if path.stem.startswith(("xgboost", "lightgbm", "imputer")):
        x[rng.random(x.shape) < 0.1] = np.nan
    return x


def plain(want: Any, spec: TensorSpec) -> np.ndarray:
    """Return what onnxruntime gives as numbers: dictionaries as rows, names as their places among the labels."""
    if isinstance(want, list):
        assert [str(key) for key in want[0]] == list(spec.labels)
        return np.array([list(row.values()) for row in want], np.float32)
    if want.dtype == object:
        return np.array([spec.labels.index(name) for name in want.reshape(-1)]).reshape(want.shape)
    return np.asarray(want)


def test_models_of_scikit_learn_xgboost_and_lightgbm(tmp_path: Path) -> None:
    """All of them are entries of one bundle, which is linked once."""
    paths = sorted(CORPUS.glob("*.onnx"))
    assert len(paths) >= 39
    bundle_path = tmp_path / "models.so"
    packager.build(paths, bundle_path, dims={"N": (1, max(SIZES))}, targets=targets_here())
    with packager.load(bundle_path) as bundle:
        entries = {entry.name: entry for entry in bundle.manifest.entries}
        for path in paths:
            session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
            (name,) = (value.name for value in session.get_inputs())
            x = rows_for(path)
            for size in SIZES:
                got = bundle.run({name: x[:size]}, entry=path.stem)
                results = session.run(None, {name: x[:size]})
                for spec, result in zip(entries[path.stem].outputs, results, strict=True):
                    want = plain(result, spec)
                    remark = f"{path.stem}, {spec.name}, {size} rows"
                    assert got[spec.name].shape == want.shape, remark
                    np.testing.assert_allclose(got[spec.name], want, 1e-5, 1e-5, err_msg=remark)


def test_class_names_are_in_the_manifest(tmp_path: Path) -> None:
    packager.build(CORPUS / "logistic_of_two.onnx", tmp_path / "model.so", dims={"N": (1, 4)}, targets=targets_here())
    with packager.load(tmp_path / "model.so") as bundle:
        label, probabilities = bundle.manifest.outputs
        assert (label.dtype, label.labels) == ("int64", ("ham", "spam"))
        assert (probabilities.dtype, probabilities.labels) == ("float32", ("ham", "spam"))
        assert not bundle.manifest.inputs[0].labels
    assert onnx.load(CORPUS / "logistic_of_two.onnx").graph.output[1].type.HasField("sequence_type")
