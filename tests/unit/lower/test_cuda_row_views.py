"""Normalizations that read their rows where they lie, before slices and transposes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from packager.graph.dataflow import bindings_of, called_function, operator_of
from packager.graph.normalize import Normalization, normalize
from packager.lower.blocks import blocks, extents, is_reduction, schedule_of
from packager.lower.cuda.schedule import schedule_cuda
from packager.lower.legalize.normalize import expand_norms
from packager.lower.legalize.row_views import read_rows
from tests.unit.lower.test_schedule_cuda import TARGET, lower, serial
from tests.unit.transforms.products.test_modulated_convs import function, inputs
from tests.unit.tvm_machine import compute

R = relax.op
SHAPE = (2, 17, 3, 4, 32)  # [batch, rows, queries, keys and values, heads, depth]
SCALE = np.linspace(0.5, 1.5, SHAPE[-1], dtype=np.float32)
RMS, CENTERED = Normalization((3,), 1e-6, centered=False), Normalization((3,), 1e-5)


def heads(emit: Any, packed: Any, part: int) -> Any:
    """Return [batch, heads, rows, depth] of one of three."""
    first = emit(R.permute_dims(packed, (2, 0, 3, 1, 4)))
    return emit(R.squeeze(emit(R.strided_slice(first, [0], [part], [part + 1])), [0]))


def layer_norm(data: Any) -> Any:
    scale = np.resize(SCALE, int(data.ty.shape.values[-1])).astype(str(data.ty.dtype))
    return R.nn.layer_norm(data, relax.const(scale), relax.const(scale - 1), axes=[-1], epsilon=1e-5)


def names(module: Any) -> list[str]:
    return [called_function(b.value) or operator_of(b.value) for b in bindings_of(module["main"])]


def run_serially(schedule: Any, arrays: list[np.ndarray]) -> np.ndarray:
    """Return the last of the arrays, which a schedule for a GPU writes, run in one thread."""
    tensors = [
        tvm.runtime.tensor(array.reshape([int(extent) for extent in parameter.shape]))
        for array, parameter in zip(arrays, schedule.params, strict=True)
    ]
    tvm.compile(tvm.IRModule({"main": serial(schedule).with_attr("global_symbol", "main")}), "llvm")["main"](*tensors)
    return tensors[-1].numpy()


def most_runs(schedule: Any) -> float:
    """Return how many times as often as it has instances a reduction of a schedule runs."""
    sch = schedule_of(schedule)
    return max(
        math.prod(extents(sch, sch.get_loops(block))) / math.prod(int(v.dom.extent) for v in sch.get(block).iter_vars)
        for block in blocks(sch)
        if is_reduction(sch, block)
    )


@pytest.mark.parametrize(
    "norm", [lambda x: normalize(x, RMS), lambda x: normalize(x, CENTERED), layer_norm], ids=["rms", "mean", "layer"]
)
def test_heads_of_a_packed_product(norm: Callable[[Any], Any]) -> None:
    parameters = inputs(SHAPE)
    module = function(
        parameters, lambda emit, packed: R.multiply(emit(norm(heads(emit, packed, 1))), relax.const(2.0, "float32"))
    )
    read = read_rows(module)
    kept = relax.transform.DeadCodeElimination()(read)
    assert names(kept)[0].startswith("transpose_strided_slice_squeeze_")
    assert len(names(kept)) == 2
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    expected = compute(expand_norms(module), [x])[0]
    np.testing.assert_allclose(compute(kept, [x])[0], expected, rtol=1e-4, atol=1e-5)
    (primfunc,) = [f for f in kept.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    schedule = schedule_cuda(primfunc, TARGET)
    assert len(lower(schedule)[1]) == 1
    assert most_runs(schedule) < 2
    constants = [SCALE, SCALE - 1] if len(primfunc.params) == 4 else []
    given = [x, *constants, np.zeros(expected.shape, np.float32)]
    np.testing.assert_allclose(
        2 * run_serially(schedule, given).reshape(expected.shape), expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("order", [(2, 0, 3, 4, 1), (2, 0, 1, 4, 3)])
def test_rows_that_a_transpose_takes_apart_are_copied(order: tuple[int, ...]) -> None:
    def make(emit: Any, packed: Any) -> Any:
        return normalize(emit(R.permute_dims(packed, order)), Normalization((4,), 1e-6))

    module = function(inputs(SHAPE), make)
    assert names(read_rows(module)) == names(module)


def test_rows_that_something_else_reads_are_copied() -> None:
    def make(emit: Any, packed: Any) -> Any:
        rows = heads(emit, packed, 1)
        return R.add(emit(normalize(rows, RMS)), rows)

    module = function(inputs(SHAPE), make)
    assert names(read_rows(module)) == names(module)


@pytest.mark.parametrize(("begin", "end"), [(0, 16), (16, 32), (5, 29), (64, 192)])
@pytest.mark.parametrize("norm", [lambda x: normalize(x, Normalization((2,), 1e-6, centered=False)), None])
def test_a_part_of_each_row(begin: int, end: int, norm: Callable[[Any], Any] | None) -> None:
    """As latent keys and values of DeepSeek's attention, beside rotated ones."""

    def make(emit: Any, packed: Any) -> Any:
        part = emit(R.strided_slice(packed, [2], [begin], [end]))
        ones, zeros = (relax.const(np.full(end - begin, number, np.float32)) for number in (1, 0))
        return R.nn.layer_norm(part, ones, zeros, -1, 1e-5) if norm is None else norm(part)

    shape = (3, 40, 32 if end <= 32 else 416)
    module = function(inputs(shape), make)
    read = relax.transform.DeadCodeElimination()(read_rows(module))
    (name,) = names(read)
    assert name.startswith("strided_slice_")
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    expected = compute(expand_norms(module), [x])[0]
    np.testing.assert_allclose(compute(read, [x])[0], expected, rtol=1e-4, atol=1e-5)
    (primfunc,) = [f for f in read.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    schedule = schedule_cuda(primfunc, TARGET)
    assert len(lower(schedule)[1]) == 1
    assert most_runs(schedule) < 2
    constants = [np.ones(end - begin, np.float32), np.zeros(end - begin, np.float32)] if norm is None else []
    given = [x, *constants, np.zeros(expected.shape, np.float32)]
    np.testing.assert_allclose(run_serially(schedule, given).reshape(expected.shape), expected, rtol=1e-4, atol=1e-5)


def test_views_that_copy_nothing_stay() -> None:
    def make(emit: Any, packed: Any) -> Any:
        return normalize(emit(R.reshape(packed, (34, 12, 32))), Normalization((2,), 1e-6))

    module = function(inputs(SHAPE), make)
    assert names(read_rows(module)) == names(module)


def test_symbolic_extents() -> None:
    batch, rows = (tvm.tirx.Var(name, "int64") for name in ("n", "s"))

    def make(emit: Any, packed: Any) -> Any:
        return normalize(heads(emit, packed, 2), CENTERED)

    module = function([relax.Var("packed", relax.TensorType((batch, rows, *SHAPE[2:]), "float32"))], make)
    read = relax.transform.DeadCodeElimination()(read_rows(module))
    assert len(names(read)) == 1
    for shape in (SHAPE, (1, 3, *SHAPE[2:])):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(compute(read, [x])[0], compute(expand_norms(module), [x])[0], rtol=1e-4, atol=1e-5)


def windows(emit: Any, image: Any) -> Any:
    """Return [images, rows, width] of windows of 4 x 4 places."""
    moved = emit(R.permute_dims(emit(R.reshape(image, (2, 3, 3, 4, 4, 96))), (0, 1, 3, 2, 4, 5)))
    return emit(R.reshape(moved, (2, 144, 96)))


@pytest.mark.parametrize(
    ("shape", "rows"),
    [(SHAPE, lambda emit, x: heads(emit, x, 1)), ((18, 16, 96), windows)],
    ids=["heads", "windows"],
)
@pytest.mark.parametrize("norm", [lambda x: normalize(x, Normalization((x.ty.ndim - 1,), 1e-6)), layer_norm])
def test_rows_are_loaded_once_as_vectors(
    shape: tuple[int, ...], rows: Callable[..., Any], norm: Callable[[Any], Any]
) -> None:
    data = relax.Var("data", relax.TensorType(shape, "float16"))
    module = function([data], lambda emit, x: norm(rows(emit, x)))
    read = relax.transform.DeadCodeElimination()(read_rows(module))
    (primfunc,) = [f for f in read.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    source, launches = lower(schedule_cuda(primfunc, TARGET))
    assert len(launches) == 1
    assert "p0[" not in source
    assert source.count("(p0 +") == 1
