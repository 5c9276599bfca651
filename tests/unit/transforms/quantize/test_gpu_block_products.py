"""Which products with weights in blocks stay packed for GPUs, and what these compute where no backend takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from tvm import relax

from packager.graph.block_weights import (
    DEQUANTIZE,
    MATMUL,
    BlockFormat,
    dequantize_blocks,
    dequantized,
    legalize_block_matmul,
    legalize_dequantize_blocks,
    pack,
)
from packager.graph.dataflow import bindings_of, operator_of
from packager.transforms.quantize.block_products import keep_block_weights
from tests.unit.tvm_machine import compute

R = relax.op
COLUMNS = 24


@dataclass(frozen=True)
class Case:
    """A product of ``rows`` rows; all scales are ``scale``, zero points ``zero`` if there are some."""

    rows: int = 3
    depth: int = 96
    bits: int = 4
    block: int = 32
    zero: float | None = None
    scale: float = 0.125
    dtype: str = "float16"

    @property
    def form(self) -> BlockFormat:
        return BlockFormat(self.bits, self.block, self.depth, self.zero is not None)

    def arrays(self) -> list[np.ndarray]:
        """Return packed weights, scales, zero points."""
        numbers = np.random.default_rng(0).integers(0, 1 << self.bits, (COLUMNS, self.depth)).astype(np.uint8)
        shape = (COLUMNS, self.form.blocks)
        filled = [np.full(shape, value, np.float32) for value in (self.scale, self.zero or 0)]
        return [pack(numbers, self.form), *filled]


def made(case: Case) -> Any:
    """Return the product as frontends write it: its weights are floats, transposed and cast."""
    form, arrays = case.form, case.arrays()
    x = relax.Var("x", relax.TensorType((1, case.rows, case.depth), case.dtype))
    weights = [relax.Var(f"w{i}", relax.TensorType(a.shape, str(a.dtype))) for i, a in enumerate(arrays)]
    builder = relax.BlockBuilder()
    with builder.function("main", [x, *weights], attrs={"num_input": 1}):
        with builder.dataflow():
            turned = builder.emit(R.permute_dims(builder.emit(dequantize_blocks(*weights, form))))
            matrix = turned if case.dtype == "float32" else builder.emit(R.astype(turned, case.dtype))
            result = builder.emit_output(R.matmul(x, matrix))
        builder.emit_func_output(result)
    return builder.get()


def kept(case: Case, module: Any) -> Any:
    """Return the module for a GPU."""
    return keep_block_weights(module, 1, case.arrays(), on_gpu=True)


def is_kept(case: Case) -> bool:
    bindings = bindings_of(kept(case, made(case))["main"])
    return any(operator_of(binding.value) == MATMUL.removeprefix("relax.") for binding in bindings)


STAYS = [
    Case(),
    Case(rows=16, block=128, depth=200, zero=7.0),
    Case(bits=8, block=64, zero=200.0),
    Case(rows=1, block=256, depth=512),
]
FOLDED = [
    Case(rows=17),
    Case(dtype="float32"),
    Case(block=16),
    Case(bits=2),
    Case(depth=100),  # 8 does not divide it
    Case(scale=0.1),  # no float16
    Case(zero=7.5),
]


@pytest.mark.parametrize("case", STAYS, ids=str)
def test_few_rows_of_halves_read_packed_weights(case: Case) -> None:
    assert is_kept(case)


@pytest.mark.parametrize("case", FOLDED, ids=str)
def test_others_are_dequantized_at_build_time(case: Case) -> None:
    assert not is_kept(case)


@pytest.mark.parametrize("case", STAYS[1:3], ids=str)
def test_the_product_without_a_kernel_is_that_of_numpy(case: Case) -> None:
    arrays = case.arrays()
    legalizers = {MATMUL: legalize_block_matmul, DEQUANTIZE: legalize_dequantize_blocks}
    module = relax.transform.LegalizeOps(legalizers)(kept(case, made(case)))
    x = np.random.default_rng(1).standard_normal((1, case.rows, case.depth)).astype(np.float16)
    wanted = x.astype(np.float64) @ dequantized(*arrays, case.form).astype(np.float64).T
    got = compute(module, [x, *arrays])[0]
    # TVM's own product adds up in float16 here; lowering makes that float32.
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=0, atol=1e-2 * np.abs(wanted).max())
