"""What a model goes through before it is scheduled for the GPU, computed by TVM on the CPU; and the CUDA code."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
import tvm
from tvm.tirx import stmt as st
from tvm_ffi import structural_walk
from tvm_machine import compute

import packager
from packager.ir.primitives import Kernel
from packager.lower.cuda.kernels import lower_cuda_kernels
from packager.lower.legalize.accumulate import accumulate_in_float32
from packager.lower.lowering import lower
from packager.pipeline.build import import_model
from packager.pipeline.options import BuildOptions
from packager.pipeline.request import make_build_request
from packager.transforms.layout.channels_last import to_channels_last
from tests.one_cpu import targets_here
from tests.stages import placed as placed_model

NET = """
<ir_version: 8, opset_import: ["": 17]>
net (float[2,3,10,8] x) => (float[2,12,5,4] y, float[2,12,1,1] mean, float[2,240] flat) {
  a = Conv <pads = [1, 1, 1, 1]> (x, w, bias)
  b = Relu(a)
  c = Conv <pads = [1, 1, 1, 1], group = 6> (b, depthwise)
  d = Add(b, c)
  e = Mul(d, scale)
  f = Concat <axis = 1> (e, b)
  y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (f)
  mean = GlobalAveragePool(f)
  g = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (d)
  t = Transpose <perm = [0, 3, 1, 2]> (g)
  h = Softmax <axis = 1> (t)
  s = Shape(x)
  flat = Reshape(h, shape)
}
"""


def write(path: Path) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    shapes = {"w": (6, 3, 3, 3), "bias": (6,), "depthwise": (6, 1, 3, 3), "scale": (6, 1, 1)}
    model = onnx.parser.parse_model(NET.replace("  s = Shape(x)\n", "").replace("240", "120"))
    for name, shape in shapes.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.standard_normal(shape, dtype=np.float32), name))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([2, -1], np.int64), "shape"))
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
    return model


@pytest.mark.slow
@pytest.mark.parametrize("change", [to_channels_last, lambda module: to_channels_last(accumulate_in_float32(module))])
def test_channels_last_computes_the_same(change: Callable[[Any], Any], tmp_path: Path) -> None:
    write(tmp_path / "net.onnx")
    imported = import_model(make_build_request(BuildOptions(tmp_path / "net.onnx", targets=["cuda -arch=sm_80"])))
    placed = placed_model(imported, ()).model
    constants = [constant.array for constant in placed.constants.values()]
    x = np.random.default_rng(1).standard_normal((2, 3, 10, 8), dtype=np.float32)
    changed = change(placed.module)
    text = changed["main"].script()
    assert text.count('data_layout="NHWC"') == 2
    assert text.count('layout="NHWC"') >= 4, "poolings follow"
    assert text.count("permute_dims") == 7, "inputs, weights, results; what stands between convolutions follows too"
    assert text.count("R.reshape") == 3, "what has one place or one channel is a view of itself in the other layout"
    for got, want in zip(compute(changed, [x, *constants]), compute(placed.module, [x, *constants]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "tolerance"), [("fp16", 5e-3), ("bf16", 4e-2)])
def test_half_precision_computes_about_the_same(precision: str, tolerance: float, tmp_path: Path) -> None:
    model = write(tmp_path / "net.onnx")
    bundle = packager.build(tmp_path / "net.onnx", tmp_path / "net.so", precision=precision, targets=targets_here())
    x = np.random.default_rng(1).standard_normal((2, 3, 10, 8), dtype=np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = dict(zip(("y", "mean", "flat"), session.run(None, {"x": x}), strict=True))
    with packager.load(bundle) as loaded:
        for name, got in loaded.run({"x": x}).items():
            assert got.dtype == np.float32
            error = np.linalg.norm(got - expected[name]) / np.linalg.norm(expected[name])
            assert 1e-6 < error < tolerance, name


MASKED = """
<ir_version: 8, opset_import: ["": 17]>
net (float[2,4,8] q, float[2,8,6] k, float[2,1,6] keep) => (float[2,4,6] p) {
  one = Constant <value_float = 1.0> ()
  low = Constant <value_float = -3.4028235e38> ()
  z = Sub(one, keep)
  mask = Mul(z, low)
  a = MatMul(q, k)
  s = Add(a, mask)
  p = Softmax <axis = 2> (s)
}
"""


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "tolerance"), [("fp16", 2e-3), ("bf16", 2e-2)])
def test_a_mask_beyond_the_range_of_halves_masks(precision: str, tolerance: float, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(MASKED)
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    bundle = packager.build(tmp_path / "net.onnx", tmp_path / "net.so", precision=precision, targets=targets_here())
    rng = np.random.default_rng(2)
    inputs = {"q": rng.standard_normal((2, 4, 8), np.float32), "k": rng.standard_normal((2, 8, 6), np.float32)}
    inputs["keep"] = np.float32([[[1, 1, 1, 0, 0, 0]], [[1, 1, 1, 1, 1, 1]]])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, inputs)
    with packager.load(bundle) as loaded:
        got = loaded.run(inputs)["p"]
    np.testing.assert_allclose(got, expected, atol=tolerance)
    assert (got[0, :, 3:] == 0).all()


def cuda_source(path: Path, precision: str | None = None) -> str:
    request = make_build_request(BuildOptions(path, targets=["cuda -arch=sm_80"], precision=precision))
    lowered = lower(placed_model(import_model(request), ()).model, "cuda")
    kernels = [f for group in lowered.groups.values() for f in group.functions if isinstance(f, Kernel)]
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
    module, _ = lower_cuda_kernels(kernels, target)
    return str(tvm.get_global_func("target.build.cuda")(module, target).inspect_source())


def test_only_a_reduction_writes_where_all_threads_read_its_result(tmp_path: Path) -> None:
    """TVM's StorageRewrite would let each thread's own exponential share the place of the maximum."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[12,5000] x) => (float[12,5000] y) { y = Softmax(x) }'
    )
    path = tmp_path / "softmax.onnx"
    path.write_bytes(model.SerializeToString())
    source = cuda_source(path)
    stores = re.findall(
        r"(if \(\(\(int\)threadIdx.x\) == 0\) \{\s*)?\(\(volatile float\*\)red_result\w*\)\[0\] = ", source
    )
    assert stores
    assert all(guard for guard in stores)


