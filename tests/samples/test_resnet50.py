"""The ResNet-50 sample through the command line, its weights in a file beside the bundle."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import packager
from packager.errors import PackagerError

from .conftest import SAMPLES, Run, assert_close

pytestmark = pytest.mark.slow

INPUT = "gpu_0/data_0"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The generated model file."""
    pytest.importorskip("onnx")
    path = tmp_path_factory.mktemp("resnet50") / "resnet50.onnx"
    command = [sys.executable, SAMPLES / "resnet50" / "make_model.py", "-o", path]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"wrote {path}, {path.stat().st_size / 1e6:.0f} MB\n"
    assert 100e6 < path.stat().st_size < 105e6
    return path


@pytest.fixture(scope="module")
def bundle(model: Path, run_cli: Run) -> Path:
    """The bundle, with external weights."""
    path = model.with_name("resnet50.so")
    run_cli(["build", model, "-o", path, "--weights", "external", "--no-cache"])
    return path


def test_weights_are_beside_the_bundle(bundle: Path, run_cli: Run) -> None:
    weights = bundle.with_suffix(".safetensors")
    assert 95e6 < weights.stat().st_size < 110e6
    assert bundle.stat().st_size < 10e6
    run_cli(["verify", bundle])


def test_answers_equal_those_of_onnxruntime(model: Path, bundle: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(model)
    loaded = packager.load(bundle)
    rng = np.random.default_rng(11)
    answers = []
    for contrast in (0.5, 1.0, 2.0):
        image = rng.standard_normal((1, 3, 224, 224), dtype=np.float32) * np.float32(contrast)
        (wanted,) = session.run(None, {INPUT: image})
        (got,) = loaded.run({INPUT: image}).values()
        assert got.shape == (1, 1000)
        assert abs(float(got.sum()) - 1) < 1e-4
        assert_close(got, wanted)
        answers.append(got)
    assert np.abs(answers[0] - answers[1]).max() > 0.1 * answers[0].max()


def test_bundle_without_its_weights_is_refused(bundle: Path, tmp_path: Path) -> None:
    alone = tmp_path / bundle.name
    shutil.copy(bundle, alone)
    with pytest.raises(PackagerError, match="safetensors"):
        packager.load(alone).run({INPUT: np.zeros((1, 3, 224, 224), np.float32)})


@pytest.mark.thorough  # tests/integration/placement has every vector of small models
def test_vectors_of_a_trial_give_equal_answers(model: Path, run_cli: Run) -> None:
    """Fifty of the combinations of alternatives of ``llvm`` and ``ccompiler``, and both plans."""
    path = model.with_name("trial.so")
    run_cli(["build", model, "-o", path, "-t", "llvm", "-t", "ccompiler", "--place", "trial"])
    image = np.random.default_rng(12).standard_normal((1, 3, 224, 224), dtype=np.float32)
    with packager.load(path) as loaded:
        placement = loaded.manifest.placement
        assert placement is not None
        draw = random.Random(13)
        vectors = [plan.digits for plan in placement.plans]
        vectors += [tuple(draw.randrange(len(c.alternatives)) for c in placement.choices) for _ in range(50)]
        answers = []
        for vector in vectors:
            chosen = {c.name: c.alternatives[n].name for c, n in zip(placement.choices, vector, strict=True)}
            with loaded.session(selection=chosen) as session:
                answers += session.run({INPUT: image}).values()
    for answer in answers[1:]:
        assert_close(answer, answers[0])
