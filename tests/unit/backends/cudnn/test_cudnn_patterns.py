"""What the cudnn backend takes of a model; nothing is compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from packager.backends.cudnn.options import CudnnOptions
from packager.backends.cudnn.problem import CudnnProblem, describe, numbers
from packager.errors import UsageError
from packager.targets.target_list import parse_targets
from tests.stages import placed_file, problems


def found(folder: Path, types: str, body: str, target: str = "cudnn", **shapes: tuple[int, ...]) -> list[CudnnProblem]:
    """Return the problems of a model with weights of these shapes, in half precision."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> net {types} {{ {body} }}')
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    onnx.save(model, folder / "model.onnx")
    targets = ("cuda -arch=sm_90a", *target.split(" + "))
    return list(problems(placed_file(folder / "model.onnx", precision="fp16", dims={"n": (1, 8)}, targets=targets)))


IMAGE = "(float[n,8,9,10] x) => (float[n,12,h,v] y)"


@pytest.mark.parametrize(
    ("body", "w", "expected"),
    [
        ("y = Conv(x, w, b)", (12, 8, 3, 3), "filters 12x3x3 padding 0x0 0x0 stride 1x1 bias"),
        (
            "c = Conv<pads=[1,1,1,1], group=4>(x, w, b) y = Relu(c)",
            (12, 2, 3, 3),
            "filters 12x3x3 groups 4 padding 1x1 1x1 stride 1x1 relu bias",
        ),
        (
            "c = Conv<pads=[0,1,2,1], dilations=[2,1]>(x, w) y = Sigmoid(c)",
            (12, 8, 3, 3),
            "filters 12x3x3 padding 0x1 2x1 stride 1x1 dilation 2x1",
        ),
        (
            "c = Conv<strides=[2,2], auto_pad=\"SAME_UPPER\">(x, w, b) y = Tanh(c)",
            (12, 8, 3, 3),
            "filters 12x3x3 padding 1x0 1x1 stride 2x2",
        ),
    ],
)  # fmt: skip
def test_images(tmp_path: Path, body: str, w: tuple[int, ...], expected: str) -> None:
    """Groups, dilation and padding of one side; other activations than ReLU are left, with the bias before them."""
    (problem,) = found(tmp_path, IMAGE, body, w=w, b=(12,))
    assert describe(problem, 8) == f"cudnn float16 8x9x10x8 {expected}"
    assert problem.conv.channels_last


def test_a_padding_before_is_merged(tmp_path: Path) -> None:
    body = "c = Conv(x, first) p = Pad(c, pads) y = Conv(p, w)"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> net {IMAGE} <int64[8] pads = {{0,0,0,1,0,0,2,1}}> {{ {body} }}'
    )
    for name in ("first", "w"):
        shape = (8, 8, 1, 1) if name == "first" else (12, 8, 3, 3)
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(shape, np.float32), name))
    onnx.save(model, tmp_path / "model.onnx")
    options: dict[str, Any] = {"precision": "fp16", "dims": {"n": (1, 8)}, "targets": ("cuda -arch=sm_90a", "cudnn")}
    (_, problem) = problems(placed_file(tmp_path / "model.onnx", **options))
    assert (problem.conv.before, problem.conv.after, problem.conv.image) == ((0, 1), (2, 1), (9, 10))


def test_a_bias_that_is_missing_is_zeros(tmp_path: Path) -> None:
    (problem,) = found(tmp_path, IMAGE, "c = Conv(x, w) y = Relu(c)", w=(12, 8, 3, 3))
    assert problem.has_epilogue
    assert numbers(problem, CudnnOptions(), 8)["bias"] == 1


def test_depthwise_is_taken_where_it_is_named(tmp_path: Path) -> None:
    body, types = "y = Conv<group=8>(x, w)", "(float[n,8,9,10] x) => (float[n,8,h,v] y)"
    assert found(tmp_path, types, body, w=(8, 1, 3, 3)) == []
    assert len(found(tmp_path, types, body, "cudnn -operators=depthwise", w=(8, 1, 3, 3))) == 1


