"""Models that onnxruntime's tool has quantized, as bundles: integers inside, and onnxruntime's results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from graphs import graph, normal, save
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

import packager
from tests.stages import placement_table

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
TARGETS = ["llvm", "ccompiler"]
SHAPE = (2, 3, 24, 24)


class Images(CalibrationDataReader):
    """A few random images."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self.feeds: Iterator[dict[str, np.ndarray]] = iter(
            [{"x": rng.standard_normal(SHAPE).astype(np.float32)} for _ in range(3)]
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.feeds, None)


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """A small residual network with a depthwise convolution."""
    model = graph(
        """g (float[2,3,24,24] x) => (float[2,10] y) {
             a = Conv <pads=[1,1,1,1], strides=[2,2]> (x, w0, b0)
             b = Relu(a)
             c = MaxPool <kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]> (b)
             d = Conv <pads=[1,1,1,1], group=32> (c, w1, b1)
             e = Relu(d)
             f = Conv(e, w2, b2)
             h = Add(f, c)
             i = Relu(h)
             k = GlobalAveragePool(i)
             l = Flatten(k)
             y = Gemm <transB=1> (l, w3, b3)
           }""",
        {
            **{"w0": normal(32, 3, 3, 3), "b0": normal(32), "w1": normal(32, 1, 3, 3), "b1": normal(32)},
            **{"w2": normal(32, 32, 1, 1), "b2": normal(32), "w3": normal(10, 32), "b3": normal(10)},
        },
    )
    return save(model, tmp_path / "float.onnx")


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("activation", [QuantType.QUInt8, QuantType.QInt8], ids=["u8", "s8"])
def test_quantized_network(activation: QuantType, per_channel: bool, network: Path, tmp_path: Path) -> None:
    path = tmp_path / "quantized.onnx"
    quantize_static(
        network,
        path,
        Images(),
        quant_format=QuantFormat.QDQ,
        per_channel=per_channel,
        activation_type=activation,
        weight_type=QuantType.QInt8,
    )
    table = placement_table(path, targets=TARGETS)
    products = [p for p in table["partitions"] if {"nn.conv2d", "matmul"} & set(p["operators"])]
    assert sum(len(p["sites"]) for p in products) == 4
    assert all(p["operators"][p["operators"].index("round") - 2 :][:2] for p in products)
    assert not {"nn.conv2d", "matmul", "quantize", "dequantize"} & set(table["rest"])
    constants = {name for p in products for site in p["sites"] for name in site["constants"]}
    assert any("quantized" in name and ".bias" in name for name in constants)

    bundle = packager.build(path, output=tmp_path / "model.so", targets=TARGETS)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")  # without VNNI it saturates sums of two products
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(2).standard_normal(SHAPE).astype(np.float32)
    (expected,) = session.run(None, {"x": x})
    quantum = float(np.diff(np.unique(expected)).min())
    for threads in (1, 2):
        with packager.load(bundle, threads=threads) as loaded:
            apart = np.abs(loaded.run({"x": x})["y"] - expected)
        assert apart.max() <= 2.01 * quantum
        assert (apart < quantum / 2).mean() > 0.7
