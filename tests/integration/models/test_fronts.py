"""What a model is does not depend on how it was exported: forms of layers, from both ONNX exporters and torch.export.

For a GPU all become the same partitions, and the rewritten module computes what torch does; so do bundles for CPUs.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import packager
from packager.graph.dataflow import bindings_of, called_function, operator_of
from packager.lower.legalize.normalize import expand_norms
from packager.lower.lowering import lower
from packager.pipeline.import_models import import_model
from packager.pipeline.options import BuildOptions
from packager.pipeline.request import make_build_request
from tests.stages import placed_file
from tests.unit.tvm_machine import compute

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

pytestmark = pytest.mark.slow
torch.backends.mha.set_fastpath_enabled(False)  # an operator of its own, which torch's older ONNX exporter refuses

BATCH, ROWS, HEADS, DEPTH = 2, 16, 4, 32
WIDTH = HEADS * DEPTH
LATER = torch.ones(ROWS, ROWS, dtype=torch.bool).triu(1)
FAR = LATER | torch.ones(ROWS, ROWS, dtype=torch.bool).tril(-5)
SLOPES = torch.tensor([2.0 ** -(1 + head) for head in range(HEADS)]).view(HEADS, 1, 1)
ALIBI = SLOPES * torch.arange(1 - ROWS, 1).view(1, 1, ROWS)
SINKS = torch.linspace(-1, 2, HEADS).view(1, HEADS, 1, 1)
ROW_FACTORS = torch.rand(ROWS, 1) + 0.5
LOWEST = torch.finfo(torch.float32).min


def added(masked: Any, low: float = -torch.inf) -> Any:
    return torch.zeros(masked.shape).masked_fill(masked, low)


class Attention(nn.Module):
    """Projections around ``core(q, k, v, *masks)`` of [batch, heads, rows, depth]."""

    def __init__(self, core: Callable[..., Any], kv_heads: int = HEADS, depth: int = DEPTH) -> None:
        super().__init__()
        self.core, self.kv_heads, self.depth = core, kv_heads, depth
        self.q, self.o = nn.Linear(WIDTH, HEADS * depth), nn.Linear(HEADS * depth, WIDTH)
        self.k, self.v = nn.Linear(WIDTH, kv_heads * depth), nn.Linear(WIDTH, kv_heads * depth)

    def forward(self, x: Any, *masks: Any) -> Any:
        b, rows, _ = x.shape
        q = self.q(x).view(b, rows, HEADS, self.depth).transpose(1, 2)
        k, v = (p(x).view(b, rows, self.kv_heads, self.depth).transpose(1, 2) for p in (self.k, self.v))
        return self.o(self.core(q, k, v, *masks).transpose(1, 2).reshape(b, rows, HEADS * self.depth))


class Layers(nn.Module):
    """Two layers of attention, each with a mask of its own, as ModernBERT's; exporters share their constants."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Attention(attend), Attention(attend)

    def forward(self, x: Any, mask: Any, other: Any) -> Any:
        return self.second(self.first(x, mask), other)


class Fused(nn.Module):
    """Projections in one matrix, in several orders of queries, keys, values and heads."""

    def __init__(self, split: Callable[[Any], Any], core: Callable[..., Any], turned: bool = True) -> None:
        super().__init__()
        self.split, self.core, self.turned = split, core, turned
        self.qkv, self.o = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        q, k, v = (part.transpose(1, 2) if self.turned else part for part in self.split(self.qkv(x)))
        return self.o(self.core(q, k, v).transpose(1, 2).reshape(x.shape))


class MultiHead(nn.Module):
    """Torch's own: sequence first inside, queries, keys and values in one matrix; ``turned``: outside, too."""

    def __init__(self, weights: bool = False, turned: bool = False, mask: Any = None) -> None:
        super().__init__()
        self.weights, self.turned, self.mask = weights, turned, mask
        self.inner = nn.MultiheadAttention(WIDTH, HEADS, batch_first=not turned)

    def forward(self, x: Any, padding: Any = None) -> Any:
        x = x.transpose(0, 1) if self.turned else x
        x = self.inner(x, x, x, padding, need_weights=self.weights, attn_mask=self.mask)[0]
        return x.transpose(0, 1) if self.turned else x


