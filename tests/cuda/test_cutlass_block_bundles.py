"""Bundles with weights in blocks and symbolic rows: what they hold, and the launches of a run by its rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_cutlass_bundles import driver, run_recorded

import packager
from packager.graph.block_weights import BlockFormat, pack

pytestmark = pytest.mark.slow
__all__ = ("driver",)
DEPTH, COLUMNS, MOST = 64, 80, 100
FORM = BlockFormat(4, 32, DEPTH, has_zeros=False)
FEW = {rows: f"pk_gemm_blocks_f16_f16_{rows}_w4b2_relu" for rows in (1, 8, 16)}
RECORDED = """
import ctypes, json, sys
import numpy as np
import packager
recorder = ctypes.CDLL("libcuda.so.1")
recorder.recorder_take.restype = ctypes.c_char_p
logs = []
with packager.load(sys.argv[1]) as bundle, bundle.session(graph=sys.argv[2]) as session:
    for rows in json.loads(sys.argv[3]):
        recorder.recorder_take()
        session.run([np.zeros((rows, int(sys.argv[4])), np.float16)])
        logs.append(recorder.recorder_take().decode().splitlines())
print(json.dumps(logs))
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A product of any number of rows, with a bias and ReLU; for sm_80."""
    folder, rng = tmp_path_factory.mktemp("blocks"), np.random.default_rng(0)
    numbers = rng.integers(0, 16, (COLUMNS, DEPTH)).astype(np.uint8)
    arrays = {
        "q": pack(numbers, FORM),
        "s": rng.random((COLUMNS, FORM.blocks)).astype(np.float16),
        "b": rng.random(COLUMNS).astype(np.float16),
    }
    attributes = {"K": DEPTH, "N": COLUMNS, "bits": 4, "block_size": 32}
    graph = helper.make_graph(
        [
            helper.make_node("MatMulNBits", ["x", "q", "s"], ["p"], domain="com.microsoft", **attributes),
            helper.make_node("Add", ["p", "b"], ["a"]),
            helper.make_node("Relu", ["a"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["rows", DEPTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, ["rows", COLUMNS])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / "m.onnx")
    targets = ["cuda -arch=sm_80", "cutlass -candidates=1"]
    return packager.build(folder / "m.onnx", folder / "m.so", targets=targets, dims={"rows": (1, MOST)})


def launched(bundle: Path, driver: Path, rows: list[int]) -> list[list[str]]:
    """Return the kernels that each run launches."""
    found: Any = run_recorded(driver, 80, RECORDED, str(bundle), "off", json.dumps(rows), str(DEPTH))
    return [[line.split()[1] for line in log if line.startswith("launch")] for log in found]


def test_weights_of_any_number_of_rows_are_packed(bundle: Path) -> None:
    manifest = packager.inspect(bundle).manifest
    assert [primitive.composite for _, primitive in manifest.primitives()] == ["cutlass.block_matmul"]
    packed = COLUMNS * DEPTH // 2 + COLUMNS * DEPTH // 32 * 2 + COLUMNS * 2
    assert sum(constant.bytes for constant in manifest.constants) == packed


def test_rows_of_a_run_choose_the_kernels(bundle: Path, driver: Path) -> None:
    rows = [1, 8, 9, 16, 17, 40, 48, 49, 100, 1]
    *few, more, most, again = launched(bundle, driver, rows)
    by_bits = [[1], [8], [16], [16], [16, 1], [16, 16, 8], [16, 16, 16]]
    assert few == [[FEW[kind] for kind in kinds] for kinds in by_bits]
    assert [name.split("_")[1] for name in more] == ["dequantize", "gemm"]
    assert most == more
    assert again == few[0]


def test_each_number_of_rows_has_a_graph_of_its_own(bundle: Path, driver: Path) -> None:
    logs: Any = run_recorded(driver, 80, RECORDED, str(bundle), "on", json.dumps([1, 100, 1, 100]), str(DEPTH))
    graphs = [[line.split()[1] for line in log if line.startswith("launch x")] for log in logs]
    assert graphs == [["x1"], ["x2"], ["x1"], ["x2"]]
    captured = [[line.split()[2].split("_")[1] for line in log if line.startswith("capture launch")] for log in logs]
    assert captured == [["gemm"], ["dequantize", "gemm"], [], []]
