"""Random models on random lists of Targets: what partitioning makes of them computes what onnxruntime does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from random_models import Case, random_case

import packager
from packager.bundle.manifest import Manifest

pytestmark = pytest.mark.slow


def feeds_of(case: Case, point: dict[str, int], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return small whole numbers for the inputs of a model, its dims as ``point`` says."""
    feeds = {}
    for value in case.model.graph.input:
        tensor = value.type.tensor_type
        shape = [point[d.dim_param] if d.dim_param else d.dim_value for d in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        low = 0 if dtype == np.uint8 else -4
        feeds[value.name] = np.asarray(rng.integers(low, 5, shape)).astype(dtype)
    return feeds


def check(seed: int, operators: int, folder: Path, place: str = "greedy") -> None:
    """Compare a model's bundle with onnxruntime; a trial with each of its plans, and with random vectors."""
    case = random_case(seed, operators)
    path = folder / "model.onnx"
    path.write_bytes(case.model.SerializeToString())
    bundle = packager.build(path, folder / "model.so", targets=case.targets, dims=case.dims, place=place)
    session = onnxruntime.InferenceSession(case.model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    rng = np.random.default_rng(seed)
    with packager.load(bundle) as loaded:
        for selection in selections(loaded.manifest, rng):
            with loaded.session(selection=selection) as opened:
                for point in case.points:
                    feeds = feeds_of(case, dict(point), rng)
                    actual = opened.run(feeds)
                    for name, want in zip(names, session.run(names, feeds), strict=True):
                        note = f"seed {seed}, {name}, {point}, {case.targets}, {selection}"
                        np.testing.assert_allclose(actual[name], want, rtol=1e-3, atol=1e-3, err_msg=note)


def selections(manifest: Manifest, rng: np.random.Generator) -> list[dict[str, str]]:
    """Return the plans of a trial, and random vectors; of other bundles what they were built with."""
    if not manifest.choices or manifest.placement is None:
        return [{}]
    sizes = [len(choice.alternatives) for choice in manifest.choices]
    vectors = [plan.digits for plan in manifest.placement.plans] + [tuple(rng.integers(0, sizes)) for _ in range(6)]
    return [
        {choice.name: choice.alternatives[digit].name for choice, digit in zip(manifest.choices, vector, strict=True)}
        for vector in vectors
    ]


@pytest.mark.parametrize("seed", range(12))
def test_random_models_and_targets(seed: int, tmp_path: Path) -> None:
    check(seed, 12, tmp_path)


@pytest.mark.sampled(3, every_value=False)
@pytest.mark.parametrize("seed", range(100, 130))
def test_larger_random_models_and_targets(seed: int, tmp_path: Path) -> None:
    check(seed, 30, tmp_path)


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.parametrize("seed", range(200, 212))
def test_every_plan_of_random_models(seed: int, tmp_path: Path) -> None:
    check(seed, 20, tmp_path, place="trial")
