"""What the cutlass backend takes of 8-bit products, what it makes of it, and the kernels for these."""

from __future__ import annotations

import ctypes
import itertools
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
import tvm
from cutlass_kernel_builder import ARCHS, EVERY, HostKernel, Launch, build_host, link_host, make_context
from tvm import relax
from tvm_machine import compute

from packager.backends.cutlass.conv.cost_model import ConvShape
from packager.backends.cutlass.core.compile_kernels import HEADER_FOLDERS, compile_kernels, find_cutlass
from packager.backends.cutlass.core.element_types import vector_of
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.cost_model import GemmForm, GemmShape
from packager.backends.cutlass.gemm.kernels import ACTIVATIONS
from packager.backends.cutlass.gemm.tilings import Sm80Tile, Sm90Tile
from packager.backends.cutlass.quantized.cost_model import rank_quantized_conv, rank_quantized_gemm
from packager.backends.cutlass.quantized.kernels import FULL, OUTPUTS, QuantizedConfig, portfolio
from packager.backends.cutlass.quantized.problem import read_quantized
from packager.codegen.cuda_toolkit import find_cuda_toolkit
from packager.graph.dataflow import Dataflow
from packager.graph.products.quantized import RANGES, QuantizedChain, quantized_chains
from tests.stages import placement_table

ROWS, DEPTH, COLUMNS = 6, 64, 48
HOPPER = CutlassOptions(arch=("sm_90a",))
AMPERE = CutlassOptions(arch=("sm_80",))
op = relax.op

Body = Callable[[Callable[..., Any], Any, dict[str, Any]], Any]


def number(value: float, dtype: str = "float32") -> Any:
    return relax.const(value, dtype)


def requantized(emit: Callable[..., Any], value: Any, low: float, high: float, zero: int, stored: str) -> Any:
    """As packager.transforms.quantize.quantize writes it."""
    whole = emit(op.astype(emit(op.round(emit(op.clip(value, low - zero, high - zero)))), "int32"))
    whole = emit(op.add(whole, number(zero, "int32"))) if zero else whole
    return emit(op.astype(whole, stored))


def scaled(emit: Callable[..., Any], sums: Any, c: dict[str, Any]) -> Any:
    return emit(op.multiply(emit(op.astype(sums, "float32")), c["scale"]))


def int8_of_all(emit: Callable[..., Any], sums: Any, c: dict[str, Any]) -> Any:
    value = emit(op.add(scaled(emit, emit(op.add(sums, c["offset"])), c), c["bias"]))
    return requantized(emit, value, -128, 127, 0, "int8")


def int8_after_relu(emit: Callable[..., Any], sums: Any, c: dict[str, Any]) -> Any:
    value = emit(op.nn.relu(emit(op.add(scaled(emit, sums, c), c["bias"]))))
    value = emit(op.divide(value, number(0.5)))
    return requantized(emit, value, -128, 127, -3, "int8")


def int8_with_residual(emit: Callable[..., Any], sums: Any, c: dict[str, Any]) -> Any:
    other = emit(op.multiply(emit(op.astype(c["residual"], "float32")), number(0.25)))
    value = emit(op.add(emit(op.add(scaled(emit, sums, c), other)), number(-1.5)))
    return requantized(emit, value, 0, 127, 0, "int8")


def uint8_by_numbers(emit: Callable[..., Any], sums: Any, c: dict[str, Any]) -> Any:
    del c
    value = emit(op.multiply(emit(op.astype(sums, "float32")), number(2.0**-8)))
    return requantized(emit, value, 0, 255, 100, "uint8")


def floats(emit: Callable[..., Any], sums: Any, c: dict[str, Any]) -> Any:
    return emit(op.add(scaled(emit, sums, c), c["bias"]))


def halves(emit: Callable[..., Any], sums: Any, c: dict[str, Any]) -> Any:
    return emit(op.astype(emit(op.nn.relu(floats(emit, sums, c))), "float16"))


def whole_sums(emit: Callable[..., Any], sums: Any, c: dict[str, Any]) -> Any:
    return emit(op.add(sums, c["offset"]))


