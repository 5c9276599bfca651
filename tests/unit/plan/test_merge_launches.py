"""Small kernels that do not depend on each other run in one launch on a GPU."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
import onnx
import onnx.parser
import tvm
from stages import placed_file
from test_planned_graph import check_memory
from tvm import te, tirx
from tvm.tirx import stmt as st
from tvm_ffi import structural_map

from packager.bundle.graph.call_graph import RunGraph
from packager.frontends.dims import parse_dims
from packager.graph.rewrite import nodes_of
from packager.ir.call_plan import CallPlan
from packager.ir.primitives import Kernel, Parameter
from packager.lower.cuda.kernels import TRIAL_GPU, lower_cuda_kernels
from packager.lower.devices import DEVICES
from packager.lower.lowering import _make_kernels, lower
from packager.plan.merged_kernels import Nest, nest_of
from packager.plan.planner import plan

ROWS = "float[4,16]"
TABLES = f"""tables (int64[4] i, int64[4] j, {ROWS} x) => ({ROWS} a, {ROWS} b, {ROWS} c, {ROWS} y) {{
    [one] a = Gather (t, i) [two] b = Gather (u, j) [three] c = Gather (t, j) [sum] s = Softmax (x) [y] y = Softmax (s)
}}"""


def planned(tmp_path: Path, graph: str, **options: Any) -> CallPlan:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{graph}')
    for number, name in enumerate("tu"):
        values = np.random.default_rng(number).standard_normal((16, 16)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    onnx.save(model, tmp_path / "model.onnx")
    return plan(lower(placed_file(tmp_path / "model.onnx", targets=["cuda -arch=sm_90a"], **options), "cuda"))


def only_run(found: CallPlan) -> RunGraph:
    assert found.graph is not None
    (run,) = found.graph.runs
    check_memory(run)
    return run


def test_lookups_are_one_launch(tmp_path: Path) -> None:
    run = only_run(planned(tmp_path, TABLES))
    (lookups,) = (call for call in run.calls if "_more" in call.symbol)
    assert set(lookups.nodes) == {"one", "two", "three"}
    assert len(lookups.writes) == 3


def test_a_call_waits_for_what_it_reads(tmp_path: Path) -> None:
    graph = "chain (float[4,16] x) => (float[4,16] y) { a = Softmax (x) b = Softmax (a) y = Softmax (b) }"
    run = only_run(planned(tmp_path, graph))
    assert not any("_more" in call.symbol for call in run.calls)


def test_kernels_of_any_size_are_alone(tmp_path: Path) -> None:
    """Their blocks are not known before a run."""
    graph = TABLES.replace("float[4,16]", "float[n,16]").replace("int64[4]", "int64[n]")
    run = only_run(planned(tmp_path, graph, dims=parse_dims(["n=1:4"])))
    assert not any("_more" in call.symbol for call in run.calls)


STATE = """state (float[1,16] x, float[4,16] kept, int64[1] at) => (float[4,16] y, float[4,16] next) {
    zero = Constant<value_ints = [0]>() [row] i = Unsqueeze (at, zero) [before] y = Mul (kept, kept)
    [put] next = ScatterND (kept, i, x) }"""


def test_a_state_is_read_before_it_is_written(tmp_path: Path) -> None:
    """They would be independent if the next value were not in the state's memory."""
    run = only_run(planned(tmp_path, STATE, states={"kept": "next"}))
    writers = [n for n, call in enumerate(run.calls) if any(run.tensors[t].space == "state" for t in call.writes)]
    readers = [n for n, call in enumerate(run.calls) if "before" in call.nodes]
    assert max(readers) < min(writers)


