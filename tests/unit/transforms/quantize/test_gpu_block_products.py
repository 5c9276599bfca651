"""Which products with weights in blocks stay packed for GPUs, and what these compute where no backend takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from tvm import relax, tirx

from packager.bundle.manifest import Dim
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
    """A product of ``rows`` rows, or of ``least`` and more if 0.

    All scales are ``scale``, zero points ``zero`` if there are some.
    """

    rows: int = 3
    depth: int = 96
    bits: int = 4
    block: int = 32
    zero: float | None = None
    scale: float = 0.125
    dtype: str = "float16"
    least: int = 1

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
    rows = case.rows or tirx.Var("rows", "int64")
    x = relax.Var("x", relax.TensorType((1, rows, case.depth), case.dtype))
    weights = [relax.Var(f"w{i}", relax.TensorType(a.shape, str(a.dtype))) for i, a in enumerate(arrays)]
    builder = relax.BlockBuilder()
    with builder.function("main", [x, *weights], attrs={"num_input": 1}):
        with builder.dataflow():
            turned = builder.emit(R.permute_dims(builder.emit(dequantize_blocks(*weights, form))))
            matrix = turned if case.dtype == "float32" else builder.emit(R.astype(turned, case.dtype))
            result = builder.emit_output(R.matmul(x, matrix))
        builder.emit_func_output(result)
    return builder.get()


def kept(case: Case, module: Any, *, every: bool = False) -> Any:
    """Return the module for a GPU."""
    dims = (Dim("rows", case.least, 2048),)
    return keep_block_weights(module, 1, case.arrays(), on_gpu=True, dims=dims, every=every)


def is_kept(case: Case, *, every: bool = False) -> bool:
    bindings = bindings_of(kept(case, made(case), every=every)["main"])
    return any(operator_of(binding.value) == MATMUL.removeprefix("relax.") for binding in bindings)


STAYS = [
    Case(),
    Case(rows=16, block=128, depth=200, zero=7.0),
    Case(bits=8, block=64, zero=200.0),
    Case(rows=1, block=256, depth=512),
    Case(rows=0),
    Case(rows=0, least=16, zero=3.0),
    Case(scale=0.1),  # no float16, but near one
]
ON_REQUEST = [
    Case(rows=17),
    Case(rows=0, least=17),
    Case(block=16),
    Case(rows=0, dtype="bfloat16", zero=3.0),
]
FOLDED = [
    Case(dtype="float32"),
    Case(block=8),
    Case(bits=2),
    Case(depth=100),  # 8 does not divide it
    Case(scale=1e-6),  # float16 has few bits of it
    Case(scale=1e5),
    Case(zero=7.5),
]


@pytest.mark.parametrize("case", STAYS, ids=str)
def test_products_that_may_have_few_rows_read_packed_weights(case: Case) -> None:
    assert is_kept(case)


@pytest.mark.parametrize("case", ON_REQUEST, ids=str)
def test_others_do_on_request(case: Case) -> None:
    assert not is_kept(case)
    assert is_kept(case, every=True)


@pytest.mark.parametrize("case", FOLDED, ids=str)
def test_what_has_no_kernel_is_dequantized_at_build_time(case: Case) -> None:
    assert not is_kept(case, every=True)


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


def merged(case: Case, other: Case) -> tuple[Any, list[np.ndarray]]:
    """Return the product of the columns of two cases, as merged products are, and the arrays of both."""
    arrays = [*case.arrays(), *other.arrays()]
    x = relax.Var("x", relax.TensorType((1, case.rows, case.depth), case.dtype))
    weights = [relax.Var(f"w{i}", relax.TensorType(a.shape, str(a.dtype))) for i, a in enumerate(arrays)]
    builder = relax.BlockBuilder()
    with builder.function("main", [x, *weights], attrs={"num_input": 1}):
        with builder.dataflow():
            parts = [
                builder.emit(R.astype(builder.emit(R.permute_dims(builder.emit(floats))), case.dtype))
                for floats in (dequantize_blocks(*weights[:3], case.form), dequantize_blocks(*weights[3:], other.form))
            ]
            result = builder.emit_output(R.matmul(x, builder.emit(R.concat(parts, -1))))
        builder.emit_func_output(result)
    return builder.get(), arrays


@pytest.mark.parametrize("zero", [None, 7.0])
def test_merged_products_stay_packed(zero: float | None) -> None:
    """As queries, keys and values are, and gate and up: they were dequantized at build time, four times as large."""
    case, other = Case(zero=zero), Case(scale=0.5, zero=zero)
    module, arrays = merged(case, other)
    module = keep_block_weights(module, 1, arrays, on_gpu=True)
    names = [operator_of(binding.value) for binding in bindings_of(module["main"])]
    assert names.count(MATMUL.removeprefix("relax.")) == 1
    assert "matmul" not in names
    legalizers = {MATMUL: legalize_block_matmul, DEQUANTIZE: legalize_dequantize_blocks}
    module = relax.transform.LegalizeOps(legalizers)(module)
    x = np.random.default_rng(1).standard_normal((1, case.rows, case.depth)).astype(np.float16)
    parts = [dequantized(*arrays[:3], case.form), dequantized(*arrays[3:], other.form)]
    wanted = x.astype(np.float64) @ np.concatenate(parts).astype(np.float64).T
    got = compute(module, [x, *arrays])[0]
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=0, atol=1e-2 * np.abs(wanted).max())


def test_weights_that_are_packed_in_other_ways_are_not_merged() -> None:
    case, other = Case(), Case(bits=8)
    module, arrays = merged(case, other)
    module = keep_block_weights(module, 1, arrays, on_gpu=True, every=True)
    assert "matmul" in [operator_of(binding.value) for binding in bindings_of(module["main"])]