class Relative(nn.Module):
    """Attention without a scale, with a bias of relative positions, as T5's."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention(self.core)
        self.bias = nn.Embedding(2 * ROWS, HEADS)
        self.register_buffer("places", torch.arange(ROWS)[None] - torch.arange(ROWS)[:, None] + ROWS)

    def core(self, q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.transpose(-1, -2) + self.bias(self.places).permute(2, 0, 1)[None] + added(LATER, LOWEST)
        return torch.softmax(scores.float(), -1).type_as(scores) @ v

    def forward(self, x: Any) -> Any:
        return self.attention(x)


class Windows(nn.Module):
    """Attention in windows of half the rows, with a bias and a mask for each window, as Swin's."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention(self.core)
        self.bias = nn.Parameter(torch.randn(HEADS, ROWS // 2, ROWS // 2))
        self.register_buffer("mask", torch.randn(2, ROWS // 2, ROWS // 2).sign().clamp(max=0) * 100)

    def core(self, q: Any, k: Any, v: Any) -> Any:
        scores = (q * DEPTH**-0.5) @ k.transpose(-1, -2) + self.bias[None]
        own = scores.shape
        scores = scores.view(own[0] // 2, 2, *own[1:]) + self.mask[:, None][None]
        return torch.softmax(scores.view(own), -1) @ v

    def forward(self, x: Any) -> Any:
        return self.attention(x.view(BATCH * 2, ROWS // 2, WIDTH)).view(x.shape)


class Apart(nn.Module):
    """Attention in windows that stand as axes of their own, ``leading`` in the order in which they precede rows.

    ``result`` is the order of [*leading, rows, depth] in which the result is read.
    """

    def __init__(self, leading: str, result: str, core: Callable[..., Any]) -> None:
        super().__init__()
        self.leading, self.result, self.core = leading, result, core
        self.qkv, self.o = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        windows = x.view(BATCH, 2, 2, ROWS // 4, WIDTH) if "x" in self.leading else x.view(BATCH, 4, ROWS // 4, WIDTH)
        axes = "byxnshd" if "x" in self.leading else "bynshd"
        parts = self.qkv(windows).view(*windows.shape[:-1], 3, HEADS, DEPTH)
        q, k, v = parts.permute([axes.index(axis) for axis in "s" + self.leading + "nd"]).unbind(0)
        made = self.core(q, k, v)
        return self.o(made.permute([(self.leading + "nd").index(axis) for axis in self.result]).reshape(x.shape))


class ChannelsFirst(nn.Module):
    """Attention of images with channels before pixels: its result is values times transposed weights."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.o = nn.Conv2d(32, 3 * WIDTH, 1), nn.Conv2d(WIDTH, 32, 1)
        self.bias = nn.Parameter(torch.randn(HEADS, 64, 64))

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).view(2, HEADS, 3 * DEPTH, 64).chunk(3, 2)
        weights = torch.softmax(q.transpose(-1, -2) @ k * DEPTH**-0.5 + self.bias, -1)
        return self.o((v @ weights.transpose(-1, -2)).reshape(2, WIDTH, 8, 8))


def scores(q: Any, k: Any) -> Any:
    return q @ k.transpose(-1, -2) / DEPTH**0.5


def softmax(masked: Any, v: Any) -> Any:
    return torch.softmax(masked, -1) @ v


def plain(q: Any, k: Any, v: Any) -> Any:
    return softmax(scores(q, k), v)


def sunk(q: Any, k: Any, v: Any, masked: Any = 0.0) -> Any:
    """As gpt-oss's: one more score of each head, whose weight has no value."""
    found = (scores(q, k) + masked).to(q.dtype)
    found = torch.cat([found, SINKS.to(q.dtype).expand(q.shape[0], -1, q.shape[2], -1)], -1)
    weights = torch.softmax(found - found.max(-1, keepdim=True).values, -1)
    return weights[..., :-1] @ v


def interleaved(x: Any) -> Any:
    return x.repeat_interleave(HEADS // x.shape[1], 1)


def repeated(x: Any) -> Any:
    b, heads, rows, depth = x.shape
    return x[:, :, None].expand(b, heads, HEADS // heads, rows, depth).reshape(b, HEADS, rows, depth)


def repeated_before(x: Any) -> Any:
    """As Meta's Llama: heads are repeated before they are transposed to."""
    b, heads, rows, depth = x.shape
    once = x.transpose(1, 2)[:, :, :, None]
    return once.expand(b, rows, heads, HEADS // heads, depth).reshape(b, rows, HEADS, depth).transpose(1, 2)


def in_three_axes(q: Any, k: Any, v: Any) -> Any:
    """As OPT's and BLOOM's: batch and heads are one axis, and apart where the mask is added."""
    q, k, v = (x.reshape(BATCH * HEADS, ROWS, DEPTH) for x in (q, k, v))
    alibi = ALIBI.expand(HEADS, 1, ROWS).repeat(BATCH, 1, 1)
    found = torch.baddbmm(alibi, q, k.transpose(1, 2), beta=1.0, alpha=DEPTH**-0.5)
    found = found.view(BATCH, HEADS, ROWS, ROWS) + added(LATER, LOWEST)
    return torch.bmm(torch.softmax(found, -1).view(BATCH * HEADS, ROWS, ROWS), v).view(BATCH, HEADS, ROWS, DEPTH)


class Rotary(nn.Module):
    """Queries and keys are rotated by angles that are of the model."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(ROWS)[:, None] * (10.0 ** -torch.arange(DEPTH // 2))[None].repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        turned = [torch.cat([-x[..., DEPTH // 2 :], x[..., : DEPTH // 2]], -1) for x in (q, k)]
        q, k = (x * self.cos + y * self.sin for x, y in zip((q, k), turned, strict=True))
        return attend(q, k, v, is_causal=True)


def cosine(q: Any, k: Any, v: Any, mask: Any = 0.0) -> Any:
    """As Swin V2's."""
    return softmax(F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-1, -2) * (SLOPES * 20) + mask, v)


def rms(x: Any) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * GAIN


def heads_first(x: Any) -> Any:
    return x.reshape(BATCH, ROWS, 3, HEADS, DEPTH).permute(2, 0, 3, 1, 4).unbind(0)


def attend(q: Any, k: Any, v: Any, mask: Any = None, **options: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)


PADDING = torch.ones(BATCH, 1, 1, ROWS, dtype=torch.bool).index_fill_(3, torch.arange(12, ROWS), False)
EMPTY = torch.ones(BATCH, 1, ROWS, ROWS, dtype=torch.bool).index_fill_(2, torch.arange(3), False)
CAUSAL = added(LATER)

FORMS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "sdpa": (Attention(attend), ()),
    "sdpa causal": (Attention(lambda q, k, v: attend(q, k, v, is_causal=True)), ()),
    "sdpa scale": (Attention(lambda q, k, v: attend(q, k, v, scale=0.5)), ()),
    "sdpa padding": (Attention(attend), (PADDING,)),
    "sdpa rows without keys": (Attention(attend), (EMPTY,)),
    "sdpa two layers": (Layers(), (PADDING, ~FAR[None, None] & PADDING)),
    "sdpa float": (Attention(attend), (torch.randn(BATCH, 1, ROWS, ROWS),)),
    "sdpa causal and padding": (Attention(lambda q, k, v, m: attend(q, k, v, m & ~LATER)), (PADDING,)),
    "sdpa causal by value": (Attention(lambda q, k, v: attend(q, k, v, ~LATER)), ()),
    "sdpa sliding window": (Attention(lambda q, k, v: attend(q, k, v, ~FAR)), ()),
    "sdpa alibi": (Attention(lambda q, k, v: attend(q, k, v, ALIBI + CAUSAL)), ()),
    "sdpa wide heads": (Attention(attend, depth=128), ()),
    "sdpa odd heads": (Attention(attend, depth=80), ()),
    "sdpa groups": (Attention(lambda q, k, v: attend(q, repeated(k), repeated(v)), kv_heads=2), ()),
    "interleaved groups": (Attention(lambda q, k, v: attend(q, interleaved(k), interleaved(v)), kv_heads=2), ()),
    "groups before the transpose": (
        Attention(lambda q, k, v: attend(q, repeated_before(k), repeated_before(v)), kv_heads=2),
        (),
    ),
    "one head repeated": (Attention(lambda q, k, v: attend(q, repeated(k), repeated(v)), kv_heads=1), ()),
    "divided": (Attention(plain), ()),
    "sinks": (Attention(sunk), ()),
    "sinks and a window of groups": (
        Attention(lambda q, k, v: sunk(q, repeated(k), repeated(v), added(FAR)), kv_heads=2),
        (),
    ),
    "sinks and padding": (Attention(lambda q, k, v, m: sunk(q, k, v, torch.where(m, 0.0, LOWEST))), (PADDING,)),
    "queries scaled": (Attention(lambda q, k, v: softmax(q * 0.2 @ k.transpose(-1, -2), v)), ()),
    "keys scaled": (Attention(lambda q, k, v: softmax(q @ (k / 5).transpose(-1, -2), v)), ()),
    "both scaled": (Attention(lambda q, k, v: softmax((q * 0.4) @ (k.transpose(-1, -2) * 0.4), v)), ()),
    "no scale": (Attention(lambda q, k, v: softmax(q @ k.transpose(-1, -2), v)), ()),
    "scaled after the mask": (Attention(lambda q, k, v, m: softmax((q @ k.transpose(-1, -2) + m) * 0.1, v)), (CAUSAL,)),
    "masked_fill": (Attention(lambda q, k, v: softmax(scores(q, k).masked_fill(LATER, -torch.inf), v)), ()),
    "where lowest": (Attention(lambda q, k, v: softmax(torch.where(LATER, LOWEST, scores(q, k)), v)), ()),
    "where of an input": (Attention(lambda q, k, v, m: softmax(torch.where(m, scores(q, k), -1e9), v)), (PADDING,)),
    "two masks": (Attention(lambda q, k, v, m: softmax(scores(q, k) + ALIBI + m, v)), (CAUSAL,)),
    "mask and where": (Attention(lambda q, k, v, m: softmax((scores(q, k) + m).masked_fill(LATER, -1e4), v)), (ALIBI,)),
    "float32 softmax": (Attention(lambda q, k, v: torch.softmax(scores(q, k).float(), -1).to(q.dtype) @ v), ()),
    "one head of keys": (Attention(plain, kv_heads=1), ()),
    "three axes": (Attention(in_three_axes), ()),
    "rotary": (Attention(Rotary()), ()),
    "multihead": (MultiHead(), ()),
    "multihead causal": (MultiHead(mask=CAUSAL), ()),
    "multihead padding": (MultiHead(), (~PADDING[:, 0, 0],)),
    "multihead with weights": (MultiHead(weights=True), ()),
    "multihead sequence first": (MultiHead(turned=True), ()),
    "relative positions": (Relative(), ()),
    "windows": (Windows(), ()),
    "split": (Fused(lambda x: (p.view(BATCH, ROWS, HEADS, DEPTH) for p in x.split(WIDTH, -1)), attend), ()),
    "chunk by heads": (Fused(lambda x: x.view(BATCH, ROWS, HEADS, 3 * DEPTH).chunk(3, -1), attend), ()),
    "indexed by heads": (Fused(lambda x: x.view(BATCH, ROWS, HEADS, 3, DEPTH).unbind(3), attend), ()),
}

OF_HEADS, OF_WINDOWS = torch.randn(HEADS, ROWS // 4, ROWS // 4), torch.randn(4, 1, ROWS // 4, ROWS // 4)
CUT = LATER[: ROWS // 4, : ROWS // 4]
FORMS |= {
    "windows apart": (Apart("byh", "bynhd", plain), ()),
    "windows behind heads": (Apart("bhy", "bynhd", plain), ()),
    "heads interleaved": (Apart("bhy", "byndh", plain), ()),
    "heads first": (Apart("hby", "bynhd", plain), ()),
    "windows of two axes": (Apart("byxh", "byxnhd", plain), ()),
    "windows with biases": (Apart("byh", "bynhd", lambda q, k, v: softmax(scores(q, k) + OF_HEADS, v)), ()),
    "windows with masks": (
        Apart("byh", "bynhd", lambda q, k, v: softmax((scores(q, k) + OF_WINDOWS).masked_fill(CUT, -1e9), v)),
        (),
    ),
    "biases behind heads": (
        Apart("bhy", "bynhd", lambda q, k, v: softmax(scores(q, k) + OF_HEADS[:, None] + OF_WINDOWS[None, :, 0], v)),
        (),
    ),
    "transposed weights": (
        Apart(
            "bhy",
            "bynhd",
            lambda q, k, v: (v.transpose(-1, -2) @ torch.softmax(scores(q, k), -1).transpose(-1, -2)).transpose(-1, -2),
        ),
        (),
    ),
}


class OneHead(nn.Module):
    """Attention of three axes, as of non-local networks; ``transposed`` as in the decoders of latent diffusion."""

    def __init__(self, transposed: bool = False, depth: int = WIDTH) -> None:
        super().__init__()
        self.transposed, self.o = transposed, nn.Linear(depth, WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, depth) for _ in range(3))

    def forward(self, x: Any) -> Any:
        q, k, v = self.q(x), self.k(x), self.v(x)
        weights = torch.softmax(torch.bmm(q, k.transpose(1, 2)) * 0.1, dim=2)
        if self.transposed:
            return self.o(torch.bmm(v.transpose(1, 2), weights.transpose(1, 2)).transpose(1, 2))
        return self.o(torch.bmm(weights, v))


GAIN, SHIFT = torch.rand(DEPTH) + 0.5, torch.randn(DEPTH)
FORMS |= {
    "one head": (OneHead(), ()),
    "one head of 64": (OneHead(depth=64), ()),
    "one head transposed": (OneHead(transposed=True), ()),
    "cosine": (Attention(cosine), ()),
    "cosine with a mask": (Attention(cosine), (CAUSAL,)),
    "cosine packed": (Fused(heads_first, cosine, turned=False), ()),
    "factors of rows": (Attention(lambda q, k, v: softmax(q @ k.transpose(-1, -2) / (ROW_FACTORS * 9), v)), ()),
    "factors after a mask": (Attention(lambda q, k, v, m: softmax((scores(q, k) + m) * ROW_FACTORS, v)), (ALIBI,)),
    "normalized heads": (
        Fused(
            heads_first,
            lambda q, k, v: attend(*(F.layer_norm(x, (DEPTH,), GAIN, SHIFT) for x in (q, k)), v),
            turned=False,
        ),
        (),
    ),
    "rms of heads": (
        Fused(heads_first, lambda q, k, v: attend(rms(q), rms(k), v), turned=False),
        (),
    ),
}
IMAGE = (torch.randn(2, 32, 8, 8),)


class Gated(nn.Module):
    """down(activation(gate(x)) * up(x)); one matrix for gate and up if ``fused``."""

    def __init__(self, activation: Callable[[Any], Any], fused: bool = False) -> None:
        super().__init__()
        self.activation, self.fused = activation, fused
        self.wide, self.up = nn.Linear(WIDTH, 128 if fused else 64), nn.Linear(WIDTH, 64)
        self.down = nn.Linear(64, WIDTH)

    def forward(self, x: Any) -> Any:
        gate, up = self.wide(x).chunk(2, -1) if self.fused else (self.wide(x), self.up(x))
        return self.down(self.activation(gate) * up)


class Rms(nn.Module):
    """As Llama's norms."""

    def __init__(self, one: bool = False) -> None:
        super().__init__()
        self.weight, self.one, self.after = nn.Parameter(torch.randn(WIDTH)), one, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        wide = x.to(torch.float32)
        normal = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        return self.after(normal * (1 + self.weight) if self.one else self.weight * normal)


class ChannelNorm(nn.Module):
    """As NAFNet's and Restormer's layer norms, of the channels at each place of an image."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.rand(features, 1, 1) + 0.5) for _ in range(2))

    def forward(self, x: Any) -> Any:
        centered = x - x.mean(1, keepdim=True)
        return centered / torch.sqrt((centered**2).mean(1, keepdim=True) + 1e-6) * self.weight + self.bias


def norm(kind: Any, features: int) -> Any:
    made = kind(features)
    for parameter in (made.weight.data, made.bias.data, made.running_mean, made.running_var):
        parameter.copy_(torch.rand(features) + 0.5)
    return made


LAYERS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "conv bn relu": (nn.Sequential(nn.Conv2d(32, 32, 3, bias=False), norm(nn.BatchNorm2d, 32), nn.ReLU()), IMAGE),
    "conv bias bn silu": (nn.Sequential(nn.Conv2d(32, 64, 1), norm(nn.BatchNorm2d, 64), nn.SiLU()), IMAGE),
    "depthwise bn": (
        nn.Sequential(nn.Conv2d(32, 32, 3, groups=32), norm(nn.BatchNorm2d, 32), nn.Hardswish(), nn.Conv2d(32, 16, 1)),
        IMAGE,
    ),
    "bn relu conv": (nn.Sequential(norm(nn.BatchNorm2d, 32), nn.ReLU(), nn.Conv2d(32, 32, 3)), IMAGE),
    "transposed conv bn": (nn.Sequential(nn.ConvTranspose2d(32, 16, 2, 2), norm(nn.BatchNorm2d, 16)), IMAGE),
    "conv1d bn": (nn.Sequential(nn.Conv1d(32, 48, 3), norm(nn.BatchNorm1d, 48), nn.ReLU()), (torch.randn(2, 32, 20),)),
    "group norm silu conv": (nn.Sequential(nn.GroupNorm(4, 32), nn.SiLU(), nn.Conv2d(32, 32, 3)), IMAGE),
    "conv group norm": (nn.Sequential(nn.Conv2d(32, 32, 3), nn.GroupNorm(8, 32), nn.ReLU()), IMAGE),
    "conv channel norm": (nn.Sequential(nn.Conv2d(32, 32, 3), ChannelNorm(32)), IMAGE),
    "channels first": (ChannelsFirst(), IMAGE),
    "swiglu": (Gated(F.silu), ()),
    "geglu": (Gated(F.gelu, fused=True), ()),
    "geglu tanh": (Gated(lambda x: F.gelu(x, approximate="tanh"), fused=True), ()),
    "reglu": (Gated(F.relu), ()),
    "rms": (Rms(), ()),
    "rms one": (Rms(one=True), ()),
    "layer norm": (nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)), ()),
}
FEW = (torch.randn(1, 3, WIDTH),)
GROUPS = Attention(lambda q, k, v: attend(q, repeated(k), repeated(v)), kv_heads=2)
LAYERS |= {
    "swiglu of few rows": (Gated(F.silu), FEW),
    "two swiglus of few rows": (nn.Sequential(Gated(F.silu), Rms(), Gated(F.relu)), FEW),
    "groups of few rows": (GROUPS, FEW),
    "groups of one row": (GROUPS, (torch.randn(2, 1, WIDTH),)),
}
FORMS |= {name: (module, inputs or (torch.randn(BATCH, ROWS, WIDTH),)) for name, (module, inputs) in LAYERS.items()}
for name, (module, masks) in list(FORMS.items()):
    if name not in LAYERS:
        FORMS[name] = (module, (torch.randn(BATCH, ROWS, WIDTH), *masks))

# What the cutlass backend takes, by the names of forms; of all others attention with its projections, and a product.
KINDS: tuple[tuple[dict[str, int], tuple[str, ...]], ...] = (
    (
        {"attention": 1, "dense": 4},
        (
            "sdpa groups",
            "sinks and a window of groups",
            "one head of keys",
            "one head repeated",
            "interleaved groups",
            "groups before the transpose",
        ),
    ),
    # Heads that are turned, or queries that have factors, are one product with others.
    ({"attention": 1, "dense": 2}, ("rotary", "cosine", "cosine with a mask", "factors of rows")),
    ({"attention": 1, "dense": 2}, ("cosine packed", "normalized heads", "rms of heads")),
    ({"dense": 6}, ("factors after a mask",)),
    ({"attention": 1, "dense": 2}, ("split", "chunk by heads", "indexed by heads", "multihead", "multihead causal")),
    ({"attention": 1, "dense": 2}, ("multihead padding", "multihead with weights", "multihead sequence first")),
    ({"attention": 2, "dense": 2}, ("sdpa two layers",)),
    ({"conv2d": 1}, ("conv bn relu", "conv bias bn silu", "depthwise bn", "bn relu conv", "conv channel norm")),
    ({"conv2d": 1}, ("group norm silu conv", "conv group norm", "transposed conv bn", "conv1d bn")),
    ({"dense": 2}, ("swiglu", "reglu", "geglu", "geglu tanh", "swiglu of few rows")),
    ({"dense": 5}, ("two swiglus of few rows",)),
    ({"attention": 1, "dense": 2}, ("groups of one row", "groups of few rows")),
    ({"dense": 1}, ("rms", "rms one", "layer norm")),
    ({"attention": 1, "dense": 2}, ("windows apart", "windows behind heads", "heads interleaved", "heads first")),
    ({"attention": 1, "dense": 2}, ("windows of two axes", "windows with biases", "windows with masks")),
    ({"attention": 1, "dense": 2}, ("biases behind heads", "transposed weights")),
    ({"attention": 1, "conv2d": 2}, ("channels first",)),
)
TAKEN = {name: kinds for kinds, names in KINDS for name in names}
FRONTS = ("onnx", "dynamo", "pt2")
GPU = ("cuda -arch=sm_90a", "cutlass")


def exported(name: str, front: str, folder: Path) -> Path:
    """Export a form."""
    return saved(*FORMS[name], folder / ("m.pt2" if front == "pt2" else f"{front}.onnx"))


def saved(module: Any, inputs: tuple[Any, ...], path: Path) -> Path:
    """Export a module to ``path``, by the exporter that its name tells."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if path.suffix == ".pt2":
            torch.export.save(torch.export.export(module.eval(), inputs), path)
        elif path.stem == "dynamo":
            torch.onnx.export(module.eval(), inputs, path, dynamo=True, verbose=False)
        else:
            torch.onnx.export(module.eval(), inputs, path, dynamo=False, opset_version=17)
    return path


def wanted(name: str, path: Path | None = None) -> Any:
    """What torch computes; of a file of the newer ONNX exporter what onnxruntime does.

    That one masks with the least finite number, so that a row without keys is the mean of all values, not zero.
    """
    module, inputs = FORMS[name]
    if path is not None and path.name == "dynamo.onnx":
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        feeds = {spec.name: x.numpy() for spec, x in zip(session.get_inputs(), inputs, strict=True)}
        return session.run(None, feeds)[0]
    with torch.no_grad():
        return module(*inputs).numpy()


@pytest.mark.sampled(8, every_value=False)
@pytest.mark.parametrize("name", FORMS)
def test_all_fronts_make_the_same_of_a_form(tmp_path: Path, name: str) -> None:
    calls = []
    for front, precision in [*((front, "fp16") for front in FRONTS), (FRONTS[0], "bf16")]:
        model = placed_file(exported(name, front, tmp_path), targets=GPU, precision=precision)
        called = [called_function(binding.value) for binding in bindings_of(lower(model, "cuda").main)]
        taken = [model.partitions[call].partition.composites[0].name for call in called if call in model.partitions]
        assert Counter(kind.removeprefix("cutlass.") for kind in taken) == TAKEN.get(
            name, {"attention": 1, "dense": 1}
        ), (front, precision)
        calls.append(sum(call is not None for call in called))
    assert len(set(calls)) == 1, calls


@pytest.mark.parametrize("name", ["cosine packed", "normalized heads", "rms of heads"])
def test_heads_are_normalized_where_they_lie(tmp_path: Path, name: str) -> None:
    """In one packed product, whose transpose would be a copy."""
    for front in FRONTS:
        model = placed_file(exported(name, front, tmp_path), targets=GPU, precision="fp16")
        called = [called_function(binding.value) or "" for binding in bindings_of(lower(model, "cuda").main)]
        own = [name for name in called if name and name not in model.partitions]
        assert len([name for name in own if "norm" in name]) == 2, front
        assert not any("transpose" in name and "norm" not in name for name in own), front


@pytest.mark.parametrize("precision", [None, "fp16"])
def test_a_norm_of_channels_is_one_kernel(tmp_path: Path, precision: str | None) -> None:
    """With its scale and shift; it reads the convolution's result once, of rows with channels last."""
    for front in FRONTS:
        model = placed_file(exported("conv channel norm", front, tmp_path), targets=GPU[:1], precision=precision)
        called = [called_function(binding.value) or "" for binding in bindings_of(lower(model, "cuda").main)]
        (norm,) = (name for name in called if "normalize" in name)
        assert norm.startswith("fused_normalize_multiply_add"), front
        assert not any("mean" in name or "divide" in name for name in called), front


@pytest.mark.sampled(8, every_value=False)
@pytest.mark.parametrize("name", FORMS)
def test_the_one_form_computes_the_same(tmp_path: Path, name: str) -> None:
    """What a GPU's module computes before it is placed, in float32."""
    for front in FRONTS:
        path = exported(name, front, tmp_path)
        model = import_model(make_build_request(BuildOptions(path, targets=GPU)))
        arguments = [*(tensor.numpy() for tensor in FORMS[name][1]), *model.weights.values()]
        np.testing.assert_allclose(
            compute(expand_norms(model.module), arguments)[0], wanted(name, path), rtol=1e-4, atol=1e-5, err_msg=front
        )


@pytest.mark.parametrize("fill", [0.0, -20.0])
def test_a_number_that_has_a_weight_is_no_mask(tmp_path: Path, fill: float) -> None:
    FORMS["weight"] = (  # the parametrized tests have been collected
        Attention(lambda q, k, v, m: softmax(torch.where(m, scores(q, k), fill), v)),
        (torch.randn(BATCH, ROWS, WIDTH), PADDING),
    )
    model = import_model(make_build_request(BuildOptions(exported("weight", "pt2", tmp_path), targets=GPU)))
    arguments = [*(tensor.numpy() for tensor in FORMS["weight"][1]), *model.weights.values()]
    np.testing.assert_allclose(compute(model.module, arguments)[0], wanted("weight"), rtol=1e-4, atol=1e-5)
    assert any(operator_of(binding.value) == "where" for binding in bindings_of(model.module["main"]))


@pytest.mark.parametrize("front", FRONTS)
def test_a_condition_of_one_element_that_is_always_true(tmp_path: Path, front: str) -> None:
    """As exporters write it for a decoder's step of one token."""
    FORMS["always"] = (  # the parametrized tests have been collected
        Attention(
            lambda q, k, v, m: softmax(torch.where(torch.ones(1, dtype=torch.bool) & m, scores(q, k), -torch.inf), v)
        ),
        (torch.randn(BATCH, ROWS, WIDTH), PADDING),
    )
    model = import_model(make_build_request(BuildOptions(exported("always", front, tmp_path), targets=GPU)))
    arguments = [*(tensor.numpy() for tensor in FORMS["always"][1]), *model.weights.values()]
    np.testing.assert_allclose(compute(model.module, arguments)[0], wanted("always"), rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(12, every_value=False)
@pytest.mark.parametrize("name", FORMS)
def test_cpu_bundles_compute_what_torch_does(tmp_path: Path, name: str) -> None:
    for front in FRONTS:
        model = exported(name, front, tmp_path)
        with packager.load(packager.build(model, tmp_path / f"{front}.so", targets=["llvm", "ccompiler"])) as bundle:
            feeds = {spec.name: x.numpy() for spec, x in zip(bundle.inputs, FORMS[name][1], strict=True)}
            (result,) = bundle.run(feeds).values()
        np.testing.assert_allclose(result, wanted(name, model), rtol=1e-4, atol=2e-5, err_msg=front)
