"""Reshapes move below elementwise operators, also of operands that broadcast along the axes that are left."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tvm")
from tvm import relax

from packager.transforms.simplify.no_ops import drop_no_ops
from packager.transforms.simplify.sink_reshapes import sink_reshapes
from tests.unit.transforms.simplify.test_fold_arithmetic import arrays_of, make, operators, run


def check(parameters: str, lines: tuple[str, ...], wanted: list[str]) -> None:
    module = relax.transform.Normalize()(make(parameters, *lines, result="y"))
    changed = relax.transform.CanonicalizeBindings()(drop_no_ops(sink_reshapes(module)))
    changed = relax.transform.DeadCodeElimination()(changed)
    assert operators(changed) == wanted
    arrays = arrays_of(module)
    np.testing.assert_allclose(run(changed, arrays), run(module, arrays), rtol=1e-6)


def test_masks_of_shifted_windows_are_added_without_a_reshape() -> None:
    lines = (
        "s = R.exp(x)",
        "v = R.reshape(s, R.shape([1, 4, 2, 3, 3]))",
        "a = R.add(v, m)",
        "y = R.reshape(a, R.shape([4, 2, 3, 3]))",
    )
    check('x: R.Tensor((4, 2, 3, 3), "float32"), m: R.Tensor((1, 4, 1, 3, 3), "float32")', lines, ["exp", "add"])


def test_several_batches_share_the_mask_and_keep_the_reshape() -> None:
    lines = (
        "s = R.exp(x)",
        "v = R.reshape(s, R.shape([2, 4, 2, 3, 3]))",
        "a = R.add(v, m)",
        "y = R.reshape(a, R.shape([8, 2, 3, 3]))",
    )
    parameters = 'x: R.Tensor((8, 2, 3, 3), "float32"), m: R.Tensor((1, 4, 1, 3, 3), "float32")'
    check(parameters, lines, ["exp", "reshape", "add", "reshape"])


def test_vectors_broadcast_along_the_last_axis_of_both() -> None:
    lines = ("s = R.exp(x)", "v = R.reshape(s, R.shape([6, 1, 5]))", "y = R.multiply(v, m)")
    check('x: R.Tensor((1, 6, 5), "float32"), m: R.Tensor((5,), "float32")', lines, ["exp", "multiply", "reshape"])


@pytest.mark.parametrize("view", [(2, 6, 5), (2, 30)])
def test_where_axes_of_one_element_are_asked_for_others_stay(view: tuple[int, ...]) -> None:
    """A residual is added to the image that a sequence is; the residual's view moves nothing."""
    lines = ("s = R.exp(x)", f"v = R.reshape(s, R.shape({list(view)}))", "y = R.add(v, m)")
    module = relax.transform.Normalize()(
        make(f'x: R.Tensor((2, 1, 6, 5), "float32"), m: R.Tensor({view}, "float32")', *lines, result="y")
    )
    changed = relax.transform.DeadCodeElimination()(sink_reshapes(module, of_unit_axes=True))
    wanted = ["exp", "add", "reshape"] if view == (2, 6, 5) else ["exp", "reshape", "add"]
    assert operators(changed) == wanted
    arrays = arrays_of(module)
    np.testing.assert_allclose(run(changed, arrays), run(module, arrays), rtol=1e-6)
