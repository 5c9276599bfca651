"""Stacks of layers that mix tokens in other ways than a BERT: modulated, routed, linear, of a memory, of sets."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from benchmarks.zoo.entry import noise, own, tokens


def perceptron(*widths: int) -> nn.Sequential:
    """Return linear layers with GELU between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.GELU()]
    return nn.Sequential(*layers[:-1])


class Attention(nn.Module):
    """Attention with four linear layers (arXiv:1706.03762)."""

    def __init__(self, width: int, heads: int, memory: int | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.key, self.value = nn.Linear(memory or width, width), nn.Linear(memory or width, width)

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None, causal: bool = False) -> torch.Tensor:
        """Return [n, tokens, width]; ``memory`` is x itself by default."""
        read = x if memory is None else memory
        q, k, v = (
            made.view(*made.shape[:2], self.heads, -1).transpose(1, 2)
            for made in (self.query(x), self.key(read), self.value(read))
        )
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.out(found.transpose(1, 2).flatten(2))


class ModulatedLayer(nn.Module):
    """A layer of DiT with adaLN-Zero (arXiv:2212.09748)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = (nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.attention, self.mlp = Attention(width, heads), perceptron(width, 4 * width, width)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        """Return [n, tokens, width]."""
        parts = [part.unsqueeze(1) for part in self.modulation(condition).chunk(6, 1)]
        x = x + parts[2] * self.attention(self.first(x) * (1 + parts[1]) + parts[0])
        return x + parts[5] * self.mlp(self.second(x) * (1 + parts[4]) + parts[3])


class Diffusion(nn.Module):
    """A small DiT, of latents of 32 x 32 and the time."""

    def __init__(self, width: int = 384, heads: int = 6, layers: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(4, width, 2, 2)
        self.places = nn.Parameter(torch.randn(1, 256, width) * 0.02)
        self.register_buffer("waves", torch.exp(-math.log(10000) * torch.arange(128) / 128))
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.layers = nn.ModuleList(ModulatedLayer(width, heads) for _ in range(layers))
        self.last = nn.Linear(width, 32)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Return [n, 8, 32, 32]."""
        angles = time[:, None] * self.waves
        condition = self.time(torch.cat([angles.cos(), angles.sin()], -1))
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        for layer in self.layers:
            x = layer(x, condition)
        return self.last(x).view(-1, 16, 16, 2, 2, 8).permute(0, 5, 1, 3, 2, 4).reshape(-1, 8, 32, 32)


class Layers(nn.Module):
    """Layers in pre-norm form, whose first halves mix tokens."""

    def __init__(self, width: int, mixers: list[nn.Module]) -> None:
        super().__init__()
        self.mixers = nn.ModuleList(mixers)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * len(mixers)))
        self.mlps = nn.ModuleList(perceptron(width, 4 * width, width) for _ in mixers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, tokens, width]."""
        for index, (mixer, mlp) in enumerate(zip(self.mixers, self.mlps, strict=True)):
            x = x + mixer(self.norms[2 * index](x))
            x = x + mlp(self.norms[2 * index + 1](x))
        return x


class LinearAttention(nn.Module):
    """Attention without a softmax (arXiv:2006.16236)."""

    def __init__(self, width: int, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.parts, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what keys and values of all tokens make of each query."""
        n, length, width = x.shape
        q, k, v = self.parts(x).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        # Sums of half precision stay finite.
        q, k = functional.elu(q) + 1, (functional.elu(k) + 1) / length
        total = 1 / (q @ k.sum(2).unsqueeze(-1) + 1e-6)
        found = (q @ (k.transpose(-1, -2) @ v)) * total
        return self.out(found.transpose(1, 2).reshape(n, length, width))


class AttentionFree(nn.Module):
    """Tokens weighed by places and keys (arXiv:2105.14103)."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.places = nn.Parameter(torch.randn(length, length) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what each token reads of all others."""
        k = self.key(x)
        weights, seen = torch.exp(self.places), torch.exp(k - k.amax(1, keepdim=True))
        return self.out(torch.sigmoid(self.query(x)) * (weights @ (seen * self.value(x))) / (weights @ seen))


def linear_attention(width: int = 256, layers: int = 3) -> nn.Module:
    """Return layers of linear attention."""
    return Layers(width, [LinearAttention(width) for _ in range(layers)])


