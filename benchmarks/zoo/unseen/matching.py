"""Nets that match one set with another: by transport, by inner products, at places that data name, over edges."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from benchmarks.zoo.entry import Inputs, noise, own


class Transport(nn.Module):
    """The end of SuperGlue (arXiv:1911.11763): optimal transport between two sets of points, by Sinkhorn's steps."""

    def __init__(self, width: int = 256, steps: int = 20) -> None:
        super().__init__()
        self.steps, self.width = steps, width
        self.enter = nn.Linear(width, width)
        self.dustbin = nn.Parameter(torch.tensor(1.0))

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Return [n, points + 1, points + 1]."""
        scores = self.enter(left) @ self.enter(right).transpose(1, 2) / self.width**0.5
        n, rows, columns = scores.shape
        below, beside = self.dustbin.expand(n, 1, columns), self.dustbin.expand(n, rows + 1, 1)
        scores = torch.cat([torch.cat([scores, below], 1), beside], 2)
        u, v = torch.zeros_like(scores[:, :, 0]), torch.zeros_like(scores[:, 0])
        for _ in range(self.steps):
            u = -torch.logsumexp(scores + v[:, None], 2)
            v = -torch.logsumexp(scores + u[:, :, None], 1)
        return scores + u[:, :, None] + v[:, None]


class Retrieval(nn.Module):
    """Two towers (https://research.google/pubs/pub48840): the best of all items for a user, by inner products."""

    def __init__(self, items: int = 50_000, width: int = 128) -> None:
        super().__init__()
        self.user = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, width))
        self.items = nn.Parameter(torch.randn(items, width) * width**-0.5)

    def forward(self, users: torch.Tensor) -> torch.Tensor:
        """Return the scores [n, 100] of the best items."""
        scores, _ = torch.topk(functional.normalize(self.user(users), dim=-1) @ self.items.T, 100)
        return scores


class Deformable(nn.Module):
    """A layer of Deformable DETR's encoder (arXiv:2010.04159): attention to four places of each of three levels."""

    sizes = ((40, 40), (20, 20), (10, 10))

    def __init__(self, width: int = 256, heads: int = 8, points: int = 4) -> None:
        super().__init__()
        self.heads, self.points = heads, points
        count = heads * len(self.sizes) * points
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.offsets, self.weights = nn.Linear(width, 2 * count), nn.Linear(width, count)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
        places = []
        for height, columns in self.sizes:
            y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(columns) + 0.5, indexing="ij")
            places.append(torch.stack([x / columns, y / height], -1).reshape(-1, 2))
        self.register_buffer("places", torch.cat(places))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, 2100, width]."""
        n, length, width = x.shape
        levels = len(self.sizes)
        values = self.value(x).view(n, length, self.heads, -1)
        offsets = self.offsets(x).view(n, length, self.heads, levels, self.points, 2)
        weights = self.weights(x).view(n, length, self.heads, -1).softmax(-1)
        weights = weights.view(n, length, self.heads, levels, self.points).permute(0, 2, 1, 3, 4).flatten(0, 1)
        found, begin = [], 0
        for level, (height, columns) in enumerate(self.sizes):
            image = values[:, begin : begin + height * columns].permute(0, 2, 3, 1)
            image = image.reshape(n * self.heads, -1, height, columns)
            scale = torch.tensor([columns, height], dtype=x.dtype, device=x.device)
            at = self.places[None, :, None, None] + offsets[:, :, :, level] / scale
            at = (2 * at - 1).permute(0, 2, 1, 3, 4).flatten(0, 1)
            found.append(functional.grid_sample(image, at, align_corners=False))
            begin += height * columns
        mixed = (torch.stack(found, 3) * weights[:, None]).sum((3, 4))
        x = self.norms[0](x + self.out(mixed.view(n, width, length).transpose(1, 2)))
        return self.norms[1](x + self.mlp(x))


class SparseAttention(nn.Module):
    """GATv2 (arXiv:2105.14491) over a list of edges: a softmax over those that end in a node."""

    def __init__(self, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.left, self.right = (nn.ModuleList(nn.Linear(width, width) for _ in range(layers)) for _ in range(2))
        self.scores = nn.ParameterList(torch.randn(heads, width // heads) * 0.3 for _ in range(layers))
        self.last = nn.Linear(width, 7)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Return [nodes, 7]."""
        source, target = edges[0], edges[1]
        for left, right, score in zip(self.left, self.right, self.scores, strict=True):
            own_, other = (each(nodes).unflatten(1, (self.heads, -1)) for each in (left, right))
            sums = functional.leaky_relu(own_[source] + other[target], 0.2)
            logits = (sums * score).sum(-1)
            index = target[:, None].expand_as(logits)
            weights = torch.exp(logits.clamp(max=8))
            total = torch.zeros_like(nodes[:, : self.heads]).scatter_add(0, index, weights)
            messages = own_[source] * (weights / total[target])[..., None]
            mixed = torch.zeros_like(own_).scatter_add(0, target[:, None, None].expand_as(messages), messages)
            nodes = functional.elu(mixed.flatten(1))
        return self.last(nodes)


class Perceiver(nn.Module):
    """Perceiver IO (arXiv:2107.14795): latents that attend to a long input, and outputs that attend to them."""

    def __init__(self, width: int = 512, latents: int = 256, layers: int = 4, heads: int = 8) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(1, latents, width) * 0.02)
        self.queries = nn.Parameter(torch.randn(1, 64, width) * 0.02)
        options = {"activation": "gelu", "dropout": 0, "batch_first": True}
        self.enter, self.leave = (nn.TransformerDecoderLayer(width, heads, width, **options) for _ in range(2))
        made = (nn.TransformerEncoderLayer(width, heads, width, norm_first=True, **options) for _ in range(layers))
        self.layers = nn.ModuleList(made)
        self.read = nn.Linear(64, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, 64, width]."""
        latents = self.enter(self.latents.expand(len(x), -1, -1), self.read(x))
        for layer in self.layers:
            latents = layer(latents)
        return self.leave(self.queries.expand(len(x), -1, -1), latents)


def _graph() -> Inputs:
    return {"nodes": noise(1000, 64), "edges": torch.randint(0, 1000, (2, 6000))}


MATCHING = [
    own("superglue_end", "matching", Transport, lambda: {"left": noise(1, 512, 256), "right": noise(1, 512, 256)}),
    own("retrieval", "matching", Retrieval, lambda: {"users": noise(4, 256)}),
    own("deformable_encoder", "matching", Deformable, lambda: {"x": noise(1, 2100, 256)}),
    own("gatv2_edges", "matching", SparseAttention, _graph),
    own("perceiver_io", "matching", Perceiver, lambda: {"x": noise(1, 4096, 64)}),
]
