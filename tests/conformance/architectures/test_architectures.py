"""Architectures that people export, against torch: a sample of the table."""

from __future__ import annotations

from pathlib import Path

import pytest
from one_cpu import targets_here

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
EVERY = 41


@pytest.fixture(autouse=True)
def packages() -> None:
    """Import what takes seconds when a test needs it, not when all are collected."""
    pytest.importorskip("transformers")
    pytest.importorskip("onnxscript", reason="torch.onnx.export needs it")


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

    outcome = run("unet", Example(TwoFaced(), example.inputs), "pt2", tmp_path, targets_here())
    assert outcome.verdict == "wrong"


def check(form: str, chosen: slice) -> None:
    """Judge architectures as the document does; ``python -m tests.conformance.architectures`` writes it."""
    from .__main__ import complaints, run_all
    from .models import ARCHITECTURES
    from .running import FORMS
    from .table import PATH, verdicts

    before = verdicts(PATH.read_text())
    assert set(before) == {(name, form) for name in ARCHITECTURES for form in FORMS}
    outcomes = run_all(list(ARCHITECTURES)[chosen], [form], targets_here())
    assert complaints(outcomes, before) == []


@pytest.mark.parametrize(("form", "first"), [("pt2", 0), ("onnx", EVERY // 2)])
def test_a_sample_is_as_the_document_says(form: str, first: int) -> None:
    """Others in each form: what TVM and the backends get of an architecture is about the same."""
    check(form, slice(first, None, EVERY))


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["pt2", "onnx"])
def test_architectures_are_as_the_document_says(form: str) -> None:
    check(form, slice(None))
