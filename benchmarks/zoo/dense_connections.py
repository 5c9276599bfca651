"""Classifiers of images whose layers read what all before them wrote."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.zoo.classifiers import conv
from benchmarks.zoo.entry import image, own


class Dense(nn.Module):
    """A layer of DenseNet: its result joins its input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        norms = nn.BatchNorm2d(channels), nn.BatchNorm2d(128)
        convs = nn.Conv2d(channels, 128, 1, bias=False), nn.Conv2d(128, 32, 3, padding=1, bias=False)
        self.layers = nn.Sequential(norms[0], nn.ReLU(), convs[0], norms[1], nn.ReLU(), convs[1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, channels + 32, h, w]."""
        return torch.cat([x, self.layers(x)], 1)


def densenet() -> nn.Module:
    """Return a DenseNet of 6, 8 and 8 layers."""
    layers: list[nn.Module] = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for count in (6, 8, 8):
        layers += [Dense(channels + 32 * index) for index in range(count)]
        channels += 32 * count
        layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels // 2, 1), nn.AvgPool2d(2)]
        channels //= 2
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)).eval()


class DualPath(nn.Module):
    """The block of a dual path network (arXiv:1707.01629): some channels are added, others appended."""

    def __init__(self, channels: int, width: int, added: int, appended: int, stride: int) -> None:
        super().__init__()
        self.added = added
        enters = [nn.Sequential(nn.BatchNorm2d(size), nn.ReLU()) for size in (channels, width, width)]
        grouped = nn.Conv2d(width, width, 3, stride, 1, groups=32, bias=False)
        convs = [nn.Conv2d(channels, width, 1, bias=False), grouped, nn.Conv2d(width, added + appended, 1, bias=False)]
        self.layers = nn.Sequential(*(part for pair in zip(enters, convs, strict=True) for part in pair))
        is_first = stride > 1 or channels < added + appended
        self.shortcut = nn.Conv2d(channels, added + 2 * appended, 1, stride, bias=False) if is_first else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, channels + appended, h, w], of the first block [n, added + 3 * appended, h, w]."""
        kept, y = self.shortcut(x), self.layers(x)
        total = kept[:, : self.added] + y[:, : self.added]
        return torch.cat([total, kept[:, self.added :], y[:, self.added :]], 1)


def dual_path() -> nn.Module:
    """Return DPN-68 with two blocks of each width."""
    layers: list[nn.Module] = [conv(3, 10, 3, 2), nn.MaxPool2d(3, 2, 1)]
    channels = 10
    for stage, appended in enumerate((16, 32, 32, 64)):
        width, added = 128 << stage, 64 << stage
        layers.append(DualPath(channels, width, added, appended, 2 if stage else 1))
        channels = added + 3 * appended
        layers.append(DualPath(channels, width, added, appended, 1))
        channels += appended
    last = [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
    return nn.Sequential(*layers, *last).eval()


DENSE_CONNECTIONS = [own("densenet", "classifier", densenet, image()), own("dpn68", "classifier", dual_path, image())]
