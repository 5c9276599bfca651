"""Models of sequences and tables without attention, of base widths, for ``benchmarks.gpu.zoo`` alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo.entry import Entry, noise, own


class SpeakerBlock(nn.Module):
    """A block of ECAPA-TDNN: parts of channels in a chain, squeeze and excitation (arXiv:2005.07143)."""

    def __init__(self, width: int, dilation: int, parts: int = 8) -> None:
        super().__init__()
        self.parts, each = parts, width // parts
        self.enter = nn.Sequential(nn.Conv1d(width, width, 1), nn.ReLU(), nn.BatchNorm1d(width))
        self.leave = nn.Sequential(nn.Conv1d(width, width, 1), nn.ReLU(), nn.BatchNorm1d(width))
        self.chain = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(each, each, 3, padding=dilation, dilation=dilation), nn.ReLU(), nn.BatchNorm1d(each)
            )
            for _ in range(parts - 1)
        )
        self.squeeze = nn.Sequential(nn.Conv1d(width, 128, 1), nn.ReLU(), nn.Conv1d(128, width, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        """Return [n, width, frames]."""
        first, *others = self.enter(x).chunk(self.parts, 1)
        made, last = [first], torch.zeros_like(first)
        for part, layer in zip(others, self.chain, strict=True):
            last = layer(part + last)
            made.append(last)
        y = self.leave(torch.cat(made, 1))
        return x + y * self.squeeze(y.mean(2, keepdim=True))


class Speaker(nn.Module):
    """ECAPA-TDNN: blocks read together, statistics weighed by attention."""

    def __init__(self, bands: int = 80, width: int = 512) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Conv1d(bands, width, 5, padding=2), nn.ReLU(), nn.BatchNorm1d(width))
        self.blocks = nn.ModuleList(SpeakerBlock(width, dilation) for dilation in (2, 3, 4))
        self.join = nn.Conv1d(3 * width, 1536, 1)
        self.attend = nn.Sequential(
            nn.Conv1d(3 * 1536, 128, 1), nn.ReLU(), nn.BatchNorm1d(128), nn.Tanh(), nn.Conv1d(128, 1536, 1)
        )
        self.last = nn.Sequential(nn.BatchNorm1d(3072), nn.Linear(3072, 192))

    def forward(self, x: Tensor) -> Tensor:
        """Return embeddings [n, 192] of frames [n, bands, frames]."""
        x = self.enter(x)
        seen = []
        for block in self.blocks:
            x = block(x)
            seen.append(x)
        x = functional.relu(self.join(torch.cat(seen, 1)))
        mean, deviation = x.mean(2, keepdim=True), torch.sqrt(x.var(2, keepdim=True).clamp(min=1e-4))
        weights = self.attend(torch.cat([x, mean.expand_as(x), deviation.expand_as(x)], 1)).softmax(2)
        mean = (x * weights).sum(2)
        deviation = torch.sqrt(((x * x * weights).sum(2) - mean * mean).clamp(min=1e-4))
        return self.last(torch.cat([mean, deviation], 1))


class Separable(nn.Module):
    """A block of QuartzNet: five time-channel separable convolutions and a residual (arXiv:1910.10261)."""

    def __init__(self, before: int, after: int, kernel: int) -> None:
        super().__init__()
        self.skip = nn.Sequential(nn.Conv1d(before, after, 1, bias=False), nn.BatchNorm1d(after))
        layers: list[nn.Module] = []
        for index in range(5):
            width = after if index else before
            layers += [nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width, bias=False),
                       nn.Conv1d(width, after, 1, bias=False), nn.BatchNorm1d(after), nn.ReLU()]  # fmt: skip
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        """Return [n, after, frames]."""
        return functional.relu(self.layers(x) + self.skip(x))


def quartznet() -> nn.Module:
    """Return a QuartzNet of three blocks, for frames [n, 64, frames]."""
    enter = nn.Sequential(
        nn.Conv1d(64, 64, 33, 2, 16, groups=64, bias=False),
        nn.Conv1d(64, 256, 1, bias=False),
        nn.BatchNorm1d(256),
        nn.ReLU(),
    )
    blocks = [Separable(256, 256, 33), Separable(256, 256, 39), Separable(256, 512, 51)]
    return nn.Sequential(enter, *blocks, nn.Conv1d(512, 29, 1), nn.LogSoftmax(1))


class Series(nn.Module):
    """InceptionTime: convolutions of three lengths and a pool, concatenated (arXiv:1909.04939)."""

    def __init__(self, channels: int = 9, width: int = 32, blocks: int = 6) -> None:
        super().__init__()
        widths = [channels] + [4 * width] * blocks
        self.squeezes = nn.ModuleList(nn.Conv1d(before, width, 1, bias=False) for before in widths[:-1])
        self.convolutions = nn.ModuleList(
            nn.ModuleList(nn.Conv1d(width, width, size, padding=size // 2, bias=False) for size in (9, 19, 39))
            for _ in range(blocks)
        )
        self.pools = nn.ModuleList(nn.Conv1d(before, width, 1, bias=False) for before in widths[:-1])
        self.norms = nn.ModuleList(nn.BatchNorm1d(4 * width) for _ in range(blocks))
        self.skips = nn.ModuleList(
            nn.Sequential(nn.Conv1d(w, 4 * width, 1, bias=False), nn.BatchNorm1d(4 * width))
            for w in (channels, 4 * width)
        )
        self.last = nn.Linear(4 * width, 12)

    def forward(self, x: Tensor) -> Tensor:
        """Return classes of [n, channels, time]."""
        kept = x
        for index, (squeeze, convolutions) in enumerate(zip(self.squeezes, self.convolutions, strict=True)):
            y = squeeze(x)
            made = [convolution(y) for convolution in convolutions] + [
                self.pools[index](functional.max_pool1d(x, 3, 1, 1))
            ]
            x = functional.relu(self.norms[index](torch.cat(made, 1)))
            if index % 3 == 2:
                x = kept = functional.relu(x + self.skips[index // 3](kept))
        return self.last(x.mean(2))


class Tables(nn.Module):
    """TabNet: gated steps whose masks are by sparsemax (arXiv:1908.07442)."""

    def __init__(self, features: int = 64, width: int = 64, steps: int = 3) -> None:
        super().__init__()
        self.width, self.norm = width, nn.BatchNorm1d(features)
        self.shared = nn.ModuleList([nn.Linear(features, 4 * width), nn.Linear(2 * width, 4 * width)])
        self.own = nn.ModuleList(
            nn.ModuleList([nn.Linear(2 * width, 4 * width), nn.Linear(2 * width, 4 * width)]) for _ in range(steps + 1)
        )
        self.norms = nn.ModuleList(nn.ModuleList(nn.BatchNorm1d(4 * width) for _ in range(4)) for _ in range(steps + 1))
        self.masks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, features), nn.BatchNorm1d(features)) for _ in range(steps)
        )
        self.last = nn.Linear(width, 8)

    def transform(self, x: Tensor, step: int) -> Tensor:
        """Return features [n, 2 width], by two shared layers and two of the step."""
        for index, (layer, norm) in enumerate(zip((*self.shared, *self.own[step]), self.norms[step], strict=True)):
            made = functional.glu(norm(layer(x)), -1)
            x = (x + made) * 0.5**0.5 if index else made
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Return classes of [n, features]."""
        x = self.norm(x)
        prior, total = torch.ones_like(x), torch.zeros_like(x[:, : self.width])
        made = self.transform(x, 0)
        for index, mask in enumerate(self.masks):
            z = mask(made[:, self.width :]) * prior
            ordered, counts = (
                torch.sort(z, -1, descending=True)[0],
                torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device),
            )
            sums = ordered.cumsum(-1)
            support = (1 + counts * ordered > sums).to(z.dtype)
            many = support.sum(-1, keepdim=True)
            weights = functional.relu(z - ((support * ordered).sum(-1, keepdim=True) - 1) / many)
            prior = prior * (1.3 - weights)
            made = self.transform(weights * x, index + 1)
            total = total + functional.relu(made[:, : self.width])
        return self.last(total)


SEQUENCES: list[Entry] = [
    own("ecapa", "speech", Speaker, lambda: {"x": noise(1, 80, 300)}),
    own("quartznet", "speech", quartznet, lambda: {"x": noise(1, 64, 600)}),
    own("inception_time", "series", Series, lambda: {"x": noise(1, 9, 256)}),
    own("tabnet", "tables", Tables, lambda: {"x": noise(256, 64)}),
]
