"""Logarithms of sums of exponentials for GPUs: which are found, what they compute, and their schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
import tvm
from tvm import relax, tirx

from packager.graph.dataflow import bindings_of, called_function, operator_of
from packager.graph.rewrite import apply
from packager.lower.cuda.kernels import TRIAL_GPU
from packager.lower.cuda.log_sums.lowering import LOG_SUM, LONGEST_COLUMN, LONGEST_ROW, fuse_log_sums
from packager.lower.cuda.log_sums.schedule import schedule_log_sums
from packager.lower.cuda.rows.reduction import schedule_row_reduction
from packager.lower.cuda.schedule import rule_of, schedule_cuda
from packager.lower.devices import DEVICES
from packager.lower.lowering import FLATTEN, FUSE
from tests.unit.lower.algorithms.test_cuda_algorithms import runs
from tests.unit.lower.test_schedule_cuda import lower, serial
from tests.unit.transforms.products.test_modulated_convs import function

R = relax.op
INF = relax.const(np.inf, "float32")


def guarded(emit: Any, x: Any, axis: int, *, keeps: bool, halves: bool = False) -> Any:
    """As torch and the ONNX front write it, with casts between if the operators are of halves."""

    def cast(value: Any) -> Any:
        return emit(R.astype(emit(R.astype(value, "float16")), "float32")) if halves else value

    most = emit(R.max(x, [axis], keepdims=True))
    infinite = emit(R.equal(emit(R.abs(most)), INF))
    shift = cast(emit(R.where(infinite, relax.const(0.0), most)))
    total = emit(R.sum(cast(emit(R.exp(cast(emit(R.subtract(x, shift)))))), [axis], keepdims=keeps))
    shift = shift if keeps else emit(R.squeeze(shift, [axis]))
    return emit(R.add(cast(emit(R.log(total))), shift))


def plain(emit: Any, x: Any, axis: int) -> Any:
    most = emit(R.max(x, [axis], keepdims=True))
    return emit(R.add(most, emit(R.log(emit(R.sum(emit(R.exp(emit(R.subtract(x, most)))), [axis], keepdims=True))))))


FORMS: dict[str, Callable[..., Any]] = {
    "guarded": lambda emit, x, axis: guarded(emit, x, axis, keeps=False),
    "keeps": lambda emit, x, axis: guarded(emit, x, axis, keeps=True),
    "halves": lambda emit, x, axis: guarded(emit, x, axis, keeps=False, halves=True),
    "plain": plain,
}


def summed(form: str, shape: tuple[int, ...], axis: int, dtype: str = "float32") -> Any:
    """Return a module of the terms ``x + v`` along an axis, taken from what ``v`` has there."""
    other = tuple(1 if number == axis else extent for number, extent in enumerate(shape))
    inputs = [relax.Var(name, relax.TensorType(size, dtype)) for name, size in (("x", shape), ("v", other))]

    def body(emit: Any, x: Any, v: Any) -> Any:
        found = FORMS[form](emit, emit(R.add(x, v)), axis)
        return emit(R.subtract(v if found.ty.ndim == len(shape) else emit(R.squeeze(v, [axis])), found))

    return function(inputs, body)


def finds_one(module: Any) -> bool:
    """Whether a logarithm of a sum is found in a module."""
    found = [operator_of(binding.value) for binding in bindings_of(fuse_log_sums(module)["main"])]
    return LOG_SUM.removeprefix("relax.") in found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("shape", "axis"), [((3, 37, 70), 1), ((3, 37, 70), 2), ((3, 5, 9), 1), ((40, 6), 0), ((2, 530, 33), 1)]
)
def test_terms_reductions_and_what_follows_are_one_function(form: str, shape: tuple[int, ...], axis: int) -> None:
    module = apply([*DEVICES["cuda"].legalize, *FUSE, *FLATTEN], summed(form, shape, axis))
    called = [called_function(binding.value) for binding in bindings_of(module["main"])]
    assert sum("log_sum_exp" in (name or "") for name in called) == 1
    x, v = (np.random.default_rng(0).standard_normal(size).astype("f4") * 4 for size in (shape, shape))
    v = v.take([0], axis)
    x[..., 0] = -np.inf  # of columns and rows some, and all of one column
    expected = (v - np.logaddexp.reduce(x + v, axis=axis, keepdims=True)).reshape(-1)
    found = runs(module)(x, v)[0].reshape(-1)
    np.testing.assert_allclose(found, expected, rtol=2e-3 if form == "halves" else 1e-5, atol=1e-5)


@pytest.mark.parametrize("value", [-np.inf, np.inf, np.nan, 1e30])
@pytest.mark.parametrize("axis", [1, 2])
def test_infinite_elements(value: float, axis: int) -> None:
    module = apply([*DEVICES["cuda"].legalize], summed("guarded", (2, 33, 40), axis))
    x = np.random.default_rng(1).standard_normal((2, 33, 40)).astype("f4")
    x[0, 3] = value
    x[1, :, 7] = value
    v = np.zeros_like(x).take([0], axis)
    with np.errstate(invalid="ignore"):
        expected = -np.logaddexp.reduce(x, axis=axis)
    np.testing.assert_allclose(runs(module)(x, v)[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "axis", "rule"),
    [
        ((8, 513, 513), 1, schedule_log_sums),
        ((64, 20, 20), 1, schedule_log_sums),
        ((64, 20, 7), 1, schedule_log_sums),
        ((50, 48), 0, schedule_log_sums),
        ((4, 9, 300, 5), 2, schedule_log_sums),
        ((8, 513, 513), 2, schedule_row_reduction),
        ((64, 20, 21), 2, schedule_row_reduction),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_schedules(shape: tuple[int, ...], axis: int, rule: Any, dtype: str) -> None:
    module = summed("plain", shape, axis, dtype)
    assert finds_one(module)
    module = apply([*DEVICES["cuda"].legalize, *FUSE, *FLATTEN], module)
    (sums,) = (each for name, each in module.functions.items() if "log_sum_exp" in name.name_hint)
    assert rule_of(sums, TRIAL_GPU) == rule.__name__


@pytest.mark.parametrize(
    "shape", [(2, 70, 70), (3, 530, 33), (5, 20, 7), (4, 9, 35, 5), (70, 48), (70, 5), (64, 20, 20)]
)
def test_threads_that_share_columns_compute_the_same(shape: tuple[int, ...]) -> None:
    axis = max(len(shape) - 2, 0)
    module = apply([*DEVICES["cuda"].legalize, *FUSE, *FLATTEN], summed("plain", shape, axis))
    (sums,) = (each for name, each in module.functions.items() if "log_sum_exp" in name.name_hint)
    scheduled = schedule_log_sums(sums)
    lower(scheduled)
    x = np.random.default_rng(0).standard_normal(shape).astype("f4") * 9
    v = np.random.default_rng(1).standard_normal(x.take([0], axis).shape).astype("f4")
    given = {x.size: x, v.size: v}
    sizes = [math.prod(int(extent) for extent in parameter.shape) for parameter in sums.params]
    arrays = [tvm.runtime.tensor(given[size]) for size in sizes[:-1]]
    result = tvm.runtime.tensor(np.full([int(extent) for extent in sums.params[-1].shape], np.nan, "f4"))
    tvm.compile(tvm.IRModule({"main": serial(scheduled).with_attr("global_symbol", "main")}), "llvm")["main"](
        *arrays, result
    )
    expected = np.logaddexp.reduce(x + v, axis=axis, keepdims=True)
    found = result.numpy().reshape(expected.shape)
    assert min(np.abs(found - expected).max(), np.abs(v - found - expected).max()) < 1e-4


@pytest.mark.parametrize("shape", [("b", 20, 7), ("b", 20, 40), ("b", 20, "s", 7), ("s", "b", 33, 9), ("b", 513, 513)])
def test_batches_of_any_size(shape: tuple[Any, ...]) -> None:
    axis, sizes = shape.index(next(each for each in shape if isinstance(each, int))), {"b": 3, "s": 5}
    names = {name: tirx.Var(name, "int64") for name in sizes}
    module = summed("plain", tuple(names.get(each, each) for each in shape), axis)
    module = apply([*DEVICES["cuda"].legalize, *FUSE, *FLATTEN], module)
    (sums,) = (each for name, each in module.functions.items() if "log_sum_exp" in name.name_hint)
    lower(schedule_cuda(sums, TRIAL_GPU))
    x = np.random.default_rng(0).standard_normal([sizes.get(each, each) for each in shape]).astype("f4")
    v = np.zeros_like(x).take([0], axis)
    expected = -np.logaddexp.reduce(x, axis=axis, keepdims=True)
    np.testing.assert_allclose(runs(module)(x, v)[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("shape", "axis"), [((2, LONGEST_COLUMN + 1, 8), 1), ((3, LONGEST_ROW + 1), 1)])
def test_long_rows_and_columns_are_reduced_by_several_blocks(shape: tuple[int, ...], axis: int) -> None:
    assert not finds_one(summed("guarded", shape, axis))
    shorter = tuple(extent - (number == axis) for number, extent in enumerate(shape))
    assert finds_one(summed("guarded", shorter, axis))


@pytest.mark.parametrize("form", ["another axis", "another maximum", "another tensor"])
def test_others_stay(form: str) -> None:
    inputs = [relax.Var(name, relax.TensorType((4, 6, 6), "float32")) for name in "xy"]

    def body(emit: Any, x: Any, y: Any) -> Any:
        most = emit(R.max(y if form == "another maximum" else x, [1], keepdims=True))
        terms = emit(R.exp(emit(R.subtract(y if form == "another tensor" else x, most))))
        total = emit(R.sum(terms, [2 if form == "another axis" else 1], keepdims=True))
        return emit(R.add(emit(R.log(total)), most))

    module = function(inputs, body)
    assert not finds_one(module)