TAKEN: dict[str, Body] = {
    body.__name__: body
    for body in (int8_of_all, int8_after_relu, int8_with_residual, uint8_by_numbers, floats, halves, whole_sums)
}


@dataclass(frozen=True)
class Model:
    """A function of int8 data and constants, and values for all of its parameters."""

    function: relax.Function
    values: dict[str, Any]

    @property
    def flow(self) -> Dataflow:
        constants = [p for p in self.function.params if p.name not in ("x", "residual")]
        return Dataflow(self.function, constants)

    def chains(self) -> list[QuantizedChain]:
        flow = self.flow
        (anchor,) = [v for v in flow.variables if flow.call(v, "matmul", "nn.conv2d") is not None]
        return [chain for chain in quantized_chains(flow, anchor) if read_quantized(flow, chain, HOPPER) is not None]

    def run(self) -> Any:
        """What TVM computes on this machine."""
        (result,) = compute(tvm.IRModule({"main": self.function}), (self.values[p.name] for p in self.function.params))
        return result


def make_model(body: Body, dtype: str = "int8", out_dtype: str = "int32") -> Model:
    """Scales are powers of two, so that results are exact and meet halves."""
    rng = np.random.default_rng(0)
    values: dict[str, Any] = {
        "x": rng.integers(*((0, 256) if dtype == "uint8" else (-128, 128)), (ROWS, DEPTH)).astype(dtype),
        "w": rng.integers(-128, 128, (DEPTH, COLUMNS)).astype(np.int8),
        "scale": (2.0 ** rng.integers(-12, -8, COLUMNS)).astype(np.float32),
        "bias": (rng.integers(-64, 64, COLUMNS) / 2).astype(np.float32),
        "offset": rng.integers(-5000, 5000, COLUMNS).astype(np.int32),
        "residual": rng.integers(-128, 128, (ROWS, COLUMNS)).astype(np.int8),
    }
    builder = relax.BlockBuilder()
    variables = {n: relax.Var(n, relax.TensorType(a.shape, a.dtype.name)) for n, a in values.items()}
    with builder.function("main", list(variables.values())):
        with builder.dataflow():
            sums = builder.emit(op.matmul(variables["x"], variables["w"], out_dtype=out_dtype))
            result = builder.emit_output(body(builder.emit, sums, variables))
        builder.emit_func_output(result)
    module = relax.transform.CanonicalizeBindings()(builder.get())
    return Model(module["main"], values)


def solved(model: Model, chain: QuantizedChain) -> Any:
    """What templates/cutlass/quantized/quantized.h says of a chain."""

    def value(variable: Any, otherwise: float) -> Any:
        return otherwise if variable is None else model.values[variable.name].astype(np.float64)

    sums = model.values["x"].astype(np.int64) @ model.values["w"].astype(np.int64)
    sums = sums + chain.offset + value(chain.offset_row, 0)
    if chain.dtype == "int32":
        return sums
    y = sums * chain.scale * value(chain.scale_row, 1) + chain.bias + value(chain.bias_row, 0)
    y = y + chain.beta * value(chain.residual, 0)
    y = np.maximum(y, 0) if chain.activation == "relu" else y
    if chain.dtype not in RANGES:
        return y
    low, high = np.maximum(chain.low, RANGES[chain.dtype][0]), np.minimum(chain.high, RANGES[chain.dtype][1])
    return np.clip(np.rint(y * chain.gain) + chain.zero, low, high)


@pytest.mark.slow
@pytest.mark.parametrize("name", TAKEN)
def test_a_chain_is_taken_in_full_and_means_what_the_model_says(name: str) -> None:
    model = make_model(TAKEN[name], "uint8" if "uint8" in name else "int8")
    chain = model.chains()[0]
    assert model.flow.is_result(chain.result)
    want = model.run()
    np.testing.assert_array_equal(solved(model, chain).astype(want.dtype), want)


