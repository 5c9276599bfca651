"""Sums of what is looked up, on a GPU: one kernel each, which reads the slices where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from packager.graph.resize import Resizing, resize
from packager.graph.rewrite import apply
from packager.lower.cuda.schedule import schedule_cuda
from packager.lower.devices import DEVICES
from packager.lower.lowering import FLATTEN, FUSE
from tests.unit.lower.test_schedule_cuda import TARGET, functions, lower, serial
from tests.unit.tvm_machine import compute

R = relax.op
F, I = "float32", "int64"  # noqa: E741


def summed(table: Any, ids: Any) -> Any:
    return R.sum(R.take(table, ids, axis=0, mode="wrap"), axis=[1])


def squared(table: Any, ids: Any) -> Any:
    rows = R.take(table, ids, axis=0, mode="wrap")
    return R.sum(R.multiply(rows, rows), axis=[1])


@pytest.mark.parametrize(
    ("make", "expected"),
    [(summed, lambda t, i: t[i].sum(1)), (squared, lambda t, i: (t[i] ** 2).sum(1))],
    ids=["summed", "squared"],
)
@pytest.mark.parametrize(("width", "fields"), [(16, 39), (1, 39), (24, 130), (64, 5)])
def test_a_sum_of_rows_is_one_kernel(make: Callable[..., Any], expected: Any, width: int, fields: int) -> None:
    (primfunc,) = functions(make, ((50, width), F), ((70, fields), I))
    scheduled = schedule_cuda(primfunc, TARGET)
    lower(scheduled)
    library = tvm.compile(tvm.IRModule({"main": serial(scheduled).with_attr("global_symbol", "main")}), target="llvm")
    generator = np.random.default_rng(0)
    table, ids = generator.standard_normal((50, width)).astype(F), generator.integers(-50, 50, (70, fields))
    tensors = [tvm.runtime.tensor(array) for array in (table, ids, np.full((70, width), np.nan, F))]
    library["main"](*tensors)
    np.testing.assert_allclose(tensors[-1].numpy(), expected(table.astype(np.float64), ids), rtol=1e-4, atol=1e-5)


def test_a_weighed_sum_of_windows_is_one_kernel() -> None:
    """As a convolution whose kernels are computed (arXiv:1901.10430): windows overlap, and are transposed."""
    channels, tokens, size = 64, 24, 9

    def weighed(x: Any, places: Any, weights: Any) -> Any:
        windows = R.permute_dims(R.take(x, places, axis=1, mode="wrap"), [1, 0, 2])
        heads = R.reshape(windows, [tokens, 2, channels // 2, size])
        return R.sum(R.multiply(heads, weights), axis=[3])

    shapes = ((channels, tokens + size - 1), F), ((tokens, size), I), ((tokens, 2, 1, size), F)
    x, *weights = (relax.Var(f"p{number}", relax.TensorType(*each)) for number, each in enumerate(shapes))
    assert len(kernels(written(lambda builder, *given: builder.emit(weighed(*given)), x, *weights))) == 1
    (primfunc,) = functions(weighed, *shapes)
    scheduled = schedule_cuda(primfunc, TARGET)
    lower(scheduled)
    library = tvm.compile(tvm.IRModule({"main": serial(scheduled).with_attr("global_symbol", "main")}), target="llvm")
    generator = np.random.default_rng(0)
    data, kernel = generator.standard_normal(shapes[0][0]).astype(F), generator.standard_normal(shapes[2][0]).astype(F)
    places = np.arange(tokens)[:, None] + np.arange(size)
    arrays = (data, places, kernel, np.full((tokens, 2, channels // 2), np.nan, F))
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    library["main"](*tensors)
    windows = data[:, places].transpose(1, 0, 2).reshape(tokens, 2, -1, size)
    np.testing.assert_allclose(tensors[-1].numpy(), (windows * kernel).sum(3), rtol=1e-4, atol=1e-5)


def kernels(module: tvm.IRModule) -> list[str]:
    """Return the names of the fused functions of a module."""
    lowered = apply([*DEVICES["cuda"].legalize, *FUSE, *FLATTEN], module)
    return [name.name_hint for name, function in lowered.functions.items() if isinstance(function, tirx.PrimFunc)]


def written(make: Callable[..., Any], *parameters: Any) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    with builder.function("main", list(parameters)):
        with builder.dataflow():
            result = builder.emit_output(make(builder, *parameters))
        builder.emit_func_output(result)
    return builder.finalize()


def test_each_sum_of_a_lookup_reads_the_table_itself() -> None:
    """As in a factorization machine: a sum, a sum of squares, and all rows for a perceptron."""

    def machine(builder: Any, table: Any, ids: Any) -> Any:
        rows = builder.emit(R.take(table, ids, axis=0, mode="wrap"))
        first = builder.emit(R.sum(rows, axis=[1]))
        second = builder.emit(R.sum(builder.emit(R.multiply(rows, rows)), axis=[1]))
        crossed = builder.emit(R.subtract(builder.emit(R.multiply(first, first)), second))
        flat = builder.emit(R.astype(builder.emit(R.reshape(rows, [8, 80])), "float16"))
        return relax.Tuple([crossed, flat])

    table, ids = relax.Var("table", relax.TensorType([50, 16], F)), relax.Var("ids", relax.TensorType([8, 5], I))
    found = kernels(written(machine, table, ids))
    assert len([name for name in found if "take" in name]) == 3
    assert all("sum" in name or "reshape" in name for name in found if "take" in name)


def test_a_lookup_in_what_is_computed_is_no_part_of_a_sum() -> None:
    def computed(builder: Any, data: Any, ids: Any) -> Any:
        rows = builder.emit(R.take(builder.emit(R.nn.relu(data)), ids, axis=0, mode="wrap"))
        return builder.emit(R.sum(rows, axis=[1]))

    data, ids = relax.Var("data", relax.TensorType([50, 16], F)), relax.Var("ids", relax.TensorType([8, 5], I))
    assert not any("take" in name and "sum" in name for name in kernels(written(computed, data, ids)))


def test_many_tables_are_looked_up_by_one_kernel() -> None:
    """As many as recommenders have: each is a condition within the others."""
    tables, width = 26, 8

    def stacked(ids: Any, *found: Any) -> Any:
        columns = [R.squeeze(R.strided_slice(ids, [1], [i], [i + 1]), [1]) for i in range(tables)]
        return R.concat(
            [R.take(table, column, axis=0, mode="wrap") for table, column in zip(found, columns, strict=True)], axis=1
        )

    (primfunc,) = functions(stacked, ((4, tables), I), *[((20, width), F)] * tables)
    scheduled = schedule_cuda(primfunc, TARGET)
    lower(scheduled)
    library = tvm.compile(tvm.IRModule({"main": serial(scheduled).with_attr("global_symbol", "main")}), target="llvm")
    generator = np.random.default_rng(0)
    ids = generator.integers(-20, 20, (4, tables))
    arrays = [generator.standard_normal((20, width)).astype(F) for _ in range(tables)]
    tensors = [tvm.runtime.tensor(array) for array in (ids, *arrays, np.full((4, tables * width), np.nan, F))]
    library["main"](*tensors)
    expected = np.concatenate([array[ids[:, i]] for i, array in enumerate(arrays)], 1)
    np.testing.assert_array_equal(tensors[-1].numpy(), expected)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_what_is_resized_is_joined_by_one_kernel(mode: str) -> None:
    """As in a U-Net: nothing is written before the concatenation."""
    last = np.arange(16) // 2
    taps = [last] if mode == "nearest" else [last, np.minimum(last + 1, 7)]
    tables = [
        relax.const(np.stack(taps, 1).astype("int32")),
        relax.const(np.full((16, len(taps)), 1 / len(taps), F)),
        relax.const(np.zeros(16, "int32")),
    ]

    def joined(builder: Any, small: Any, large: Any) -> Any:
        wide = builder.emit(resize(builder.emit(R.nn.relu(small)), tables * 2, Resizing((1, 2), (False, False))))
        return builder.emit(R.concat([large, wide], axis=3))

    small, large = (relax.Var(name, relax.TensorType([1, e, e, 8], F)) for name, e in (("small", 8), ("large", 16)))
    module = written(joined, small, large)
    (name,) = kernels(module)
    assert name.startswith("fused_relu_resize_concat")
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((1, extent, extent, 8)).astype(F) for extent in (8, 16)]
    lowered = apply([*DEVICES["cuda"].legalize], module)
    got = compute(lowered, arrays)[0]
    repeated = np.maximum(arrays[0], 0)
    for axis in (1, 2):
        repeated = np.mean([np.take(repeated, tap, axis) for tap in taps], 0)
    np.testing.assert_allclose(got, np.concatenate([arrays[1], repeated], 3), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("width", [8, 12])
def test_what_is_resized_is_joined_by_vectors(width: int) -> None:
    """Each element chose between a load of its own and four, of which threads had no vectors."""
    last = np.arange(16) // 2
    taps = [last, np.minimum(last + 1, 7)]
    table = (np.stack(taps, 1).astype("int32"), np.full((16, 2), 0.5, F), np.zeros(16, "int32"))

    def joined(builder: Any, small: Any, large: Any) -> Any:
        wide = builder.emit(resize(small, [*map(relax.const, table)] * 2, Resizing((1, 2), (False, False))))
        return builder.emit(R.concat([large, wide], axis=3))

    shapes = [(2, extent, extent, width) for extent in (8, 16)]
    small, large = (relax.Var(name, relax.TensorType(s, F)) for name, s in zip("sl", shapes, strict=True))
    fused = apply([*DEVICES["cuda"].legalize, *FUSE, *FLATTEN], written(joined, small, large))
    (function,) = [function for function in fused.functions.values() if isinstance(function, tirx.PrimFunc)]
    scheduled = schedule_cuda(function, TARGET)
    source, launches = lower(scheduled)
    assert source.count("*(float4*)(p") == 4 + 1 + 2, "four are added up or one is copied, and either branch stores one"
    assert all(launch.overlaps for launch in launches.values()), "a thread loads before it stores, whatever it does"

    generator = np.random.default_rng(0)
    rows = {shape: generator.standard_normal(shape).astype(F) for shape in shapes}
    result = np.full((2, 16, 16, 2 * width), np.nan, F)
    given = {**rows, (16, 2): None, result.shape: result}
    numbers = {"int32": table[0], F: table[1]}
    operands = [
        numbers[str(p.dtype)] if given[tuple(map(int, p.shape))] is None else given[tuple(map(int, p.shape))]
        for p in scheduled.params
    ]
    tensors = [tvm.runtime.tensor(operand) for operand in operands]
    library = tvm.compile(tvm.IRModule({"main": serial(scheduled).with_attr("global_symbol", "main")}), target="llvm")
    library["main"](*tensors)
    repeated = rows[shapes[0]]
    for axis in (1, 2):
        repeated = np.mean([np.take(repeated, tap, axis) for tap in taps], 0)
    expected = np.concatenate([rows[shapes[1]], repeated], 3)
    np.testing.assert_allclose(tensors[-1].numpy(), expected, rtol=1e-6, atol=1e-6)


def test_an_index_of_the_least_is_found_by_the_kernel_that_computes_the_values() -> None:
    """As in a codebook, whose distances are as many as rows times codes."""

    def nearest(builder: Any, product: Any, squares: Any) -> Any:
        return builder.emit(R.argmin(builder.emit(R.subtract(squares, product)), axis=1))

    product, squares = relax.Var("p", relax.TensorType([64, 512], F)), relax.Var("s", relax.TensorType([1, 512], F))
    (name,) = kernels(written(nearest, product, squares))
    assert name == "fused_subtract_argmin"


@pytest.mark.parametrize("joined", [False, True])
def test_weights_of_places_are_those_of_vectors(joined: bool) -> None:
    """Bilinear resizing weighs rows by numbers that are the same for all channels."""

    def resized(small: Any, large: Any) -> Any:
        wide = R.image.resize2d(
            small, (128, 128), layout="NHWC", method="linear", coordinate_transformation_mode="half_pixel"
        )
        return R.concat([large, wide], axis=3) if joined else R.add(large, wide)

    (primfunc,) = functions(resized, ((2, 64, 64, 64), F), ((2, 128, 128, 64), F))
    source, _ = lower(schedule_cuda(primfunc, TARGET))
    kernel = source[source.rindex("__global__") :]
    assert kernel.count("*(float4*)(p0") == 4
    assert kernel.count("*(float4*)(p1") == 1

    rng = np.random.default_rng(0)
    small, large = (rng.standard_normal(shape).astype(F) for shape in ((2, 64, 64, 64), (2, 128, 128, 64)))
    result = np.full((2, 128, 128, 128 if joined else 64), np.nan, F)
    tensors = [tvm.runtime.tensor(operand) for operand in (small, large, result)]
    scheduled = schedule_cuda(primfunc, TARGET)
    library = tvm.compile(tvm.IRModule({"main": serial(scheduled).with_attr("global_symbol", "main")}), target="llvm")
    library["main"](*tensors)
    place = np.clip((np.arange(128) + 0.5) / 2 - 0.5, 0, 63)
    first, share = np.floor(place).astype(int), place % 1
    for axis in (1, 2):
        weight = share.reshape([-1 if each == axis else 1 for each in range(4)])
        left, right = (np.take(small, np.minimum(first + step, 63), axis) for step in (0, 1))
        small = left * (1 - weight) + right * weight
    wanted = np.concatenate([large, small], 3) if joined else large + small
    np.testing.assert_allclose(tensors[2].numpy(), wanted, rtol=1e-5, atol=1e-6)
