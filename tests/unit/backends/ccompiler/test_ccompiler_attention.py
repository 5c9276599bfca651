"""Attention of the ccompiler backend against numpy: masks, odd lengths and depths, symbolic dims, other machines."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from ccompiler_runner import STRICT, Runner, evaluate, partition, variable
from tvm import relax, tirx
from tvm.relax import op

from packager.backends.ccompiler.core.machine import Machine
from packager.backends.ccompiler.module import render_module

pytestmark = pytest.mark.slow

rng = np.random.default_rng(0)


def random(*shape: int, dtype: str = "float32") -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float = 1.0, mask: Any = 0.0) -> np.ndarray:
    """Return the attention of [batch, heads, rows, depth]; ``mask`` is added to the scores."""
    q, k, v = (x.astype("f8") for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) * scale + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def split_heads(x: np.ndarray, heads: int) -> np.ndarray:
    """Return [batch, rows, width] as [batch, heads, rows, depth]."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def merge_heads(x: np.ndarray) -> np.ndarray:
    """Return [batch, heads, rows, depth] as [batch, rows, width]."""
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def close(got: np.ndarray, wanted: np.ndarray, tolerance: float = 2e-6) -> None:
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * max(1.0, np.abs(wanted).max()))


def heads_of(e: Any, x: Any, shape: Any, axes: Any = (0, 2, 1, 3)) -> Any:
    return e(op.permute_dims(e(op.reshape(x, shape)), list(axes)))


def encoder(heads: int, depth: int, scale: float, batch: Any, rows: Any, scores: Any = None) -> Any:
    """Return the body of an attention of [batch, rows, width] tensors, as exporters write it."""

    def body(e: Any, q: Any, k: Any, v: Any, *masks: Any) -> Any:
        shape = (batch, rows, heads, depth)
        product = e(op.matmul(heads_of(e, q, shape), heads_of(e, k, shape, (0, 2, 3, 1))))
        product = e(op.multiply(product, relax.const(scale, "float32")))
        if scores is not None:
            product = scores(e, product, *masks)
        weighted = e(op.matmul(e(op.nn.softmax(product, -1)), heads_of(e, v, shape)))
        return e(op.reshape(e(op.permute_dims(weighted, [0, 2, 1, 3])), (batch, rows, heads * depth)))

    return body


@pytest.mark.sampled(2)
@pytest.mark.parametrize("depth", [32, 48, 64, 80, 128])
@pytest.mark.parametrize("rows", [1, 7, 197])
def test_odd_lengths_and_depths(rows: int, depth: int, tmp_path: Path) -> None:
    arguments = [variable(name, (2, rows, 3 * depth)) for name in "qkv"]
    run = Runner(partition(arguments, encoder(3, depth, depth**-0.5, 2, rows)), tmp_path)
    symbols = [function.symbol for function in run.group.functions]
    assert symbols == ["pkc_part_0_attention_pack", "pkc_part_1_attention"]
    q, k, v = (random(2, rows, 3 * depth) for _ in range(3))
    wanted = attend(*(split_heads(x, 3) for x in (q, k, v)), depth**-0.5)
    close(run(q, k, v), merge_heads(wanted))


def test_symbolic_batch_and_length(tmp_path: Path) -> None:
    n, s = tirx.Var("n", "int64"), tirx.Var("s", "int64")
    run = Runner(partition([variable(name, (n, s, 64)) for name in "qkv"], encoder(2, 32, 0.2, n, s)), tmp_path)
    for batch, rows in ((1, 1), (3, 23), (1, 24), (2, 97), (1, 256), (1, 700)):
        q, k, v = (random(batch, rows, 64) for _ in range(3))
        close(run(q, k, v), merge_heads(attend(*(split_heads(x, 2) for x in (q, k, v)), 0.2)))


