"""What the cublas backend takes of 8 bits, and the arithmetic that it states, beside onnxruntime's."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from packager.backends.cublas.library import loaded_library
from packager.backends.cublas.module import draft_partition, render_module
from packager.backends.cublas.options import CublasOptions
from packager.backends.cublas.problem import CublasProblem, describe, epilogue_of
from packager.backends.problem_module import include_flags
from packager.errors import UsageError
from packager.targets.target_list import parse_targets
from tests.stages import placed_file, placement_table, problems

E = ml_dtypes.float8_e4m3fn
HEAD = '<ir_version: 10, opset_import: ["": 21]> net (float[n,64] x) => (float[n,48] y)'
QDQ = """ { xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) wd = DequantizeLinear <axis = 1> (w, sw, zw)
  p = MatMul(xd, wd) """


def save(folder: Path, text: str, kind: Any, columns: int = 48, per_column: bool = False) -> Path:
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    size = columns if per_column else 1
    scales = rng.random(size, np.float32) + 0.5
    whole = np.dtype(kind) == np.int8
    weights = rng.integers(-127, 127, (64, columns), np.int8) if whole else rng.standard_normal((64, columns))
    arrays: dict[str, Any] = {"s": np.float32(0.5), "t": np.float32(0.25), "z": np.zeros((), kind)}
    arrays |= {"w": weights.astype(kind), "sw": scales if per_column else scales[0]}
    arrays |= {"zw": np.zeros(size if per_column else (), kind), "b": rng.random(columns, np.float32)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items())
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def found(path: Path, target: str, **options: Any) -> list[CublasProblem]:
    arch = options.pop("arch", "sm_90a")
    return list(problems(placed_file(path, targets=(f"cuda -arch={arch}", target), dims={"n": (1, 8)}, **options)))


FULL = "a = Add(p, b) r = Relu(a) q = QuantizeLinear(r, t, z) y = DequantizeLinear(q, t, z) }"
ALL = "cublas -operators=dense,batch_matmul,conv2d,int8,float8"
COLUMNS = f"{ALL},float8_columns"


def test_both_are_taken_by_default(tmp_path: Path) -> None:
    for kind in (E, np.int8):
        (problem,) = found(save(tmp_path, HEAD + QDQ + FULL, kind), "cublas")
        assert problem.dtype == np.dtype(kind).name


def test_a_layer_of_float8_is_one_call(tmp_path: Path) -> None:
    """Scales of tensors, bias, ReLU, and the scale of the result before it is rounded."""
    (problem,) = found(save(tmp_path, HEAD + QDQ + FULL, E), ALL)
    assert (problem.dtype, problem.out, problem.layout, problem.gain) == ("float8_e4m3fn", "float8_e4m3fn", "packed", 4)
    assert epilogue_of(problem.chain) == "CUBLASLT_EPILOGUE_RELU | CUBLASLT_EPILOGUE_BIAS"
    assert " gain bias" in describe(problem, 1, 1).replace("relu ", "")


@pytest.mark.parametrize(("per_column", "scale"), [(True, 0.5), (False, None)])
def test_results_of_float32_have_no_bias(tmp_path: Path, per_column: bool, scale: float | None) -> None:
    """The library would round it to bfloat16; nor has it scales of columns on all GPUs."""
    path = save(tmp_path, HEAD + QDQ + "y = Add(p, b) }", E, per_column=per_column)
    (problem,) = found(path, ALL)
    assert (problem.out, problem.chain.bias) == ("float32", None)
    assert epilogue_of(problem.chain) == "CUBLASLT_EPILOGUE_DEFAULT"
    assert problem.chain.scale == scale or not per_column


@pytest.mark.parametrize(("columns", "count"), [(48, 1), (40, 0)])
def test_columns_of_float8_are_whole_vectors(tmp_path: Path, columns: int, count: int) -> None:
    text = HEAD.replace("48", str(columns)) + QDQ + FULL
    assert len(found(save(tmp_path, text, E, columns), ALL)) == count


@pytest.mark.parametrize(("columns", "count"), [(48, 1), (44, 1), (42, 0)])
def test_sums_of_int8(tmp_path: Path, columns: int, count: int) -> None:
    """What follows the sums is TVM's: the library has no epilogue for them."""
    text = HEAD.replace("48", str(columns)) + QDQ + FULL
    taken = found(save(tmp_path, text, np.int8, columns, per_column=True), ALL)
    assert len(taken) == count
    for problem in taken:
        assert (problem.dtype, problem.out, len(problem.chain.variables)) == ("int8", "int32", 1)


