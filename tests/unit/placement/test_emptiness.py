"""Which results may have elements although an operand has none."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import tirx

from packager.bundle.manifest import Dim
from packager.graph.identity import IdentityMap
from packager.ir.shapes import Extent
from packager.placement.emptiness import Emptiness

N, K, Z = (tirx.Var(name, "int64") for name in ("n", "k", "z"))
NAMES: IdentityMap[Extent] = IdentityMap([(N, "n"), (K, "k"), (Z, "z")])
DIMS = {"n": Dim("n", 1, 64), "k": Dim("k", 2, 64), "z": Dim("z", 0, 10**6)}


def constant(value: int) -> Any:
    return tirx.IntImm("int64", value)


def half(extent: Any) -> Any:
    return tirx.FloorDiv(extent, constant(2))


@pytest.mark.parametrize(
    ("operand", "result", "follows"),
    [
        ([N, constant(6)], [constant(6)], False),  # a dim is 1 at least
        ([Z, constant(6)], [constant(6)], True),
        ([Z, constant(6)], [Z], False),
        ([Z, constant(6)], [Z * 6], False),  # a reshape
        ([Z * 6], [Z, constant(6)], False),
        ([Z, N], [Z + N], True),  # a concatenation
        ([half(N)], [constant(1)], True),
        ([half(K)], [constant(1)], False),
        ([half(N)], [half(half(N))], False),  # which is 0, too
        ([half(half(N))], [half(N)], True),
        ([half(Z), Z], [Z, Z], True),
        ([half(N), Z], [Z, half(N)], False),
    ],
)
def test_extents_of_zero(operand: list[Any], result: list[Any], follows: bool) -> None:
    assert Emptiness(NAMES, DIMS).follows([operand], result) is follows