def elementwise(name: str, blocks: int, threads: int, factor: float) -> Kernel:
    """Return a kernel that multiplies by a number."""
    x = te.placeholder((blocks * threads,), "float32")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, te.compute(x.shape, lambda i: x[i] * factor, name="y")]))
    loops = schedule.split(schedule.get_loops("y")[0], [blocks, threads])
    for loop, axis in zip(loops, ("block", "thread"), strict=True):
        schedule.bind(loop, f"{axis}Idx.x")
    parameters = (Parameter("argument"), Parameter("argument", 1, written=True))
    return Kernel(name, parameters, primfunc=schedule.mod["main"])


@pytest.mark.parametrize("sizes", [[(3, 32), (1, 64)], [(2, 64), (5, 32), (1, 8)], [(4, 64), (4, 64)]])
def test_blocks_of_a_merged_kernel_are_those_of_each(sizes: list[tuple[int, int]]) -> None:
    kernels = [elementwise(f"k{n}", *size, 2.0 + n) for n, size in enumerate(sizes)]
    assert [nest_of(kernel) for kernel in kernels] == [Nest(*size) for size in sizes]
    merged = Kernel("merged", tuple(p for kernel in kernels for p in kernel.parameters), members=tuple(kernels))
    module, launches = lower_cuda_kernels([merged], TRIAL_GPU)
    assert launches["merged"].extents["blockIdx.x"] == sum(blocks for blocks, _ in sizes)
    assert launches["merged"].extents["threadIdx.x"] == max(threads for _, threads in sizes)
    assert launches["merged"].overlaps

    def serial(statement: Any) -> Any:
        if statement.attr_key != "thread_extent":
            return statement
        zero = tirx.const(0, str(statement.node.var.ty))
        return st.For(statement.node.var, zero, statement.value, st.ForKind.SERIAL, statement.body)

    (function,) = module.functions.values()
    body = structural_map(function.body, (st.AttrStmt, serial))
    host = tirx.PrimFunc(function.params, body).with_attrs({"global_symbol": "main", "tirx.is_entry_func": True})
    run = tvm.compile(tvm.IRModule({"main": host}), "llvm")["main"]
    pairs = []
    for number, (blocks, threads) in enumerate(sizes):
        x = np.random.default_rng(number).standard_normal(blocks * threads).astype(np.float32)
        pairs.append((x, np.full_like(x, np.nan)))
    run(*(ctypes.c_void_p(array.ctypes.data) for pair in pairs for array in pair))
    for number, (x, y) in enumerate(pairs):
        np.testing.assert_array_equal(y, x * np.float32(2 + number))


def test_vectors_of_a_thread_stay_in_registers_wherever_blocks_begin() -> None:
    """As those of a mask of several rows, of which a block has a part."""
    at, places = te.placeholder((4,), "int64"), te.placeholder((2048,), "int64")

    def masked(i: Any, j: Any) -> Any:
        return tirx.Select(at[i] < places[j], tirx.const(-1.0, "float16"), tirx.const(0.0, "float16"))

    primfunc = te.create_prim_func([at, places, te.compute((1, 4, 2048), lambda _, i, j: masked(i, j), name="mask")])
    (mask,) = _make_kernels("mask", primfunc, DEVICES["cuda"]).functions
    assert isinstance(mask, Kernel)
    members = (elementwise("k", 3, 64, 2.0), mask, mask)
    merged = Kernel("merged", tuple(p for kernel in members for p in kernel.parameters), members=members)
    module, launches = lower_cuda_kernels([merged], TRIAL_GPU)
    assert launches["merged"].overlaps
    (function,) = module.functions.values()
    for allocation in nodes_of(function.body, st.AllocBuffer):
        assert math.prod(map(int, allocation.buffer.shape)) <= 8


def test_threads_that_share_memory_are_alone(tmp_path: Path) -> None:
    graph = "sums (float[4,512] x, float[4,9] z) => (float[4,512] y, float[4,9] w) { y = Softmax (x) w = Softmax (z) }"
    run = only_run(planned(tmp_path, graph))
    assert not any("_more" in call.symbol for call in run.calls)
