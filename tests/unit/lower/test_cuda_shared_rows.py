"""Sums that a normalization and others read, as GPUs run them: one kernel of two results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
import tvm
from tvm import relax, tirx

from packager.graph.dataflow import bindings_of, operator_of
from packager.graph.identity import IdentityMap
from packager.graph.normalize import Normalization, normalize
from packager.graph.rewrite import apply
from packager.ir.model import CallSource
from packager.lower.cuda.fusion.shared_rows import share_rows
from packager.lower.cuda.schedule import schedule_cuda
from packager.lower.devices import DEVICES
from packager.lower.lowering import FLATTEN, FUSE
from tests.unit.lower.test_schedule_cuda import TARGET, in_shapes_of, lower, serial

R = relax.op


def fused(make: Any, *types: tuple[tuple[Any, ...], str]) -> tuple[tvm.IRModule, list[CallSource]]:
    """Return the module of what ``make`` computes as FuseOps leaves it, with the sources of its bindings."""
    builder = relax.BlockBuilder()
    parameters = [relax.Var(f"p{number}", relax.TensorType(*each)) for number, each in enumerate(types)]
    with builder.function("main", parameters):
        with builder.dataflow():
            result = builder.emit_output(make(builder.emit, *parameters))
        builder.emit_func_output(result)
    flat = apply(FLATTEN, apply(FUSE, apply(DEVICES["cuda"].legalize, builder.finalize())))
    names = [binding.var.name for binding in bindings_of(flat["main"])]
    return flat, [CallSource((name,), (name,)) for name in names]


def joined(make: Any, *types: tuple[tuple[Any, ...], str]) -> tuple[tvm.IRModule, list[CallSource]]:
    """Return the module of what ``make`` computes as it is scheduled, with the sources of its bindings."""
    return share_rows(*fused(make, *types))


def is_kernel(binding: Any) -> bool:
    return operator_of(binding.value) == "call_tir"


def kernels(module: tvm.IRModule) -> int:
    return sum(map(is_kernel, bindings_of(module["main"])))


def run(module: tvm.IRModule, *arrays: np.ndarray) -> list[np.ndarray]:
    """Run the module's calls with its functions as they are scheduled, their threads one after the other."""
    main = module["main"]
    values: IdentityMap[Any] = IdentityMap(zip(main.params, arrays, strict=True))
    for binding in bindings_of(main):
        value = binding.value
        if isinstance(value, relax.TupleGetItem):
            values[binding.var] = values[value.tuple_value][value.index]
        elif isinstance(value, relax.Tuple):
            values[binding.var] = [values[field] for field in value.fields]
        else:
            assert is_kernel(binding)
            read = [values[operand] for operand in value.args[1].fields]
            values[binding.var] = call(module[value.args[0]], read, value.ty)
    result = values[main.body.body]
    return result if isinstance(result, list) else [result]


def call(function: tirx.PrimFunc, arguments: list[np.ndarray], ty: Any) -> Any:
    scheduled = schedule_cuda(function, TARGET)
    lower(scheduled)
    types = list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]
    results = [np.full([int(e) for e in each.shape.values], np.nan, str(each.dtype)) for each in types]
    tensors = [tvm.runtime.tensor(array) for array in in_shapes_of(scheduled, (*arguments, *results))]
    tvm.compile(tvm.IRModule({"main": serial(scheduled).with_attr("global_symbol", "main")}), "llvm")["main"](*tensors)
    found = [t.numpy().reshape(r.shape) for t, r in zip(tensors[len(arguments) :], results, strict=True)]
    return found if isinstance(ty, relax.TupleType) else found[0]


def norm(x: np.ndarray, *, centered: bool) -> np.ndarray:
    wide = x.astype(np.float64)
    wide = wide - wide.mean(-1, keepdims=True) * centered
    return wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6)


def relax_norm(emit: Any, x: Any, *, centered: bool) -> Any:
    rows = emit(normalize(x, Normalization((x.ty.ndim - 1,), 1e-6, centered=centered)))
    return rows if rows.ty.dtype == x.ty.dtype else emit(R.astype(rows, x.ty.dtype))


