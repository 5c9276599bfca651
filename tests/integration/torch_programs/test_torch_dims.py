"""Programs of torch.export with nested inputs, and with dims that depend on each other, against torch."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packager
from packager.errors import ModelError, RunError
from tests.one_cpu import targets_here

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow

Pair = namedtuple("Pair", ["first", "second"])


class Cache:
    """A container that its author registers with torch, and nobody else."""

    def __init__(self, layers: list[Any]) -> None:
        self.layers = layers


@dataclasses.dataclass
class Found:
    """A result with named parts."""

    scores: Any
    cache: Any


def registered() -> None:
    """Register what the tests' programs have as inputs and outputs."""
    from torch.utils import _pytree as pytree

    pytree.register_pytree_node(
        Cache,
        lambda cache: (cache.layers, None),
        lambda layers, _: Cache(list(layers)),
        serialized_type_name="somewhere.Cache",
        flatten_with_keys_fn=lambda cache: (
            [(pytree.SequenceKey(n), layer) for n, layer in enumerate(cache.layers)],
            None,
        ),
    )
    torch.export.register_dataclass(Found, serialized_type_name="somewhere.Found")
    pytree._register_namedtuple(Pair, serialized_type_name="somewhere.Pair")


class Step(torch.nn.Module):  # type: ignore[misc,name-defined]
    """New tokens after a past, under a mask as long as both together."""

    def forward(self, x: Any, past: Cache, mask: Any, flag: bool = True) -> Found:
        first, second = past.layers[0]
        keys = torch.cat([first, x], 1)
        values = torch.cat([second, x * 2], 1)
        scores = (x @ keys.transpose(1, 2)) + mask[:, None, :]
        return Found(scores.softmax(-1) @ values if flag else x, Cache([Pair(keys, values)]))


def inputs(batch: int, new: int, past: int) -> tuple[Any, Cache, Any]:
    generator = torch.Generator().manual_seed(batch)
    first, second = (torch.randn(batch, past, 4, generator=generator) for _ in range(2))
    x, mask = torch.randn(batch, new, 4, generator=generator), torch.randn(batch, past + new, generator=generator)
    return x, Cache([Pair(first, second)]), mask


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program with containers of unknown types, a constant input, and dims without upper bounds."""
    registered()
    any_size = torch.export.Dim.AUTO
    shapes = ({0: any_size, 1: any_size}, [Pair(*[{0: any_size, 1: any_size}] * 2)], {0: any_size, 1: any_size}, None)
    exported = torch.export.export(Step(), (*inputs(2, 3, 5), True), dynamic_shapes=shapes)
    path = tmp_path_factory.mktemp("torch") / "step.pt2"
    torch.export.save(exported, path)
    return path


BUILD = """
import sys
import packager
packager.build(sys.argv[1], sys.argv[2], targets=["llvm"], dims=dict(zip(sys.argv[3:], [(2, 4), (2, 8), (2, 16)])))
"""


def test_containers_of_unknown_types_and_a_mask_of_past_and_new(step: Path, tmp_path: Path) -> None:
    program = torch.export.load(step)
    shapes = [node.meta["val"].shape for node in program.graph.find_nodes(op="placeholder")[:4]]
    names = [str(shapes[0][0]), str(shapes[0][1]), str(shapes[1][1])]
    library = tmp_path / "step.so"
    # A process of its own: nobody has registered the types there.
    done = subprocess.run(
        [sys.executable, "-c", BUILD, step, library, *names], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    with packager.load(library) as bundle:
        assert len(bundle.inputs) == 4  # the flag is none
        for sizes in ((2, 2, 2), (4, 3, 16), (3, 8, 5)):
            x, past, mask = inputs(*sizes)
            want = Step()(x, past, mask)
            flat = [want.scores, *want.cache.layers[0]]
            for got, wanted in zip(bundle.run([x, *past.layers[0], mask]).values(), flat, strict=True):
                np.testing.assert_allclose(got, wanted.numpy(), rtol=1e-5, atol=1e-6)
        x, past, mask = inputs(2, 3, 5)
        with pytest.raises(RunError, match="do not fit"):
            bundle.run([x, *past.layers[0], mask[:, :-1].contiguous()])


class Halves(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Joins the two halves of an axis."""

    def forward(self, x: Any) -> Any:
        first, second = x.chunk(2, 1)
        return torch.relu(first - second)


def test_a_dim_that_is_twice_another(tmp_path: Path) -> None:
    half = torch.export.Dim("half", min=2, max=6)
    program = torch.export.export(Halves(), (torch.randn(2, 8),), dynamic_shapes=({1: 2 * half},))
    path = tmp_path / "halves.pt2"
    torch.export.save(program, path)
    with packager.load(packager.build(path, tmp_path / "halves.so", targets=["llvm"])) as bundle:
        (dim,) = bundle.manifest.dims
        assert (dim.min, dim.max) == (4, 12)
        for size in (4, 8, 12):
            x = torch.randn(2, size)
            (got,) = bundle.run([x]).values()
            np.testing.assert_allclose(got, Halves()(x).numpy(), rtol=1e-6)
        with pytest.raises(RunError, match="do not fit"):
            bundle.run([torch.randn(2, 7)])


class Compare(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Demands that one extent is smaller than another."""

    def forward(self, x: Any, y: Any) -> Any:
        torch._check(x.shape[0] < y.shape[0])
        return x.sum() + y


def test_an_assertion_that_does_not_follow_is_checked_by_the_run(tmp_path: Path) -> None:
    shapes = ({0: torch.export.Dim("a", min=2, max=8)}, {0: torch.export.Dim("b", min=3, max=9)})
    program = torch.export.export(
        Compare(),
        (torch.randn(3), torch.randn(5)),
        dynamic_shapes=shapes,
        prefer_deferred_runtime_asserts_over_guards=True,
    )
    path = tmp_path / "compare.pt2"
    torch.export.save(program, path)
    with packager.load(packager.build(path, tmp_path / "compare.so", targets=["llvm"])) as bundle:
        x, y = torch.randn(4), torch.randn(6)
        (got,) = bundle.run([x, y]).values()
        np.testing.assert_allclose(got, (x.sum() + y).numpy(), rtol=1e-5)
        with pytest.raises(RunError, match="do not fit"):
            bundle.run([y, x])


class Number(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Takes a number."""

    def forward(self, x: Any, count: int) -> Any:
        return x * count


def test_an_input_that_is_a_number_is_refused(tmp_path: Path) -> None:
    program = torch.export.export(Number(), (torch.randn(3), 4), dynamic_shapes=({}, torch.export.Dim.DYNAMIC))
    path = tmp_path / "number.pt2"
    torch.export.save(program, path)
    with pytest.raises(ModelError, match="'count' is a number"):
        packager.build(path, tmp_path / "number.so", targets=targets_here())
