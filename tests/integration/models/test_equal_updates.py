"""Sums by index of equal elements: they are added in one column, and counted on GPUs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packager.graph.dataflow import bindings_of, operator_of
from packager.graph.rewrite import apply
from packager.lower.cuda.algorithms.scatters.orders import sort_scatters
from packager.lower.cuda.algorithms.scatters.sorted_scatter import SCATTER_SORTED
from packager.lower.devices import DEVICES
from packager.pipeline.import_models import import_model
from packager.pipeline.options import BuildOptions
from packager.pipeline.request import make_build_request
from packager.transforms.simplify.narrow_indices import narrow_indices
from tests.integration.models.test_fronts import GPU, saved
from tests.unit.lower.algorithms.test_cuda_algorithms import runs

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.slow

NODES, EDGES, WIDTH = 12, 700, 5


class Graph(torch.nn.Module):
    """``core(nodes, to, of)`` of lists of edges."""

    def __init__(self, core: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()
        self.core = core

    def forward(self, nodes: Any, to: Any, of: Any) -> Any:
        return self.core(nodes, to, of)


def columns(index: Any) -> Any:
    return index[:, None].expand(-1, WIDTH)


def degrees(nodes: Any, to: Any, of: Any) -> Any:
    ones = torch.ones_like(nodes[of])
    counts = torch.zeros_like(nodes).scatter_add(0, columns(to), ones).clamp(min=1)
    return torch.zeros_like(nodes).scatter_add(0, columns(to), nodes[of]) / counts


def more_of_each(nodes: Any, to: Any, of: Any) -> Any:
    return nodes.scatter_add(0, columns(to), torch.full((EDGES, WIDTH), -0.75)) + nodes[of[:1]]


def degrees_of_nodes(nodes: Any, to: Any, of: Any) -> Any:
    return torch.zeros(NODES).scatter_add(0, to, torch.ones(EDGES))[:, None] * nodes + nodes[of[:1]]


def of_both_ends(nodes: Any, to: Any, of: Any) -> Any:
    return degrees_of_nodes(nodes, to, of) - degrees_of_nodes(nodes, of, to)


def means(nodes: Any, to: Any, of: Any) -> Any:
    return nodes.scatter_reduce(0, columns(to), nodes[of], "mean", include_self=True)


def whole_numbers(nodes: Any, to: Any, of: Any) -> Any:
    counts = torch.zeros(NODES, dtype=torch.int64).index_add(0, to, torch.full((EDGES,), 3))
    return nodes * counts[:, None] + nodes[of[:1]]


def of_different_weights(nodes: Any, to: Any, of: Any) -> Any:
    return nodes.scatter_add(0, columns(to), torch.linspace(0, 1, EDGES)[:, None].expand(-1, WIDTH)) + nodes[of[:1]]


# How many scatters are left.
SCATTERS = {
    degrees: 1,
    more_of_each: 0,
    degrees_of_nodes: 0,
    of_both_ends: 0,
    means: 1,
    whole_numbers: 0,
    of_different_weights: 1,
}
# The exporter of ONNX files has no means by index, nor sums by the index of a vector.
FILES = [
    *((core, "m.pt2") for core in SCATTERS),
    *((core, "onnx.onnx") for core in SCATTERS if core not in (means, whole_numbers)),
]


@pytest.mark.parametrize(("core", "file"), FILES)
def test_equal_updates_are_counted(tmp_path: Path, core: Callable[..., Any], file: str) -> None:
    generator = torch.Generator().manual_seed(0)
    to, of = torch.randint(0, NODES, (2, EDGES), generator=generator)
    inputs = (torch.randn(NODES, WIDTH, generator=generator), to, of)
    module = Graph(core).eval()
    model = import_model(make_build_request(BuildOptions(saved(module, inputs, tmp_path / file), targets=GPU)))
    narrow = narrow_indices(model.module)
    operators = [operator_of(binding.value) for binding in bindings_of(sort_scatters(narrow)["main"])]
    assert operators.count(SCATTER_SORTED.removeprefix("relax.")) == SCATTERS[core]
    run = runs(apply(DEVICES["cuda"].legalize, narrow))
    with torch.no_grad():
        found = run(*(each.numpy() for each in inputs), *model.weights.values())[0]
        np.testing.assert_allclose(found, module(*inputs).numpy(), rtol=1e-5, atol=1e-4)
