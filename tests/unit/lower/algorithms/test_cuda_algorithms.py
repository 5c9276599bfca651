"""The data-parallel algorithms for GPUs, their loops run one after the other on this machine, against numpy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.tirx import stmt as st
from tvm_ffi import structural_map

from packager.graph.dataflow import bindings_of, called_function, operator_of
from packager.graph.rewrite import apply
from packager.ir.primitives import Kernel
from packager.lower import sorting
from packager.lower.cuda.algorithms.few_best import levels_of
from packager.lower.cuda.algorithms.scatters.orders import sort_scatters
from packager.lower.devices import DEVICES
from packager.lower.lowering import FLATTEN, FUSE, _make_kernels
from packager.transforms.simplify.narrow_indices import SCATTER_SLICES, narrow_indices

GENERATOR = np.random.default_rng(3)
N = tirx.Var("n", "int64")
K = tirx.Var("k", "int64")
M = tirx.Var("m", "int64")
SMALL = [1, 2, 127, 128, 129, 300]
NUMBERS = np.array([-np.inf, -1.5, -0.0, 0.0, 2, 7, np.inf, np.nan], np.float32)


def compiled(make: Callable[..., relax.Call], *types: relax.TensorType) -> Callable[..., list[Any]]:
    """Return a function of arrays that runs what the call lowers to for CUDA; its kernels must lower to CUDA C++."""
    return runs(legalized(make, *types)[0])


def runs(module: tvm.IRModule) -> Callable[..., list[Any]]:
    """Return a function of arrays that runs a module for CUDA, loops one after the other."""
    functions = {}
    for variable, function in module.functions.items():
        if isinstance(function, tirx.PrimFunc):
            group = _make_kernels(variable.name_hint, function, DEVICES["cuda"])
            assert all(isinstance(kernel, Kernel) for kernel in group.functions)
            functions[variable] = function.with_body(structural_map(function.body, (st.For, _serial)))
        else:
            functions[variable] = function
    machine = relax.VirtualMachine(tvm.compile(tvm.IRModule(functions), "llvm"), tvm.cpu())

    def run(*arrays: Any) -> list[Any]:
        found = machine["main"](*map(tvm.runtime.tensor, arrays))
        return [a.numpy() for a in ([found] if isinstance(found, tvm.runtime.Tensor) else found)]

    return run


def legalized(make: Callable[..., relax.Call], *types: relax.TensorType) -> tuple[tvm.IRModule, list[tirx.PrimFunc]]:
    """Return what a call is legalized to for CUDA, and its PrimFuncs."""
    builder = relax.BlockBuilder()
    parameters = [relax.Var(f"p{number}", ty) for number, ty in enumerate(types)]
    with builder.function("main", parameters):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(make(*parameters)))
        builder.emit_func_output(result)
    module = apply(DEVICES["cuda"].legalize, builder.finalize())
    return module, [f for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]


def _serial(loop: Any) -> Any:
    return st.For(loop.loop_var, loop.min, loop.extent, st.ForKind.SERIAL, loop.body)


def best(x: Any, k: int, largest: bool) -> Any:
    """Return the indices of the best elements, NaN above all numbers, the lower index first."""
    order = np.argsort(x, axis=-1, kind="stable")
    if largest:  # reversed twice, so that equal elements stay in order
        order = x.shape[-1] - 1 - np.argsort(x[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    return order[..., :k]


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "uint8", "int32"])
def test_the_best_of_rows(dtype: str, largest: bool) -> None:
    run = compiled(
        lambda x, _: sorting.top_k(x, K, largest, 700),
        relax.TensorType([tirx.IntImm("int64", 3), N], dtype),
        relax.TensorType([K], "bool"),
    )
    for size in SMALL:
        for x in (
            GENERATOR.choice(NUMBERS[:-1] if dtype == "float16" else NUMBERS, (3, size)),
            GENERATOR.standard_normal((3, size)) * 9,
            GENERATOR.integers(0, 3, (3, size)),
        ):
            with np.errstate(invalid="ignore"):
                data = x.astype(dtype)
            for k in {1, size // 3 + 1, size}:
                values, indices = run(data, np.zeros(k, bool))
                wanted = best(data, k, largest)
                np.testing.assert_array_equal(indices, wanted)
                np.testing.assert_array_equal(values, np.take_along_axis(data, wanted, -1))


@pytest.mark.parametrize(
    ("rows", "size", "k", "most"),
    [
        (M, 2049, 2049, 20_000),
        (M, 18_433, 40, 20_000),
        (1, 5000, 5000, 5000),
        (2, 18_433, 7, 18_433),
        (300, 130, 5, 130),
    ],
)
def test_the_best_of_several_tiles(rows: Any, size: int, k: int, most: int) -> None:
    run = compiled(
        lambda x, _: sorting.top_k(x, K, True, most),
        relax.TensorType([rows, N if rows is M else tirx.IntImm("int64", size)], "float32"),
        relax.TensorType([K], "bool"),
    )
    data = GENERATOR.integers(0, size // 2, (3 if rows is M else rows, size)).astype(np.float32)
    values, indices = run(data, np.zeros(k, bool))
    np.testing.assert_array_equal(indices, best(data, k, True))
    np.testing.assert_array_equal(values, np.take_along_axis(data, indices, -1))


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("dtype", "size", "k"), [("float16", 5003, 7), ("float32", 3000, 20), ("uint8", 70_001, 3)])
def test_the_few_best_of_rows_are_found_by_ranks(dtype: str, size: int, k: int, largest: bool) -> None:
    _, functions = legalized(
        lambda x: sorting.top_k(x, tirx.IntImm("int64", k), largest, size), relax.TensorType([2, size], dtype)
    )
    assert any("rank_0" in str(function) for function in functions)
    run = compiled(
        lambda x: sorting.top_k(x, tirx.IntImm("int64", k), largest, size), relax.TensorType([2, size], dtype)
    )
    for data in (
        GENERATOR.integers(0, 200, (2, size)),
        GENERATOR.integers(0, 3, (2, size)),
        np.zeros((2, size)),
        np.arange(2 * size).reshape(2, size) % 251,
        np.arange(2 * size)[::-1].reshape(2, size) % 251,
    ):
        numbers = data.astype(dtype)
        values, indices = run(numbers)
        wanted = best(numbers, k, largest)
        np.testing.assert_array_equal(indices, wanted)
        np.testing.assert_array_equal(values, np.take_along_axis(numbers, wanted, -1))
    if dtype.startswith("float"):
        numbers[0, 5::97], numbers[1, -1] = np.nan, -np.inf
        np.testing.assert_array_equal(run(numbers)[1], best(numbers, k, largest))


@pytest.mark.parametrize(
    ("rows", "size", "k", "kind", "levels"),
    [
        (8, 1000, 5, "int32", 0),
        (8, 50_000, 100, "int32", 2),
        (1, 1_000_000, 100, "int32", 2),
        (1, 2000, 2000, "int32", 0),
        (1, 50_000, 10_000, "int32", None),  # not few
        (100_000, 2000, 1000, "int32", None),  # too many comparisons
        (8, 50_000, 100, "int64", None),  # no room for an index
        (8, N, 100, "int32", None),
    ],
)
def test_levels_of_groups_take_the_fewest_comparisons(
    rows: int, size: Any, k: int, kind: str, levels: int | None
) -> None:
    extents = (tirx.IntImm("int64", n) if isinstance(n, int) else n for n in (rows, size, k))
    found = levels_of(*extents, kind)
    assert (found if found is None else len(found)) == levels


def test_positions_of_what_is_set() -> None:
    run = compiled(lambda x: sorting.positions(x, 300_000), relax.TensorType([N], "float32"))
    for size in (1, 63, 64, 65, 5000, 300_000):
        for share in (0, 0.3, 1):
            x = np.where(GENERATOR.random(size) < share, np.float32(np.nan if size == 65 else 2), np.float32(-0.0))
            indices, count = run(x.astype(np.float32))
            (wanted,) = np.nonzero(x)
            np.testing.assert_array_equal(indices[: count[0]], wanted)


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize(("outer", "inner"), [(1, 1), (2, 3)])
def test_distinct_slices(in_order: bool, outer: int, inner: int) -> None:
    shape = [tirx.IntImm("int64", outer), N, tirx.IntImm("int64", inner)]
    run = compiled(lambda x: sorting.unique(x, in_order, 400), relax.TensorType(shape, "int32"))
    for size in SMALL:
        x = GENERATOR.integers(0, 2 if inner > 1 else size // 2 + 1, (outer, size, inner)).astype(np.int32)
        values, firsts, inverse, counts, count = run(x)
        found = np.unique(x, axis=1, return_index=True, return_inverse=True, return_counts=True)
        order = np.arange(len(found[1])) if in_order else np.argsort(found[1])
        number = count[0]
        assert number == len(order)
        np.testing.assert_array_equal(values[:, :number], found[0][:, order])
        np.testing.assert_array_equal(firsts[:number], found[1][order])
        np.testing.assert_array_equal(inverse, np.argsort(order)[found[2].reshape(-1)])
        np.testing.assert_array_equal(counts[:number], found[3][order])


def suppressed(boxes: Any, scores: Any, limit: float, floor: float, most: int, centered: bool) -> Any:
    """Return the triples that ONNX's NonMaxSuppression selects."""
    a, b, c, d = np.moveaxis(boxes, -1, 0)
    if centered:
        half = np.float32(0.5)
        y0, x0, y1, x1 = b - d * half, a - c * half, b + d * half, a + c * half
    else:
        y0, x0, y1, x1 = np.minimum(a, c), np.minimum(b, d), np.maximum(a, c), np.maximum(b, d)
    found = []
    for n, c in np.ndindex(scores.shape[:2]):
        kept: list[int] = []
        for i in best(scores[n, c], scores.shape[2], True):
            if not scores[n, c, i] > floor or len(kept) == most:
                continue
            k = np.array(kept, int)
            height = np.maximum(np.minimum(y1[n, k], y1[n, i]) - np.maximum(y0[n, k], y0[n, i]), 0)
            width = np.maximum(np.minimum(x1[n, k], x1[n, i]) - np.maximum(x0[n, k], x0[n, i]), 0)
            common = height * width
            areas = (y1[n] - y0[n]) * (x1[n] - x0[n])
            if not (common > np.float32(limit) * (areas[k] + areas[i] - common)).any():
                kept.append(int(i))
        found += [[n, c, i] for i in kept]
    return np.array(found, np.int64).reshape(-1, 3)


