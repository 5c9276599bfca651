"""Parallel convolutions of one tensor that are added become one, and what cannot be one stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from tvm import relax
from tvm_machine import compute

from packager.graph.dataflow import bindings_of, operator_of
from packager.transforms.products.merge_branches import merge_branches

RANDOM = np.random.default_rng(11)
LAYOUTS = {1: ("NCW", "OIW"), 2: ("NCHW", "OIHW"), 3: ("NCDHW", "OIDHW")}


class Net:
    """A function of ``x`` whose other parameters are constants, with their values."""

    def __init__(self, *shape: int) -> None:
        self.x = relax.Var("x", relax.TensorType(shape, "float32"))
        self.rank = len(shape) - 2
        self.builder = relax.BlockBuilder()
        self.parameters, self.arrays = [self.x], [RANDOM.standard_normal(shape).astype("f4")]

    def constant(self, *shape: int) -> Any:
        self.parameters.append(relax.Var(f"w{len(self.parameters)}", relax.TensorType(shape, "float32")))
        self.arrays.append(RANDOM.standard_normal(shape).astype("f4"))
        return self.parameters[-1]

    def conv(self, filters: int, taps: int, *, groups: int = 1, stride: int = 1, dilation: int = 1, pad: int) -> Any:
        channels = int(self.x.ty.shape.values[1])
        weight = self.constant(filters, channels // groups, *([taps] * self.rank))
        data, kernel = LAYOUTS[self.rank]
        convolve = getattr(relax.op.nn, f"conv{self.rank}d")
        options = {"groups": groups, "strides": stride, "dilation": dilation, "padding": [pad] * 2 * self.rank}
        return self.emit(convolve(self.x, weight, data_layout=data, kernel_layout=kernel, **options))

    def per_channel(self, channels: int) -> Any:
        return self.constant(1, channels, *([1] * self.rank))

    def emit(self, value: Any) -> Any:
        return self.builder.emit(value)

    def add(self, first: Any, *others: Any) -> Any:
        for other in others:
            first = self.emit(relax.op.add(first, other))
        return first


def branches(shape: tuple[int, ...], filters: int, *kinds: dict[str, int]) -> tuple[tuple[int, ...], Any]:
    """Return what makes a sum of convolutions, each with a bias and one with a scale, and a norm of the input."""

    def build(net: Net) -> Any:
        terms = [net.add(net.conv(filters, **kind), net.per_channel(filters)) for kind in kinds]
        terms[0] = net.emit(relax.op.multiply(terms[0], net.per_channel(filters)))
        if filters == shape[1] and all(kind.get("stride", 1) == 1 for kind in kinds):
            scaled = net.emit(relax.op.multiply(net.x, net.per_channel(filters)))
            terms.append(net.add(scaled, net.per_channel(filters)))
        return net.emit(relax.op.nn.relu(net.add(*terms)))

    return shape, build


ONE = {"taps": 1, "pad": 0}
THREE = {"taps": 3, "pad": 1}
MERGED = {
    "planes, three branches and a norm": branches((2, 6, 9, 7), 6, THREE, ONE, ONE),
    "one convolution and a norm": branches((1, 4, 5, 5), 4, THREE),
    "lines": branches((2, 4, 11), 4, ONE, {"taps": 5, "pad": 2}),
    "volumes": branches((1, 3, 4, 5, 6), 5, THREE, ONE),
    "groups": branches((1, 8, 6, 6), 8, {**THREE, "groups": 2}, {**ONE, "groups": 2}),
    "depthwise": branches((1, 7, 6, 6), 7, {**THREE, "groups": 7}, {**ONE, "groups": 7}, {**THREE, "groups": 7}),
    "a stride": branches((1, 4, 9, 9), 6, {**THREE, "stride": 2}, {**ONE, "stride": 2}),
    "dilated": branches((1, 4, 9, 9), 4, {"taps": 3, "pad": 2, "dilation": 2}, ONE),
    "dilated, on the grid of a denser one": branches(
        (1, 4, 9, 9), 3, {"taps": 3, "pad": 2, "dilation": 2}, {**ONE, "dilation": 3}
    ),
}


# What stays: each with one term too few, or terms that differ in more than taps.
KEPT = {
    "two strides": branches((1, 4, 9, 9), 6, {**THREE, "stride": 2}, {**ONE, "stride": 2, "groups": 2}),
    "grids that do not meet": branches((1, 4, 12), 3, {"taps": 3, "pad": 2, "dilation": 2}, {"taps": 3, "pad": 1}),
    "more taps than before": branches((1, 4, 12), 3, {"taps": 2, "pad": 4, "dilation": 8}, ONE),
    "one convolution": branches((1, 4, 5, 5), 6, THREE),
}


def built(build: Callable[[Net], Any], *shape: int) -> tuple[Any, Net]:
    net = Net(*shape)
    with net.builder.function("main"):
        with net.builder.dataflow():
            result = net.builder.emit_output(build(net))
        net.builder.emit_func_output(result, net.parameters)
    return net.builder.get(), net


def convolutions(module: Any) -> int:
    return sum(operator_of(binding.value).startswith("nn.conv") for binding in bindings_of(module["main"]))


def check(module: Any, net: Net) -> Any:
    """Return the module with merged branches, which must compute the same."""
    changed = relax.transform.DeadCodeElimination()(merge_branches(module, 1))
    (expected,), (got,) = compute(module, net.arrays), compute(changed, net.arrays)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    return changed


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.parametrize("case", MERGED)
def test_branches_are_one_convolution(case: str) -> None:
    shape, build = MERGED[case]
    assert convolutions(check(*built(build, *shape))) == 1


@pytest.mark.parametrize("case", KEPT)
def test_what_differs_in_more_than_taps_stays(case: str) -> None:
    shape, build = KEPT[case]
    module, net = built(build, *shape)
    assert convolutions(check(module, net)) == convolutions(module)


def test_what_is_read_elsewhere_stays() -> None:
    def build(net: Net) -> Any:
        first, second = net.conv(4, **THREE), net.conv(4, **ONE)
        return net.emit(relax.op.multiply(net.add(first, second), first))

    module, net = built(build, 1, 4, 5, 5)
    assert convolutions(check(module, net)) == 2


def test_other_terms_are_added_after() -> None:
    """A residual connection and its scale are no part of the convolution, nor is a product of a computed tensor."""

    def build(net: Net) -> Any:
        other = net.emit(relax.op.nn.relu(net.x))
        scaled = net.emit(relax.op.multiply(other, net.per_channel(4)))
        return net.add(net.conv(4, **THREE), scaled, net.conv(4, **ONE), net.conv(4, **THREE))

    assert convolutions(check(*built(build, 1, 4, 6, 6))) == 1
