"""The manifest's FLOPs and bytes against textbook figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from tvm import relax

import packager
from packager.bundle.manifest import Primitive
from packager.graph.cost import estimate_function


def primitive_of(graph: str, weights: dict[str, tuple[int, ...]], tmp_path: Path, **options: object) -> Primitive:
    """Build a one-node model and return the primitive function that does the work (a pad may be one of its own)."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{graph}')
    for name, shape in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(shape, np.float32), name))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    out = packager.build(tmp_path / "m.onnx", tmp_path / "m.so", targets=["llvm"], **options)  # type: ignore[arg-type]
    (backend,) = packager.inspect(out).manifest.backends
    return max(backend.primitives, key=lambda primitive: primitive.flops)


def test_matmul(tmp_path: Path) -> None:
    primitive = primitive_of("g (float[8,32] x) => (float[8,16] y) { y = MatMul(x, w) }", {"w": (32, 16)}, tmp_path)
    assert primitive.flops == 2 * 8 * 32 * 16
    assert primitive.bytes_read == 4 * (8 * 32 + 32 * 16)
    assert primitive.bytes_written == 4 * 8 * 16


def test_matmul_at_the_maximum_of_a_dim(tmp_path: Path) -> None:
    text = "g (float[n,32] x) => (float[n,16] y) { y = MatMul(x, w) }"
    primitive = primitive_of(text, {"w": (32, 16)}, tmp_path, dims={"n": (1, 10)})
    assert primitive.flops == 2 * 10 * 32 * 16
    assert primitive.bytes_written == 4 * 10 * 16


@pytest.mark.parametrize(("stride", "group"), [(1, 1), (2, 1), (1, 4)])
def test_conv(stride: int, group: int, tmp_path: Path) -> None:
    side = 10 // stride
    text = f"""g (float[2,8,10,10] x) => (float[2,12,{side},{side}] y) {{
      y = Conv<pads=[1,1,1,1], strides=[{stride},{stride}], group={group}>(x, w) }}"""
    primitive = primitive_of(text, {"w": (12, 8 // group, 3, 3)}, tmp_path)
    assert primitive.flops == 2 * (2 * 12 * side * side) * (8 // group * 3 * 3)
    weights, image = 12 * (8 // group) * 9, 2 * 8 * 10 * 10
    assert 4 * (image + weights) <= primitive.bytes_read <= 4 * (image * 144 // 100 + weights)  # padded or not
    assert primitive.bytes_written == 4 * 2 * 12 * side * side


def test_transposed_convolutions_count_what_meets_an_input() -> None:
    """Whatever their layout; zeros between the inputs are not multiplied."""
    for layout, shape in (("IOHW", (8, 3, 4, 4)), ("IHWO", (8, 4, 4, 3))):
        x = relax.Var("x", relax.TensorType((2, 8, 5, 6), "float16"))
        w = relax.Var("w", relax.TensorType(shape, "float16"))
        builder = relax.BlockBuilder()
        with builder.function("main", [x, w]):
            with builder.dataflow():
                up = relax.op.nn.conv2d_transpose(x, w, strides=2, padding=1, kernel_layout=layout)
                result = builder.emit_output(builder.normalize(up))
            builder.emit_func_output(result)
        assert estimate_function(builder.get()["main"], {}, {}).flops == 2 * (2 * 8 * 5 * 6) * (3 * 4 * 4)


def test_elementwise(tmp_path: Path) -> None:
    primitive = primitive_of("g (float[4,5] x) => (float[4,5] y) { y = Exp(x) }", {}, tmp_path)
    assert (primitive.flops, primitive.bytes_read, primitive.bytes_written) == (20, 80, 80)


def test_moving_data_costs_no_flops(tmp_path: Path) -> None:
    primitive = primitive_of("g (float[4,5] x) => (float[5,4] y) { y = Transpose<perm=[1,0]>(x) }", {}, tmp_path)
    assert (primitive.flops, primitive.bytes_read, primitive.bytes_written) == (0, 80, 80)
