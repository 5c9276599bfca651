"""Mixtures of experts in torch.export programs, as transformers writes them, against torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packager
from tests.one_cpu import targets_here

torch = pytest.importorskip("torch")

from packager.frontends.torch.ops.grouped import known_operators  # noqa: E402  (it needs torch)

pytestmark = pytest.mark.slow


class Experts(torch.nn.Module):
    """Rows in the order of their experts, multiplied by the matrix of each; two of the last rows have none."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.matrices = torch.nn.Parameter(torch.randn(count, 8, 6))

    def forward(self, rows: Any, expert: Any) -> Any:
        order = expert.argsort(stable=True)
        counts = torch.histc(expert.float(), self.matrices.shape[0], 0, self.matrices.shape[0] - 1)
        ends = counts.cumsum(0, dtype=torch.int32)
        return torch.ops.transformers.grouped_mm_fallback(rows[order], self.matrices, ends - 1)


@pytest.mark.parametrize(("rows", "experts"), [(20, 4), (3, 4)], ids=["all matrices at once", "a matrix for each row"])
def test_each_row_is_multiplied_by_the_matrix_of_its_expert(rows: int, experts: int, tmp_path: Path) -> None:
    """The program is built where nothing has the operator that it was exported with."""
    module, inputs = Experts(experts).eval(), (torch.randn(rows, 8), torch.randint(0, experts, (rows,)))
    with known_operators(), torch.no_grad():
        torch.export.save(torch.export.export(module, inputs), tmp_path / "m.pt2")
        ends = torch.bincount(inputs[1], minlength=experts).cumsum(0) - 1
    order = inputs[1].argsort(stable=True)
    wanted = np.zeros((rows, 6), np.float32)
    begin = 0
    for expert, end in enumerate(ends.tolist()):
        matrix = module.matrices[expert].detach().numpy()
        wanted[begin:end] = inputs[0][order][begin:end].numpy() @ matrix
        begin = max(begin, end)
    with packager.load(packager.build(tmp_path / "m.pt2", tmp_path / "m.so", targets=targets_here())) as bundle:
        feeds = {spec.name: tensor.numpy() for spec, tensor in zip(bundle.inputs, inputs, strict=True)}
        (found,) = bundle.run(feeds).values()
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-5)
