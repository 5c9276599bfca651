"""Transposed convolutions as convolutions of phases: what they compute, and what is multiplied."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax, tirx
from tvm_machine import compute

from packager.graph.dataflow import bindings_of, operator_of, static_shape_of
from packager.graph.windows.col2im import NAME as COL2IM
from packager.graph.windows.col2im import legalize_col2im
from packager.transforms.layout import transposed_conv
from packager.transforms.layout.transposed_conv import LAYOUTS, lower_transposed_convolutions


@dataclass(frozen=True)
class Case:
    """A transposed convolution, by axis; ``channels`` are (groups, inputs, outputs) of a group."""

    extents: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    channels: tuple[int, int, int] = (1, 4, 3)
    padding: tuple[int, ...] | None = None  # fronts, then backs
    dilation: tuple[int, ...] | None = None
    extra: tuple[int, ...] | None = None
    batch: int = 2


CASES = [
    Case((5, 4), (4, 4), (2, 2), (1, 8, 16), (1, 1, 1, 1)),
    Case((5, 4), (2, 2), (2, 2), (1, 8, 16)),
    Case((5, 4), (3, 3), (2, 2), (1, 8, 16), (1, 1, 1, 1), extra=(1, 1)),
    Case((3, 2), (64, 64), (32, 32), (1, 2, 2), (16, 16, 16, 16)),
    Case((7,), (16,), (8,), (1, 6, 4), (4, 4)),
    Case((3, 4, 2), (2, 2, 2), (2, 2, 2), (1, 6, 5)),
    Case((6, 5), (3, 3), (2, 2), (6, 1, 1), (1, 0, 0, 1)),
    Case((12, 11), (16, 16), (8, 8), (21, 1, 1), (4, 4, 4, 4)),  # a convolution for each of 64 phases
]
MORE = [
    Case((5, 4), (5, 3), (3, 2), (2, 3, 4), (2, 0, 1, 1), (1, 2), (2, 0)),
    Case((5, 4), (2, 3), (4, 4)),  # phases without taps
    Case((4, 4), (3, 3), (2, 2), dilation=(2, 2)),  # likewise
    Case((6, 7), (3, 4), (1, 1), padding=(1, 2, 1, 1)),
    Case((9, 9), (2, 2), (3, 2), padding=(4, 3, 5, 3)),  # inputs that nothing reads
    Case((5,), (3,), (2,), (3, 2, 2), (1, 1), (3,), (1,)),
    Case((3, 3, 3), (3, 4, 3), (2, 2, 1), (2, 2, 3), (1, 1, 1, 1, 1, 0), extra=(1, 0, 0)),
    Case((2, 3, 3), (1, 1, 4), (1, 1, 2), padding=(0, 0, 1, 0, 0, 1)),
    Case((1, 1), (4, 4), (1, 1), (1, 16, 32)),
    Case((4, 5), (6, 8), (4, 2), (4, 2, 1), (1, 3, 1, 3)),
]


def module_of(case: Case, *, symbolic: bool) -> tvm.IRModule:
    """Return a model of the transposed convolution, a bias, a scale and ReLU; by symbolic names of its extents."""
    rank, (groups, inputs, outputs) = len(case.kernel), case.channels
    names: list[Any] = [tirx.Var(f"n{i}", "int64") for i in range(rank + 1)]
    batch, *image = names if symbolic else [case.batch, *case.extents]
    x = relax.Var("x", relax.TensorType([batch, groups * inputs, *image], "float32"))
    w = relax.Var("w", relax.TensorType([groups * inputs, outputs, *case.kernel], "float32"))
    per_channel = relax.TensorType([1, groups * outputs, *[1] * rank], "float32")
    b, s = relax.Var("b", per_channel), relax.Var("s", per_channel)
    name = f"conv{rank}d_transpose"
    layout = LAYOUTS[f"nn.{name}"]
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w, b, s], attrs={"num_input": 1}):
        with builder.dataflow():
            y = builder.emit(
                getattr(relax.op.nn, name)(
                    x,
                    w,
                    strides=case.stride,
                    padding=case.padding or [0] * (2 * rank),
                    dilation=case.dilation or [1] * rank,
                    output_padding=case.extra or [0] * rank,
                    groups=groups,
                    data_layout=layout,
                    kernel_layout=f"IO{layout[2:]}",
                )
            )
            y = builder.emit(relax.op.add(y, b))
            y = builder.emit(relax.op.multiply(y, s))
            y = builder.emit_output(relax.op.nn.relu(y))
        builder.emit_func_output(y)
    return builder.get()


def arrays_of(case: Case) -> list[np.ndarray]:
    rng, (groups, inputs, outputs) = np.random.default_rng(0), case.channels
    shapes: Sequence[Any] = ((case.batch, groups * inputs, *case.extents), (groups * inputs, outputs, *case.kernel))
    per_channel = (1, groups * outputs, *[1] * len(case.kernel))
    return [rng.standard_normal(shape).astype("float32") for shape in (*shapes, per_channel, per_channel)]


def expected(case: Case, arrays: list[np.ndarray]) -> np.ndarray:
    """Return what torch computes in double precision: padding is cropped, extra outputs are zeros before the bias."""
    x, w, b, s = (torch.from_numpy(array).double() for array in arrays)
    rank = len(case.kernel)
    function = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)[rank - 1]
    dilation = case.dilation or (1,) * rank
    full = function(x, w, stride=case.stride, groups=case.channels[0], dilation=dilation)
    extra = case.extra or (0,) * rank
    full = torch.nn.functional.pad(full, [side for count in reversed(extra) for side in (0, count)])
    padding = case.padding or (0,) * (2 * rank)
    for axis in range(rank):
        full = full.narrow(axis + 2, padding[axis], full.shape[axis + 2] - padding[axis] - padding[rank + axis])
    return torch.relu((full + b) * s).numpy()


def products_of(module: tvm.IRModule) -> int:
    """Return the multiply-adds of the convolutions."""
    total = 0
    for binding in bindings_of(module["main"]):
        if operator_of(binding.value) in ("nn.conv1d", "nn.conv2d", "nn.conv3d"):
            weight, result = static_shape_of(binding.value.args[1]), static_shape_of(binding.value)
            assert weight is not None
            assert result is not None
            total += math.prod(weight[1:]) * math.prod(result)
    return total


def check(case: Case, *, symbolic: bool, most_parts: int | None = None) -> tvm.IRModule:
    """Compare with torch in double precision; return the lowered module."""
    module = lower_transposed_convolutions(module_of(case, symbolic=symbolic), 1, most_parts=most_parts)
    arrays = arrays_of(case)
    (result,) = compute(relax.transform.LegalizeOps({COL2IM: legalize_col2im})(module), arrays)
    wanted = expected(case, arrays)
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())
    return module


def is_lowered(module: tvm.IRModule) -> bool:
    return {operator_of(binding.value) for binding in bindings_of(module["main"])}.isdisjoint(LAYOUTS)


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.parametrize("case", [*CASES, *(pytest.param(case, marks=pytest.mark.thorough) for case in MORE)], ids=str)
def test_phases_compute_the_transposed_convolution(case: Case) -> None:
    assert is_lowered(check(case, symbolic=False, most_parts=64))


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.channels[0] == 1]
    + [pytest.param(case, marks=pytest.mark.thorough) for case in MORE if case.channels[0] == 1],
    ids=str,
)
def test_windows_that_overlap_compute_the_transposed_convolution(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transposed_conv, "overlaps", lambda *_: True)
    module = check(case, symbolic=False)
    assert is_lowered(module)
    assert products_of(module) == math.prod((case.batch, *case.channels, *case.kernel, *case.extents))


def test_few_channels_are_windows_and_many_are_phases() -> None:
    """Of 64 channels to one, a product of 16 columns; of 64 to 64, a convolution of channels last for each phase."""
    few, many = (Case((32, 32), (4, 4), (2, 2), (1, 64, outputs), (1, 1, 1, 1)) for outputs in (1, 64))
    names = [
        {operator_of(binding.value) for binding in bindings_of(lowered["main"])}
        for lowered in (lower_transposed_convolutions(module_of(case, symbolic=False), 1) for case in (few, many))
    ]
    assert ["packager.col2im" in each for each in names] == [True, False]


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.parametrize(
    "case", [CASES[0], *(pytest.param(case, marks=pytest.mark.thorough) for case in (*CASES[1:], *MORE))], ids=str
)
def test_symbolic_extents(case: Case) -> None:
    """Where padding exceeds the window, whether anything of the input is read is not known."""
    is_cut = case.extents == (9, 9)
    assert is_lowered(check(case, symbolic=True)) != is_cut


@pytest.mark.parametrize("case", CASES[:6], ids=str)
def test_all_phases_in_one_convolution(case: Case) -> None:
    module = check(case, symbolic=False, most_parts=1)
    names = [operator_of(binding.value) for binding in bindings_of(module["main"])]
    assert sum(name.startswith("nn.conv") for name in names) == 1
    assert is_lowered(module)


def test_a_bias_between_casts_is_added_before_phases_are_interleaved() -> None:
    """As half precision writes it: the sum is in float32."""
    x, w = (relax.Var(n, relax.TensorType(s, "float16")) for n, s in (("x", (1, 8, 5, 6)), ("w", (8, 4, 2, 2))))
    b = relax.Var("b", relax.TensorType((1, 4, 1, 1), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w, b], attrs={"num_input": 1}):
        with builder.dataflow():
            up = builder.emit(relax.op.nn.conv2d_transpose(x, w, strides=2))
            total = builder.emit(relax.op.add(builder.emit(relax.op.astype(up, "float32")), b))
            half = builder.emit(relax.op.nn.relu(builder.emit(relax.op.astype(total, "float16"))))
            result = builder.emit_output(relax.op.astype(half, "float32"))
        builder.emit_func_output(result)
    lowered = lower_transposed_convolutions(builder.get(), 1)
    names = [operator_of(binding.value) for binding in bindings_of(lowered["main"])]
    after = names[names.index("nn.conv2d") :]
    order = [after.index(name) for name in ("nn.conv2d", "astype", "add", "nn.relu", "permute_dims")]
    assert order == sorted(order)
    rng = np.random.default_rng(0)
    arrays = [
        rng.standard_normal(static_shape_of(v) or ()).astype("float16" if v is not b else "float32") for v in (x, w, b)
    ]
    (got,) = compute(lowered, arrays)
    image, weight, bias = (torch.from_numpy(array).double() for array in arrays)
    want = torch.relu(torch.conv_transpose2d(image, weight, stride=2) + bias)
    np.testing.assert_allclose(got, want.numpy(), rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("index", range(len(CASES)))
def test_zeros_between_inputs_are_not_multiplied(index: int) -> None:
    """What is computed beyond the edges, to be cropped, and zeros in a window, are less than the work itself."""
    case = CASES[index]
    module = module_of(case, symbolic=False)
    needed = math.prod(case.channels) * case.batch * math.prod(case.kernel) * math.prod(case.extents)
    assert products_of(lower_transposed_convolutions(module, 1)) <= 2 * needed


def test_weights_that_are_an_input_are_left() -> None:
    module = module_of(CASES[0], symbolic=False)
    assert not is_lowered(lower_transposed_convolutions(module, 2))
