"""What the cublas backend takes of a model; nothing is compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from packager.backends.cublas.problem import CublasProblem, describe, epilogue_of
from packager.errors import UsageError
from packager.targets.target_list import parse_targets
from tests.stages import placed_file, placement_table, problems

GELU = "d = Div(a, sqrt2) e = Erf(d) o = Add(e, one) m = Mul(a, o) y = Mul(m, half)"
SCALARS = {"sqrt2": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}


def save(path: Path, inputs: str, outputs: str, body: str, **shapes: tuple[int, ...]) -> Path:
    rng = np.random.default_rng(0)
    text = f'<ir_version: 8, opset_import: ["": 17]> net ({inputs}) => ({outputs}) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    arrays = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    arrays |= {name: value for name, value in SCALARS.items() if f"{name})" in body}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    onnx.save(model, path / "model.onnx")
    return path / "model.onnx"


def found(path: Path, target: str = "cublas", **options: Any) -> list[CublasProblem]:
    """Return the problems of a model, whose placement has cublas before cuda alone."""
    options = {"precision": "fp16", **options}
    return list(problems(placed_file(path, targets=("cuda -arch=sm_90a", target), **options)))


DENSE = ("float[n,32] x, float[n,64] r", "float[n,64] y")
WEIGHTS = {"w": (32, 64), "b": (64,)}


@pytest.mark.parametrize(
    ("body", "precision", "epilogue"),
    [
        ("p = MatMul(x, w) a = Add(p, b) y = Relu(a)", "fp16", "RELU | BIAS"),
        ("p = MatMul(x, w) y = Relu(p)", "bf16", "RELU"),
        (f"p = MatMul(x, w) a = Add(p, b) {GELU}", "bf16", "GELU | BIAS"),
        ("p = MatMul(x, w) a = Add(p, b) s = Sigmoid(a) y = Mul(a, s)", "fp16", "BIAS"),
        ("p = MatMul(x, w) y = Sin(p)", "fp16", "DEFAULT"),
    ],
)
def test_epilogues(tmp_path: Path, body: str, precision: str, epilogue: str) -> None:
    """The activation is taken where the library has it: SiLU and Sin are left to TVM."""
    path = save(tmp_path, *DENSE, body, **WEIGHTS)
    (problem,) = found(path, precision=precision, dims={"n": (1, 8)})
    wanted = " | ".join(f"CUBLASLT_EPILOGUE_{name}" for name in epilogue.split(" | "))
    assert epilogue_of(problem.chain) == wanted
    assert (problem.dtype, problem.layout) == ({"fp16": "float16", "bf16": "bfloat16"}[precision], "packed")


def test_a_residual_comes_before_the_activation(tmp_path: Path) -> None:
    body = "p = MatMul(x, w) q = Add(p, b) a = Add(q, r) y = Relu(a)"
    path = save(tmp_path, "float16[4,32] x, float16[4,64] r, float16[32,64] w, float16[64] b", "float16[4,64] y", body)
    (problem,) = found(path, precision=None)
    assert problem.chain.residual is not None
    assert (problem.layout, epilogue_of(problem.chain)) == ("kn", "CUBLASLT_EPILOGUE_RELU | CUBLASLT_EPILOGUE_BIAS")


def test_gelu_can_be_left(tmp_path: Path) -> None:
    path = save(tmp_path, *DENSE, f"p = MatMul(x, w) a = Add(p, b) {GELU}", **WEIGHTS)
    (problem,) = found(path, "cublas -gelu_tanh=0", dims={"n": (1, 8)})
    assert problem.chain.activation == ""


def test_float32_is_left(tmp_path: Path) -> None:
    path = save(tmp_path, *DENSE, "y = MatMul(x, w)", **WEIGHTS)
    assert found(path, precision=None, dims={"n": (1, 8)}) == []


def test_batches(tmp_path: Path) -> None:
    path = save(tmp_path, "float[b,4,8,16] x, float[b,4,16,24] w", "float[b,4,8,24] y", "y = MatMul(x, w)")
    (problem,) = found(path, dims={"b": (1, 8)})
    assert problem.layout == "kn"
    assert (len(problem.batch), problem.rows, problem.columns, problem.depth) == (2, (8,), 24, 16)
    assert describe(problem, 8, 32).startswith("cublas float16 float16 8x24x16 batch 32 ")
    assert found(path, "cublas -operators=dense,conv2d", dims={"b": (1, 8)}) == []


CONV = {"w": (24, 16, 1, 1), "b": (24,)}


@pytest.mark.parametrize(
    ("attributes", "shape", "taken"),
    [("", (24, 16, 1, 1), 1), ("<strides = [2, 2]>", (24, 16, 1, 1), 0), ("<pads = [1, 1, 1, 1]>", (24, 16, 3, 3), 0)],
)
def test_pointwise_convolutions_are_products(
    tmp_path: Path, attributes: str, shape: tuple[int, ...], taken: int
) -> None:
    body = f"c = Conv{attributes}(x, w, b) y = Relu(c)"
    path = save(tmp_path, "float[n,16,6,6] x", "float[n,24,h,v] y", body, w=shape, b=(24,))
    matches = found(path, dims={"n": (1, 4)})
    assert len(matches) == taken
    for problem in matches:
        assert (problem.layout, problem.columns, problem.depth) == ("nk", 24, 16)
        assert epilogue_of(problem.chain) == "CUBLASLT_EPILOGUE_RELU | CUBLASLT_EPILOGUE_BIAS"


def test_weights_stay_as_they_are(tmp_path: Path) -> None:
    path = save(tmp_path, *DENSE, "y = MatMul(x, w)", **WEIGHTS)
    (problem,) = found(path, "cublas -weights=kn", dims={"n": (1, 8)})
    assert problem.layout == "kn"


def test_where_placed(tmp_path: Path) -> None:
    path = save(tmp_path, *DENSE, "p = MatMul(x, w) a = Add(p, b) y = Relu(a)", **WEIGHTS)
    table = placement_table(path, precision="fp16", targets=("cuda -arch=sm_90a", "cublas"), dims={"n": (1, 8)})
    assert [part["composite"] for part in table["partitions"]] == ["cublas.dense"]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("cublas -candidates=17", "candidates is 17"),
        ("cublas -operators=attention", "operators"),
        ("cublas -weights=nn", "weights"),
    ],
)
def test_refused(target: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_targets(("cuda -arch=sm_90a", target))