def test_lines_and_volumes(tmp_path: Path) -> None:
    """In the model's layout, whose bias is of the first axis; lines have a height of one."""
    (line,) = found(
        tmp_path, "(float[n,6,11] x) => (float[n,4,9] y)", "c = Conv(x, w, b) y = Relu(c)", w=(4, 6, 3), b=(4,)
    )
    fields = numbers(line, CudnnOptions(), 8)
    assert [fields[f"window[{axis}]"] for axis in range(3)] == [1, 3, 0]
    assert (fields["axes"], fields["last"], fields["weights_last"], fields["bias"], fields["activation"]) == (
        *(2, 0, 1),
        *(1, 100),
    )
    types = "(float[n,4,5,6,7] x) => (float[n,6,5,6,7] y)"
    body = "r = Conv(x, v) c = Conv<pads=[1,1,1,1,1,1]>(x, w, b) s = Add(c, r) y = Relu(s)"
    (_, volume) = found(tmp_path, types, body, v=(6, 4, 1, 1, 1), w=(6, 4, 3, 3, 3), b=(6,))
    assert volume.chain.residual is not None
    assert volume.chain.bias is not None
    assert (numbers(volume, CudnnOptions(), 8)["axes"], volume.chain.activation) == (3, "relu")


def test_transposed_convolutions_have_no_epilogue(tmp_path: Path) -> None:
    types = "(float[n,8,9,10] x) => (float[n,6,h,v] y)"
    body = "c = ConvTranspose<strides=[2,2], output_padding=[1,0]>(x, w, b) y = Relu(c)"
    (problem,) = found(tmp_path, types, body, w=(8, 6, 4, 4), b=(6,))
    assert (problem.has_epilogue, problem.conv.transposed, problem.conv.result) == (False, True, (21, 22))
    # A row of the result that no row of the image reaches: no gradient of a convolution of this size.
    body = body.replace("[1,0]", "[1,0], dilations=[1,1]").replace("strides=[2,2]", "strides=[1,1]")
    assert found(tmp_path, types, body.replace("output_padding=[1,0]", "output_padding=[0,0]"), w=(8, 6, 4, 4), b=(6,))


def test_cutlass_first(tmp_path: Path) -> None:
    """What another Target takes before is its own; cudnn has what that refuses."""
    body = "a = Conv<pads=[1,1,1,1]>(x, w, b) y = Conv<group=4>(a, g)"
    types = "(float[n,8,9,10] x) => (float[n,8,h,v] y)"
    (_, grouped) = found(tmp_path, types, body, "cutlass + cudnn", w=(8, 8, 3, 3), b=(8,), g=(8, 2, 3, 3))
    assert isinstance(grouped, CudnnProblem)
    assert grouped.conv.groups == 4


def test_float32_is_left(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    found(tmp_path, IMAGE, "y = Conv(x, w)", w=(12, 8, 3, 3))
    options: dict[str, Any] = {"dims": {"n": (1, 8)}}
    assert not problems(placed_file(path, targets=("cuda -arch=sm_90a", "cudnn"), **options))
    assert problems(placed_file(path, targets=("cuda -arch=sm_90a", "cudnn -allow_tf32=1"), **options))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("cudnn -candidates=17", "candidates is 17"),
        ("cudnn -operators=attention", "operators"),
        ("cudnn -device=H1000", "'H1000' is not known"),
        ("cudnn -device=H100,H200", "have one architecture"),
    ],
)
def test_refused(target: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_targets(("cuda -arch=sm_90a", target))


def test_a_device_for_each_architecture() -> None:
    targets = parse_targets(("cuda -arch=sm_80,sm_90a,sm_75", "cudnn"))
    assert targets.specialized[0].options.device == ("A100", "H100")
