"""Blocks of models that are too large to build as they are, of base widths, for ``benchmarks.gpu.zoo`` alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo.entry import Entry, noise, own, tokens
from benchmarks.zoo.unseen.attentions import heads_of, rows_of
from benchmarks.zoo.unseen.layers import Attention, Diffusion, perceptron


class SpaceTime(nn.Module):
    """Attention of places over time, then of frames over places (TimeSformer, arXiv:2102.05095)."""

    def __init__(self, width: int = 512, heads: int = 8, frames: int = 8, layers: int = 2) -> None:
        super().__init__()
        self.frames = frames
        self.times, self.spaces = (nn.ModuleList(Attention(width, heads) for _ in range(layers)) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 * layers))
        self.mlps = nn.ModuleList(perceptron(width, 4 * width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """Return [n, frames, places, width]."""
        n, frames, places, width = x.shape
        for index, mlp in enumerate(self.mlps):
            y = self.norms[3 * index](x).transpose(1, 2).reshape(n * places, frames, width)
            x = x + self.times[index](y).view(n, places, frames, width).transpose(1, 2)
            y = self.norms[3 * index + 1](x).reshape(n * frames, places, width)
            x = x + self.spaces[index](y).view(n, frames, places, width)
            x = x + mlp(self.norms[3 * index + 2](x))
        return x


class RotaryLayer(nn.Module):
    """A layer of Llama as Meta wrote it: queries and keys are complex numbers that are turned."""

    def __init__(self, width: int, heads: int, groups: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.groups, dims = heads, groups, width // heads
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, groups * dims, bias=False) for _ in range(2))
        self.w1, self.w3 = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.w2, self.norms = nn.Linear(hidden, width, bias=False), nn.ModuleList(nn.RMSNorm(width) for _ in range(2))

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        """Return [n, tokens, width]; ``turns`` are complex, [tokens, dims / 2]."""
        y = self.norms[0](x)

        def turned(made: Tensor) -> Tensor:
            pairs = torch.view_as_complex(made.float().unflatten(-1, (-1, 2)))
            return torch.view_as_real(pairs * turns[:, None]).flatten(3).type_as(made)

        q = turned(self.q(y).unflatten(-1, (self.heads, -1))).transpose(1, 2)
        k = turned(self.k(y).unflatten(-1, (self.groups, -1))).transpose(1, 2)
        v = self.v(y).unflatten(-1, (self.groups, -1)).transpose(1, 2)
        repeat = self.heads // self.groups
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
        x = x + self.o(rows_of(functional.scaled_dot_product_attention(q, k, v, is_causal=True)))
        y = self.norms[1](x)
        return x + self.w2(functional.silu(self.w1(y)) * self.w3(y))


class ComplexLlama(nn.Module):
    """Layers of Llama with complex rotary embeddings, which torch.export takes and the ONNX exporter does not."""

    def __init__(self, width: int = 1024, heads: int = 16, groups: int = 4, length: int = 128, layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(RotaryLayer(width, heads, groups, 2816) for _ in range(layers))
        dims = width // heads
        angles = torch.outer(torch.arange(length), 10000.0 ** -(torch.arange(0, dims, 2) / dims))
        self.register_buffer("angles", angles)

    def forward(self, x: Tensor) -> Tensor:
        """Return [n, tokens, width]."""
        angles = self.angles.float()
        turns = torch.polar(torch.ones_like(angles), angles)
        for layer in self.layers:
            x = layer(x, turns)
        return x


class SandwichLayer(nn.Module):
    """A layer of Gemma 3: norms on both sides of attention and MLP, norms of queries and keys."""

    def __init__(self, width: int, heads: int, groups: int, dims: int) -> None:
        super().__init__()
        self.heads, self.groups, self.dims = heads, groups, dims
        self.qkv = nn.Linear(width, (heads + 2 * groups) * dims, bias=False)
        self.out = nn.Linear(heads * dims, width, bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(4))
        self.q_norm, self.k_norm = nn.RMSNorm(dims), nn.RMSNorm(dims)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """Return [n, tokens, width]."""
        parts = self.qkv(self.norms[0](x)).split([n * self.dims for n in (self.heads, self.groups, self.groups)], -1)
        q, k, v = (heads_of(part, part.shape[-1] // self.dims) for part in parts)

        def turned(made: Tensor) -> Tensor:
            first, second = made.chunk(2, -1)
            return made * cos + torch.cat([-second, first], -1) * sin

        q, k = turned(self.q_norm(q)), turned(self.k_norm(k))
        repeat = self.heads // self.groups
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
        found = rows_of(functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.0625))
        x = x + self.norms[1](self.out(found))
        y = self.norms[2](x)
        return x + self.norms[3](self.down(functional.gelu(self.gate(y), approximate="tanh") * self.up(y)))


class GemmaBlocks(nn.Module):
    """Two layers of Gemma 3, one of which sees the last 64 tokens alone."""

    def __init__(self, width: int = 1152, heads: int = 4, dims: int = 256, length: int = 128, layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(SandwichLayer(width, heads, 1, dims) for _ in range(layers))
        angles = torch.outer(torch.arange(length), 10000.0 ** -(torch.arange(0, dims, 2) / dims)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        away = torch.arange(length)[:, None] - torch.arange(length)
        self.register_buffer("causal", away >= 0)
        self.register_buffer("window", (away >= 0) & (away < 64))

    def forward(self, x: Tensor) -> Tensor:
        """Return [n, tokens, width]."""
        for index, layer in enumerate(self.layers):
            x = layer(x, self.cos, self.sin, self.window if index % 2 == 0 else self.causal)
        return x


class Transducer(nn.Module):
    """The joint network of RNN-T: each frame with each label (arXiv:1211.3711)."""

    def __init__(self, width: int = 512, words: int = 1024) -> None:
        super().__init__()
        self.frames, self.labels = nn.Linear(width, width), nn.Linear(width, width)
        self.joint = nn.Linear(width, words)

    def forward(self, frames: Tensor, labels: Tensor) -> Tensor:
        """Return log probabilities [n, frames, labels, words]."""
        joined = torch.tanh(self.frames(frames)[:, :, None] + self.labels(labels)[:, None])
        return functional.log_softmax(self.joint(joined), -1)


class Moments(nn.Module):
    """A tagger of products: text and image towers, factorized bilinear pooling, gates (arXiv:1708.01471)."""

    def __init__(self, width: int = 768, factors: int = 5, pooled: int = 1000) -> None:
        super().__init__()
        self.factors, self.words = factors, nn.Embedding(8000, width)
        self.text, self.image = nn.Linear(width, factors * pooled), nn.Linear(2048, factors * pooled)
        self.attend, self.last = perceptron(2048 + width, 512, 2), nn.Linear(2 * pooled, 3000)

    def forward(self, ids: Tensor, regions: Tensor) -> Tensor:
        """Return answers [n, 3000] of ids [n, tokens] and regions [n, regions, 2048]."""
        asked = self.words(ids).mean(1)
        both = torch.cat([regions, asked[:, None].expand(-1, regions.shape[1], -1)], -1)
        seen = self.attend(both).softmax(1).transpose(1, 2) @ regions
        mixed = (self.text(asked)[:, None] * self.image(seen)).unflatten(-1, (-1, self.factors)).sum(-1)
        mixed = torch.sign(mixed) * torch.sqrt(mixed.abs() + 1e-6)
        return self.last(functional.normalize(mixed, dim=-1).flatten(1))


BLOCKS: list[Entry] = [
    own("time_blocks", "video", SpaceTime, lambda: {"x": noise(1, 8, 196, 512)}),
    own("llama_complex", "decoder", ComplexLlama, lambda: {"x": noise(1, 128, 1024)}),
    own("gemma_blocks", "decoder", GemmaBlocks, lambda: {"x": noise(1, 128, 1152)}),
    own("dit_base", "generator", lambda: Diffusion(768, 12, 2),
        lambda: {"x": noise(1, 4, 32, 32), "time": torch.rand(1) * 1000}),
    own("transducer_joint", "speech", Transducer, lambda: {"frames": noise(1, 100, 512), "labels": noise(1, 20, 512)}),
    own("bilinear_pooling", "multimodal", Moments, lambda: {"ids": tokens(1, 16), "regions": noise(1, 36, 2048)}),
]  # fmt: skip
