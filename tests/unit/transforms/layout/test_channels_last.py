"""Channels last through what stands between convolutions: tokens, normalizations, resizing."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tvm")
import tvm
from tvm import relax

from packager.graph.normalize import Normalization, attributes_of_call, normalize
from packager.graph.resize import Resizing, legalize_resize, resize
from packager.lower.legalize.normalize import expand_norms
from packager.transforms.layout.channels_last import to_channels_last
from tests.unit.transforms.simplify.test_fold_arithmetic import arrays_of, make, operators, run

CONVOLUTION = "c = R.nn.conv2d(i, f, padding=[1, 1, 1, 1])"
TOKENS = 'x: R.Tensor((2, 30, 8), "float32"), f: R.Tensor((12, 8, 3, 3), "float32")'
IMAGE = ("t = R.permute_dims(x, axes=[0, 2, 1])", "i = R.reshape(t, R.shape([2, 8, 5, 6]))", CONVOLUTION)


def check(module: tvm.IRModule, wanted: list[str]) -> tvm.IRModule:
    """Compare the operators that depend on the input, and what is computed."""
    module = relax.transform.Normalize()(module)
    changed = to_channels_last(module, 1)
    changed = relax.transform.DeadCodeElimination()(relax.transform.CanonicalizeBindings()(changed))
    assert operators(changed) == wanted
    arrays = arrays_of(module)
    got, expected = (run(_lowered(m), arrays) for m in (changed, module))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    return changed


def _lowered(module: tvm.IRModule) -> tvm.IRModule:
    return relax.transform.LegalizeOps({"relax.packager.resize": legalize_resize})(expand_norms(module))


def test_tokens_are_an_image_with_channels_last() -> None:
    rows = ("r = R.reshape(c, R.shape([2, 12, 30]))", "y = R.permute_dims(r, axes=[0, 2, 1])")
    check(make(TOKENS, *IMAGE, *rows, result="y"), ["reshape", "nn.conv2d", "reshape"])


def test_tokens_of_rows_stay_rows() -> None:
    """Of three axes a transpose is no sign of channels: MLP-Mixer's are of rows."""
    module = make(
        'x: R.Tensor((2, 30, 8), "float32"), w: R.Tensor((30, 7), "float32"), f: R.Tensor((12, 8, 3, 3), "float32"), '
        'z: R.Tensor((1, 8, 5, 6), "float32")',
        *("t = R.permute_dims(x, axes=[0, 2, 1])", "e = R.exp(t)", "y = R.matmul(e, w)"),
        *("i = R.exp(z)", CONVOLUTION),
        result="y",
    )
    check(module, ["permute_dims", "exp", "matmul"])


@pytest.mark.parametrize(("axes", "wanted"), [([1], True), ([2, 3], True), ([2], False)])
def test_reductions_that_no_layout_shows_in(axes: list[int], wanted: bool) -> None:
    """A mean of channels, or of the places of each, reads channels last; it is not transposed for it."""
    module = make(TOKENS, *IMAGE, f"y = R.mean(c, axis={axes})", result="y")
    before = ["reshape", "nn.conv2d"]
    check(module, [*before, "mean"] if wanted else [*before, "permute_dims", "mean"])


@pytest.mark.parametrize("operator", ["normalize", "resize", "enlarge"])
def test_own_operators_follow(operator: str) -> None:
    """Unless an image becomes larger that is a result: what it is made of is turned then."""
    module = relax.transform.Normalize()(make(TOKENS, *IMAGE, "y = R.nn.relu(c)", result="y"))
    places = 12 if operator == "enlarge" else 3
    tables = [np.arange(places, dtype="i4")[:, None] // 2, np.ones((places, 1), "f4"), np.zeros(places, "i4")]

    def inserted(call: relax.Call) -> relax.Call:
        if call.op.name != "relax.nn.relu":
            return call
        if operator == "normalize":
            return normalize(call.args[0], Normalization((2, 3), 1e-5, 1, 4))
        return resize(call.args[0], list(map(relax.const, tables)), Resizing((3,), (False,)))

    builder = relax.BlockBuilder()
    main = module["main"]
    with builder.function("main", list(main.params)):
        with builder.dataflow():
            value = None
            renamed = {}
            for binding in main.body.blocks[0].bindings:
                call = relax.Call(
                    binding.value.op,
                    [renamed.get(getattr(a, "name", ""), a) for a in binding.value.args],
                    binding.value.attrs,
                    binding.value.ty_args,
                )
                value = builder.emit(inserted(call), binding.var.name)
                renamed[binding.var.name] = value
            output = builder.emit_output(value)
        builder.emit_func_output(output)
    whole = relax.transform.CanonicalizeBindings()(builder.get())
    if operator == "enlarge":
        check(whole, ["reshape", "nn.conv2d", "permute_dims", "packager.resize"])
        return
    changed = check(whole, ["reshape", "nn.conv2d", f"packager.{operator}", "permute_dims"])
    if operator == "normalize":
        calls = [binding.value for binding in changed["main"].body.blocks[0].bindings]
        (call,) = [c for c in calls if getattr(getattr(c, "op", None), "name", "") == "relax.packager.normalize"]
        assert attributes_of_call(call.attrs) == Normalization((1, 2), 1e-5, 3, 4)
