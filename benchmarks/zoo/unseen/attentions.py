"""Models whose attention has a form of its own, of base widths and few layers, for ``benchmarks.gpu.zoo`` alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo.entry import Entry, noise, own, tokens
from benchmarks.zoo.unseen.layers import Attention, Layers, perceptron


def heads_of(x: Tensor, heads: int) -> Tensor:
    """Return [..., heads, tokens, dims] of [..., tokens, width]."""
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


def rows_of(x: Tensor) -> Tensor:
    """Return [..., tokens, width] of [..., heads, tokens, dims]."""
    return x.transpose(-3, -2).flatten(-2)


class Stream(nn.Module):
    """What the tokens of one kind have of their own in a joint block: modulated norms, projections, an MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.modulation, self.qkv = nn.Linear(width, 6 * width), nn.Linear(width, 3 * width)
        self.out, self.mlp = nn.Linear(width, width), perceptron(width, 4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.q_norm, self.k_norm = nn.RMSNorm(width // heads), nn.RMSNorm(width // heads)

    def before(self, x: Tensor, parts: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values."""
        q, k, v = (
            heads_of(each, self.heads) for each in self.qkv(self.norms[0](x) * (1 + parts[1]) + parts[0]).chunk(3, -1)
        )
        return self.q_norm(q), self.k_norm(k), v

    def after(self, x: Tensor, found: Tensor, parts: tuple[Tensor, ...]) -> Tensor:
        """Return the tokens with what they found."""
        x = x + parts[2] * self.out(found)
        return x + parts[5] * self.mlp(self.norms[1](x) * (1 + parts[4]) + parts[3])


class JointBlocks(nn.Module):
    """Blocks of MMDiT: tokens of an image and of a text in one attention (arXiv:2403.03206)."""

    def __init__(self, width: int = 768, heads: int = 12, layers: int = 2) -> None:
        super().__init__()
        self.streams = nn.ModuleList(nn.ModuleList(Stream(width, heads) for _ in range(2)) for _ in range(layers))

    def forward(self, x: Tensor, text: Tensor, condition: Tensor) -> Tensor:
        """Return the image's tokens."""
        condition = functional.silu(condition)[:, None]
        for image, words in self.streams:
            parts, others = image.modulation(condition).chunk(6, -1), words.modulation(condition).chunk(6, -1)
            pairs = zip(image.before(x, parts), words.before(text, others), strict=True)
            q, k, v = (torch.cat(pair, 2) for pair in pairs)
            found = rows_of(functional.scaled_dot_product_attention(q, k, v))
            x, text = image.after(x, found[:, : x.shape[1]], parts), words.after(text, found[:, x.shape[1] :], others)
        return x + text.mean(1, keepdim=True)


class PairAttention(nn.Module):
    """Attention of rows of pairs with a bias by pairs and a gate, of AlphaFold (doi:10.1038/s41586-021-03819-2)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.bias = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, heads, bias=False)
        self.gate, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, pairs: Tensor) -> Tensor:
        """Return what is added to pairs [n, r, r, width]."""
        x = self.norm(pairs)
        q, k, v = (heads_of(each, self.heads) for each in self.qkv(x).chunk(3, -1))
        bias = self.bias(x).permute(0, 3, 1, 2)[:, None]
        found = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.out(torch.sigmoid(self.gate(x)) * rows_of(found))


class TriangleProduct(nn.Module):
    """Pairs updated by the products of their outgoing edges."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.parts, self.gates = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.gate, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, pairs: Tensor) -> Tensor:
        """Return what is added to pairs [n, r, r, width]."""
        x = self.first(pairs)
        left, right = (self.parts(x) * torch.sigmoid(self.gates(x))).chunk(2, -1)
        return torch.sigmoid(self.gate(x)) * self.out(self.last(torch.einsum("bikc,bjkc->bijc", left, right)))


class Pairs(nn.Module):
    """Two blocks of pairs of residues."""

    def __init__(self, width: int = 128, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.products = nn.ModuleList(TriangleProduct(width) for _ in range(blocks))
        self.attentions = nn.ModuleList(PairAttention(width, heads) for _ in range(2 * blocks))
        self.moves = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), perceptron(width, 4 * width, width)) for _ in range(blocks)
        )

    def forward(self, pairs: Tensor) -> Tensor:
        """Return pairs."""
        for index, (product, move) in enumerate(zip(self.products, self.moves, strict=True)):
            pairs = pairs + product(pairs)
            pairs = pairs + self.attentions[2 * index](pairs)
            pairs = pairs + self.attentions[2 * index + 1](pairs.transpose(1, 2)).transpose(1, 2)
            pairs = pairs + move(pairs)
        return pairs


class TwoWays(nn.Module):
    """SAM's mask decoder: prompts read the image, the image reads them, masks are products (arXiv:2304.02643)."""

    def __init__(self, width: int = 256, heads: int = 8, layers: int = 2) -> None:
        super().__init__()
        self.masks, self.places = nn.Parameter(torch.randn(1, 5, width)), nn.Parameter(torch.randn(1, 4096, width))
        self.attentions = nn.ModuleList(Attention(width, heads) for _ in range(3 * layers + 1))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4 * layers + 1))
        self.mlps = nn.ModuleList(perceptron(width, 2048, width) for _ in range(layers))
        self.up1, self.up2 = nn.ConvTranspose2d(width, 64, 2, 2), nn.ConvTranspose2d(64, 32, 2, 2)
        self.group, self.weights = nn.GroupNorm(1, 64), perceptron(width, width, 32)

    def forward(self, image: Tensor, prompts: Tensor) -> Tensor:
        """Return masks [n, 4, 256, 256] of features [n, width, 64, 64]."""
        rows, found = image.flatten(2).transpose(1, 2), torch.cat([self.masks.expand(len(prompts), -1, -1), prompts], 1)
        for index, mlp in enumerate(self.mlps):
            own, read, told = self.attentions[3 * index : 3 * index + 3]
            norms = self.norms[4 * index : 4 * index + 4]
            found = norms[0](found + own(found))
            found = norms[1](found + read(found, rows + self.places))
            found = norms[2](found + mlp(found))
            rows = norms[3](rows + told(rows + self.places, found))
        found = self.norms[-1](found + self.attentions[-1](found, rows + self.places))
        large = functional.gelu(self.group(self.up1(rows.transpose(1, 2).unflatten(2, (64, 64)))))
        large = functional.gelu(self.up2(large))
        return (self.weights(found[:, 1:5]) @ large.flatten(2)).unflatten(2, large.shape[2:])