def stored_as(path: Path, kind: Any, *names: str, fill: int = 0) -> Path:
    """Turn initializers into others of 8 bits, all elements of which are ``fill``."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.name in names:
            array = np.full(list(tensor.dims), fill, kind)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("zero", [0, 128, 201])
def test_uint8_is_multiplied_as_int8(tmp_path: Path, zero: int) -> None:
    """The library multiplies no unsigned numbers: data is quantized to int8, or its sign bit is flipped."""
    path = stored_as(save(tmp_path, HEAD + QDQ + FULL, np.int8), np.uint8, "z", fill=zero)
    (problem,) = found(path, ALL)
    assert (problem.dtype, problem.out) == ("int8", "int32")
    assert found(path, "cublas -operators=dense,float8") == []


@pytest.mark.parametrize("zero", [128, 3])
def test_weights_of_uint8(tmp_path: Path, zero: int) -> None:
    """With any zero point: of those beyond int8 the sums of rows are TVM's."""
    path = stored_as(save(tmp_path, HEAD + QDQ + FULL, np.int8), np.uint8, "zw", fill=zero)
    model = onnx.load(path)
    (weights,) = [tensor for tensor in model.graph.initializer if tensor.name == "w"]
    weights.data_type = onnx.TensorProto.UINT8
    onnx.save(model, path)
    (problem,) = found(path, ALL)
    assert (problem.dtype, problem.out) == ("int8", "int32")


def test_dynamic_quantization(tmp_path: Path) -> None:
    """The zero point of the data, which the model computes, is no part of the product."""
    text = """<ir_version: 8, opset_import: ["": 17]> net (float[n,64] x) => (int32[n,48] y)
      { q, r, o = DynamicQuantizeLinear(x) y = MatMulInteger(q, w, o) }"""
    (problem,) = found(save(tmp_path, text, np.int8), ALL)
    assert (problem.dtype, problem.out, problem.layout) == ("int8", "int32", "packed")


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_a_pointwise_convolution(tmp_path: Path, kind: Any) -> None:
    name = np.dtype(kind).name
    text = f"""<ir_version: 10, opset_import: ["": 21]> net ({name}[n,64,5,5] x) => ({name}[n,48,5,5] y) {{
      y = QLinearConv(x, s, z, w, sw, zw, t, z) }}"""
    path = stored_as(save(tmp_path, text, np.int8), kind, "z", fill=7)
    model = onnx.load(path)
    (weights,) = [tensor for tensor in model.graph.initializer if tensor.name == "w"]
    weights.dims[:] = [48, 64, 1, 1]
    onnx.save(model, path)
    (problem,) = found(path, ALL)
    assert (problem.layout, problem.columns, problem.depth, problem.out) == ("nk", 48, 64, "int32")
    assert found(path, "cublas -operators=conv2d") == []


def half_model(folder: Path, kind: Any, columns: int, tail: str = "a = Add(p, b) y = Relu(a)") -> Path:
    """A layer that a model computes in half precision of 8-bit floats; scales of the weights are by column, or one."""
    name = {np.float16: "float16", ml_dtypes.bfloat16: "bfloat16"}[kind]
    text = f"""<ir_version: 10, opset_import: ["": 21]> net ({name}[n,3,64] x, {name}[n,3,48] r) => ({name}[n,3,48] y)
      {{ xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) wd = DequantizeLinear <axis = 1> (w, sw, zw)
      p = MatMul(xd, wd) {tail} }}"""
    model = onnx.load(save(folder, text, E, per_column=columns > 1))
    for tensor in model.graph.initializer:
        if tensor.name in ("s", "t", "sw", "b"):
            array = onnx.numpy_helper.to_array(tensor).astype(kind)
            tensor.raw_data, tensor.data_type = array.tobytes(), onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_layers_of_half_precision(tmp_path: Path, kind: Any) -> None:
    """Their bias and activation are the library's; with scales of columns TVM's, where it has no scales of columns."""
    (problem,) = found(half_model(tmp_path, kind, 1), ALL)
    name = "float16" if kind is np.float16 else "bfloat16"
    assert (problem.dtype, problem.out) == ("float8_e4m3fn", name)
    assert epilogue_of(problem.chain) == "CUBLASLT_EPILOGUE_RELU | CUBLASLT_EPILOGUE_BIAS"
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(tmp_path / "model.onnx").graph.initializer}
    assert problem.chain.scale == pytest.approx(float(arrays["s"]) * float(arrays["sw"]), rel=1e-6)
    (columns,) = found(half_model(tmp_path, kind, 48), ALL)
    assert (columns.dtype, columns.out, columns.chain.scale) == ("float8_e4m3fn", "float32", 0.5)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    ("tail", "epilogue", "residual", "scale"),
    [
        ("a = Add(p, b) y = Relu(a)", "RELU | CUBLASLT_EPILOGUE_BIAS", False, 0.5),
        ("a = Add(p, b) c = Add(a, r) y = Relu(c)", "RELU | CUBLASLT_EPILOGUE_BIAS", True, 0.5),
        ("y = Identity(p)", "DEFAULT", False, 0.5),
        ("q = QuantizeLinear(p, t, z) y = DequantizeLinear(q, t, z)", "DEFAULT", False, 0.5 / 0.25),
    ],
)
def test_scales_of_columns(tmp_path: Path, kind: Any, tail: str, epilogue: str, residual: bool, scale: float) -> None:
    """In one call with what follows, as long as the result has half precision: the library scales none of 8 bits."""
    (problem,) = found(half_model(tmp_path, kind, 48, tail), COLUMNS)
    name = "float16" if kind is np.float16 else "bfloat16"
    assert (problem.dtype, problem.out, problem.chain.scale) == ("float8_e4m3fn", name, scale)
    assert problem.scales is not None
    assert epilogue_of(problem.chain) == f"CUBLASLT_EPILOGUE_{epilogue}"
    assert (problem.chain.residual is not None) == residual
    assert " columns" in describe(problem, 1, 1)


