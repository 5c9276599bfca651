"""Nets over graphs, of dense adjacency and of lists of edges."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from benchmarks.zoo.entry import Inputs, noise, own


class Attention(nn.Module):
    """A graph attention layer (arXiv:1710.10903) over a dense adjacency, and a graph convolution (arXiv:1609.02907)."""

    def __init__(self, features: int = 200, heads: int = 8, width: int = 16) -> None:
        super().__init__()
        self.heads, self.enter = heads, nn.Linear(features, heads * width, bias=False)
        self.target, self.source = (nn.Parameter(torch.randn(heads, width) * 0.2) for _ in range(2))
        self.middle, self.last = nn.Linear(heads * width, 7), nn.Linear(7, 7)

    def forward(self, nodes: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        """Return [n, nodes, 7]."""
        rows = self.enter(nodes).unflatten(2, (self.heads, -1))
        to, of = ((rows * vector).sum(-1).transpose(1, 2) for vector in (self.target, self.source))
        scores = functional.leaky_relu(to[..., :, None] + of[..., None, :], 0.2)
        weights = scores.masked_fill(adjacency[:, None] <= 0, -1e9).softmax(-1)
        hidden = functional.elu((weights @ rows.transpose(1, 2)).transpose(1, 2).flatten(2))
        degrees = adjacency.sum(-1, keepdim=True).clamp(min=1)
        return torch.log_softmax(self.last(torch.relu((adjacency / degrees) @ self.middle(hidden))), -1)


class Sage(nn.Module):
    """GraphSAGE (arXiv:1706.02216): means over the edges of a list, gathered and added up by index."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.around, self.own = (nn.ModuleList(nn.Linear(width, width) for _ in range(2)) for _ in range(2))
        self.last = nn.Linear(width, 10)

    def forward(self, nodes: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return [nodes, 10]."""
        index, zeros = targets[:, None].expand(-1, nodes.shape[1]), torch.zeros_like(nodes)
        degrees = zeros.scatter_add(0, index, torch.ones_like(nodes[sources])).clamp(min=1)
        for around, own_ in zip(self.around, self.own, strict=True):
            mean = zeros.scatter_add(0, index, nodes[sources]) / degrees
            nodes = torch.relu(around(mean) + own_(nodes))
        return self.last(nodes)


def _adjacency() -> Inputs:
    edges = (torch.rand(1, 300, 300) < 0.05).float() + torch.eye(300)
    return {"nodes": noise(1, 300, 200), "adjacency": edges}


def _edges() -> Inputs:
    sources, targets = torch.randint(0, 500, (2, 4000))
    return {"nodes": noise(500, 128), "sources": sources, "targets": targets}


GRAPHS = [own("gat", "graphs", Attention, _adjacency), own("graphsage", "graphs", Sage, _edges)]
