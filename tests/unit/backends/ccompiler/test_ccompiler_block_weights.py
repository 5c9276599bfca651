"""Products with weights that are quantized in blocks: against numpy on every kind of machine, for few and many rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm")
from ccompiler_runner import partition, variable
from test_ccompiler_families import symbol
from test_ccompiler_quantized import MACHINES, runner
from tvm.relax import op

from packager.graph.block_weights import BlockFormat, block_matmul, dequantized
from packager.ir.primitives import Partition

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(5)
FORMATS = [
    BlockFormat(4, 32, 64, has_zeros=False),
    BlockFormat(4, 16, 75, has_zeros=True),
    BlockFormat(4, 128, 300, has_zeros=False),
    BlockFormat(8, 32, 90, has_zeros=True),
    BlockFormat(2, 64, 130, has_zeros=False),
    BlockFormat(8, 512, 1000, has_zeros=False),  # 256 times a sum does not fit 32 bits
    BlockFormat(4, 64, 100, has_zeros=True, data_bytes=1),
    BlockFormat(8, 32, 70, has_zeros=False, data_bytes=1),
    BlockFormat(2, 128, 256, has_zeros=True, data_bytes=2),
    BlockFormat(8, 512, 700, has_zeros=False, data_bytes=2),
]
ERRORS = {1: 1.5e-2, 2: 6e-5, 3: 3e-6}  # of the greatest result, by the bytes of a number


def product_of(form: BlockFormat, columns: int, after: Callable[..., object]) -> Partition:
    """Return the partition of a product, and ``after`` it what follows."""
    w = variable("w", (columns, form.blocks, form.block * form.bits // 8), "uint8")
    scales, zeros = (variable(name, (columns, form.blocks)) for name in ("scales", "zeros"))
    arguments = [variable("x", (symbol(), form.depth)), w, scales, zeros]

    def body(emit: Callable[..., object], x: object, *weights: object) -> object:
        return after(emit, emit(block_matmul(x, *weights, form)))

    return partition(arguments, body, [1, 2, 3])


def weights_of(form: BlockFormat, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return packed weights, scales and zero points at random."""
    packed = RNG.integers(0, 256, (columns, form.blocks, form.block * form.bits // 8)).astype(np.uint8)
    scales = RNG.random((columns, form.blocks), dtype=np.float32) * 0.02 + 0.01
    return packed, scales, RNG.integers(0, 1 << form.bits, (columns, form.blocks)).astype(np.float32)


@pytest.mark.sampled(4, every_value=False)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_products_of_few_and_many_rows(machine: str, form: BlockFormat, tmp_path: Path) -> None:
    columns = 70 if form.has_zeros else 150  # bands of 64, and what remains
    run = runner(product_of(form, columns, lambda emit, made: emit(op.nn.relu(made))), tmp_path, machine)
    packed, by, middle = weights_of(form, columns)
    weights = dequantized(packed, by, middle, form).astype(np.float64)
    for rows in (1, 2, 3, 5, 16, 31, 33):
        x = RNG.standard_normal((rows, form.depth), dtype=np.float32)
        wanted = np.maximum(x.astype(np.float64) @ weights.T, 0)
        error = ERRORS[form.data_bytes] * np.abs(wanted).max()
        np.testing.assert_allclose(run(x, packed, by, middle), wanted, rtol=0, atol=error)


@pytest.mark.parametrize("data_bytes", [1, 3])
@pytest.mark.parametrize("machine", ["own", "vnni"])
def test_rows_of_all_magnitudes(machine: str, data_bytes: int, tmp_path: Path) -> None:
    """Rows that become integers: large and tiny ones, zeros, and some that are not finite, which floats multiply."""
    form = BlockFormat(4, 32, 96, has_zeros=False, data_bytes=data_bytes)
    part = product_of(form, 20, lambda _emit, made: made)
    run = runner(part, tmp_path, machine)
    packed, by, middle = weights_of(form, 20)
    weights = dequantized(packed, by, middle, form)
    for size in (0.0, 1e-42, 1e-37, 1.0, 1e30):
        x = (RNG.standard_normal((1, form.depth)) * size).astype(np.float32)
        wanted = x.astype(np.float64) @ weights.T.astype(np.float64)
        error = ERRORS[data_bytes] * np.abs(wanted).max() + 1e-36
        np.testing.assert_allclose(run(x, packed, by, middle), wanted, rtol=0, atol=error)
    for value in (np.inf, -np.inf, np.nan):
        x = RNG.standard_normal((2, form.depth), dtype=np.float32)
        x[1, 40] = value
        with np.errstate(invalid="ignore"):
            wanted = x @ weights.T
        error = ERRORS[data_bytes] * np.abs(wanted[0]).max()
        np.testing.assert_allclose(run(x, packed, by, middle), wanted, rtol=1e-4, atol=max(error, 1e-4))
