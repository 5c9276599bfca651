"""The BERT sample: its model, who takes what of it, and its program where there is no GPU."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np
import pytest

import packager

from .conftest import SAMPLES, Run, assert_close, import_sample

onnx = pytest.importorskip("onnx")
make_model = import_sample("bert_cutlass/make_model.py")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's file, as its program writes it."""
    path = tmp_path_factory.mktemp("bert") / "bert.onnx"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["make_model.py", "-o", str(path)])
        assert make_model.main() == 0
    return path


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def test_equal_seeds_give_equal_bytes() -> None:
    def serialize(seed: int) -> bytes:
        return make_model.make_model(layers=1, seed=seed).SerializeToString(deterministic=True)

    assert serialize(3) == serialize(3)
    assert serialize(3) != serialize(4)


def test_heads_divide_the_width(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bert.onnx"
    monkeypatch.setattr(sys, "argv", ["make_model.py", "--heads", "3", "-o", str(path)])
    assert make_model.main() == 1
    assert capsys.readouterr().err == "error: 3 heads do not divide a width of 128\n"
    assert not path.exists()


def test_the_answer_depends_on_every_token(model: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(model)
    tokens = np.random.default_rng(1).integers(0, make_model.VOCABULARY, (2, 64))
    other = tokens.copy()
    other[0, -1] = (other[0, -1] + 1) % make_model.VOCABULARY
    (one,), (changed,) = session.run(None, {"input_ids": tokens}), session.run(None, {"input_ids": other})
    assert one.shape == (2, 64, 128)
    assert 0.5 < one.std() < 2
    assert (np.abs(one[0] - changed[0]).max(axis=-1) > 1e-4).all()
    np.testing.assert_array_equal(one[1], changed[1])


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_cutlass_takes_attention_and_products(model: Path, arch: str) -> None:
    pytest.importorskip("cutlass_library")
    from tests.stages import placement_table

    table = placement_table(model, targets=[f"cuda -arch={arch}", "cutlass"], dims={"n": (1, 8)}, precision="fp16")
    found = [
        (part["composite"], part["operators"].count("matmul")) for part in table["partitions"] for _ in part["sites"]
    ]
    # Each layer has q, k, v and the attention's two; the output, and the two of the feed-forward part.
    assert sorted(found) == [("cutlass.attention", 5)] * 2 + [("cutlass.dense", 1)] * 6


@pytest.mark.slow
def test_the_cpu_s_bundle_equals_onnxruntime(model: Path, tmp_path: Path, run_deployed: Run) -> None:
    """The program of the sample runs on whatever the bundle is for."""
    onnxruntime = pytest.importorskip("onnxruntime")
    bundle = packager.build(model, tmp_path / "bert.so", dims={"n": (1, 8)})
    tokens = np.random.default_rng(2).integers(0, make_model.VOCABULARY, (3, 64))
    (wanted,) = onnxruntime.InferenceSession(model).run(None, {"input_ids": tokens})
    assert_close(packager.load(bundle).run({"input_ids": tokens})["hidden"], wanted)
    done = run_deployed([SAMPLES / "bert_cutlass" / "run.py", bundle])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("hidden: (4, 64, 128), ")


@pytest.mark.slow
@pytest.mark.skipif(has_driver(), reason="this machine has a driver")
def test_the_program_says_that_there_is_no_gpu(model: Path, tmp_path: Path, run_deployed: Run) -> None:
    pytest.importorskip("nvidia")
    bundle = packager.build(model, tmp_path / "bert.so", targets=["cuda -arch=sm_80"], dims={"n": (1, 8)})
    done = run_deployed([SAMPLES / "bert_cutlass" / "run.py", bundle])
    assert done.returncode != 0
    assert done.stdout == ""
    assert done.stderr.startswith("no GPU of this machine runs the bundle: libcuda.so.1 ")
