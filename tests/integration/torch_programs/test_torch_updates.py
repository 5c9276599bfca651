"""Updates in torch.export programs, through the whole of packager, against torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packager
from tests.one_cpu import targets_here
from tests.torch_programs import check

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")


class Counter(torch.nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return x + self.calls


def test_assigned_slices(tmp_path: Path) -> None:
    def written(into: Any, *assignments: tuple[Any, Any]) -> Any:
        into = into.clone()
        for places, values in assignments:
            into[places] = values
        return into

    every, most = slice(None), slice(1, -1)

    def forward(x: Any, y: Any) -> Any:
        return (
            written(x.new_empty(4, 6), ((every, slice(0, 2)), y), ((every, slice(2, 6)), x[:, 2:] * 2)),
            written(x, ((every, slice(1, 3)), y), ((every, slice(2, 4)), y + 1), ((every, slice(-1, None)), 0.5)),
            written(x, ((most, most), y[:2, :1] + 3), ((0, 2), 7.0), ((slice(3, 99), every), x[:1])),
            written(x, ((every, slice(0, 6, 2)), y[:, :1]), ((slice(2, 2), every), 3.0)),
            written(x, *(((every, place), y[:, 0] * place) for place in range(6))),
        )

    check(forward, (torch.randn(4, 6), torch.randn(4, 2)), tmp_path)


def test_elements_are_written_by_indices_and_masks(tmp_path: Path) -> None:
    def put(into: Any, places: Any, values: Any, *, adds: bool = False) -> Any:
        return torch.index_put(into, places, values, adds)

    def in_all(into: Any, rows: Any, columns: Any) -> Any:
        into[:, rows, columns] = 3.0
        return into

    def forward(x: Any, y: Any, i: Any, j: Any, k: Any) -> Any:
        return (
            put(x, (i,), y[0]),
            put(x, (i,), y[0], adds=True),  # several of one place are added up
            x.index_add(1, k, y[:, 0, :3], alpha=2),
            x.index_copy(0, k[:2], y[1, :2]),
            put(x, (i, j), y[0, :, 0], adds=True),
            put(x, (i[:, None], j), y[0, :, :3]),
            in_all(x[None].repeat(2, 1, 1), i, j),
            put(x, (x > 0,), torch.tensor(-1.0)),
            put(x, (x[:, 0] > 0,), y[1, :1]),
            put(x, (x[:, 0] > 0,), y[1, 0], adds=True),
            x.masked_fill(x > 1, 5.0),
        )

    places = torch.tensor([0, -1, 0]), torch.tensor([1, 4, 1]), torch.tensor([2, 0, 2])
    check(forward, (torch.randn(4, 5), torch.randn(4, 3, 5), *places), tmp_path)


def test_slices_of_symbolic_bounds_are_assigned(tmp_path: Path) -> None:
    def forward(x: Any, y: Any) -> Any:
        ends = x.clone()
        ends[: y.shape[0]] = y
        ends[-y.shape[0] :] += y
        columns = x * 2
        columns[:, 1:3] = 0.0
        return ends, columns

    rows, fewer = torch.export.Dim("rows", min=6, max=64), torch.export.Dim("fewer", min=2, max=3)
    others = [(torch.randn(7, 4), torch.randn(3, 4))]
    check(forward, (torch.randn(9, 4), torch.randn(2, 4)), tmp_path, ({0: rows}, {0: fewer}), others)


def test_a_buffer_that_is_changed_is_a_state(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(Counter(), (torch.zeros(3),)), tmp_path / "m.pt2")
    with packager.load(packager.build(tmp_path / "m.pt2", tmp_path / "m.so", targets=targets_here())) as bundle:
        assert [(state.name, state.shape) for state in bundle.states] == [("calls", (1,))]
        assert [spec.name for spec in (*bundle.inputs, *bundle.outputs)] == ["x", "output"]
        with bundle.session() as session, bundle.session() as other:
            for count in (1, 2, 3):
                np.testing.assert_array_equal(session.run({"x": np.zeros(3, np.float32)})["output"], np.full(3, count))
            np.testing.assert_array_equal(other.run({"x": np.zeros(3, np.float32)})["output"], np.full(3, 1))
            session.reset()
            assert session.states["calls"] == 0


class Cache(torch.nn.Module):
    """Writes rows of a cache at places that it is told, as decoders do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.arange(24.0).reshape(2, 4, 3))

    def forward(self, at: Any, row: Any) -> Any:
        self.rows[:, at] = row
        return self.rows.sum(1)


def test_rows_of_a_state_are_written_in_place(tmp_path: Path) -> None:
    module, folder = Cache(), tmp_path / "work"
    example = (torch.tensor([1]), torch.zeros(2, 1, 3))
    torch.export.save(torch.export.export(module, example, strict=True), tmp_path / "m.pt2")
    path = packager.build(tmp_path / "m.pt2", tmp_path / "m.so", keep_workdir=folder, targets=targets_here())
    steps = json.loads((folder / "4-plan.json").read_text())["steps"]
    assert all("symbol" in step for step in steps)  # none is a copy
    with packager.load(path) as bundle, bundle.session() as session:
        for at, value in ((3, 1.0), (0, 2.0), (-1, 5.0)):
            row = torch.full((2, 1, 3), value)
            wanted = module(torch.tensor([at]), row)
            got = session.run({"at": np.array([at]), "row": row.numpy()})["output"]
            np.testing.assert_array_equal(got, wanted.numpy())
        np.testing.assert_array_equal(session.states["rows"], module.rows.numpy())


def test_checks_of_data_are_dropped(tmp_path: Path) -> None:
    """As that images have as many places in a text as they have features: a bundle trusts its inputs."""

    def forward(x: Any, mask: Any, values: Any) -> Any:
        torch._check((mask.sum() == values.numel()).all().item())
        return (x.masked_scatter(mask, values),)

    mask = torch.tensor([[True, False, True], [False, True, False]])
    check(forward, (torch.randn(2, 3), mask, torch.randn(3)), tmp_path)
