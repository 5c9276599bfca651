"""Attention that is split over keys, and that of short sequences, run on the host, beside numpy in float64."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cutlass_kernel_builder import build_simt
from test_cutlass_attention_fill import Problem

from packager.backends.cutlass.attention.kernels import AttentionForm, warp_kernels
from packager.backends.cutlass.attention.match import Attention
from packager.backends.cutlass.attention.problem import AttentionProblem, rank_attention
from packager.backends.cutlass.core.options import CutlassOptions
from packager.graph.attention.heads import Heads

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Case:
    """An attention of random numbers; ``shared`` is the number of heads of keys."""

    batch: int = 1
    shared: int = 2
    group: int = 1
    queries: int = 1
    keys: int = 300
    depth: int = 64
    value_depth: int = 64
    bias: str = ""
    causal: bool = False
    softcap: float = 0.0
    half: bool = True
    lengths: tuple[int, ...] = ()
    rows_first: bool = False
    sinks: bool = False

    @property
    def kernel_depth(self) -> int:
        """Head dims of the kernel."""
        return next(depth for depth in (64, 128, 256) if max(self.depth, self.value_depth) <= depth)


CASES = {
    "one row": Case(),
    "a group": Case(group=4),
    "groups of several batches": Case(batch=2, shared=1, group=7, keys=129),
    "sixteen queries of a group": Case(group=3, queries=16, keys=70),
    "fewer keys than a step": Case(keys=5),
    "one key": Case(keys=1, queries=3),
    "many keys": Case(shared=1, keys=3001, group=2),
    "wide heads": Case(depth=128, value_depth=128, group=8),
    "heads of 40": Case(depth=40, value_depth=40, queries=4),
    "heads of 80": Case(depth=80, value_depth=80, queries=2),
    "heads of 96": Case(depth=96, value_depth=96, group=2),
    "heads of 160": Case(depth=160, value_depth=160, keys=90),
    "heads of 256": Case(depth=256, value_depth=256, group=2, keys=90),
    "values of another depth": Case(depth=192, value_depth=128, keys=90),
    "narrow values": Case(depth=64, value_depth=8, keys=90),
    "bfloat16": Case(half=False, group=4, bias="dense"),
    "bias of keys": Case(batch=2, bias="keys", group=2),
    "bias": Case(bias="dense", group=2, queries=5, keys=203),
    "bias of odd rows": Case(bias="dense", group=2, queries=5, keys=201),
    "a cache that is filled in part": Case(bias="cache", keys=3000, group=2, shared=1),
    "a cache that is filled in part, several rows": Case(bias="cache", keys=2000, queries=6, shared=1),
    "an empty cache": Case(bias="empty", keys=700, queries=2),
    "lowest numbers": Case(bias="lowest", keys=200),
    "causal": Case(causal=True, queries=9, keys=40),
    "cap": Case(softcap=5.0, group=2, bias="dense"),
    "lengths": Case(batch=3, lengths=(5, 0, 130), keys=200),
    "rows before heads": Case(rows_first=True, group=2, queries=3, batch=2),
    "sinks": Case(sinks=True, group=3, queries=4, batch=2),
    "sinks of many keys": Case(sinks=True, shared=1, keys=3001, group=2, bias="dense"),
    "sinks of wide heads": Case(sinks=True, depth=256, value_depth=256, keys=90, causal=True, queries=5),
    "sinks without keys": Case(sinks=True, batch=3, lengths=(5, 0, 130), keys=200),
}


@pytest.fixture(scope="module")
def attend(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return build_simt("attention_split", tmp_path_factory.mktemp("simt")).attend


def bias_of(case: Case, rng: np.random.Generator) -> Any:
    """Return [batch or 1, heads or 1, queries or 1, keys]."""
    heads, shape = case.shared * case.group, (case.queries, case.keys)
    if case.bias == "keys":
        return np.where(rng.random((case.batch, 1, 1, case.keys)) < 0.3, -np.inf, 0.0)
    if case.bias == "dense":
        return rng.standard_normal((case.batch, heads, *shape))
    later = np.arange(case.keys) > 100 + np.arange(case.queries)[:, None]
    if case.bias == "cache":
        return np.where(later, -np.inf, 0.0)[None, None]
    if case.bias == "empty":
        return np.where(later & (np.arange(case.queries)[:, None] == 1), 0.0, -np.inf)[None, None]
    if case.bias == "lowest":
        return np.full((1, 1, *shape), -65504.0)
    return None


def expected(case: Case, q: Any, k: Any, v: Any, bias: Any, sinks: Any, scale: float) -> Any:
    k, v = (np.repeat(x, case.group, axis=1) for x in (k, v))
    scores = q @ k.swapaxes(2, 3) * scale
    if case.softcap:
        scores = case.softcap * np.tanh(scores / case.softcap)
    scores = scores if bias is None else scores + bias
    places = np.arange(case.keys)
    if case.causal:
        scores = np.where(places > np.arange(case.queries)[:, None], -np.inf, scores)
    if case.lengths:
        scores = np.where(places >= np.array(case.lengths)[:, None, None, None], -np.inf, scores)
    if case.sinks:
        scores = np.concatenate([scores, np.broadcast_to(sinks[:, None, None], (*scores.shape[:3], 1))], -1)
        v = np.concatenate([v, np.zeros_like(v[:, :, :1])], 2)
    most = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(most), 0.0, most))
    total = weights.sum(-1, keepdims=True)
    return weights @ v / np.where(total == 0, 1.0, total)


@dataclass(frozen=True)
class Made:
    """The problem of a case; ``kept`` is the memory that it points to, ``result`` that of its output."""

    problem: Problem
    kept: tuple[Any, ...]
    result: Any
    wanted: Any

    def check(self, *, half: bool) -> None:
        """Compare the result with what numpy computes in float64."""
        tolerance = 2e-3 if half else 1.6e-2
        got = self.result.astype(np.float64)
        np.testing.assert_allclose(got, self.wanted, rtol=tolerance, atol=tolerance)


def make(case: Case) -> Made:
    """Return the problem of random numbers, without workspace and counters."""
    rng, dtype = np.random.default_rng(0), np.float16 if case.half else ml_dtypes.bfloat16
    heads = case.shared * case.group

    def made(count: int, rows: int, depth: int) -> Any:
        shape = (case.batch, rows, count, depth) if case.rows_first else (case.batch, count, rows, depth)
        return rng.standard_normal(shape).astype(dtype)

    arrays = {"q": made(heads, case.queries, case.depth), "k": made(case.shared, case.keys, case.depth)}
    arrays |= {"v": made(case.shared, case.keys, case.value_depth)}
    arrays["o"] = np.full_like(made(heads, case.queries, case.value_depth), np.nan)
    problem = Problem(scale=0.3, softcap=case.softcap)
    for field in ("batch", "queries", "keys", "depth", "value_depth", "group"):
        setattr(problem, field, getattr(case, field))
    problem.heads = heads
    for letter, array in arrays.items():
        setattr(problem, letter, array.ctypes.data)
        first, second, third = (stride // 2 for stride in array.strides[:3])
        row, head = (second, third) if case.rows_first else (third, second)
        getattr(problem, f"{letter}_strides")[:] = (first, row, head)
    bias, narrow = bias_of(case, rng), None
    if bias is not None:
        narrow = np.ascontiguousarray(bias.astype(dtype))
        bias, problem.bias = narrow.astype(np.float64), narrow.ctypes.data
        problem.bias_strides[:] = [s // 2 if e > 1 else 0 for s, e in zip(narrow.strides, narrow.shape, strict=True)][
            :3
        ]
    sinks = rng.standard_normal(heads).astype(np.float32) * 2
    if case.sinks:
        problem.sinks = sinks.ctypes.data
    lengths = np.array(case.lengths, np.int32)
    if case.lengths:
        problem.lengths = lengths.ctypes.data
    order = (0, 2, 1, 3) if case.rows_first else (0, 1, 2, 3)
    q, k, v = (arrays[letter].astype(np.float64).transpose(order) for letter in "qkv")
    kept = (arrays, narrow, lengths, sinks)
    wanted = expected(case, q, k, v, bias, sinks, 0.3)
    for index, length in enumerate(case.lengths):
        for letter in "kv":  # padding may be anything
            arrays[letter][index, :, length:] = np.nan
    return Made(problem, kept, arrays["o"].transpose(order), wanted)


@pytest.mark.sampled(6, every_value=False)
@pytest.mark.parametrize("multiprocessors", [7, 132])
@pytest.mark.parametrize(("tiled", "cluster"), [(False, 0), (True, 0), (True, 8)])
@pytest.mark.parametrize("name", CASES)
def test_attention_of_few_rows_is_that_of_numpy(
    attend: Any, name: str, tiled: bool, cluster: int, multiprocessors: int
) -> None:
    case = CASES[name]
    made = make(case)
    workspace, counters = np.full(1 << 24, 0x7F, np.uint8), np.zeros(1 << 16, np.uint8)
    made.problem.workspace, made.problem.counters = workspace.ctypes.data, counters.ctypes.data
    form = (case.half, case.causal, case.kernel_depth, tiled, cluster)
    splits = attend(ctypes.byref(made.problem), *form, multiprocessors)
    assert splits >= 1
    assert splits % (cluster or 1) == 0
    if name == "many keys" and multiprocessors == 132:
        assert splits > (cluster or 1)  # parts that are merged through memory
    assert not counters.any()  # again
    made.check(half=case.half)


SHORT = {
    "pixels of a patch": Case(batch=5, shared=4, queries=16, keys=16, depth=8, value_depth=8),
    "frames": Case(batch=3, shared=3, queries=8, keys=8, rows_first=True),
    "one query": Case(batch=2, queries=1, keys=30),
    "one key": Case(keys=1, queries=3),
    "a group": Case(group=4, queries=5, keys=20),
    "several tiles": Case(queries=49, keys=49, depth=32, value_depth=32, bias="dense"),
    "several tiles of a group": Case(batch=2, group=3, queries=7, keys=33, depth=40, value_depth=40),
    "as many keys as there can be": Case(queries=64, keys=64, depth=128, value_depth=128),
    "wide heads": Case(queries=10, keys=17, depth=80, value_depth=80, bias="keys", batch=2),
    "values of another depth": Case(queries=10, keys=30, depth=24, value_depth=96),
    "bfloat16": Case(half=False, group=2, queries=9, keys=31, bias="dense"),
    "bias of even rows": Case(bias="dense", group=2, queries=5, keys=22),
    "keys of which none is left": Case(bias="empty", keys=32, queries=2),
    "lowest numbers": Case(bias="lowest", keys=20, queries=12),
    "causal": Case(causal=True, queries=40, keys=40),
    "causal group": Case(causal=True, group=2, queries=9, keys=12),
    "cap": Case(softcap=5.0, group=2, bias="dense", keys=25, queries=3),
    "lengths": Case(batch=3, lengths=(5, 0, 27), keys=27, queries=4),
    "sinks": Case(sinks=True, batch=2, group=2, queries=9, keys=31, bias="dense"),
    "sinks without keys": Case(sinks=True, batch=3, lengths=(5, 0, 27), keys=27, queries=4),
}


@pytest.fixture(scope="module")
def attend_short(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return build_simt("attention_warps", tmp_path_factory.mktemp("simt")).attend


@pytest.mark.parametrize("name", SHORT)
def test_attention_of_short_sequences_is_that_of_numpy(attend_short: Any, name: str) -> None:
    case = SHORT[name]
    made = make(case)
    dtype = "float16" if case.half else "bfloat16"
    (kernel,) = warp_kernels(AttentionForm(dtype, case.depth, case.value_depth, case.causal, 8), case.keys)
    tiles = case.batch * case.shared * -(-case.group * case.queries // 16)
    blocks = attend_short(ctypes.byref(made.problem), case.half, case.causal, kernel.depth, kernel.keys)
    assert blocks == -(-tiles // 4)
    made.check(half=case.half)


def test_more_keys_are_refused(attend_short: Any) -> None:
    made = make(Case(queries=4, keys=33))
    assert attend_short(ctypes.byref(made.problem), True, False, 64, 32) < 0


@pytest.mark.parametrize("arch", [("sm_90a",), ("sm_80",), ("sm_80", "sm_90a")])
@pytest.mark.parametrize(
    ("batch", "heads", "queries", "keys", "depth", "group", "chosen"),
    [
        (1568, 4, 16, 16, 8, 1, "pk_attention_warps_f16_16x32"),
        (196, 12, 8, 8, 64, 1, "pk_attention_warps_f16_16x64"),
        (1, 12, 32, 20, 64, 1, "pk_attention_warps_f16_32x64"),
        (2, 12, 8, 32, 64, 4, "pk_attention_warps_f16_32x64"),  # four heads of queries have one of keys
        (512, 3, 49, 49, 32, 1, "pk_attention_warps_f16_64x32"),
        ("n", 3, 16, 16, 64, 1, "pk_attention_warps_f16_16x64"),
        (64, 8, 16, 60, 64, 1, "pk_attention_warps_f16_64x64"),
        (8, 12, 16, 60, 64, 1, ""),  # few heads
        (8, 12, 49, 49, 32, 1, ""),
        (512, 3, 49, 49, 64, 1, ""),
        (512, 3, 65, 65, 32, 1, ""),
        (2, 12, 16, 32, 64, 12, ""),  # a tile of 192 rows
        (8, 12, "n", 16, 64, 1, ""),
    ],
)
def test_what_is_short(
    arch: tuple[str, ...], batch: Any, heads: int, queries: Any, keys: int, depth: int, group: int, chosen: str
) -> None:
    found = problem(batch, heads, queries, keys, depth, group)
    ranking = rank_attention(found, CutlassOptions(arch=arch))
    names = ranking.candidates[0].name.split("+")
    assert all(name == chosen if chosen else "warps" not in name for name in names)
    assert len(ranking.candidates) > bool(chosen), "what is not, too"


def problem(batch: Any, heads: int, queries: Any, keys: int, depth: int, group: int) -> AttentionProblem:
    width = heads * depth
    rows, shared = Heads(None, 0, width, depth), Heads(None, 0, width // group, depth, group=group)
    attention = Attention((), rows, shared, shared, rows, batch, heads, queries, keys, depth, depth, 1.0)
    return AttentionProblem(attention, AttentionForm("float16", depth, depth, False, 8))