@pytest.mark.parametrize(("centered", "bound"), [(False, 300), (True, 5000)])
def test_suppression_of_boxes(centered: bool, bound: int) -> None:
    one, kept = tirx.IntImm("int64", 1), tirx.IntImm("int64", 20)
    types = [
        relax.TensorType([tirx.IntImm("int64", 2), N, tirx.IntImm("int64", 4)], "float32"),
        relax.TensorType([tirx.IntImm("int64", 2), tirx.IntImm("int64", 3), N], "float32"),
        relax.TensorType([one], "float32"),
        relax.TensorType([one], "float32"),
        relax.TensorType([K], "bool"),
    ]
    few = compiled(lambda *given: sorting.non_max_suppression(*given[:4], kept, centered, bound), *types)
    many = compiled(lambda *given: sorting.non_max_suppression(*given[:4], K, centered, bound), *types)
    sizes, limits = ((1, 0.2), (64, 2.0), (65, 0.2), (300, 2.0)), ((0.5, -np.inf), (0.1, 0.3), (0.9, 0.9), (0.0, 2.0))
    for (size, spread), tied, (limit, floor) in itertools.product(sizes, (False, True), limits):
        corner = GENERATOR.random((2, size, 2), np.float32) * np.float32(spread)
        extent = GENERATOR.random((2, size, 2), np.float32) * np.float32(0.5)
        boxes = np.concatenate([corner, extent + (0 if centered else corner)], -1)
        scores = GENERATOR.random((2, 3, size), np.float32)
        scores = np.round(scores * 4) / 4 if tied else scores
        bounds = np.array([limit], np.float32), np.array([floor], np.float32)
        for run, most in ((few, 20), (many, size)):
            chosen, count = run(boxes, scores, *bounds, np.zeros(size, bool))
            wanted = suppressed(boxes, scores, limit, np.float32(floor), most, centered)
            np.testing.assert_array_equal(chosen.reshape(-1, 3)[: count[0]], wanted)


