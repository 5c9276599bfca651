"""Loops over tokens that exporters unroll: recurrences are scans, and what steps compute is computed at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packager.graph.dataflow import bindings_of, called_function, operator_of
from packager.graph.recurrences.forward_substitution import OPERATOR as FORWARD_SUBSTITUTION
from packager.graph.recurrences.linear_scan import OPERATOR as LINEAR_SCAN
from packager.lower.devices import CPU_LEGALIZERS
from packager.lower.legalize.normalize import expand_norms
from packager.lower.lowering import lower
from packager.pipeline.import_models import import_model
from packager.pipeline.options import BuildOptions
from packager.pipeline.request import make_build_request
from tests.integration.models.test_fronts import GPU, saved
from tests.stages import placed_file
from tests.unit.tvm_machine import compute

torch = pytest.importorskip("torch")
relax = pytest.importorskip("tvm").relax
nn = torch.nn

pytestmark = pytest.mark.slow

BATCH, ROWS, WIDTH, STATES = 2, 24, 16, 4


class Loop(nn.Module):
    """Projections around ``core(x, decay, states)``: [batch, rows, width], the second between 0 and 1."""

    def __init__(self, core: Callable[..., Any]) -> None:
        super().__init__()
        self.core = core
        self.x, self.decay, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.reads = nn.Linear(WIDTH, STATES)

    def forward(self, x: Any, *given: Any) -> Any:
        return self.out(self.core(self.x(x), torch.sigmoid(self.decay(x) + 2), self.reads(x), *given))


def selective(x: Any, decay: Any, reads: Any) -> Any:
    """As Mamba's: each channel has several states, of which each token reads a sum."""
    decays = decay[..., None] ** torch.arange(1, STATES + 1)
    updates = x[..., None] * reads[:, :, None]
    state, found = x.new_zeros(x.shape[0], WIDTH, STATES), []
    for i in range(ROWS):
        state = decays[:, i] * state + updates[:, i]
        found.append((state @ reads[:, i, :, None])[..., 0])
    return torch.stack(found, 1)


def gated(x: Any, decay: Any, _reads: Any) -> Any:
    """As Griffin's: states are written to the rows of a tensor."""
    state, found = torch.zeros(BATCH, WIDTH), torch.zeros(BATCH, ROWS, WIDTH)
    for i in range(ROWS):
        state = decay[:, i] * state + x[:, i]
        found[:, i] = state
    return found


def from_a_state(x: Any, decay: Any, _reads: Any, state: Any) -> Any:
    found = []
    for row, factor in zip(x.unbind(1), decay.unbind(1), strict=True):
        state = row + state * factor
        found.append(state)
    return torch.stack(found, 1)


def from_the_first_row(x: Any, decay: Any, _reads: Any) -> Any:
    found = [x[:, 0]]
    for i in range(1, ROWS):
        found.append(decay[:, i] * found[-1] + x[:, i])
    return torch.stack(found, 1)


def computed_in_steps(x: Any, decay: Any, reads: Any) -> Any:
    """Decays and updates are computed for each token; the last state is read, too."""
    state, found = x.new_zeros(x.shape[0], WIDTH), []
    for i in range(ROWS):
        state = torch.exp(-decay[:, i]) * state + torch.tanh(x[:, i]) * reads[:, i, :1]
        found.append(torch.relu(state) + x[:, i])
    return torch.cat([each[:, None] for each in found], 1) + state[:, None]


def of_one_decay(x: Any, decay: Any, _reads: Any) -> Any:
    """An exponential average, whose factors are the same for all tokens."""
    state, found = torch.zeros(BATCH, WIDTH), []
    for i in range(ROWS):
        state = decay[:, 0] * state + x[:, i]
        found.append(state)
    return torch.stack(found, 1)


def without_recurrence(x: Any, decay: Any, _reads: Any) -> Any:
    return torch.stack([(x[:, i] * decay[:, i]).softmax(-1).sum(-1, keepdim=True) + x[:, i] for i in range(ROWS)], 1)


def of_tanh(x: Any, decay: Any, _reads: Any) -> Any:
    """No linear recurrence."""
    state, found = torch.zeros(BATCH, WIDTH), []
    for i in range(ROWS):
        state = torch.tanh(decay[:, i] * state + x[:, i])
        found.append(state)
    return torch.stack(found, 1)