def test_chains_end_before_results_are_rounded_or_at_8_bits() -> None:
    ends = [chain.dtype for chain in make_model(int8_of_all).chains()]
    assert ends == ["int8", "float32", "float32", "float32", "int32", "int32"]


def truncated(emit: Callable[..., Any], sums: Any, c: dict[str, Any]) -> Any:
    return emit(op.astype(emit(op.clip(floats(emit, sums, c), -128, 127)), "int8"))


def wrapped(emit: Callable[..., Any], sums: Any, c: dict[str, Any]) -> Any:
    return emit(op.astype(emit(op.round(floats(emit, sums, c))), "int8"))


def beyond(emit: Callable[..., Any], sums: Any, c: dict[str, Any]) -> Any:
    return requantized(emit, floats(emit, sums, c), -200, 127, 0, "int8")


def other_residual(emit: Callable[..., Any], sums: Any, c: dict[str, Any]) -> Any:
    """Of another type than the result."""
    value = emit(op.add(floats(emit, sums, c), emit(op.astype(c["residual"], "float32"))))
    return emit(op.multiply(value, number(2.0)))


@pytest.mark.parametrize("body", [truncated, wrapped, beyond, other_residual])
def test_what_kernels_round_otherwise_ends_a_chain(body: Body) -> None:
    model = make_model(body)
    chain = model.chains()[0]
    assert chain.dtype == "float32"
    assert not model.flow.is_result(chain.result)
    assert chain.residual is None


def taken(path: Path, *targets: str) -> list[tuple[str, list[str]]]:
    dims = {"n": (1, 8)} if path.stem == "any_batch" else {}
    table = placement_table(path, targets=targets, dims=dims)
    return [(part["composite"], part["operators"]) for part in table["partitions"] if part["backend"] == "cutlass"]


def save(tmp_path: Path, text: str, **arrays: Any) -> Path:
    model = onnx.parser.parse_model(text)
    for name, array in ((name, np.asarray(value)) for name, value in arrays.items()):
        if array.dtype == ml_dtypes.float8_e4m3fn:
            kind = onnx.TensorProto.FLOAT8E4M3FN
            tensor = onnx.helper.make_tensor(name, kind, array.shape, array.tobytes(), raw=True)
        else:
            tensor = onnx.numpy_helper.from_array(array, name)
        model.graph.initializer.append(tensor)
    path = tmp_path / ("any_batch.onnx" if "[n," in text else "model.onnx")
    onnx.save(model, path)
    return path


CUDA = "cuda -arch=sm_90a"


def test_a_quantized_layer_of_onnx_is_one_kernel(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]> net (float[n,64] x) => (float[n,48] y) {
      xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) wd = DequantizeLinear <axis = 1> (w, sw, zw)
      p = MatMul(xd, wd) a = Add(p, b) r = Relu(a) q = QuantizeLinear(r, s, z) y = DequantizeLinear(q, s, z) }"""
    rng = np.random.default_rng(0)
    arrays = {"s": np.float32(0.1), "z": np.int8(5), "w": rng.integers(-127, 127, (64, 48), np.int8)}
    arrays |= {"sw": rng.random(48, np.float32), "zw": np.zeros(48, np.int8), "b": rng.random(48, np.float32)}
    ((name, operators),) = taken(save(tmp_path, text, **arrays), CUDA, "cutlass")
    assert name == "cutlass.dense"
    assert operators[0] == "matmul"
    assert operators[-1] == "astype"
    assert "round" in operators


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_a_quantized_convolution_of_onnx_is_one_kernel(tmp_path: Path, dtype: str) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 21]> net ({dtype}[n,16,9,9] x) => ({dtype}[n,32,5,5] y)
      {{ y = QLinearConv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, s, z, w, sw, zw, s, z, b) }}"""
    rng = np.random.default_rng(0)
    arrays = {"s": np.float32(0.1), "z": np.array(0, dtype), "w": rng.integers(-127, 127, (32, 16, 3, 3), np.int8)}
    arrays |= {"sw": rng.random(32, np.float32), "zw": np.zeros(32, np.int8), "b": rng.integers(-99, 99, 32, np.int32)}
    ((name, operators),) = taken(save(tmp_path, text, **arrays), CUDA, "cutlass")
    assert name == "cutlass.conv2d"
    assert operators[-1] == "astype"