REDUCTIONS: dict[str, Any] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    ("shape", "axis", "number", "dtype"),
    [
        ((6, 5), 0, 40, "float32"),
        ((2, 7, 3), 1, 1, "int64"),
        ((3, 9), -1, 30, "float16"),
        ((300, 1000), 0, 7, "float32"),  # of more elements than threads
        ((N, 5), 0, 40, "float32"),
    ],
)
def test_an_element_gets_its_updates_in_order(
    shape: tuple[Any, ...], axis: int, number: int, dtype: str, reduction: str
) -> None:
    extents = [extent if isinstance(extent, int) else 11 for extent in shape]
    counts = list(shape)
    counts[axis] = number
    if counts[0] is N:
        counts[0] = tirx.IntImm("int64", number)
    run = compiled(
        lambda x, i, u: relax.op.scatter_elements(x, i, u, axis, reduction),
        relax.TensorType([e if e is N else tirx.IntImm("int64", int(e)) for e in shape], dtype),
        *(relax.TensorType([tirx.IntImm("int64", int(e)) for e in counts], kind) for kind in ("int64", dtype)),
    )
    counts = [int(count) for count in counts]
    data, updates = ((GENERATOR.integers(-3, 4, size)).astype(dtype) for size in (extents, counts))
    indices = GENERATOR.integers(-extents[axis], extents[axis], counts)
    expected = data.astype("f8")
    for at in np.ndindex(*counts):
        place = list(at)
        place[axis] = int(indices[at])
        old, new = expected[tuple(place)], float(updates[at])
        expected[tuple(place)] = REDUCTIONS[reduction](old, new)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(run(data, indices, updates)[0], expected.astype(dtype))