def attention_free(width: int = 256, length: int = 256, layers: int = 3) -> nn.Module:
    """Return layers without attention."""
    return Layers(width, [AttentionFree(width, length) for _ in range(layers)])


class Experts(nn.Module):
    """Two layers with eight experts each, all computed, of which two count (arXiv:1701.06538)."""

    def __init__(self, width: int = 256, experts: int = 8, layers: int = 2) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.attentions = nn.ModuleList(Attention(width, 8) for _ in range(layers))
        self.gates = nn.ModuleList(nn.Linear(width, experts, bias=False) for _ in range(layers))
        self.first = nn.Parameter(torch.randn(layers, experts, width, 4 * width) / 16)
        self.second = nn.Parameter(torch.randn(layers, experts, 4 * width, width) / 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, tokens, width]."""
        for index, attention in enumerate(self.attentions):
            x = x + attention(self.norms[2 * index](x), causal=True)
            y = self.norms[2 * index + 1](x)
            chances = self.gates[index](y).softmax(-1)
            best, chosen = chances.topk(2, -1)
            shares = torch.zeros_like(chances).scatter(-1, chosen, best / best.sum(-1, keepdim=True))
            hidden = functional.gelu(torch.einsum("btd,edf->btef", y, self.first[index]))
            x = x + (torch.einsum("btef,efd->bted", hidden, self.second[index]) * shares[..., None]).sum(2)
        return x


class Decoder(nn.Module):
    """A decoder whose layers read one memory, as in translation and speech recognition."""

    def __init__(self, width: int = 384, memory: int = 512, layers: int = 3) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(5000, width), nn.Parameter(torch.randn(1, 64, width) * 0.02)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 * layers + 1))
        self.inner = nn.ModuleList(Attention(width, 6) for _ in range(layers))
        self.outer = nn.ModuleList(Attention(width, 6, memory) for _ in range(layers))
        self.mlps = nn.ModuleList(perceptron(width, 4 * width, width) for _ in range(layers))

    def forward(self, ids: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """Return [n, tokens, words]."""
        x = self.words(ids) + self.places
        for index, mlp in enumerate(self.mlps):
            x = x + self.inner[index](self.norms[3 * index](x), causal=True)
            x = x + self.outer[index](self.norms[3 * index + 1](x), memory)
            x = x + mlp(self.norms[3 * index + 2](x))
        return self.norms[-1](x) @ self.words.weight.t()


class Sets(nn.Module):
    """Induced set attention: points read by few learned queries, and these by the points (arXiv:1810.00825)."""

    def __init__(self, width: int = 128, learned: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.points, self.last = nn.Linear(3, width), nn.Linear(width, 40)
        self.learned = nn.Parameter(torch.randn(layers, 1, learned, width))
        self.seed, self.pool = nn.Parameter(torch.randn(1, 1, width)), Attention(width, 4)
        self.attentions = nn.ModuleList(Attention(width, 4) for _ in range(2 * layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4 * layers))
        self.mlps = nn.ModuleList(perceptron(width, width, width) for _ in range(2 * layers))

    def read(self, index: int, queries: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """Return a block of attention and a perceptron, in post-norm form."""
        found = self.norms[2 * index](queries + self.attentions[index](queries, memory))
        return self.norms[2 * index + 1](found + self.mlps[index](found))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, classes] of points [n, points, 3]."""
        x = self.points(x)
        for index, learned in enumerate(self.learned):
            x = self.read(2 * index + 1, x, self.read(2 * index, learned.expand(len(x), -1, -1), x))
        return self.last(self.pool(self.seed.expand(len(x), -1, -1), x)).squeeze(1)


LAYERS = [
    own("dit", "generator", Diffusion, lambda: {"x": noise(1, 4, 32, 32), "time": torch.rand(1) * 1000}),
    own("linear_attention", "transformer", linear_attention, lambda: {"x": noise(1, 512, 256)}),
    own("attention_free", "transformer", attention_free, lambda: {"x": noise(1, 256, 256)}),
    own("experts", "transformer", Experts, lambda: {"x": noise(1, 256, 256)}),
    own("decoder", "text", Decoder, lambda: {"ids": tokens(1, 64), "memory": noise(1, 300, 512)}),
    own("set_transformer", "points", Sets, lambda: {"x": noise(1, 1024, 3)}),
]