def test_a_residual_of_8_bits_is_added_before_the_result_is_rounded(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]> net (int8[2,16,9,9] x) => (int8[2,16,9,9] y) {
      wd = DequantizeLinear <axis = 0> (w, sw, zw) xd = DequantizeLinear(x, s, z)
      f = Conv <pads = [1, 1, 1, 1]> (xd, wd, b) q = QuantizeLinear(f, t, z) d = DequantizeLinear(q, t, z)
      p = Conv <pads = [1, 1, 1, 1]> (d, wd, b) a = Add(p, d) r = Relu(a) y = QuantizeLinear(r, t, z) }"""
    rng = np.random.default_rng(0)
    arrays = {"s": np.float32(0.1), "t": np.float32(0.2), "z": np.int8(0), "b": rng.random(16, np.float32)}
    arrays |= {"w": rng.integers(-127, 127, (16, 16, 3, 3), np.int8)}
    arrays |= {"sw": rng.random(16, np.float32), "zw": np.zeros(16, np.int8)}
    first, second = taken(save(tmp_path, text, **arrays), CUDA, "cutlass")
    assert first[0] == second[0] == "cutlass.conv2d"
    assert second[1].count("add") == first[1].count("add") + 1
    assert first[1][-1] == second[1][-1] == "astype"


FLOAT8 = """<ir_version: 10, opset_import: ["": 21]> net (float[n,64] x) => (float[n,{columns}] y) {{
  xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) wd = DequantizeLinear <axis = {axis}> (w, sw, zw)
  {product} y = Add(p, b) }}"""


@pytest.mark.parametrize(
    ("product", "axis"), [("p = MatMul(xd, wd)", 1), ("p = Gemm <transB = 1> (xd, wd)", 0)], ids=["columns", "rows"]
)
@pytest.mark.parametrize(("columns", "archs"), [(48, "sm_90a"), (48, "sm_80,sm_90a"), (40, "sm_90a")])
def test_products_of_8_bit_floats(tmp_path: Path, product: str, axis: int, columns: int, archs: str) -> None:
    """They need sm_90a, and sizes that TMA loads; others are products of float32."""
    rng, kind = np.random.default_rng(0), ml_dtypes.float8_e4m3fn
    shape = (64, columns) if axis else (columns, 64)
    arrays: dict[str, Any] = {"s": np.float32(0.1), "z": np.zeros((), kind)}
    arrays |= {"w": rng.standard_normal(shape).astype(kind), "zw": np.zeros(columns, kind)}
    arrays |= {"sw": rng.random(columns, np.float32), "b": rng.random(columns, np.float32)}
    path = save(tmp_path, FLOAT8.format(columns=columns, axis=axis, product=product), **arrays)
    ((_, operators),) = taken(path, f"cuda -arch={archs}", "cutlass")
    assert operators.count("multiply") == (2 if (columns, archs) == (48, "sm_90a") else 0)
    assert operators[-1] == "add"


def configurations() -> Iterator[QuantizedConfig]:
    for op_, family, dtype in itertools.product(("gemm", "conv"), ("sm90", "sm80"), OUTPUTS):
        for out, extents in itertools.product(OUTPUTS[dtype], ((64, 128), (24, 20), (12, 10), (3, 7))):
            for plain in portfolio(op_, family, dtype, out, *extents):  # type: ignore[arg-type]
                yield plain
                if out != "int32":
                    yield replace(plain, residual=True)
                    yield from (replace(plain, activation=name) for name in ACTIVATIONS)


def test_a_name_says_all_that_the_code_depends_on() -> None:
    texts: dict[str, str] = {}
    for config in configurations():
        source = config.source(ARCHS)
        assert re.fullmatch("[a-z][a-z0-9_]*", source.name)
        text = source.text.replace(source.name, "")
        assert texts.setdefault(source.name, text) == text
    assert len(texts) > 500
    assert len(set(texts.values())) == len(texts)


WRONG: dict[str, dict[str, Any]] = {
    "int8 makes": {"out": "float8_e4m3fn"},
    "int32 is the sums alone": {"out": "int32", "residual": True},
    "TMA takes 16 bytes": {"alignment": 8},
    "there is no such form": {"op": "conv", "tile": Sm90Tile((64, 32, 128), swapped=True)},
    "sm80 kernels do not multiply": {"tile": Sm80Tile((64, 64, 64), (32, 32), 4), "dtype": "float8_e4m3fn"},
    "sums are not split": {"tile": Sm80Tile((64, 64, 64), (32, 32), 4, slices=2)},
    "2 elements cannot be copied": {"tile": Sm80Tile((64, 64, 64), (32, 32), 4), "alignment": 2},
}


@pytest.mark.parametrize("message", WRONG)
def test_what_templates_cannot_be_is_refused(message: str) -> None:
    change = WRONG[message]
    out = change.get("out", "float16")
    with pytest.raises(ValueError, match=message):
        QuantizedConfig(**({"op": "gemm", "tile": Sm90Tile((64, 64, 128)), "dtype": "int8"} | change | {"out": out}))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("out", ["int8", "int32", "float16", "float32"])
def test_every_size_has_kernels(dtype: str, out: str) -> None:
    form = GemmForm(dtype, out)
    for depth, columns in itertools.product((1, 2, 4, 8, 16, 48), repeat=2):
        for options in (HOPPER, AMPERE, CutlassOptions(arch=("sm_80", "sm_90a"))):
            ranking = rank_quantized_gemm(GemmShape(100, columns, depth, 1), form, options)
            names = [choice.kernel.name for candidate in ranking.candidates for choice in candidate.choices]
            tma = depth % FULL == 0 and columns % vector_of(out) == 0 and "sm_90a" in options.arch
            assert any("_sm90_" in name for name in names) == tma
            assert any("_sm80_" in name for name in names) == (not tma or "sm_80" in options.arch)
        shape = ConvShape(100, depth, columns, (3, 3), (1, 1), (2, 2), (1, 1))
        assert rank_quantized_conv(shape, form, HOPPER)


def test_problems_say_what_decides() -> None:
    ranking = rank_quantized_gemm(GemmShape(8, 48, 64, 1), GemmForm("int8", "int8", residual=True), HOPPER)
    assert ranking.problem == "gemm int8->int8 scaled 8x48x64 none residual"


class Scales(ctypes.Structure):
    """As pk_scales_t."""

    _fields_ = (
        *[(name, ctypes.c_uint64) for name in ("offset", "scale", "bias")],
        ("offset_of_all", ctypes.c_int32),
        *[(name, ctypes.c_float) for name in ("scale_of_all", "bias_of_all", "beta", "gain", "zero", "low", "high")],
    )


class Gemm(ctypes.Structure):
    """As pk_quantized_gemm_t, its product's fields without a nesting of their own."""

    _fields_ = (
        *[(name, ctypes.c_uint64) for name in ("a", "b", "unread", "c", "d", "workspace")],
        *[(name, ctypes.c_int64) for name in ("m", "n", "k", "batch", "lda", "ldb", "ldc", "ldd")],
        *[(f"batch_{name}", ctypes.c_int64) for name in "abcd"],
        *[(name, ctypes.c_float) for name in ("alpha", "beta")],
        ("counters", ctypes.c_uint64),
        ("scales", Scales),
    )


