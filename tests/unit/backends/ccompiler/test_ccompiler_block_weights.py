"""Products with weights that are quantized in blocks: against numpy on every kind of machine, for few and many rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm")
from ccompiler_runner import partition, variable
from test_ccompiler_families import symbol
from test_ccompiler_quantized import MACHINES, runner
from tvm.relax import op

from packager.graph.block_weights import BlockFormat, block_matmul, dequantized

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(5)
FORMATS = [
    BlockFormat(4, 32, 64, has_zeros=False),
    BlockFormat(4, 16, 75, has_zeros=True),
    BlockFormat(4, 128, 300, has_zeros=False),
    BlockFormat(8, 32, 90, has_zeros=True),
    BlockFormat(2, 64, 130, has_zeros=False),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("machine", [name for name in MACHINES if name != "vnni"])
@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_products_of_few_and_many_rows(machine: str, form: BlockFormat, tmp_path: Path) -> None:
    columns = 70
    w = variable("w", (columns, form.blocks, form.block * form.bits // 8), "uint8")
    scales, zeros = (variable(name, (columns, form.blocks)) for name in ("scales", "zeros"))
    arguments = [variable("x", (symbol(), form.depth)), w, scales, zeros]

    def body(emit: object, x: object, *weights: object) -> object:
        return emit(op.nn.relu(emit(block_matmul(x, *weights, form))))  # type: ignore[operator]

    run = runner(partition(arguments, body, [1, 2, 3]), tmp_path, machine)
    packed = RNG.integers(0, 256, [int(extent) for extent in w.ty.shape.values]).astype(np.uint8)
    by = RNG.random((columns, form.blocks), dtype=np.float32) * 0.02 + 0.01
    middle = RNG.integers(0, 1 << form.bits, (columns, form.blocks)).astype(np.float32)
    weights = dequantized(packed, by, middle, form).astype(np.float64)
    for rows in (1, 2, 3, 5, 16, 31, 33):
        x = RNG.standard_normal((rows, form.depth), dtype=np.float32)
        wanted = np.maximum(x.astype(np.float64) @ weights.T, 0)
        np.testing.assert_allclose(run(x, packed, by, middle), wanted, rtol=0, atol=3e-6 * np.abs(wanted).max())