class Detector(nn.Module):
    """DETR behind its backbone: places are added to queries and keys of each layer (arXiv:2005.12872)."""

    def __init__(self, width: int = 256, heads: int = 8, layers: int = 2) -> None:
        super().__init__()
        self.enter, self.places = nn.Conv2d(2048, width, 1), nn.Parameter(torch.randn(1, 25 * 34, width))
        self.queries = nn.Parameter(torch.randn(1, 100, width))
        self.attentions = nn.ModuleList(
            nn.MultiheadAttention(width, heads, batch_first=True) for _ in range(3 * layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5 * layers))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2048), nn.ReLU(), nn.Linear(2048, width)) for _ in range(2 * layers)
        )
        self.classes, self.boxes = nn.Linear(width, 92), perceptron(width, width, width, 4)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits of classes and boxes, [n, 100, 96], of features [n, 2048, 25, 34]."""
        x, layers = self.enter(features).flatten(2).transpose(1, 2), len(self.mlps) // 2
        for index in range(layers):
            placed = x + self.places
            x = self.norms[2 * index](x + self.attentions[index](placed, placed, x, need_weights=False)[0])
            x = self.norms[2 * index + 1](x + self.mlps[index](x))
        y = torch.zeros_like(self.queries).expand(len(x), -1, -1)
        for index in range(layers):
            own, read = self.attentions[layers + 2 * index : layers + 2 * index + 2]
            norms = self.norms[2 * layers + 3 * index : 2 * layers + 3 * index + 3]
            y = norms[0](y + own(y + self.queries, y + self.queries, y, need_weights=False)[0])
            y = norms[1](y + read(y + self.queries, x + self.places, x, need_weights=False)[0])
            y = norms[2](y + self.mlps[layers + index](y))
        return torch.cat([self.classes(y), self.boxes(y).sigmoid()], -1)


class Purchases(nn.Module):
    """SASRec: causal attention to what a user bought, padded in front, and scores of items (arXiv:1808.09781)."""

    def __init__(self, width: int = 128, items: int = 20000, length: int = 200, layers: int = 2) -> None:
        super().__init__()
        self.items, self.places = nn.Embedding(items, width), nn.Parameter(torch.randn(1, length, width) * 0.02)
        self.attentions = nn.ModuleList(Attention(width, 2) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, width, 1)) for _ in range(layers)
        )

    def forward(self, ids: Tensor, candidates: Tensor) -> Tensor:
        """Return scores of the candidates."""
        seen = (ids > 20).unsqueeze(-1)
        x = (self.items(ids) * 128**0.5 + self.places) * seen
        for index, (attention, mlp) in enumerate(zip(self.attentions, self.mlps, strict=True)):
            x = x + attention(self.norms[2 * index](x), x, causal=True)
            y = self.norms[2 * index + 1](x)
            x = (y + mlp(y.transpose(1, 2)).transpose(1, 2)) * seen
        return (self.items(candidates) @ self.norms[-1](x)[:, -1, :, None]).squeeze(-1)


class Graphormer(nn.Module):
    """Nodes whose attention is biased by the length of the shortest path (arXiv:2106.05234)."""

    def __init__(self, width: int = 512, heads: int = 16, layers: int = 3) -> None:
        super().__init__()
        self.heads, self.nodes, self.degrees = heads, nn.Embedding(512, width), nn.Embedding(64, width)
        self.paths = nn.Embedding(40, heads)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.mlps = nn.ModuleList(perceptron(width, width, width) for _ in range(layers))

    def forward(self, nodes: Tensor, degrees: Tensor, paths: Tensor) -> Tensor:
        """Return [n, width] of ids [n, nodes] and paths [n, nodes, nodes]."""
        x, bias = self.nodes(nodes) + self.degrees(degrees), self.paths(paths).permute(0, 3, 1, 2)
        for index, (qkv, out, mlp) in enumerate(zip(self.qkv, self.out, self.mlps, strict=True)):
            q, k, v = (heads_of(each, self.heads) for each in qkv(self.norms[2 * index](x)).chunk(3, -1))
            x = x + out(rows_of(functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)))
            x = x + mlp(self.norms[2 * index + 1](x))
        return x.mean(1)


class Differential(nn.Module):
    """Attention by the difference of two softmaxes, with a norm of each head (arXiv:2410.05258)."""

    def __init__(self, width: int, heads: int = 8) -> None:
        super().__init__()
        self.heads, self.share = heads, nn.Parameter(torch.full((), 0.4))
        self.queries, self.keys, self.values, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.norm = nn.RMSNorm(width // heads)

    def forward(self, x: Tensor) -> Tensor:
        """Return [n, tokens, width]."""
        q, k = heads_of(self.queries(x), 2 * self.heads), heads_of(self.keys(x), 2 * self.heads)
        scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1).unflatten(1, (self.heads, 2))
        found = (scores[:, :, 0] - self.share * scores[:, :, 1]) @ heads_of(self.values(x), self.heads)
        return self.out(rows_of(self.norm(found)))


class GatedUnit(nn.Module):
    """The gated attention unit: one head, squares of ReLU in place of a softmax, a gate (arXiv:2202.10447)."""

    def __init__(self, width: int, keys: int = 128) -> None:
        super().__init__()
        self.gate, self.value, self.key = (
            nn.Linear(width, 2 * width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, keys),
        )
        self.scales, self.shifts = nn.Parameter(torch.ones(2, keys)), nn.Parameter(torch.zeros(2, keys))
        self.out = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return [n, tokens, width]."""
        k = functional.silu(self.key(x))
        q, k = k * self.scales[0] + self.shifts[0], k * self.scales[1] + self.shifts[1]
        scores = functional.relu(q @ k.transpose(-1, -2) / x.shape[1]).square()
        return self.out(functional.silu(self.gate(x)) * (scores @ functional.silu(self.value(x))))


