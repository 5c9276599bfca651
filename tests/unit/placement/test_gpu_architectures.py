"""Which Target takes what on which GPU, where several could: the table of docs/placement.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest

from packager.resources import folder
from tests.stages import placement_table

E4M3 = ml_dtypes.float8_e4m3fn
# Inputs of each row of the table, the output, how it is computed, and weights by their names.
ROWS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "products": ("float16[64,64] a", "float16[64,64] ya", "ya = MatMul(a, wa)", {"wa": (64, 64)}),
    "batches": ("float16[4,64,64] b, float16[4,64,64] bb", "float16[4,64,64] yb", "yb = MatMul(b, bb)", {}),
    "1x1": ("float16[2,64,9,9] c", "float16[2,64,9,9] yc", "yc = Conv(c, wc)", {"wc": (64, 64, 1, 1)}),
    "images": ("float16[2,64,9,9] d", "float16[2,64,7,7] yd", "yd = Conv(d, wd)", {"wd": (64, 64, 3, 3)}),
    "groups": ("float16[2,64,9,9] e", "float16[2,64,7,7] ye", "ye = Conv<group = 8>(e, we)", {"we": (64, 8, 3, 3)}),
    "narrow groups": (
        "float16[2,64,9,9] f",
        "float16[2,64,7,7] yf",
        "yf = Conv<group = 32>(f, wf)",
        {"wf": (64, 2, 3, 3)},
    ),
    "volumes": ("float16[2,16,5,9,9] g", "float16[2,16,3,7,7] yg", "yg = Conv(g, wg)", {"wg": (16, 16, 3, 3, 3)}),
    "attention": (
        "float16[2,4,64,32] q, float16[2,4,64,32] k, float16[2,4,64,32] v",
        "float16[2,4,64,32] yh",
        "t = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, t) p = Softmax(s) yh = MatMul(p, v)",
        {},
    ),
    "int8": (
        "float[8,64] i",
        "float[8,64] yi",
        """iq = QuantizeLinear(i, scale, whole) ir = DequantizeLinear(iq, scale, whole)
           iw = DequantizeLinear(wi, scale, whole) yi = MatMul(ir, iw)""",
        {"scale": np.float32(0.5), "whole": np.int8(0), "wi": np.ones((64, 64), np.int8)},
    ),
    "float8": (
        "float[8,64] j",
        "float[8,64] yj",
        """jq = QuantizeLinear(j, step, zero) jr = DequantizeLinear(jq, step, zero)
           jw = DequantizeLinear(wj, step, zero) yj = MatMul(jr, jw)""",
        {"step": np.float32(0.5), "zero": np.zeros((), E4M3), "wj": np.ones((64, 64), E4M3)},
    ),
}
ORDERS = {
    "-t cutlass -t cublas -t cudnn": ("cutlass", "cublas", "cudnn"),
    '-t "cublas -operators=dense,conv2d" -t cutlass -t cudnn': ("cublas -operators=dense,conv2d", "cutlass", "cudnn"),
}
ARCHS = ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    inputs, outputs, bodies, weights = zip(*ROWS.values(), strict=True)
    signature = f"({', '.join(inputs)}) => ({', '.join(outputs)})"
    text = f'<ir_version: 10, opset_import: ["": 21]> m {signature} {{ {" ".join(bodies)} }}'
    made = onnx.parser.parse_model(text)
    for name, given in [item for each in weights for item in each.items()]:
        array = np.ones(given, np.float16) if isinstance(given, tuple) else np.asarray(given)
        if array.dtype == E4M3:
            tensor = onnx.helper.make_tensor(
                name, onnx.TensorProto.FLOAT8E4M3FN, array.shape, array.tobytes(), raw=True
            )
        else:
            tensor = onnx.numpy_helper.from_array(array, name)
        made.graph.initializer.append(tensor)
    path = tmp_path_factory.mktemp("archs") / "model.onnx"
    onnx.save(made, path)
    return path


def taken(path: Path, arch: str, order: tuple[str, ...]) -> dict[str, str]:
    """Return the backend of each row."""
    table = placement_table(path, targets=(f"cuda -arch={arch}", *order))
    backends = {
        name: part["backend"] for part in table["partitions"] for site in part["sites"] for name in site["nodes"]
    }
    return {row: backends.get(output.split()[-1], "cuda") for row, (_, output, _, _) in ROWS.items()}


def documented(order: str) -> dict[str, list[str]]:
    """Return the table under an order of Targets: row -> backend for each architecture."""
    text = (folder("templates").parent / "docs" / "placement.md").read_text(encoding="utf-8")
    _, *lines = text.split(f"\n| `{order}` |", 1)[1].split("\n\n")[0].splitlines()[1:]
    rows = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]
    return {name: backends for name, *backends in rows}


@pytest.mark.parametrize("order", ORDERS)
def test_the_table_says_what_is_taken(model: Path, order: str) -> None:
    columns = [taken(model, arch, ORDERS[order]) for arch in ARCHS]
    assert documented(order) == {row: [column[row] for column in columns] for row in ROWS}


def test_products_around_a_softmax_are_taken_by_who_is_first(model: Path) -> None:
    assert taken(model, "sm_90a", ("cublas", "cutlass"))["attention"] == "cublas"
