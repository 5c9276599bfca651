"""Nets that mix: tokens of two texts, experts of tasks, fields, fast and slow pathways, resolutions, chunks of keys."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional

from benchmarks.zoo.entry import Inputs, noise, own


class LateInteraction(nn.Module):
    """ColBERT (arXiv:2004.12832): the best document's token for each of the query's, of 64 documents."""

    def __init__(self, width: int = 384, depth: int = 128) -> None:
        super().__init__()
        self.project = nn.Linear(width, depth, bias=False)

    def forward(self, query: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        """Return the scores [n, documents]."""
        q, d = (functional.normalize(self.project(each), dim=-1) for each in (query, documents))
        return torch.einsum("nqw,ndtw->ndqt", q, d).amax(-1).sum(-1)


class TaskExperts(nn.Module):
    """MMoE (https://doi.org/10.1145/3219819.3220007): eight experts, and for each of three tasks a gate and a tower."""

    def __init__(self, width: int = 512, experts: int = 8, tasks: int = 3) -> None:
        super().__init__()
        made = (nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU()) for _ in range(experts))
        self.experts = nn.ModuleList(made)
        self.gates = nn.ModuleList(nn.Linear(width, experts) for _ in range(tasks))
        towers = (nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1)) for _ in range(tasks))
        self.towers = nn.ModuleList(towers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the probabilities [n, tasks]."""
        found = torch.stack([expert(x) for expert in self.experts], 1)
        each = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            mixed = (gate(x).softmax(-1)[..., None] * found).sum(1)
            each.append(tower(mixed))
        return torch.cat(each, -1).sigmoid()


class FieldAttention(nn.Module):
    """AutoInt (arXiv:1810.11921): attention between the fields of a row, three layers, beside the fields themselves."""

    def __init__(self, fields: int = 26, rows: int = 10_000, depth: int = 16, heads: int = 2, layers: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.tables = nn.Embedding(fields * rows, depth)
        self.register_buffer("begins", torch.arange(fields) * rows)
        widths = [depth] + [32] * layers
        pairs = list(itertools.pairwise(widths))
        self.qkv = nn.ModuleList(nn.Linear(a, 3 * b, bias=False) for a, b in pairs)
        self.beside = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairs)
        self.last = nn.Linear(fields * 32, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the probabilities [n, 1]."""
        x = self.tables(ids + self.begins)
        for qkv, beside in zip(self.qkv, self.beside, strict=True):
            q, k, v = qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            mixed = (q @ k.transpose(2, 3)).softmax(-1) @ v
            x = functional.relu(mixed.transpose(1, 2).flatten(2) + beside(x))
        return self.last(x.flatten(1)).sigmoid()


class Bottleneck(nn.Module):
    """A residual block of volumes."""

    def __init__(self, enter: int, inner: int, leave: int, time: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv3d(enter, inner, (time, 1, 1), padding=(time // 2, 0, 0), bias=False),
            *(nn.BatchNorm3d(inner), nn.ReLU()),
            nn.Conv3d(inner, inner, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False),
            *(nn.BatchNorm3d(inner), nn.ReLU(), nn.Conv3d(inner, leave, 1, bias=False), nn.BatchNorm3d(leave)),
        )
        self.beside = nn.Sequential(nn.Conv3d(enter, leave, 1, (1, stride, stride), bias=False), nn.BatchNorm3d(leave))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's result."""
        return functional.relu(self.body(x) + self.beside(x))


class SlowFast(nn.Module):
    """SlowFast (arXiv:1812.03982): few frames with many channels, many with few, and convolutions from fast to slow."""

    def __init__(self) -> None:
        super().__init__()
        self.slow_stem = nn.Sequential(nn.Conv3d(3, 64, (1, 7, 7), (1, 2, 2), (0, 3, 3)), nn.BatchNorm3d(64), nn.ReLU())
        self.fast_stem = nn.Sequential(nn.Conv3d(3, 8, (5, 7, 7), (1, 2, 2), (2, 3, 3)), nn.BatchNorm3d(8), nn.ReLU())
        self.pool = nn.MaxPool3d((1, 3, 3), (1, 2, 2), (0, 1, 1))
        self.slow = nn.ModuleList([Bottleneck(80, 64, 256, 1, 1), Bottleneck(320, 128, 512, 3, 2)])
        self.fast = nn.ModuleList([Bottleneck(8, 8, 32, 3, 1), Bottleneck(32, 16, 64, 3, 2)])
        self.across = nn.ModuleList([self._across(8), self._across(32)])
        self.last = nn.Linear(512 + 64, 400)

    @staticmethod
    def _across(channels: int) -> nn.Module:
        return nn.Conv3d(channels, 2 * channels, (5, 1, 1), (4, 1, 1), (2, 0, 0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, 400]."""
        slow, fast = self.pool(self.slow_stem(x[:, :, ::4])), self.pool(self.fast_stem(x))
        for i in range(2):
            slow = self.slow[i](torch.cat([slow, self.across[i](fast)], 1))
            fast = self.fast[i](fast)
        return self.last(torch.cat([slow.mean((2, 3, 4)), fast.mean((2, 3, 4))], 1))


class Detail(nn.Module):
    """BiSeNet V2 (arXiv:2004.02147): detail at an eighth beside context at a 32nd, which gate each other."""

    def __init__(self, classes: int = 19) -> None:
        super().__init__()
        first = ((3, 64, 2), (64, 64, 2), (64, 128, 2), (128, 128, 1))
        self.detail = nn.Sequential(*(self._conv(*each) for each in first))
        steps = ((3, 16), (16, 32), (32, 64), (64, 128), (128, 128))
        self.context = nn.Sequential(*(nn.Sequential(self._conv(a, b, 2), self._deep(b)) for a, b in steps))
        self.whole = self._conv(128, 128, 1, 1)
        self.near, self.far = self._deep(128), self._deep(128)
        halve = nn.Conv2d(128, 128, 3, 2, 1, bias=False)
        self.shrink = nn.Sequential(halve, nn.BatchNorm2d(128), nn.AvgPool2d(3, 2, 1))
        self.last = nn.Sequential(self._conv(128, 128, 1), nn.Conv2d(128, classes, 1))

    @staticmethod
    def _conv(enter: int, leave: int, stride: int, size: int = 3) -> nn.Module:
        conv = nn.Conv2d(enter, leave, size, stride, size // 2, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(leave), nn.ReLU())

    @staticmethod
    def _deep(channels: int) -> nn.Module:
        depthwise = nn.Conv2d(channels, channels, 3, 1, 1, groups=channels, bias=False)
        return nn.Sequential(depthwise, nn.BatchNorm2d(channels), nn.Conv2d(channels, channels, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, classes, height, width]."""
        detail, context = self.detail(x), self.context(x)
        context = context + self.whole(context.mean((2, 3), keepdim=True))
        up = {"mode": "bilinear", "align_corners": False}
        near = self.near(detail) * functional.interpolate(self.far(context), scale_factor=4, **up).sigmoid()
        far = self.shrink(detail) * context.sigmoid()
        joined = self.last(near + functional.interpolate(far, scale_factor=4, **up))
        return functional.interpolate(joined, scale_factor=8, **up)


class Chunked(nn.Module):
    """A layer of Longformer (arXiv:2004.05150) as chunks: each of 256 queries sees its own keys and both neighbors'."""

    def __init__(self, width: int = 512, heads: int = 8, chunk: int = 256) -> None:
        super().__init__()
        self.heads, self.chunk = heads, chunk
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        far = (torch.arange(chunk)[:, None] + chunk - torch.arange(3 * chunk)[None]).abs() > chunk
        self.register_buffer("mask", torch.zeros(far.shape).masked_fill(far, -1e4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, length, width]; beyond the ends the keys are zeros."""
        n, length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q = q.unflatten(2, (-1, self.chunk))
        k, v = (functional.pad(each, (0, 0, self.chunk, self.chunk)).unflatten(2, (-1, self.chunk)) for each in (k, v))
        k, v = (torch.cat([each[:, :, :-2], each[:, :, 1:-1], each[:, :, 2:]], 3) for each in (k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask.to(q.dtype))
        x = x + self.out(mixed.permute(0, 2, 3, 1, 4).reshape(n, length, width))
        return x + self.mlp(self.norms[1](x))


def _texts() -> Inputs:
    return {"query": noise(1, 32, 384), "documents": noise(1, 64, 128, 384)}


MIXTURES = [
    own("colbert", "mixtures", LateInteraction, _texts),
    own("mmoe", "mixtures", TaskExperts, lambda: {"x": noise(32, 512)}),
    own("autoint", "mixtures", FieldAttention, lambda: {"ids": torch.randint(0, 10_000, (32, 26))}),
    own("slowfast", "mixtures", SlowFast, lambda: {"x": noise(1, 3, 16, 112, 112)}),
    own("bisenet", "mixtures", Detail, lambda: {"x": noise(1, 3, 256, 512)}),
    own("longformer_chunks", "mixtures", Chunked, lambda: {"x": noise(1, 2048, 512)}),
]
