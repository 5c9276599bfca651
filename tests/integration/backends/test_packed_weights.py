"""Convolutions and matrix products whose weights are packed: every tile shape against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from graphs import check, graph, normal

pytestmark = pytest.mark.slow

SPATIAL = {"n": (1, 3), "h": (7, 20), "w": (7, 20)}
SPATIAL_POINTS = ({"n": 1, "h": 7, "w": 7}, {"n": 2, "h": 13, "w": 18}, {"n": 3, "h": 20, "w": 20})

# Attributes of Conv, weight shape, extents of a static image, and whether it is also run with symbolic ones.
CONVS = {
    "3x3 same": ("pads=[1,1,1,1]", (16, 3, 3, 3), (13, 13), True),
    "uneven pads, stride": ("pads=[0,1,2,1], strides=[2,2]", (24, 8, 3, 3), (15, 15), True),
    "1x1": ("strides=[1,1]", (32, 16, 1, 1), (7, 7), True),
    "1x1, stride": ("strides=[2,2]", (64, 64, 1, 1), (14, 14), False),
    "dilation": ("pads=[2,2,2,2], dilations=[2,2], strides=[2,2]", (16, 4, 5, 5), (23, 23), False),
    "1x7, one stride": ("pads=[0,3,0,3], strides=[1,2]", (48, 5, 1, 7), (17, 17), False),
    "8 channels": ("pads=[1,1,1,1]", (8, 8, 3, 3), (9, 9), False),
    "20 channels are not packed": ("pads=[1,1,1,1]", (20, 6, 3, 3), (11, 11), False),
    "groups are not packed": ("group=8, pads=[1,1,1,1]", (16, 1, 3, 3), (9, 9), False),
}


@pytest.mark.sampled(3, every_value=False)
@pytest.mark.parametrize("name", CONVS)
def test_conv(name: str, tmp_path: Path) -> None:
    attributes, shape, (height, width), symbolic = CONVS[name]
    group = 8 if "group" in attributes else 1
    weights = {"k": normal(*shape) / np.sqrt(np.prod(shape[1:]), dtype=np.float32), "b": normal(shape[0])}
    channels = shape[1] * group

    def model(extents: str) -> str:
        return (
            f"g (float[n,{channels},{extents}] x) => (float[n,{shape[0]},oh,ow] y) "
            f"{{ c = Conv<{attributes}>(x, k, b)\n r = Relu(c)\n y = Add(r, r) }}"
        )

    fixed = model(f"{height},{width}")
    check(graph(fixed, weights), tmp_path, {"n": (1, 3)}, ({"n": 1}, {"n": 3})).close()
    if symbolic:
        check(graph(model("h,w"), weights), tmp_path, SPATIAL, SPATIAL_POINTS).close()


@pytest.mark.parametrize(
    ("shape", "columns"), [("n,37", 16), ("n,m,24", 40), ("5,13", 24), ("n,2,7,32", 64), ("n,16", 10)]
)
def test_matmul(shape: str, columns: int, tmp_path: Path) -> None:
    """Rows that no tile divides, several leading axes, symbolic ones, and columns that no vector divides."""
    depth = int(shape.rsplit(",", 1)[-1])
    leading = shape.rsplit(",", 1)[0]
    text = f"g (float[{shape}] x) => (float[{leading},{columns}] y) {{ c = MatMul(x, w)\n y = Tanh(c) }}"
    names = [name for name in ("n", "m") if name in shape]
    points = tuple(dict.fromkeys(names, size) for size in (1, 3, 9)) if names else ({},)
    bundle = check(
        graph(text, {"w": normal(depth, columns) / np.float32(depth**0.5)}),
        tmp_path,
        dict.fromkeys(names, (1, 9)),
        points,
        targets=["llvm"],
    )
    (weights,) = bundle.manifest.constants
    packed = columns % 8 == 0
    assert len(weights.shape) == (3 if packed else 2)
    assert weights.name.startswith("w")
    bundle.close()
