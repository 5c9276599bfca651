"""Convolutions of few channels as ones of a padded image: what they compute, and the CUDA code that pads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import tvm
from tvm_machine import compute

from packager.graph.dataflow import bindings_of, operator_of
from packager.ir.primitives import Kernel
from packager.lower.cuda.kernels import lower_cuda_kernels
from packager.lower.lowering import lower
from packager.pipeline.import_models import import_model
from packager.pipeline.options import BuildOptions
from packager.pipeline.request import Request, make_build_request
from tests.stages import placed, prepared_for
from tests.unit.transforms.layout.test_im2col import ONE, model_of

pytestmark = pytest.mark.slow

TARGETS = ("cuda -arch=sm_90a", "cutlass")


def requested(c: int, window: tuple[int, int], attributes: str, folder: Path, precision: str) -> Request:
    model = model_of(ONE.format(c=c, attributes=attributes), w=(8, c, *window), b=(8,))
    path = folder / "net.onnx"
    path.write_bytes(model.SerializeToString())
    return make_build_request(BuildOptions(path, targets=TARGETS, dims={"n": (1, 4)}, precision=precision))


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize(
    ("c", "window", "attributes"),
    [
        (3, (7, 7), "pads = [3, 3, 3, 3], strides = [2, 2]"),
        (3, (3, 3), "pads = [1, 1, 1, 1]"),
        (1, (5, 3), "pads = [0, 1, 4, 2], strides = [1, 2]"),
        (4, (3, 3), "pads = [0, 0, 1, 1], strides = [2, 2]"),
        (2, (4, 3), "pads = [2, 2, 2, 2], dilations = [2, 1]"),
        (5, (6, 2), "strides = [2, 1], pads = [1, 0, 0, 0]"),
    ],
)
def test_the_padded_image_gives_the_same(
    c: int, window: tuple[int, int], attributes: str, precision: str, tmp_path: Path
) -> None:
    """Of a height that is odd, too, of which the last row has none beside it."""
    request = requested(c, window, attributes, tmp_path, precision)
    prepared = prepared_for(import_model(request), request.targets.specialized, "cuda")
    text = prepared.module["main"].script()
    assert text.count("R.nn.conv2d") == text.count("pad_image") == 1
    x = np.random.default_rng(1).standard_normal((3, c, 13, 11), np.float32)
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    (want,) = session.run(None, {"x": x})
    (got,) = compute(prepared.module, [x, *(constant.array for constant in prepared.constants.values())])
    assert np.linalg.norm(got - want) / np.linalg.norm(want) < {"fp16": 5e-3, "bf16": 4e-2}[precision]


@pytest.mark.parametrize(
    ("c", "window", "attributes"),
    [
        (8, (1, 11), "pads = [0, 5, 0, 5]"),
        (8, (3, 3), "pads = [1, 1, 1, 1], strides = [2, 2]"),
        (8, (4, 5), "pads = [1, 0, 2, 0], dilations = [2, 1]"),
    ],
)
def test_a_vector_of_channels_for_each_pixel(c: int, window: tuple[int, int], attributes: str, tmp_path: Path) -> None:
    """Then columns are all that is added."""
    request = requested(c, window, attributes, tmp_path, "fp16")
    prepared = prepared_for(import_model(request), request.targets.specialized, "cuda")
    (call,) = (b.value for b in bindings_of(prepared.module["main"]) if operator_of(b.value) == "nn.conv2d")
    assert int(call.args[1].ty.shape.values[2]) * c % 16 == 0
    assert int(call.attrs.padding[1]) == 0
    x = np.random.default_rng(1).standard_normal((3, c, 13, 11), np.float32)
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    (want,) = session.run(None, {"x": x})
    (got,) = compute(prepared.module, [x, *(constant.array for constant in prepared.constants.values())])
    assert np.linalg.norm(got - want) / np.linalg.norm(want) < 5e-3


def test_images_are_padded_by_vectors(tmp_path: Path) -> None:
    """And no load waits for a condition."""
    request = requested(3, (7, 7), "pads = [3, 3, 3, 3], strides = [2, 2]", tmp_path, "fp16")
    lowered = lower(placed(import_model(request), request.targets.specialized, device="cuda").model, "cuda")
    kernels = [f for group in lowered.groups.values() for f in group.functions if isinstance(f, Kernel)]
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
    module, _ = lower_cuda_kernels(kernels, target)
    source = str(tvm.get_global_func("target.build.cuda")(module, target).inspect_source())
    kernel = source.rpartition("pad_image(")[2].split("__global__")[0]
    assert kernel.count("*(uint4*)(p1") == 1
    assert "condval" not in kernel
