"""Concatenations and paddings on a GPU: conditions that choose whole vectors are branches, before what is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm_ffi import structural_map

from packager.lower.cuda.codegen_workarounds import is_uniform
from packager.lower.cuda.schedule import schedule_cuda
from tests.unit.lower.test_schedule_cuda import TARGET, functions, lower, serial

R = relax.op
H, F = "float16", "float32"
Shape = tuple[int, ...]


def joined(*parts: Any) -> Any:
    return R.concat(list(parts), axis=-1)


def normed(*operands: Any) -> Any:
    """A batch norm and ReLU of a concatenation, as in DenseNet in half precision."""
    *parts, scale, shift = operands
    scaled = R.astype(R.multiply(R.astype(joined(*parts), F), scale), H)
    return R.nn.relu(R.astype(R.add(R.astype(scaled, F), shift), H))


def normed_by_numpy(*operands: np.ndarray) -> np.ndarray:
    *parts, scale, shift = operands
    return np.maximum(np.concatenate(parts, -1) * scale + shift, 0)


def padded(x: Any) -> Any:
    return R.nn.relu(R.nn.pad(x, [0, 0, 1, 1, 2, 0, 0, 0]))


def cast(*parts: Any) -> Any:
    return joined(*(R.astype(part, H) for part in parts))


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[tuple[Shape, str]], int]] = {
    "two": (joined, lambda *x: np.concatenate(x, -1), [((2, 5, 64), H), ((2, 5, 32), H)], 2),
    "five": (joined, lambda *x: np.concatenate(x, -1), [((3, 7, 64), H), *([((3, 7, 32), H)] * 4)], 5),
    "narrow": (joined, lambda *x: np.concatenate(x, -1), [((3, 7, 24), H), ((3, 7, 8), H), ((3, 7, 16), H)], 3),
    "normed": (normed, normed_by_numpy, [((3, 7, 24), H), ((3, 7, 8), H), *([((1, 1, 32), F)] * 2)], 2),
    "padded": (padded, lambda x: np.maximum(np.pad(x, [(0, 0), (1, 1), (2, 0), (0, 0)]), 0), [((2, 5, 6, 16), H)], 1),
    "cast": (cast, lambda *x: np.concatenate(x, -1), [((3, 7, 24), F), ((3, 7, 8), F), ((3, 7, 8), F)], 0),
}


@pytest.mark.parametrize("name", CASES)
def test_parts_are_loaded_by_vectors(name: str) -> None:
    make, expected, inputs, loads = CASES[name]
    (primfunc,) = functions(make, *inputs)
    scheduled = schedule_cuda(primfunc, TARGET)
    source, _ = lower(scheduled)
    kernel = source[source.rindex("__global__") :]
    assert "condval" not in kernel
    assert kernel.count("= *(uint4*)(p") == loads
    library = tvm.compile(tvm.IRModule({"main": serial(scheduled).with_attr("global_symbol", "main")}), target="llvm")
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(shape).astype(dtype) for shape, dtype in inputs]
    want = expected(*(array.astype(np.float64) for array in arrays))
    arrays.append(np.full(want.shape, np.nan, H))
    sized = [[int(extent) for extent in parameter.shape] for parameter in scheduled.params]
    tensors = [tvm.runtime.tensor(array.reshape(shape)) for array, shape in zip(arrays, sized, strict=True)]
    library["main"](*tensors)
    np.testing.assert_allclose(tensors[-1].numpy().reshape(want.shape), want, rtol=2e-3, atol=2e-3)


def test_zeros_of_float32_are_written_by_four() -> None:
    """The code generator has no vector of eight equal ones. A network of cells pads what it casts."""
    (primfunc,) = functions(lambda x: R.nn.pad(R.astype(x, F), [0, 0, 1, 1, 1, 0, 0, 0]), ((2, 5, 6, 16), H))
    source, _ = lower(schedule_cuda(primfunc, TARGET))
    assert "make_ulonglong4" not in source
    assert "make_float4(0" in source


def test_parts_that_end_within_a_vector_are_chosen_element_by_element() -> None:
    (primfunc,) = functions(normed, ((3, 7, 20), H), ((3, 7, 12), H), ((1, 1, 32), F), ((1, 1, 32), F))
    source, _ = lower(schedule_cuda(primfunc, TARGET))
    assert "condval" in source


@pytest.mark.parametrize("make", [lambda a, b: a <= b, lambda a, b: a < b, lambda a, b: b >= a, lambda a, b: b > a])
def test_a_condition_that_is_said_to_be_uniform_is(make: Callable[[Any, Any], Any]) -> None:
    """All places of a boundary, on both sides, beside what its values are."""
    step, lane, count = tirx.Var("step", "int32"), tirx.Var("lane", "int32"), 8
    found = set()
    for offset, backwards in ((o, b) for o in range(20) for b in (False, True)):
        channel, end = step * count + lane, tirx.IntImm("int32", offset)
        condition = make(channel, end) if backwards else make(end, channel)
        uniform = is_uniform(condition, lane, count)
        values = [[_value(condition, {step: s, lane: i}) for i in range(count)] for s in range(4)]
        assert not uniform or all(len(set(each)) == 1 for each in values)
        found |= {offset} if uniform else set()
    assert found >= {0, 8, 16} or found >= {7, 15}
    both = tirx.And(lane < count, step * count + lane < 16)
    assert is_uniform(tirx.And(step < 3, step * count + lane < 16), lane, count)
    assert not is_uniform(both, lane, count) or _value(both, {step: 0, lane: 0})


def _value(condition: Any, values: dict[Any, int]) -> bool:
    def number(variable: Any) -> Any:
        return next((tirx.IntImm("int32", v) for k, v in values.items() if k.same_as(variable)), variable)

    return bool(int(tvm.sym.Analyzer().simplify(structural_map(condition, (tirx.Var, number)))))