@pytest.mark.parametrize("reduction", ["max", "add"])
@pytest.mark.parametrize("shape", [(5, 6, 3), (4, 3), (400, 500, 2)])
def test_slices_get_their_updates_in_order(shape: tuple[int, ...], reduction: str) -> None:
    counts, own = (3, 4, 2), (3, 4, *shape[2:])
    run = compiled(
        lambda x, i, u: relax.op.scatter_nd(x, i, u, reduction),
        *(relax.TensorType(size, kind) for size, kind in ((shape, "float32"), (counts, "int64"), (own, "float32"))),
    )
    data, updates = (GENERATOR.integers(-3, 4, size).astype("float32") for size in (shape, own))
    indices = np.stack([GENERATOR.integers(-extent, extent, counts[:-1]) for extent in shape[:2]], axis=-1)
    expected = data.copy()
    for at in np.ndindex(*counts[:-1]):
        place = tuple(indices[at])
        expected[place] = REDUCTIONS[reduction](expected[place], updates[at])
    np.testing.assert_array_equal(run(data, indices, updates)[0], expected)


@pytest.mark.parametrize("number", [40, 2500, 20_000])
@pytest.mark.parametrize(("reduction", "dtype"), [("min", "int64"), ("add", "float32"), ("add", "float16")])
def test_slices_with_an_index_each(reduction: str, dtype: str, number: int) -> None:
    sizes = [((2, 6, 5), dtype), ((2, number, 1), "int64"), ((2, number, 5), dtype)]
    attributes = tvm.ir.make_node("ir.DictAttrs", axis=1, reduction=reduction)
    run = compiled(
        lambda *operands: relax.Call(tvm.ir.Op.get(SCATTER_SLICES), [*operands], attributes),
        *(relax.TensorType(size, kind) for size, kind in sizes),
    )
    data, updates = (GENERATOR.integers(-2, 3, size).astype(dtype) for size in (sizes[0][0], sizes[2][0]))
    indices = GENERATOR.integers(-6, 6, sizes[1][0])
    expected = data.astype("f8")
    for which, row in np.ndindex(2, number):
        place = which, indices[which, row, 0]
        expected[place] = REDUCTIONS[reduction](expected[place], updates[which, row])
    np.testing.assert_array_equal(run(data, indices, updates)[0], expected.astype(dtype))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("spread", [1, 9])
