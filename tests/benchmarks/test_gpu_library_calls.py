"""Chains of layers whose calls of a library are measured on a GPU, and the calls of the same without a bundle."""

from __future__ import annotations

import ctypes
from collections import Counter
from pathlib import Path

import onnx
import pytest

pytest.importorskip("tvm")
from benchmarks.gpu.library_calls import CHAINS, Cuda, compile_calls, write
from packager.backends.cublas.library import FUNCTIONS


@pytest.mark.parametrize("chain", CHAINS)
def test_a_chain_repeats_its_layers(chain: str, tmp_path: Path) -> None:
    *_, weights = CHAINS[chain]
    model = onnx.load(write(chain, 4, tmp_path))
    onnx.checker.check_model(model, full_check=True)
    anchors = Counter(node.op_type for node in model.graph.node)
    assert anchors["MatMul"] + anchors["Conv"] == 4
    assert {tensor.name for tensor in model.graph.initializer} == weights.keys()
    assert len({name for node in model.graph.node for name in node.output}) == len(model.graph.node)


def test_calls_without_a_bundle(tmp_path: Path) -> None:
    """The backend's C is a library that needs nothing but the functions of cuBLASLt; a session would fill them in."""
    write("bert", 12, tmp_path)
    calls = compile_calls("bert", "sm_90a", tmp_path, tmp_path)
    up, down = 1024 * 768 * 2, 1024 * 3072 * 2
    moved = [[size for role, size, _ in call["parameters"] if role != "own"] for call in calls]
    assert moved == [[up, down], [down, up]]
    code = ctypes.CDLL(str(tmp_path / "bert_direct.so"))
    table = ctypes.cast(ctypes.c_void_p.in_dll(code, "pkm_cublaslt"), ctypes.POINTER(ctypes.c_void_p))
    refuses = ctypes.CFUNCTYPE(ctypes.c_int32)(lambda: 7)
    for index in range(len(FUNCTIONS)):
        table[index] = ctypes.cast(refuses, ctypes.c_void_p).value
    nothing = [ctypes.c_void_p(4096)] * len(calls[0]["parameters"])
    status = getattr(code, calls[0]["symbol"])(ctypes.byref(Cuda(0, 90, 132)), *nothing, ctypes.c_int64(0))
    assert status == 7
