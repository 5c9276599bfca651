"""Files of the corpus are built as docs/exporters.md says: a sample in CI, all in make thorough."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from one_cpu import targets_here

from .table import PATH, verdicts

pytestmark = pytest.mark.slow

# Exporters and torch are imported by the tests: they take seconds.
# One of each way to make a file that needs only what all test environments have.
SAMPLE = ("bert.torchscript", "tcn.torchscript", "bert.dynamo", "resnet.ort_qdq", "vit.ort_dynamic_int8")
KNOWN = verdicts(PATH.read_text())


@pytest.fixture(autouse=True)
def packages() -> None:
    """Skip where a package that all files need is missing."""
    for name in ("torch", "transformers", "onnxruntime"):
        pytest.importorskip(name)


def check(name: str, folder: Path) -> None:
    from .files import CASES
    from .processes import run_all

    case = CASES[name]
    missing = [module for module in case.needs if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"{case.exporter} needs {', '.join(missing)}")
    (outcome,) = run_all([case], folder, targets_here())
    assert outcome.verdict == KNOWN[name], outcome.reason


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_is_as_the_document_says(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in KNOWN if name not in SAMPLE])
def test_files_are_as_the_document_says(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


def test_another_model_is_wrong(tmp_path: Path) -> None:
    """Compare a bundle with the file of a model that has other weights."""
    import onnx

    from .files import CASES
    from .running import run

    case = CASES["tcn.torchscript"]
    path = tmp_path / f"{case.name}.onnx"
    case.make(path)
    model = onnx.load(path)
    bias = next(tensor for tensor in model.graph.initializer if len(tensor.dims) == 1)
    array = onnx.numpy_helper.to_array(bias) + 0.1
    bias.CopyFrom(onnx.numpy_helper.from_array(array.astype("float32"), bias.name))
    other = tmp_path / "other.onnx"
    onnx.save(model, other)
    assert run(case, tmp_path, targets_here(), reference=other).verdict == "wrong"