def test_places_of_many_slices_have_several_sums(dtype: str, spread: int) -> None:
    """All slices may be of one place, whose thread would read them one after the other."""
    number, places, width = 1500, 9, 6

    def scatter(data: Any, indices: Any, updates: Any) -> relax.Call:
        index = relax.op.broadcast_to(relax.op.reshape(indices, [number, 1]), [number, width])
        return relax.op.scatter_elements(data, index, updates, 0, "add")

    types = [((places, width), dtype), ((number,), "int64"), ((number, width), dtype)]
    builder = relax.BlockBuilder()
    parameters = [relax.Var(f"p{at}", relax.TensorType(*ty)) for at, ty in enumerate(types)]
    with builder.function("main", parameters):
        with builder.dataflow():
            result = builder.emit_output(scatter(*parameters))
        builder.emit_func_output(result)
    module = sort_scatters(narrow_indices(builder.finalize()))
    assert "sum" in [operator_of(binding.value) for binding in bindings_of(module["main"])]
    run = runs(apply(DEVICES["cuda"].legalize, narrow_indices(builder.get())))
    data, updates = (GENERATOR.integers(-2, 3, shape).astype(dtype) for shape in ((places, width), (number, width)))
    indices = GENERATOR.integers(0, spread, number)
    expected = data.astype(np.float64)
    np.add.at(expected, indices, updates)
    np.testing.assert_array_equal(run(data, indices, updates)[0], expected.astype(dtype))


