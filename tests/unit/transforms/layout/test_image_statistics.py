"""Statistics of each channel of images on GPUs: reductions of columns, without transposes."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tvm")
import tvm
from tvm import relax
from tvm_machine import compute

from packager.graph.dataflow import bindings_of, operator_of
from packager.transforms.layout.channels_last import to_channels_last

R = relax.op


def image(batch: int, form: str, *, half: bool = True) -> tvm.IRModule:
    """Return a module of a convolution, and what normalizes its result."""
    kinds = {"x": [batch, 3, 6, 5], "w": [4, 3, 1, 1], "gamma": [4], "beta": [4]}
    parameters = [relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in kinds.items()]
    x, w, gamma, beta = parameters
    builder = relax.BlockBuilder()
    with builder.function("main", parameters):
        with builder.dataflow():
            y = builder.emit(R.nn.conv2d(x, w))
            if half:
                y = builder.emit(R.astype(builder.emit(R.astype(y, "float16")), "float32"))
            if form == "variance":
                centered = builder.emit(R.subtract(y, builder.emit(R.mean(y, [2, 3], keepdims=True))))
                deviation = builder.emit(R.sqrt(builder.emit(R.variance(y, [-2, -1], keepdims=True))))
                result = builder.emit_output(R.divide(centered, deviation))
            else:
                axes = [0, 2, 3] if form == "batch of one" else [2, 3]
                scaled = form != "plain"
                norm = R.nn.instance_norm(y, gamma, beta, 1, axes, 1e-3, center=scaled, scale=scaled)
                result = builder.emit_output(norm)
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize(
    ("batch", "form"), [(2, "variance"), (1, "batch of one"), (2, "scaled"), (3, "plain")], ids=str
)
def test_statistics_are_reductions_of_columns(batch: int, form: str) -> None:
    module = image(batch, form)
    last = to_channels_last(module)
    found = [operator_of(binding.value) for binding in bindings_of(last["main"])]
    assert not {"variance", "nn.instance_norm"} & set(found)
    assert found.count("permute_dims") == 3, "of the image, the filters and the result"
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(tuple(map(int, p.ty.shape.values))).astype("f4") for p in module["main"].params]
    if form == "plain":  # TVM's own scales and shifts by them all the same
        arrays[2:] = [np.ones(4, "f4"), np.zeros(4, "f4")]
    (wanted,), (result,) = compute(module, arrays), compute(last, arrays)
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("batch", "form", "half"), [(2, "batch of one", True), (2, "scaled", False)], ids=str)
def test_others_stay(batch: int, form: str, half: bool) -> None:
    """Statistics over several images, and those of float32, whose squares would lose bits."""
    last = to_channels_last(image(batch, form, half=half))
    assert "nn.instance_norm" in [operator_of(binding.value) for binding in bindings_of(last["main"])]