def test_half_precision_adds_up_in_float32(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float16[5,7] x, float16[7,9] w) => (float16[5,9] y)'
        " { y = MatMul(x, w) }"
    )
    path = tmp_path / "matmul.onnx"
    path.write_bytes(model.SerializeToString())
    source = cuda_source(path)
    kernel = source[source.rindex("__global__") :]
    assert re.search(r"float matmul\w*\[", kernel) or re.search(r"\bfloat2? \w*(matmul|local)\w*\[", kernel)


@pytest.mark.parametrize("columns", [16, 32, 64, 96, 100, 128, 192, 1000])
def test_loops_of_a_kernel_agree_on_its_threads(columns: int, tmp_path: Path) -> None:
    """One row times few columns: what shares the sum and what adds it up have equally many threads."""
    text = f"g (float[1,64] x, float[64,{columns}] w) => (float[1,{columns}] y) {{ y = MatMul(x, w) }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{text}')
    onnx.save(model, tmp_path / "m.onnx")
    request = make_build_request(BuildOptions(tmp_path / "m.onnx", targets=["cuda -arch=sm_80"]))
    lowered = lower(placed_model(import_model(request), (), device="cuda").model, "cuda")
    kernels = [f for group in lowered.groups.values() for f in group.functions if isinstance(f, Kernel)]
    assert kernels
    for kernel in kernels:
        most: dict[str, int] = {}
        first: dict[str, int] = {}

        def visit(loop: Any) -> None:
            if loop.thread_binding is not None:
                tag = str(loop.thread_binding.thread_tag)
                first.setdefault(tag, int(loop.extent))  # noqa: B023
                most[tag] = max(most.get(tag, 0), int(loop.extent))  # noqa: B023

        structural_walk(kernel.primfunc.body, [(st.For, visit)])
        assert first == most
