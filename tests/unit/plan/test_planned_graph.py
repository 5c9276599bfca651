"""The graph of calls that a plan writes down agrees with the model, and with the memory that is planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from stages import placed_file

from packager.bundle.graph.call_graph import COPY, RunGraph
from packager.frontends.dims import parse_dims
from packager.lower.lowering import lower
from packager.plan.planner import plan

WEIGHTS = {"w": (16, 16), "b": (16,)}
RESIDUAL = """residual (float[n,16] x) => (float[n,16] y, float[n,16] again) {
    [dense] h = Gemm(x, w, b) [soft] s = Softmax(h) [skip] r = Add(s, x) [norm] y = Softmax(r) again = Identity(x) }"""
STATE = """state (float[1,16] x, float[4,16] kept, int64[1] at) => (float[4,16] y, float[4,16] next) {
    zero = Constant<value_ints = [0]>() [row] i = Unsqueeze(at, zero) [put] next = ScatterND(kept, i, x)
    [soft] y = Softmax(next) }"""


def runs(tmp_path: Path, graph: str, **options: Any) -> tuple[RunGraph, ...]:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{graph}')
    for name, shape in WEIGHTS.items():
        if f"{name}," in graph or f", {name}" in graph:
            values = (np.arange(np.prod(shape)) % 7 / 8).astype(np.float32).reshape(shape)
            model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    planned = plan(lower(placed_file(path, targets=["llvm"], **options), "cpu"))
    assert planned.graph is not None
    return planned.graph.runs


def check_memory(run: RunGraph) -> None:
    """What is read was written before, and no two tensors that are live at once share a byte of the arena."""
    written: set[int] = set()
    spans: dict[int, tuple[int, int]] = {}
    for number, call in enumerate(run.calls):
        for tensor in call.reads:
            assert run.tensors[tensor].space in ("input", "constant", "state") or tensor in written
        written.update(call.writes)
        for tensor in (*call.reads, *call.writes):
            spans[tensor] = (spans.get(tensor, (number, number))[0], number)
    arena = [(run.tensors[t], span) for t, span in spans.items() if run.tensors[t].space == "arena"]
    for index, (one, (first, last)) in enumerate(arena):
        for other, (begin, end) in arena[:index]:
            at_once = begin <= last and first <= end
            assert not at_once or other.place + other.bytes <= one.place or one.place + one.bytes <= other.place


def test_a_residual(tmp_path: Path) -> None:
    (run,) = runs(tmp_path, RESIDUAL, dims=parse_dims(["n=1:4"]))
    check_memory(run)
    assert [call.symbol == COPY for call in run.calls] == [False] * (len(run.calls) - 1) + [True]
    x = next(i for i, tensor in enumerate(run.tensors) if tensor.space == "input")
    assert (run.tensors[x].bytes, run.tensors[x].shape) == (4 * 16 * 4, ("n", 16))
    readers = [node for call in run.calls if x in call.reads for node in call.nodes]
    assert "dense" in readers
    assert "skip" in readers
    outputs = [tensor.place for tensor in run.tensors if tensor.space == "output"]
    assert sorted(outputs) == [0, 1]


def test_buckets_have_a_run_each(tmp_path: Path) -> None:
    found = runs(tmp_path, RESIDUAL, dims=parse_dims(["n=2,4"]))
    assert [run.sizes for run in found] == [{"n": 2}, {"n": 4}]
    for run in found:
        check_memory(run)
        assert all(isinstance(extent, int) for tensor in run.tensors for extent in tensor.shape)


def test_a_state_that_is_updated_in_place(tmp_path: Path) -> None:
    (run,) = runs(tmp_path, STATE, states={"kept": "next"})
    check_memory(run)
    (state,) = [i for i, tensor in enumerate(run.tensors) if tensor.space == "state"]
    updates = [call for call in run.calls if state in call.writes]
    assert [call.symbol for call in updates] == ["pkf_scatter_nd_in_place0"]
    assert all(state in call.reads for call in updates)


@pytest.mark.parametrize("dims", [["n=1:4"], ["n=2,4"]])
def test_it_is_the_same_twice(tmp_path: Path, dims: list[str]) -> None:
    assert runs(tmp_path, RESIDUAL, dims=parse_dims(dims)) == runs(tmp_path, RESIDUAL, dims=parse_dims(dims))