def stack(mixer: type[nn.Module], width: int = 512, layers: int = 3) -> nn.Module:
    """Return layers of a mixer."""
    return Layers(width, [mixer(width) for _ in range(layers)])


ATTENTIONS: list[Entry] = [
    own("mmdit", "generator", JointBlocks,
        lambda: {"x": noise(1, 1024, 768), "text": noise(1, 154, 768), "condition": noise(1, 768)}),
    own("evoformer_pairs", "biology", Pairs, lambda: {"pairs": noise(1, 96, 96, 128)}),
    own("mask_decoder", "segmentation", TwoWays, lambda: {"image": noise(1, 256, 64, 64), "prompts": noise(1, 2, 256)}),
    own("detr", "detection", Detector, lambda: {"features": noise(1, 2048, 25, 34)}),
    own("sasrec", "recommendation", Purchases,
        lambda: {"ids": tokens(1, 200), "candidates": tokens(1, 500, below=20000)}),
    own("graphormer", "graphs", Graphormer,
        lambda: {"nodes": tokens(1, 64, below=512), "degrees": tokens(1, 64, below=64),
                 "paths": tokens(1, 64, 64, below=40)}),
    own("differential", "transformer", lambda: stack(Differential), lambda: {"x": noise(1, 512, 512)}),
    own("gated_unit", "transformer", lambda: stack(GatedUnit), lambda: {"x": noise(1, 512, 512)}),
]  # fmt: skip