def of_other_rows(x: Any, decay: Any, _reads: Any) -> Any:
    """Decays are of every second row: not one after the other."""
    state, found = torch.zeros(BATCH, WIDTH), []
    for i in range(ROWS // 2):
        state = decay[:, 2 * i] * state + x[:, i]
        found.append(state)
    return torch.stack(found, 1)


def delta_rule(x: Any, decay: Any, _reads: Any) -> Any:
    """As Gated DeltaNet's: rows of a triangular matrix are replaced one after the other."""
    keys = torch.nn.functional.normalize(x, dim=-1)
    found = -(keys @ keys.transpose(-1, -2) * decay[..., :1]).tril(-1)
    for i in range(1, ROWS):
        row, corner = found[..., i, :i].clone(), found[..., :i, :i].clone()
        found[..., i, :i] = row + (row.unsqueeze(-1) * corner).sum(-2)
    return (found + torch.eye(ROWS)) @ x


def of_other_corners(x: Any, decay: Any, _reads: Any) -> Any:
    """No forward substitution: a row less in each step."""
    found = -(x @ x.transpose(-1, -2) * decay[..., :1]).tril(-1)
    for i in range(2, ROWS):
        row, corner = found[..., i, :i].clone(), found[..., 1 : i + 1, :i].clone()
        found[..., i, :i] = row + (row.unsqueeze(-1) * corner).sum(-2) * 0.1
    return (found + torch.eye(ROWS)) @ x


INPUT = torch.randn(BATCH, ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
LOOPS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "selective": (selective, ()),
    "gated": (gated, ()),
    "from a state": (from_a_state, (INPUT[:, 0] * 3,)),
    "from the first row": (from_the_first_row, ()),
    "computed in steps": (computed_in_steps, ()),
    "of one decay": (of_one_decay, ()),
}
OTHERS = {"of tanh": of_tanh, "of other rows": of_other_rows, "of other corners": of_other_corners}
MOST_CALLS = 14


def exported(core: Callable[..., Any], given: tuple[Any, ...], path: Path) -> tuple[Any, Path]:
    """Return a module and its file."""
    torch.manual_seed(1)
    module = Loop(core).eval()
    return module, saved(module, (INPUT, *given), path)


def assert_same(module: Any, given: tuple[Any, ...], path: Path, x: Any = INPUT) -> list[str]:
    """Compare what a GPU's module computes, in float32, with torch; return its operators."""
    model = import_model(make_build_request(BuildOptions(path, targets=GPU)))
    operators = [operator_of(binding.value) for binding in bindings_of(model.module["main"])]
    lowered = relax.transform.LegalizeOps(CPU_LEGALIZERS)(expand_norms(model.module))
    found = compute(lowered, [*(each.numpy() for each in (x, *given)), *model.weights.values()])[0]
    with torch.no_grad():
        np.testing.assert_allclose(found, module(x, *given).numpy(), rtol=1e-4, atol=1e-5)
    return operators


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("file", ["onnx.onnx", "m.pt2"])
def test_a_linear_recurrence_is_a_scan(tmp_path: Path, name: str, file: str) -> None:
    core, given = LOOPS[name]
    module, path = exported(core, given, tmp_path / file)
    operators = assert_same(module, given, path)
    assert operators.count(LINEAR_SCAN) == 1
    for precision in ("fp16", None):
        model = placed_file(path, targets=GPU, precision=precision)
        called = [called_function(binding.value) for binding in bindings_of(lower(model, "cuda").main)]
        assert sum(call is not None for call in called) <= MOST_CALLS, called


@pytest.mark.parametrize("file", ["onnx.onnx", "m.pt2"])
def test_steps_without_a_recurrence_are_computed_at_once(tmp_path: Path, file: str) -> None:
    module, path = exported(without_recurrence, (), tmp_path / file)
    operators = assert_same(module, (), path)
    assert operators.count("sum") == 1
    assert "concat" not in operators


@pytest.mark.parametrize("name", OTHERS)
def test_other_loops_stay(tmp_path: Path, name: str) -> None:
    module, path = exported(OTHERS[name], (), tmp_path / "m.pt2")
    assert not {LINEAR_SCAN, FORWARD_SUBSTITUTION} & {*assert_same(module, (), path)}


@pytest.mark.parametrize("file", ["onnx.onnx", "m.pt2"])
def test_a_forward_substitution_is_one_operator(tmp_path: Path, file: str) -> None:
    module, path = exported(delta_rule, (), tmp_path / file)
    operators = assert_same(module, (), path)
    assert operators.count(FORWARD_SUBSTITUTION) == 1
    assert operators.count("where") <= 1  # the triangle


@pytest.mark.parametrize("name", ["selective", "from a state", "computed in steps"])
def test_a_batch_of_any_size(tmp_path: Path, name: str) -> None:
    """Steps are those of tokens; how many sequences there are is not known."""
    core, given = LOOPS[name]
    torch.manual_seed(1)
    module, batch = Loop(core).eval(), torch.export.Dim("batch", min=1, max=8)
    path, inputs = tmp_path / "m.pt2", (torch.cat([INPUT, INPUT[:1]]), *(each[[0, 1, 0]] for each in given))
    shapes = ({0: batch}, *([tuple({0: batch} for _ in given)] if given else []))
    torch.export.save(torch.export.export(module, inputs, dynamic_shapes=shapes), path)
    model = placed_file(path, targets=GPU, precision="fp16")
    called = [called_function(binding.value) for binding in bindings_of(lower(model, "cuda").main)]
    assert sum(call is not None for call in called) <= MOST_CALLS + 2, called
    for size in (1, 3):
        assert_same(module, tuple(each[:size] for each in inputs[1:]), path, inputs[0][:size])