def test_scales_of_columns_need_half_precision(tmp_path: Path) -> None:
    """Of float32 a kernel follows anyhow, for the bias: it scales the columns too, with any version of the library."""
    (problem,) = found(save(tmp_path, HEAD + QDQ + FULL, E, per_column=True), COLUMNS)
    assert (problem.out, problem.scales, problem.chain.scale) == ("float32", None, 0.5)


def test_scales_of_columns_alone(tmp_path: Path) -> None:
    target = "cublas -operators=float8_columns"
    assert len(found(half_model(tmp_path, np.float16, 48), target)) == 1
    assert found(half_model(tmp_path, np.float16, 1), target) == []


def test_cutlass_leaves_them_in_half_precision(tmp_path: Path) -> None:
    table = placement_table(
        half_model(tmp_path, np.float16, 1), targets=("cuda -arch=sm_90a", "cutlass"), dims={"n": 8}
    )
    assert [part["operators"] for part in table["partitions"]] == [["matmul", "add", "nn.relu"]]


@pytest.mark.parametrize("archs", ["sm_80", "sm_80,sm_90a", "sm_86"])
def test_older_gpus_do_not_multiply_float8(archs: str) -> None:
    with pytest.raises(UsageError, match="float8, which sm_8"):
        parse_targets((f"cuda -arch={archs}", ALL))


@pytest.mark.parametrize("archs", ["sm_80", "sm_80,sm_90a", "sm_86"])
def test_older_gpus_get_all_but_float8(archs: str) -> None:
    (target,) = parse_targets((f"cuda -arch={archs}", "cublas")).specialized
    assert target.options.operators == ("dense", "batch_matmul", "conv2d", "int8")


@pytest.mark.parametrize("archs", ["sm_89", "sm_90a,sm_100a,sm_120", "sm_90a -ptx=compute_90"])
@pytest.mark.parametrize("target", [ALL, "cublas"])
def test_newer_ones_do(archs: str, target: str) -> None:
    (found,) = parse_targets((f"cuda -arch={archs}", target)).specialized
    assert found.options.operators == ("dense", "batch_matmul", "conv2d", "int8", "float8")


@pytest.mark.parametrize("archs", ["sm_89", "sm_100a", "sm_90a,sm_100a", "sm_90a -ptx=compute_90"])
def test_one_architecture_scales_columns(archs: str) -> None:
    for hopper in ("sm_90", "sm_90a"):
        (found,) = parse_targets((f"cuda -arch={hopper}", "cublas")).specialized
        assert found.options.operators[-2:] == ("float8", "float8_columns")
    with pytest.raises(UsageError, match=r"float8_columns, which .* does not multiply"):
        parse_targets((f"cuda -arch={archs}", COLUMNS))


def stated(problem: CublasProblem, a: Any, arrays: dict[str, Any]) -> Any:
    """Return what the library computes by its documentation: half precision where it says so, sums exact."""
    b = arrays["w"].astype(np.float64)
    if problem.out == "int32":
        return a.astype(np.float64) @ b
    value = a.astype(np.float64) @ b * np.float32(problem.chain.scale)
    if problem.chain.bias is not None:
        value = value + arrays["b"].astype(np.float16).astype(np.float64)
    value = np.maximum(value, 0) if problem.chain.activation == "relu" else value
    return np.clip(value * np.float32(problem.gain), -448, 448).astype(np.float32).astype(E)


