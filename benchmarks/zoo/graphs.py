"""Nets over graphs, of dense adjacency and of lists of edges."""

from __future__ import annotations

import math

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


class SchNet(nn.Module):
    """SchNet (arXiv:1706.08566): the energy of a molecule by filters of its atoms' distances."""

    def __init__(self, width: int = 64, layers: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, width)
        self.filters = nn.ModuleList(_perceptron(50, width, width) for _ in range(layers))
        self.enter = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.leave = nn.ModuleList(_perceptron(width, width, width) for _ in range(layers))
        self.last = _perceptron(width, 32, 1)
        self.register_buffer("centers", torch.linspace(0, 8, 50))

    def forward(self, atoms: torch.Tensor, places: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
        """Return [1]."""
        to, of = pairs[0], pairs[1]
        distances = ((places[to] - places[of]) ** 2).sum(-1).add(1e-6).sqrt()
        basis = torch.exp(-10 * (distances[:, None] - self.centers) ** 2)
        near = 0.5 * (torch.cos(distances * math.pi / 8) + 1) * (distances < 8).to(distances.dtype)
        hidden = self.embed(atoms)
        for filter_, enter, leave in zip(self.filters, self.enter, self.leave, strict=True):
            messages = enter(hidden)[of] * filter_(basis) * near[:, None]
            index = to[:, None].expand_as(messages)
            hidden = hidden + leave(torch.zeros_like(hidden).scatter_add(0, index, messages))
        return self.last(hidden).sum(0)


class Isomorphism(nn.Module):
    """A graph isomorphism network (arXiv:1810.00826): what each of several graphs is, by sums over its nodes."""

    def __init__(self, width: int = 64, layers: int = 3, graphs: int = 16) -> None:
        super().__init__()
        self.graphs = graphs
        self.layers = nn.ModuleList(_perceptron(width, width, width) for _ in range(layers))
        self.last = nn.Linear(width, 5)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor, graph: torch.Tensor) -> torch.Tensor:
        """Return [graphs, 5]."""
        found = nodes.new_zeros(self.graphs, nodes.shape[1])
        for layer in self.layers:
            index = edges[1][:, None].expand(-1, nodes.shape[1])
            nodes = torch.relu(layer(nodes.scatter_add(0, index, nodes[edges[0]])))
            found = found.scatter_add(0, graph[:, None].expand_as(nodes), nodes)
        return self.last(found / nodes.shape[0])


def _perceptron(channels: int, width: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(channels, width), nn.Softplus(), nn.Linear(width, out))


def _molecule() -> Inputs:
    return {"atoms": torch.randint(1, 90, (60,)), "places": noise(60, 3) * 3, "pairs": torch.randint(0, 60, (2, 1200))}


def _adjacency() -> Inputs:
    edges = (torch.rand(1, 300, 300) < 0.05).float() + torch.eye(300)
    return {"nodes": noise(1, 300, 200), "adjacency": edges}


def _edges() -> Inputs:
    sources, targets = torch.randint(0, 500, (2, 4000))
    return {"nodes": noise(500, 128), "sources": sources, "targets": targets}


def _several_graphs() -> Inputs:
    graph = torch.sort(torch.randint(0, 16, (2000,)))[0]
    return {"nodes": noise(2000, 64), "edges": torch.randint(0, 2000, (2, 8000)), "graph": graph}


GRAPHS = [
    own("gat", "graphs", Attention, _adjacency),
    own("graphsage", "graphs", Sage, _edges),
    own("schnet", "graphs", SchNet, _molecule),
    own("gin", "graphs", Isomorphism, _several_graphs),
]
