"""Architectures that people export, against torch: a sample of the table."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("onnxscript", reason="torch.onnx.export needs it")
EVERY = 5


@pytest.mark.slow
def test_three_architectures(tmp_path: Path) -> None:
    from .models import ARCHITECTURES
    from .running import run

    for name, form in (("roberta", "pt2"), ("ssd", "pt2"), ("mobilenet_v3", "onnx")):
        outcome = run(name, ARCHITECTURES[name](), form, tmp_path)
        assert outcome.verdict == "right", outcome


@pytest.mark.slow
def test_a_wrong_number_is_noticed(tmp_path: Path) -> None:
    from .example import Example
    from .models import ARCHITECTURES
    from .running import run

    example = ARCHITECTURES["unet"]()
    worse = ARCHITECTURES["unet"]().module
    with torch.no_grad():
        worse.last.bias += 1e-2

    class TwoFaced(torch.nn.Module):
        """The module while it is exported, another one when it is asked for the right results."""

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return (example.module if torch.compiler.is_exporting() else worse)(image)

    outcome = run("unet", Example(TwoFaced(), example.inputs), "pt2", tmp_path)
    assert outcome.verdict == "wrong"


@pytest.mark.slow
@pytest.mark.parametrize("form", ["pt2", "onnx"])
def test_architectures_are_as_the_document_says(form: str) -> None:
    """A sample; ``python -m tests.conformance.architectures`` judges all and writes the document."""
    from .__main__ import complaints, run_all
    from .models import ARCHITECTURES
    from .running import FORMS
    from .table import PATH, verdicts

    before = verdicts(PATH.read_text())
    assert set(before) == {(name, form) for name in ARCHITECTURES for form in FORMS}
    outcomes = run_all(list(ARCHITECTURES)[::EVERY], [form])
    assert complaints(outcomes, before) == []
