"""Schedules of the CPU: what is computed once for each value, and what is written out."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tvm")
import tvm
from tvm import s_tir, te, tirx

from packager.graph.rewrite import nodes_of
from packager.lower.cpu.schedule import schedule

CHANNELS, SIDE = 48, 56


def gate() -> tirx.PrimFunc:
    """Return what ends a squeeze-and-excitation block: a product, a sigmoid, and both broadcast over an image."""
    squeezed = te.placeholder((1, 12), name="squeezed")
    weights = te.placeholder((12, CHANNELS), name="weights")
    image = te.placeholder((1, SIDE, SIDE, CHANNELS), name="image")
    k = te.reduce_axis((0, 12), name="k")
    product = te.compute((1, CHANNELS), lambda n, c: te.sum(squeezed[n, k] * weights[k, c], axis=k), name="product")
    opened = te.compute((1, CHANNELS), lambda n, c: tirx.sigmoid(product[n, c]), name="opened")
    gated = te.compute(image.shape, lambda n, y, x, c: image[n, y, x, c] * opened[n, c], name="gated")
    return te.create_prim_func([squeezed, weights, image, gated])


def nests_with(primfunc: Any, name: str) -> list[Any]:
    """Return the outermost loops that have a block with this name inside."""
    body = primfunc.body.block.body
    nests = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    return [nest for nest in nests if any(b.name_hint.startswith(name) for b in nodes_of(nest, s_tir.SBlock))]


def test_a_broadcast_result_is_not_computed_with_the_sum_that_it_reads() -> None:
    """Unrolled over an image, the product's epilogue took LLVM minutes; and each pixel had a sigmoid of its own."""
    scheduled = schedule(gate())
    (gated,) = nests_with(scheduled, "gated")
    assert not any(b.name_hint.startswith("product") for b in nodes_of(gated, s_tir.SBlock))
    assert not [call for call in nodes_of(gated, tvm.ir.Call) if "sigmoid" in str(call.op)]
    unrolled = [loop for loop in nodes_of(scheduled.body, tirx.For) if loop.kind == tirx.ForKind.UNROLLED]
    assert all(int(loop.extent) <= 16 for loop in unrolled)