@pytest.mark.parametrize("keys", [320, 321, 700])
def test_long_sequences_are_taken_in_chunks(keys: int, tmp_path: Path) -> None:
    arguments = [variable("q", (1, 2, 5, 16)), *(variable(name, (1, 2, keys, 16)) for name in "kv")]

    def body(e: Any, q: Any, k: Any, v: Any) -> Any:
        product = e(op.matmul(q, e(op.permute_dims(k, [0, 1, 3, 2]))))
        return e(op.matmul(e(op.nn.softmax(product, -1)), v))

    run = Runner(partition(arguments, body), tmp_path)
    assert len(run.group.functions) == 2
    q, k, v = random(1, 2, 5, 16) * 3, random(1, 2, keys, 16), random(1, 2, keys, 16)
    k[:, :, 650:] *= 5  # the maximum comes last
    # An error of a score is one of its weight: scores of 200, rounded once, have 8e-6.
    largest = (np.abs(q) @ np.abs(k).swapaxes(-1, -2)).max()
    close(run(q, k, v), attend(q, k, v), max(2e-6, 2.0**-23 * float(largest)))


MASKS = [(2, 1, 1, 9), (1, 1, 9, 9), (2, 3, 9, 9), (9, 9), (1, 3, 9, 1), (2, 1, 1, 1)]


@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_added_mask(shape: tuple[int, ...], tmp_path: Path) -> None:
    arguments = [*(variable(name, (2, 9, 48)) for name in "qkv"), variable("m", shape)]
    body = encoder(3, 16, 0.25, 2, 9, lambda e, product, m: e(op.add(product, m)))
    run = Runner(partition(arguments, body), tmp_path)
    assert len(run.group.functions) == 2
    q, k, v = (random(2, 9, 48) for _ in range(3))
    mask = np.where(rng.random(shape) < 0.3, -1e4, random(*shape)).astype("f4")
    mask[..., 0] = 0  # a row of -1e4 alone leaves few digits for the scores
    close(run(q, k, v, mask), merge_heads(attend(*(split_heads(x, 3) for x in (q, k, v)), 0.25, mask)))


@pytest.mark.parametrize("rows", [9, 400])
def test_scores_with_a_soft_cap(rows: int, tmp_path: Path) -> None:
    """As Gemma 2's."""
    arguments = [*(variable(name, (2, rows, 48)) for name in "qkv"), variable("m", (rows, rows))]

    def capped(e: Any, product: Any, m: Any) -> Any:
        bounded = e(op.tanh(e(op.divide(product, relax.const(3.0, "float32")))))
        return e(op.add(e(op.multiply(bounded, relax.const(3.0, "float32"))), m))

    run = Runner(partition(arguments, encoder(3, 16, 0.25, 2, rows, capped)), tmp_path)
    assert len(run.group.functions) == 2
    q, k, v = (random(2, rows, 48) * 2 for _ in range(3))
    mask = np.where(rng.random((rows, rows)) < 0.3, -1e4, 0).astype("f4")
    mask[..., 0] = 0
    heads = [split_heads(x, 3) for x in (q, k, v)]
    scores = 3 * np.tanh(0.25 * heads[0] @ heads[1].swapaxes(-1, -2) / 3) + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    close(run(q, k, v, mask), merge_heads(weights / weights.sum(-1, keepdims=True) @ heads[2]))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("fill", [-np.inf, -1e4])
@pytest.mark.parametrize("inverted", [False, True])
@pytest.mark.parametrize("shape", [(2, 1, 1, 9), (9, 9), (1, 3, 9, 9)], ids=str)
def test_boolean_mask(shape: tuple[int, ...], inverted: bool, fill: float, tmp_path: Path) -> None:
    arguments = [*(variable(name, (2, 9, 48)) for name in "qkv"), variable("m", shape, "bool")]

    def choose(e: Any, product: Any, m: Any) -> Any:
        number = relax.const(fill, "float32")
        return e(op.where(m, number, product) if inverted else op.where(m, product, number))

    run = Runner(partition(arguments, encoder(3, 16, 0.25, 2, 9, choose)), tmp_path)
    assert len(run.group.functions) == 2
    q, k, v = (random(2, 9, 48) for _ in range(3))
    keep = rng.random(shape) < 0.6
    keep[..., 0] = True
    wanted = attend(*(split_heads(x, 3) for x in (q, k, v)), 0.25, np.where(keep, 0.0, -np.inf))
    close(run(q, k, v, ~keep if inverted else keep), merge_heads(wanted))