def test_the_arithmetic_is_that_of_the_model(tmp_path: Path) -> None:
    """What is stated, computed by numpy, is what onnxruntime computes, to a step of float8 where a bias is rounded."""
    path = save(tmp_path, HEAD + QDQ + FULL, E)
    (problem,) = found(path, ALL)
    x = np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32) * 20
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # it fuses what it has not
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (want,) = session.run(None, {"x": x})
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}
    got = stated(problem, np.clip(x / np.float32(0.5), -448, 448).astype(E), arrays).astype(np.float32) * 0.25
    assert np.ptp(want) > 20  # most are within the range of the type
    assert (np.abs(got - want) <= np.abs(want) / 8).all()
    assert (got == want).mean() > 0.99


def test_the_module_compiles_without_warnings(tmp_path: Path) -> None:
    """With the gain as a constant beside it."""
    placed = placed_file(save(tmp_path, HEAD + QDQ + FULL, E), targets=("cuda -arch=sm_90a", ALL), dims={"n": (1, 8)})
    drafts = [draft_partition(one.partition, CublasOptions()) for one in placed.partitions.values()]
    text = render_module(drafts)
    assert "problem.key.type = CUDA_R_8F_E4M3;" in text
    assert "problem.key.wide = CUDA_R_16F;" in text
    assert "problem.key.scaled = PK_CUBLAS_GAIN;" in text
    assert_compiles(text, tmp_path)


def test_the_module_scales_columns(tmp_path: Path) -> None:
    """With ones for as many rows as there may be; then the library has to be newer."""
    path = half_model(tmp_path, np.float16, 48)
    placed = placed_file(path, targets=("cuda -arch=sm_90a", "cublas"), dims={"n": (1, 8)})
    (draft,) = (draft_partition(one.partition, CublasOptions()) for one in placed.partitions.values())
    assert draft.rows == 8 * 3
    assert [one.name for one in draft.call.parameters if one.kind == "constant"] == ["cublas_ones_24"]
    text = render_module([draft])
    assert "problem.key.scaled = PK_CUBLAS_COLUMNS;" in text
    assert_compiles(text, tmp_path)
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(path).graph.initializer}
    (packing,) = (one for one in draft.memory.packings if one.layout == "scales48")
    for given in (arrays["sw"], arrays["sw"].reshape(1, 48), arrays["sw"][:1]):
        packed = packing.pack(given.astype(np.float32))
        assert (packed.shape, packed.dtype) == ((48,), np.float32)
        assert (packed == given.reshape(-1)).all()
    assert loaded_library(CublasOptions(), scales_columns=True).least == "12.9"
    assert loaded_library(CublasOptions(), scales_columns=False).least == "12.0"


def test_ones_for_rows_of_two_dims(tmp_path: Path) -> None:
    """As many as both dims together allow; the matrix is transposed, as torch's layers write it."""
    path = half_model(tmp_path, np.float16, 48)
    text = """<ir_version: 10, opset_import: ["": 21]> net (float16[n,m,64] x) => (float16[k,48] y) {
      rows = Reshape(x, shape) xq = QuantizeLinear(rows, s, z) xd = DequantizeLinear(xq, s, z)
      wd = DequantizeLinear <axis = 0> (w, sw, zw) y = Gemm <transB = 1> (xd, wd, b) }"""
    model = onnx.parser.parse_model(text)
    for tensor in onnx.load(path).graph.initializer:
        if tensor.name == "w":
            tensor.dims[:] = [48, 64]
        if tensor.name != "t":
            model.graph.initializer.append(tensor)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([-1, 64]), "shape"))
    onnx.save(model, path)
    placed = placed_file(path, targets=("cuda -arch=sm_90a", "cublas"), dims={"n": (1, 8), "m": (1, 5)})
    (draft,) = (draft_partition(one.partition, CublasOptions()) for one in placed.partitions.values())
    assert (draft.rows, draft.problem.columns, draft.problem.depth) == (40, 48, 64)
    assert draft.problem.scales is not None


def assert_compiles(text: str, folder: Path) -> None:
    (folder / "cublas.c").write_text(text)
    strict = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", *include_flags("cublas"), "-c", "cublas.c"]
    subprocess.run(strict, cwd=folder, check=True)
