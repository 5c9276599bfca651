"""The digits sample: a trained network, from the ONNX file to the accuracy of its bundle in a process without TVM."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import packager
from packager.errors import RunError

from .conftest import SAMPLES, Run, import_sample

pytestmark = pytest.mark.slow

MODEL = SAMPLES / "digits" / "digits.onnx"


def test_committed_images_are_the_held_out_digits() -> None:
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    known = {
        (image.astype(np.uint8).tobytes(), int(label))
        for image, label in zip(digits.images, digits.target, strict=True)
    }
    with np.load(SAMPLES / "digits" / "digits_test.npz") as test:
        images, labels = test["images"], test["labels"]
    assert images.shape == (360, 1, 8, 8)
    assert sorted(set(labels.tolist())) == list(range(10))
    assert {(image.tobytes(), int(label)) for image, label in zip(images, labels, strict=True)} <= known


def test_committed_model_is_small_and_as_documented() -> None:
    onnx = pytest.importorskip("onnx")
    assert MODEL.stat().st_size < 200_000
    model = onnx.load(MODEL)
    onnx.checker.check_model(model, full_check=True)

    def describe(value: object) -> tuple[str, list[object]]:
        return value.name, [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]

    assert [describe(value) for value in model.graph.input] == [("image", ["n", 1, 8, 8])]
    assert [describe(value) for value in model.graph.output] == [("logits", ["n", 10])]
    assert {"Conv", "BatchNormalization", "MaxPool", "Gemm"} <= {node.op_type for node in model.graph.node}


@pytest.fixture
def torch_settings() -> Iterator[None]:
    """Undo what a sample sets for its process: other tests of the worker use torch, too."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("torch_settings")
def test_training_again_gives_the_same_graph_and_accuracy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("sklearn")
    monkeypatch.setattr(sys, "argv", ["train.py", "--output", str(tmp_path)])
    assert import_sample("digits/train.py").main() == 0
    assert re.match(r"accuracy: 9[789]\.\d% of 360", capsys.readouterr().out)
    # Weights may differ by rounding from one CPU to the next, the graph may not.
    assert onnx.load(tmp_path / "digits.onnx").graph.node == onnx.load(MODEL).graph.node
    # The arrays are equal; how a zip file holds them depends on the versions of Python and zlib.
    with np.load(tmp_path / "digits_test.npz") as again, np.load(SAMPLES / "digits" / "digits_test.npz") as committed:
        assert sorted(again.files) == sorted(committed.files) == ["images", "labels"]
        for name in again.files:
            np.testing.assert_array_equal(again[name], committed[name], strict=True)


def test_bundle_passes_verify(digits_bundle: Path, run_cli: Run) -> None:
    run_cli(["verify", digits_bundle])


def test_accuracy_in_a_process_without_tvm(digits_bundle: Path, run_deployed: Run) -> None:
    done = run_deployed([SAMPLES / "digits" / "run.py", digits_bundle])
    assert done.returncode == 0, done.stdout + done.stderr
    match = re.fullmatch(r"accuracy: (\d+\.\d) % \((\d+) of 360\)\n", done.stdout)
    assert match, done.stdout
    assert int(match[2]) >= 350
    assert float(match[1]) == round(100 * int(match[2]) / 360, 1)


@pytest.mark.parametrize("batch", [1, 2, 7, 32, 63, 64])
def test_logits_equal_those_of_onnxruntime(digits_bundle: Path, digits_images: np.ndarray, batch: int) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    images = digits_images[-batch:]
    (wanted,) = onnxruntime.InferenceSession(MODEL).run(None, {"image": images})
    outputs = packager.load(digits_bundle).run({"image": images})
    assert list(outputs) == ["logits"]
    assert outputs["logits"].shape == (batch, 10)
    assert outputs["logits"].dtype == np.float32
    np.testing.assert_allclose(outputs["logits"], wanted, rtol=1e-4, atol=1e-5)


def test_an_image_has_the_same_logits_in_every_batch(digits_bundle: Path, digits_images: np.ndarray) -> None:
    bundle = packager.load(digits_bundle)
    together = bundle.run({"image": digits_images[:64]})["logits"]
    alone = np.concatenate([bundle.run({"image": digits_images[i : i + 1]})["logits"] for i in range(64)])
    np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batch", [0, 65])
def test_batches_out_of_bounds_are_refused(digits_bundle: Path, digits_images: np.ndarray, batch: int) -> None:
    bundle = packager.load(digits_bundle)
    with pytest.raises(RunError) as caught:
        bundle.run({"image": digits_images[:batch]})
    assert caught.value.name == "PACKAGER_ERROR_SHAPE"
    assert bundle.run({"image": digits_images[:3]})["logits"].shape == (3, 10)