def test_a_row_without_a_key_is_nan(tmp_path: Path) -> None:
    """As softmax is; in chunks, a chunk without a key for a row is none of its other chunks' business."""
    arguments = [*(variable(name, (1, 700, 16)) for name in "qkv"), variable("m", (700, 700))]
    body = encoder(1, 16, 1.0, 1, 700, lambda e, product, m: e(op.add(product, m)))
    run = Runner(partition(arguments, body), tmp_path)
    q, k, v = (random(1, 700, 16) for _ in range(3))
    mask = np.triu(np.full((700, 700), -np.inf, "f4"), 1)[::-1].copy()
    mask[5] = -np.inf
    mask[6, :600] = -np.inf
    with np.errstate(invalid="ignore"):
        wanted = merge_heads(attend(*(split_heads(x, 1) for x in (q, k, v)), 1.0, mask))
    got = run(q, k, v, mask)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5, equal_nan=True)
    assert np.isnan(got[0, 5]).all()
    assert not np.isnan(got[0, 6]).any()


def fused(e: Any, x: Any, batch: Any, rows: Any, heads: int, depth: int) -> Any:
    """Return q, k and v of one tensor, and scale q and k as ONNX's exporter does."""
    parts = e(op.split(x, 3, axis=-1))
    q, k, v = (e(relax.TupleGetItem(parts, index)) for index in range(3))
    shape = (batch, rows, heads, depth)
    half = relax.const(depth**-0.25, "float32")
    q = e(op.multiply(heads_of(e, q, shape), half))
    k = e(op.multiply(heads_of(e, k, shape, (0, 2, 3, 1)), half))
    return q, k, heads_of(e, v, shape)


def test_heads_of_one_tensor_with_scaled_operands_and_what_follows(tmp_path: Path) -> None:
    n = tirx.Var("n", "int64")
    arguments = [variable("x", (n, 13, 3 * 32)), variable("r", (n, 13, 32)), variable("b", (32,))]

    def body(e: Any, x: Any, r: Any, b: Any) -> Any:
        q, k, v = fused(e, x, n, 13, 2, 16)
        weighted = e(op.matmul(e(op.nn.softmax(e(op.matmul(q, k)), -1)), v))
        merged = e(op.reshape(e(op.permute_dims(weighted, [0, 2, 1, 3])), (n, 13, 32)))
        return e(op.nn.relu(e(op.add(e(op.add(merged, b)), r))))

    run = Runner(partition(arguments, body, [2]), tmp_path)
    assert len(run.group.functions) == 2
    for batch in (1, 3):
        x, r, b = random(batch, 13, 96), random(batch, 13, 32), random(32)
        q, k, v = (split_heads(part, 2) for part in np.split(x, 3, -1))
        close(run(x, r, b), np.maximum(merge_heads(attend(q, k, v, 0.25)) + b + r, 0))


def test_heads_stay_an_axis_of_the_result(tmp_path: Path) -> None:
    arguments = [variable(name, (2, 9, 3, 16)) for name in "qkv"]

    def body(e: Any, q: Any, k: Any, v: Any) -> Any:
        q, k, v = (e(op.permute_dims(x, axes)) for x, axes in ((q, [0, 2, 1, 3]), (k, [0, 2, 3, 1]), (v, [0, 2, 1, 3])))
        weighted = e(op.matmul(e(op.nn.softmax(e(op.matmul(q, k)), -1)), v))
        return e(op.nn.relu(e(op.permute_dims(weighted, [0, 2, 1, 3]))))

    run = Runner(partition(arguments, body), tmp_path)
    assert len(run.group.functions) == 2
    q, k, v = (random(2, 9, 3, 16) for _ in range(3))
    wanted = attend(*(x.transpose(0, 2, 1, 3) for x in (q, k, v)))
    close(run(q, k, v), np.maximum(wanted, 0).transpose(0, 2, 1, 3))


