"""Models of skeletons, molecules, codebooks, tables, flows and feature pyramids."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from benchmarks.zoo.entry import image, noise, own, tokens


class Skeletons(nn.Module):
    """ST-GCN (arXiv:1801.07455): graph convolutions of joints, and convolutions along time."""

    def __init__(self, widths: tuple[int, ...] = (3, 64, 64, 128, 128), joints: int = 25, kinds: int = 3) -> None:
        super().__init__()
        self.edges = nn.Parameter(torch.rand(kinds, joints, joints) / joints)
        pairs = list(pairwise(widths))
        strides = [2 if index and before != after else 1 for index, (before, after) in enumerate(pairs)]
        self.spread = nn.ModuleList(nn.Conv2d(before, after * kinds, 1) for before, after in pairs)
        self.shortcuts = nn.ModuleList(
            nn.Sequential(nn.Conv2d(before, after, 1, (stride, 1)), nn.BatchNorm2d(after))
            for (before, after), stride in zip(pairs, strides, strict=True)
        )
        self.along = nn.ModuleList(
            nn.Sequential(
                *(nn.BatchNorm2d(after), nn.ReLU(), nn.Conv2d(after, after, (9, 1), (stride, 1), (4, 0))),
                nn.BatchNorm2d(after),
            )
            for (_, after), stride in zip(pairs, strides, strict=True)
        )
        self.last = nn.Linear(widths[-1], 60)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, classes] of [n, 3, frames, joints]."""
        for spread, shortcut, along in zip(self.spread, self.shortcuts, self.along, strict=True):
            y = spread(x)
            y = y.view(len(x), len(self.edges), -1, *y.shape[2:])
            x = torch.relu(along(torch.einsum("nkctv,kvw->nctw", y, self.edges)) + shortcut(x))
        return self.last(x.mean((2, 3)))