class Conv(ctypes.Structure):
    """As pk_quantized_conv_t."""

    _fields_ = (
        *[(name, ctypes.c_uint64) for name in ("a", "b", "unread", "c", "d", "workspace")],
        *[(name, ctypes.c_int64) for name in ("batch", "height", "width", "k", "n", "out_height", "out_width")],
        *[(name, ctypes.c_int64 * 2) for name in ("window", "padding", "stride", "dilation")],
        *[(name, ctypes.c_int64) for name in ("groups", "part")],
        ("scales", Scales),
    )


COMPILED = {
    "sm90": QuantizedConfig("gemm", Sm90Tile((64, 32, 256), swapped=True), "int8", "int8", residual=True),
    "sm80": QuantizedConfig("conv", Sm80Tile((64, 64, 64), (32, 32), 4), "uint8", "uint8", 16, 16, residual=True),
}


@dataclass(frozen=True)
class Built:
    """A kernel's configuration, and what the host has of it."""

    config: QuantizedConfig
    host: HostKernel

    def fill(self, encoded: bool = True, **values: int) -> Launch | None:
        """Return the launch of a problem of 192 columns and 256 channels, with other values; None if it is refused."""
        problem: Any
        if self.config.op == "gemm":
            problem = Gemm(0x1000, 0x2000, 0, 0x3000, 0x4000, 0, 100, 192, 256, 1, 256, 256, 192, 192)
        else:
            problem = Conv(0x1000, 0x2000, 0, 0x3000, 0x4000, 0, 2, 8, 8, 256, 192, 8, 8)
            problem.window[:], problem.padding[:] = (3, 3), (1, 1)
            problem.stride[:] = problem.dilation[:] = (1, 1)
        for name, value in values.items():
            setattr(problem.scales if name in ("offset", "scale", "bias") else problem, name, value)
        return self.host.fill(problem, refused=0 if encoded else EVERY)


