"""Attention over caches: heads before rows, heads that share keys and values, and softmax of rows that see none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from ccompiler_runner import Runner, partition, variable
from tvm import relax, tirx
from tvm.relax import op

pytestmark = pytest.mark.slow

rng = np.random.default_rng(0)


def random(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype("f4")


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: Any = 0.0) -> np.ndarray:
    """Return the attention of [batch, heads, rows, depth], where rows that see no key are zero."""
    q, k, v = (x.astype("f8") for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) + mask
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights = weights / weights.sum(-1, keepdims=True)
    return np.where(np.isnan(weights), 0, weights) @ v


def merge_heads(x: np.ndarray) -> np.ndarray:
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def repeated(e: Any, x: Any, heads: int, shape: Any) -> Any:
    """Return a cache whose heads are repeated, as exporters write it."""
    batch, kept, rows, depth = shape
    wide = e(op.broadcast_to(e(op.expand_dims(x, 2)), (batch, kept, heads // kept, rows, depth)))
    return e(op.reshape(wide, (batch, heads, rows, depth)))


def step(batch: Any, new: Any, past: Any, heads: int, kept: int, *, safe: bool = True) -> Any:
    """Return a step of a decoder: queries [batch, new, width], keys and values of the past and of what is new."""

    def body(e: Any, q: Any, k: Any, v: Any, past_k: Any, past_v: Any, mask: Any) -> Any:
        def split(x: Any, count: int) -> Any:
            return e(op.permute_dims(e(op.reshape(x, (batch, new, count, 16))), [0, 2, 1, 3]))

        keys, values = (e(op.concat([old, split(x, kept)], 2)) for old, x in ((past_k, k), (past_v, v)))
        shape = (batch, kept, past + new, 16)
        wide = [repeated(e, x, heads, shape) if heads > kept else x for x in (keys, values)]
        product = e(op.matmul(split(q, heads), e(op.permute_dims(wide[0], [0, 1, 3, 2]))))
        weights = e(op.nn.softmax(e(op.add(product, mask)), -1))
        if safe:
            weights = e(op.where(e(op.isnan(weights)), relax.const(0.0, "float32"), weights))
        weighted = e(op.permute_dims(e(op.matmul(weights, wide[1])), [0, 2, 1, 3]))
        return e(op.reshape(weighted, (batch, new, heads * 16))), keys, values

    return body


@pytest.mark.sampled(2)
@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("kept", [6, 3, 1])
def test_step_with_a_past(kept: int, safe: bool, tmp_path: Path) -> None:
    n, s, past = (tirx.Var(name, "int64") for name in ("n", "s", "past"))
    arguments = [
        variable("q", (n, s, 96)),
        *(variable(name, (n, s, kept * 16)) for name in "kv"),
        *(variable(name, (n, kept, past, 16)) for name in ("past_k", "past_v")),
        variable("mask", (n, 1, s, past + s)),
    ]
    run = Runner(partition(arguments, step(n, s, past, 6, kept, safe=safe)), tmp_path)
    names = [function.symbol.split("_", 3)[-1] for function in run.group.functions]
    assert names[-2:] == ["attention_pack", "attention"]
    for batch, new, old in ((1, 1, 7), (2, 1, 300), (3, 5, 0), (2, 25, 9)):
        q, k, v = random(batch, new, 96), random(batch, new, kept * 16), random(batch, new, kept * 16)
        old_k, old_v = random(batch, kept, old, 16), random(batch, kept, old, 16)
        mask = np.where(rng.random((batch, 1, new, old + new)) < 0.3, -np.inf, 0).astype("f4")
        mask[..., 0] = 0
        if safe:
            mask[0, 0, 0] = -np.inf  # sees no key
        heads = [x.reshape(batch, new, -1, 16).transpose(0, 2, 1, 3) for x in (q, k, v)]
        keys, values = np.concatenate([old_k, heads[1]], 2), np.concatenate([old_v, heads[2]], 2)
        wanted = merge_heads(attend(heads[0], *(np.repeat(x, 6 // kept, 1) for x in (keys, values)), mask))
        got, made_k, made_v = run(q, k, v, old_k, old_v, mask)
        np.testing.assert_array_equal(made_k, keys)
        np.testing.assert_array_equal(made_v, values)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5)


def test_rows_of_nan_and_infinity_are_zero(tmp_path: Path) -> None:
    """As where(isnan(softmax)) says of scores that have no softmax."""
    arguments = [variable(name, (1, 1, 40, 16)) for name in "qkv"]

    def body(e: Any, q: Any, k: Any, v: Any) -> Any:
        weights = e(op.nn.softmax(e(op.matmul(q, e(op.permute_dims(k, [0, 1, 3, 2])))), -1))
        safe = e(op.where(e(op.isnan(weights)), relax.const(0.0, "float32"), weights))
        return e(op.matmul(safe, v))

    run = Runner(partition(arguments, body), tmp_path)
    assert len(run.group.functions) == 2
    q, k, v = random(1, 1, 40, 16), random(1, 1, 40, 16), random(1, 1, 40, 16)
    q[0, 0, 3, 2], q[0, 0, 17, 5] = np.nan, np.inf
    got = run(q, k, v)
    assert not got[0, 0, 3].any()
    assert not got[0, 0, 17].any()
    q[0, 0, [3, 17]] = 0
    others = [row for row in range(40) if row not in (3, 17)]
    np.testing.assert_allclose(got[0, 0, others], attend(q, k, v)[0, 0, others], rtol=0, atol=1e-5)


def test_keys_with_batch_and_heads_in_one(tmp_path: Path) -> None:
    """As torch's newer exporter transposes keys of a symbolic batch."""
    n, s = tirx.Var("n", "int64"), tirx.Var("s", "int64")

    def body(e: Any, q: Any, k: Any, v: Any) -> Any:
        q, k, v = (e(op.permute_dims(e(op.reshape(x, (n, s, 3, 16))), [0, 2, 1, 3])) for x in (q, k, v))
        turned = e(op.permute_dims(e(op.reshape(k, (3 * n, s, 16))), [0, 2, 1]))
        product = e(op.matmul(q, e(op.reshape(turned, (n, 3, 16, s)))))
        weighted = e(op.permute_dims(e(op.matmul(e(op.nn.softmax(product, -1)), v)), [0, 2, 1, 3]))
        return e(op.reshape(weighted, (n, s, 48)))

    run = Runner(partition([variable(name, (n, s, 48)) for name in "qkv"], body), tmp_path)
    assert len(run.group.functions) == 2
    for batch, rows in ((1, 1), (2, 7), (3, 40)):
        q, k, v = (random(batch, rows, 48) for _ in range(3))
        heads = (x.reshape(batch, rows, 3, 16).transpose(0, 2, 1, 3) for x in (q, k, v))
        np.testing.assert_allclose(run(q, k, v), merge_heads(attend(*heads)), rtol=0, atol=1e-5)