class Molecules(nn.Module):
    """EGNN (arXiv:2102.09844) on all pairs of atoms."""

    def __init__(self, width: int = 64, layers: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(16, width)
        wide = 2 * width + 1
        self.edges = nn.ModuleList(
            nn.Sequential(nn.Linear(wide, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()) for _ in range(layers)
        )
        self.moves = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1)) for _ in range(layers)
        )
        self.nodes = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width)) for _ in range(layers)
        )

    def forward(self, atoms: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Return [n, atoms, width + 3]."""
        x = self.first(atoms)
        count = x.shape[1]
        for edges, moves, nodes in zip(self.edges, self.moves, self.nodes, strict=True):
            apart = places[:, :, None] - places[:, None]
            both = [x[:, :, None].expand(-1, -1, count, -1), x[:, None].expand(-1, count, -1, -1)]
            messages = edges(torch.cat([*both, (apart * apart).sum(-1, keepdim=True)], -1))
            places = places + (apart * moves(messages)).mean(2)
            x = x + nodes(torch.cat([x, messages.sum(2)], -1))
        return torch.cat([x, places], -1)


class Codebook(nn.Module):
    """VQ-VAE (arXiv:1711.00937)."""

    def __init__(self, width: int = 64, codes: int = 512) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.randn(codes, width))
        self.encode = nn.Sequential(
            *(nn.Conv2d(3, 64, 4, 2, 1), nn.ReLU(), nn.Conv2d(64, 128, 4, 2, 1), nn.ReLU()),
            nn.Conv2d(128, width, 3, 1, 1),
        )
        self.decode = nn.Sequential(
            *(nn.Conv2d(width, 128, 3, 1, 1), nn.ReLU(), nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.ReLU()),
            nn.ConvTranspose2d(64, 3, 4, 2, 1),
        )

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Return images."""
        found = self.encode(pixel_values).permute(0, 2, 3, 1)
        flat = found.reshape(-1, found.shape[-1])
        distances = (flat * flat).sum(1, keepdim=True) - 2 * flat @ self.codes.t() + (self.codes * self.codes).sum(1)
        nearest = functional.embedding(distances.argmin(1), self.codes).view(found.shape)
        return self.decode(nearest.permute(0, 3, 1, 2))


class Crossing(nn.Module):
    """xDeepFM (arXiv:1803.05170), with a table for each of 26 fields."""

    def __init__(self, fields: int = 26, width: int = 16, maps: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(1000, width) for _ in range(fields))
        self.crosses = nn.ModuleList(nn.Conv1d(fields * before, maps, 1) for before in (fields, maps))
        self.deep = nn.Sequential(
            *(nn.Linear(fields * width, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 1))
        )
        self.last = nn.Linear(2 * maps, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return [n, 1]."""
        first = torch.stack([table(ids[:, index]) for index, table in enumerate(self.tables)], 1)
        x, sums = first, []
        for cross in self.crosses:
            x = torch.relu(cross(torch.einsum("bhd,bfd->bhfd", x, first).flatten(1, 2)))
            sums.append(x.sum(2))
        return torch.sigmoid(self.last(torch.cat(sums, 1)) + self.deep(first.flatten(1)))


class Pyramid(nn.Module):
    """A backbone with two layers of BiFPN (arXiv:1911.09070) and a head."""

    def __init__(self, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        widths = (3, 32, 64, 128, 256, 256)
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.SiLU())
            for before, after in pairwise(widths)
        )
        self.sides = nn.ModuleList(nn.Conv2d(each, width, 1) for each in widths[2:])
        self.weights = nn.Parameter(torch.rand(layers, 6, 3) + 0.5)
        self.convolutions = nn.ModuleList(self._separable(width) for _ in range(6 * layers))
        self.head = nn.Sequential(self._separable(width), nn.SiLU(), nn.Conv2d(width, 36, 3, 1, 1))

    def _separable(self, width: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(width, width, 3, 1, 1, groups=width, bias=False),
            nn.Conv2d(width, width, 1),
            nn.BatchNorm2d(width),
        )

    def _sum(self, at: int, *features: torch.Tensor) -> torch.Tensor:
        weights = torch.relu(self.weights[at // 6, at % 6, : len(features)])
        weights = weights / (weights.sum() + 1e-4)
        total = sum(weight * feature for weight, feature in zip(weights, features, strict=True))
        return self.convolutions[at](functional.silu(total))

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Return [n, 36, places]."""
        x, found = pixel_values, []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        levels = [side(each) for side, each in zip(self.sides, found[1:], strict=True)]
        for layer in range(len(self.weights)):
            down = [levels[3]]
            for step, level in enumerate(levels[2::-1]):
                down.append(self._sum(6 * layer + step, level, functional.interpolate(down[-1], scale_factor=2.0)))
            up = [down[3]]
            for step in range(3):
                pooled = functional.max_pool2d(up[-1], 3, 2, 1)
                up.append(self._sum(6 * layer + 3 + step, levels[step + 1], down[2 - step], pooled))
            levels = up
        return torch.cat([self.head(level).flatten(2) for level in levels], 2)


class Attended(nn.Module):
    """Residual blocks with attention to channels, then to places (arXiv:1807.06521)."""

    def __init__(self, width: int = 64, blocks: int = 3) -> None:
        super().__init__()
        self.first = nn.Sequential(
            *(nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        )
        self.blocks = nn.ModuleList(
            nn.Sequential(
                *(nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
                *(nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)),
            )
            for _ in range(blocks)
        )
        self.channels = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width // 16), nn.ReLU(), nn.Linear(width // 16, width))
            for _ in range(blocks)
        )
        self.places = nn.ModuleList(nn.Conv2d(2, 1, 7, 1, 3) for _ in range(blocks))
        self.last = nn.Linear(width, 10)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Return [n, classes]."""
        x = self.first(pixel_values)
        for block, channels, places in zip(self.blocks, self.channels, self.places, strict=True):
            y = block(x)
            y = y * torch.sigmoid(channels(y.mean((2, 3))) + channels(y.amax((2, 3))))[:, :, None, None]
            both = torch.cat([y.mean(1, keepdim=True), y.amax(1, keepdim=True)], 1)
            x = torch.relu(x + y * torch.sigmoid(places(both)))
        return self.last(x.mean((2, 3)))


STRUCTURES = [
    own("st_gcn", "skeletons", Skeletons, lambda: {"x": noise(1, 3, 128, 25)}),
    own("egnn", "graphs", Molecules, lambda: {"atoms": noise(1, 32, 16), "places": noise(1, 32, 3)}),
    own("vqvae", "generator", Codebook, image(128)),
    own("xdeepfm", "recommendation", Crossing, lambda: {"ids": tokens(1, 26)}),
    own("bifpn", "detection", Pyramid, image(256)),
    own("cbam", "classifier", Attended, image()),
]