def gate(emit: Any, x: Any, y: Any, modulation: Any) -> Any:
    """Adaptive norms of diffusion transformers: a gate, a scale and a shift are slices of [batch, 3 width]."""
    width = int(x.ty.shape.values[-1])
    parts = [emit(R.strided_slice(modulation, [1], [n * width], [(n + 1) * width])) for n in range(3)]
    gates, scales, shifts = (emit(R.expand_dims(part, 1)) for part in parts)
    total = emit(R.add(x, emit(R.multiply(y, gates))))
    scales = emit(R.add(scales, relax.const(1, x.ty.dtype)))
    scaled = emit(R.multiply(relax_norm(emit, total, centered=True), scales))
    return relax.Tuple([total, emit(R.add(scaled, shifts))])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((2, 5, 384), "float16"),  # of which half of the threads load a second vector
        ((1, 7, 1152), "float16"),
        ((3, 4, 512), "float32"),
        ((2, 3, 2304), "float16"),
        ((2, 2, 4096), "float32"),
        ((2, 9, 40), "float16"),
    ],
)
def test_gated_sums(shape: tuple[int, int, int], dtype: str) -> None:
    module, sources = joined(gate, (shape, dtype), (shape, dtype), ((shape[0], 3 * shape[2]), dtype))
    assert kernels(module) == 1, "slices are read where they lie, the sum is the second result"
    assert len(sources[0].ops) == 2
    generator = np.random.default_rng(0)
    x, y = (generator.standard_normal(shape).astype(dtype) for _ in range(2))
    modulation = generator.standard_normal((shape[0], 3 * shape[2])).astype(dtype)
    total, result = run(module, x, y, modulation)
    gates, scales, shifts = (part[:, None].astype(np.float64) for part in np.split(modulation, 3, -1))
    tolerance = 4e-3 if dtype == "float16" else 1e-5
    wanted = (x + y * gates).astype(dtype)
    np.testing.assert_allclose(total, wanted, tolerance, tolerance)
    np.testing.assert_allclose(result, norm(wanted, centered=True) * (1 + scales) + shifts, tolerance, tolerance)


def sandwich(emit: Any, x: Any, y: Any, inner: Any, outer: Any) -> Any:
    """A norm behind a layer, its residual sum, and the norm before the next layer, as Gemma has them."""
    total = emit(R.add(x, emit(R.multiply(relax_norm(emit, y, centered=False), inner))))
    return relax.Tuple([emit(R.multiply(relax_norm(emit, total, centered=False), outer)), total])


def test_any_number_of_rows() -> None:
    count = tirx.Var("n", "int64")
    shape = (count, 640)
    module, _ = joined(sandwich, (shape, "float16"), (shape, "float16"), ((640,), "float16"), ((640,), "float16"))
    (name,) = [binding.value.args[0] for binding in bindings_of(module["main"]) if is_kernel(binding)]
    source, launches = lower(schedule_cuda(module[name], TARGET))
    assert len(launches) == 1
    assert source.count("*(uint4*)(p") >= 2, "rows are read as vectors"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((2, 5, 640), "float16"), ((9, 1152), "float32"), ((1, 1, 2560), "float16"), ((3, 3584), "float16")],
)
def test_norms_behind_and_before_a_sum(shape: tuple[int, ...], dtype: str) -> None:
    weights = (shape[-1:], dtype)
    module, _ = joined(sandwich, (shape, dtype), (shape, dtype), weights, weights)
    assert kernels(module) == 1
    generator = np.random.default_rng(0)
    x, y = (generator.standard_normal(shape).astype(dtype) for _ in range(2))
    inner, outer = (generator.standard_normal(shape[-1:]).astype(dtype) for _ in range(2))
    result, total = run(module, x, y, inner, outer)
    tolerance = 4e-3 if dtype == "float16" else 1e-5
    np.testing.assert_allclose(total, x + norm(y, centered=False) * inner, tolerance, tolerance)
    np.testing.assert_allclose(result, norm(total, centered=False) * outer, tolerance, tolerance)


def test_rows_that_nothing_else_reads_are_no_result() -> None:
    def make(emit: Any, x: Any, y: Any) -> Any:
        return relax_norm(emit, emit(R.add(x, emit(R.nn.relu(y)))), centered=True)

    shape = (6, 256)
    module, _ = joined(make, (shape, "float32"), (shape, "float32"))
    assert kernels(module) == 1
    x, y = (np.random.default_rng(n).standard_normal(shape).astype("float32") for n in range(2))
    (result,) = run(module, x, y)
    np.testing.assert_allclose(result, norm(x + np.maximum(y, 0), centered=True), 1e-5, 1e-5)