def test_scatters_by_the_same_indices_sort_them_once_and_compute_what_they_scatter() -> None:
    edges, nodes, heads, width = 3000, 50, 2, 5

    def layer(x: Any, to: Any, of: Any, weights: Any) -> Any:
        index = relax.op.broadcast_to(relax.op.reshape(to, [edges, 1, 1]), [edges, heads, width])
        messages = relax.op.multiply(relax.op.take(x, of, 0), relax.op.expand_dims(weights, 2))
        return relax.op.scatter_elements(relax.op.zeros([nodes, heads, width], "float32"), index, messages, 0, "add")

    builder = relax.BlockBuilder()
    shapes = [((nodes, heads, width), "float32"), ((edges,), "int64"), ((edges,), "int64"), ((edges, heads), "float32")]
    parameters = [relax.Var(f"p{number}", relax.TensorType(*ty)) for number, ty in enumerate(shapes)]
    with builder.function("main", parameters):
        with builder.dataflow():
            x, *rest = parameters
            for _ in range(2):
                x = builder.emit(layer(x, *rest))
            result = builder.emit_output(x)
        builder.emit_func_output(result)
    module = apply([*DEVICES["cuda"].legalize, *FUSE, *FLATTEN], narrow_indices(builder.finalize()))
    called = [called_function(binding.value) or "" for binding in bindings_of(module["main"])]
    functions = [name for name in called if name and "reshape" not in name]
    assert [name.partition("_")[0] for name in functions] == ["sort", "fused", "fused"]
    values = [GENERATOR.integers(-3, 4, (nodes, heads, width)).astype(np.float32)]
    values += [GENERATOR.integers(0, nodes, edges), GENERATOR.integers(0, nodes, edges)]
    values += [GENERATOR.choice([-1, 0, 1], (edges, heads)).astype(np.float32)]
    expected = values[0]
    for _ in range(2):
        messages, expected = expected[values[2]] * values[3][..., None], np.zeros_like(expected)
        np.add.at(expected, values[1], messages)
    np.testing.assert_array_equal(runs(module)(*values)[0], expected)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_scatters_of_gathered_rows_read_these_in_the_order_that_is_looked_up_once(dtype: str) -> None:
    """Indices may be negative, from the end."""
    edges, nodes, width = 3000, 50, 5

    def layer(emit: Any, x: Any, to: Any, of: Any) -> Any:
        index = emit(relax.op.broadcast_to(emit(relax.op.reshape(to, [edges, 1])), [edges, width]))
        rows = emit(relax.op.take(x, of, 0, mode="wrap"))
        if dtype == "float16":
            rows = emit(relax.op.astype(emit(relax.op.astype(rows, dtype)), "float32"))
        return emit(relax.op.scatter_elements(x, index, rows, 0, "add"))

    builder = relax.BlockBuilder()
    shapes = [((nodes, width), "float32"), ((edges,), "int64"), ((edges,), "int64")]
    parameters = [relax.Var(f"p{number}", relax.TensorType(*ty)) for number, ty in enumerate(shapes)]
    with builder.function("main", parameters):
        with builder.dataflow():
            x, to, of = parameters
            x = layer(builder.emit, x, to, of)
            result = builder.emit_output(layer(builder.emit, x, to, of))
        builder.emit_func_output(result)
    module = sort_scatters(narrow_indices(builder.finalize()))
    lookups = [b.value for b in bindings_of(module["main"]) if operator_of(b.value) == "take"]
    assert sum(lookup.ty.ndim == 1 for lookup in lookups) == 1
    run = runs(apply(DEVICES["cuda"].legalize, narrow_indices(builder.get())))
    values = [GENERATOR.integers(-3, 4, (nodes, width)).astype(np.float32)]
    values += [GENERATOR.integers(0, nodes, edges), GENERATOR.integers(-nodes, nodes, edges)]
    expected = values[0].astype(dtype).astype(np.float32)
    for _ in range(2):
        rows, expected = expected[values[2]], expected.copy()
        np.add.at(expected, values[1], rows)
    np.testing.assert_allclose(run(*values)[0], expected, rtol=1e-2 if dtype == "float16" else 0)


def test_negative_indices_of_tables_of_other_lengths_are_other_rows() -> None:
    edges, nodes, width, lengths = 600, 50, 5, (20, 30)
    builder = relax.BlockBuilder()
    shapes = [*(((length, width), "float32") for length in lengths), ((edges,), "int64"), ((edges,), "int64")]
    parameters = [relax.Var(f"p{number}", relax.TensorType(*ty)) for number, ty in enumerate(shapes)]
    with builder.function("main", parameters):
        with builder.dataflow():
            *tables, to, of = parameters
            index = builder.emit(relax.op.broadcast_to(builder.emit(relax.op.reshape(to, [edges, 1])), [edges, width]))
            x = builder.emit(relax.op.zeros([nodes, width], "float32"))
            for table in tables:
                rows = builder.emit(relax.op.take(table, of, 0, mode="wrap"))
                x = builder.emit(relax.op.scatter_elements(x, index, rows, 0, "add"))
            result = builder.emit_output(x)
        builder.emit_func_output(result)
    run = runs(apply(DEVICES["cuda"].legalize, narrow_indices(builder.finalize())))
    values = [GENERATOR.integers(-3, 4, (length, width)).astype(np.float32) for length in lengths]
    to, of = GENERATOR.integers(0, nodes, edges), GENERATOR.integers(-min(lengths), min(lengths), edges)
    expected = np.zeros((nodes, width), np.float32)
    for table in values:
        np.add.at(expected, to, table[of])
    np.testing.assert_array_equal(run(*values, to, of)[0], expected)