# nvcc takes half a minute for a kernel, the host's compiler a few seconds; test_cutlass_bundles.py has one by nvcc.
BUILDS = ["host sm90", "host sm80", *(pytest.param(f"nvcc {name}", marks=pytest.mark.thorough) for name in COMPILED)]


@pytest.fixture(scope="module", params=BUILDS)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    compiler, name = request.param.split()
    path, config = tmp_path_factory.mktemp("kernels"), COMPILED[name]
    if compiler == "host":
        return Built(config, build_host(config, path))
    (kernel,) = compile_kernels([(config.source(ARCHS), 90)], find_cutlass(), find_cuda_toolkit(""), make_context(path))
    return Built(config, link_host(config.name, kernel.host, path))


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.slow
def test_host_objects_need_nothing_but_the_runtime_and_libgcc(built: Built) -> None:
    undefined = subprocess.run(
        ["nm", "-u", built.host.object], capture_output=True, text=True, check=True
    ).stdout.split()
    assert set(undefined) <= {"U", "pk_tensor_map_encode", "__udivti3", "memcpy", "memset"}


@pytest.mark.slow
def test_fill_takes_problems_and_refuses_others(built: Built) -> None:
    launch = built.fill()
    assert launch is not None
    assert launch.shared_bytes == built.host.shared_bytes
    assert built.fill(offset=0x5000, scale=0x6000, bias=0x7000) is not None
    refused: tuple[dict[str, int], ...] = (
        *({name: 0} for name in ("n", "k", "batch", "a", "b", "c", "d")),
        *({name: 0x1002} for name in ("a", "b", "c", "d", "offset", "scale", "bias")),
        {"k": 255},
        {"n": 191},
    )
    for values in refused:
        assert built.fill(**values) is None, values
    assert (built.fill(encoded=False) is None) == isinstance(built.config.tile, Sm90Tile)


def test_the_structures_of_the_header_are_those_of_the_tests(tmp_path: Path) -> None:
    source = tmp_path / "sizes.c"
    checks = [(Scales, "pk_scales_t"), (Gemm, "pk_quantized_gemm_t"), (Conv, "pk_quantized_conv_t")]
    lines = [f'_Static_assert(sizeof({name}) == {ctypes.sizeof(own)}, "{name}");' for own, name in checks]
    source.write_text("\n".join(['#include "quantized.h"', *lines, ""]))
    include = [f"-I{path}" for path in HEADER_FOLDERS]
    subprocess.run(["gcc", "-Wall", "-Wextra", "-Werror", *include, "-c", source, "-o", tmp_path / "a.o"], check=True)