def test_what_stands_between_goes_in_front_or_behind() -> None:
    """A shift that is computed after the sum is computed before both; what reads the sum follows."""

    def make(emit: Any, x: Any, y: Any, z: Any) -> Any:
        total = emit(R.add(x, y))
        read = emit(R.sum(total, [0]))
        shift = emit(R.max(z, [0]))
        return relax.Tuple([read, emit(R.add(relax_norm(emit, total, centered=True), shift)), total])

    shape = (6, 256)
    module, sources = joined(make, *[(shape, "float32")] * 3)
    assert len(sources) == len(bindings_of(module["main"]))
    assert kernels(module) == 3
    x, y, z = (np.random.default_rng(n).standard_normal(shape).astype("float32") for n in range(3))
    read, result, total = run(module, x, y, z)
    np.testing.assert_allclose(total, x + y)
    np.testing.assert_allclose(read, (x + y).sum(0), 1e-5, 1e-5)
    np.testing.assert_allclose(result, norm(x + y, centered=True) + z.max(0), 1e-5, 1e-5)


def turned(emit: Any, x: Any, y: Any) -> Any:
    total = emit(R.add(x, emit(R.permute_dims(y))))
    return relax.Tuple([total, relax_norm(emit, total, centered=True)])


def plain(emit: Any, x: Any, y: Any) -> Any:
    total = emit(R.add(x, y))
    return relax.Tuple([total, relax_norm(emit, total, centered=True)])


def read_by_the_shift(emit: Any, x: Any, y: Any) -> Any:
    """What the norm adds is computed of the sum by another function."""
    total = emit(R.add(x, y))
    shift = emit(R.max(total, [0]))
    return relax.Tuple([total, emit(R.add(relax_norm(emit, total, centered=True), shift))])


def scattered(emit: Any, x: Any, y: Any) -> Any:
    """What reads the sum is a function of threads, without blocks."""
    total = emit(R.add(x, y))
    return relax.Tuple([total, emit(R.scatter_elements(x, emit(R.astype(y, "int64")), total, axis=1))])


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (scattered, [(6, 256)] * 2),
        (turned, [(64, 128), (128, 64)]),
        (plain, [(3, 20000)] * 2),
        (read_by_the_shift, [(6, 256)] * 2),
    ],
)
def test_others_stay_apart(make: Any, shapes: list[tuple[int, int]]) -> None:
    module, sources = joined(make, *((shape, "float16") for shape in shapes))
    assert kernels(module) > 1
    assert all(len(source.ops) == 1 for source in sources)


def test_a_scatter_is_no_row_that_others_share() -> None:
    def make(emit: Any, data: Any, indices: Any, updates: Any) -> Any:
        written = emit(R.scatter_nd(data, indices, updates, "update"))
        return emit(R.add(written, written))

    module, _ = joined(make, ((64, 128), "float16"), ((1, 1), "int64"), ((1, 128), "float16"))
    assert kernels(module) == 2


def embedding(emit: Any, table: Any, tokens: Any) -> Any:
    """Rows of a table, which a residual sum reads, and the norm before the first layer, as decoders have them."""
    rows = emit(R.take(table, tokens, 0))
    return relax.Tuple([rows, relax_norm(emit, rows, centered=False)])


@pytest.mark.parametrize("count", [1, 5])
def test_rows_that_data_choose(count: int) -> None:
    """A thread held its part of all rows of the table, which had no place on a GPU."""
    module, _ = joined(embedding, ((300, 256), "float16"), ((count,), "int64"))
    (name,) = [binding.value.args[0] for binding in bindings_of(module["main"]) if is_kernel(binding)]
    source, _ = lower(schedule_cuda(module[name], TARGET))
    assert source.count("*(uint4*)(p") == 3, "a row is read once, as vectors, and both results are written so"
    generator = np.random.default_rng(0)
    table = generator.standard_normal((300, 256)).astype("float16")
    tokens = generator.integers(-300, 300, count)
    rows, result = run(module, table, tokens)
    np.testing.assert_array_equal(rows, table[tokens])
    np.testing.assert_allclose(result, norm(table[tokens], centered=False), 4e-3, 4e-3)


def test_rows_of_merged_calls_are_merged_again() -> None:
    """The second pair's rows are made by a function that the first pair has made, behind what stood between both."""

    def make(emit: Any, x: Any, y: Any) -> Any:
        first = relax_norm(emit, x, centered=True)
        columns = emit(R.permute_dims(y))
        second = emit(R.add(relax_norm(emit, first, centered=True), columns))
        return relax_norm(emit, second, centered=True)

    module, _ = joined(make, ((4, 384), "float32"), ((384, 4), "float32"))
    assert kernels(module) == 2
    generator = np.random.default_rng(0)
    x, y = (generator.standard_normal(shape).astype("float32") for shape in ((4, 384), (384, 4)))
    wanted = norm(norm(norm(x, centered=True), centered=True) + y.T, centered=True)
    np.testing.assert_allclose(run(module, x, y)[0], wanted, rtol=1e-4, atol=1e-5)
