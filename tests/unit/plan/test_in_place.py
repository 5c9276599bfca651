"""Which kernels may write their result over an operand."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from packager.ir.primitives import Kernel
from packager.lower.kernels import make_group
from packager.plan.in_place import in_place


def kernel_of(name: str) -> Kernel:
    function = getattr(importlib.import_module("in_place_kernels"), name)
    (kernel,) = make_group("f", function.with_attr("tirx.noalias", True)).functions
    assert isinstance(kernel, Kernel)
    return kernel


def merged(name: str) -> Any:
    """Return what becomes of a kernel whose first operand and last lie in one place."""
    kernel = kernel_of(name)
    return in_place(kernel, 0, len(kernel.parameters) - 1)


@pytest.mark.parametrize("name", ["elementwise", "partly_bound"])
def test_elementwise_kernels_lose_a_parameter(name: str) -> None:
    found, before = merged(name), kernel_of(name)
    assert found is not None
    assert found.written is None
    assert len(found.kernel.primfunc.params) == len(found.kernel.parameters) == len(before.parameters) - 1
    assert found.kernel.symbol != before.symbol
    assert [parameter.index for parameter in found.kernel.parameters] == list(range(1, len(before.parameters)))
    assert found.kernel.extent is not None, "it is parallel still"


def test_update_loses_its_copy() -> None:
    found = merged("scatter")
    assert found is not None
    assert found.written == 2 * 4
    text = found.kernel.primfunc.script()
    assert "T.parallel" not in text, "the loop that copies is gone"
    assert "range(2)" in text


def test_nothing_is_left_of_a_copy() -> None:
    found = merged("only_copy")
    assert found is not None
    assert found.kernel is None


@pytest.mark.parametrize(
    "name",
    [
        "update_before_copy",
        "copy_between_updates",
        "update_from_operand",
        "shifted_copy",
        "transposed",
        "neighbors",
        "reduction",
        "more_than_once",
        "other_type",
        "other_shape",
    ],
)
def test_refused(name: str) -> None:
    assert merged(name) is None


def test_an_operand_that_is_written_or_a_result_that_is_not() -> None:
    kernel = kernel_of("elementwise")
    assert in_place(kernel, 2, 0) is None
    assert in_place(kernel, 0, 0) is None