def test_float16(tmp_path: Path) -> None:
    arguments = [variable(name, (2, 19, 48), "float16") for name in "qkv"]

    def body(e: Any, q: Any, k: Any, v: Any) -> Any:
        shape = (2, 19, 3, 16)
        product = e(op.matmul(heads_of(e, q, shape), heads_of(e, k, shape, (0, 2, 3, 1))))
        product = e(op.multiply(product, relax.const(0.25, "float16")))
        weighted = e(op.matmul(e(op.nn.softmax(product, -1)), heads_of(e, v, shape)))
        return e(op.reshape(e(op.permute_dims(weighted, [0, 2, 1, 3])), (2, 19, 48)))

    run = Runner(partition(arguments, body), tmp_path)
    assert len(run.group.functions) == 2
    q, k, v = (random(2, 19, 48, dtype="float16") for _ in range(3))
    close(run(q, k, v).astype("f4"), merge_heads(attend(*(split_heads(x, 3) for x in (q, k, v)), 0.25)), 5e-4)


@pytest.mark.parametrize("machine", [Machine(16, 16, "sse2"), Machine(32, 16, "avx2")], ids=lambda m: str(m.name))
def test_other_machines(machine: Machine, tmp_path: Path) -> None:
    arguments = [variable(name, (1, 45, 80)) for name in "qkv"]
    run = Runner(partition(arguments, encoder(1, 80, 0.1, 1, 45)), tmp_path, machine=machine)
    q, k, v = (random(1, 45, 80) for _ in range(3))
    close(run(q, k, v), merge_heads(attend(*(split_heads(x, 1) for x in (q, k, v)), 0.1)))


HOST = """
#include <stdio.h>
#include <stdlib.h>
int main(void)
{{
    void *a[4], *w[2] = {{{workspaces}}};
    for (int i = 0; i < 4; ++i)
        a[i] = calloc({count}, sizeof(float));
    for (int i = 0; i < 3; ++i)
        if (fread(a[i], sizeof(float), {count}, stdin) != {count})
            return 1;
    {calls}
    return fwrite(a[3], sizeof(float), {count}, stdout) != {count};
}}
"""


def test_arm64(tmp_path: Path) -> None:
    """Compiled for arm64, run by qemu."""
    compiler, emulator = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64")
    if compiler is None or emulator is None:
        pytest.skip("no compiler for arm64, or no qemu")
    part = partition([variable(name, (1, 45, 160)) for name in "qkv"], encoder(2, 80, 0.1, 1, 45))
    source, groups, _ = render_module([part], (), Machine(16, 32, "aarch64"))
    names = {"argument": "a", "workspace": "w"}
    calls = [
        f"{f.symbol}({', '.join(f'{names[p.kind]}[{p.index}]' for p in f.parameters)}, 0, {evaluate(f.extent, {})});"
        for f in groups["part"].functions
    ]
    workspaces = ", ".join(f"aligned_alloc(64, {-(-evaluate(n, {}) // 64) * 64})" for n in groups["part"].workspaces)
    path = tmp_path / "arm64.c"
    path.write_text(source + HOST.format(workspaces=workspaces, calls=" ".join(calls), count=45 * 160))
    command = [compiler, "-std=gnu11", *STRICT, "-O2", "-static", path, "-o", path.with_suffix(""), "-lm"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    q, k, v = (random(1, 45, 160) for _ in range(3))
    data = b"".join(x.tobytes() for x in (q, k, v))
    made = subprocess.run([emulator, path.with_suffix("")], input=data, capture_output=True, check=True).stdout
    wanted = merge_heads(attend(*(split_heads(x, 2) for x in (q, k, v)), 0.1))
    close(np.frombuffer(made, "f4").reshape(wanted.shape), wanted)
