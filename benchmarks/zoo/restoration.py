"""Restoration of images, and nets with weights that the input modulates."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from benchmarks.zoo.entry import image, noise, own


class ChannelNorm(nn.Module):
    """A layer norm over the channels of an image, written out as image nets have it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.rand(channels, 1, 1) + 0.5),
            nn.Parameter(torch.randn(channels, 1, 1)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, channels, h, w]."""
        centered = x - x.mean(1, keepdim=True)
        return centered / torch.sqrt((centered**2).mean(1, keepdim=True) + 1e-6) * self.weight + self.bias


class Gated(nn.Module):
    """A block of NAFNet (arXiv:2204.04676): products of halves in place of activations."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = ChannelNorm(width), ChannelNorm(width)
        depthwise = nn.Conv2d(2 * width, 2 * width, 3, padding=1, groups=2 * width)
        self.enter, self.leave = nn.Sequential(nn.Conv2d(width, 2 * width, 1), depthwise), nn.Conv2d(width, width, 1)
        self.attend = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width, 1))
        self.wide, self.narrow = nn.Conv2d(width, 2 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, width, h, w]."""
        left, right = self.enter(self.one(x)).chunk(2, 1)
        product = left * right
        x = x + self.leave(product * self.attend(product))
        left, right = self.wide(self.two(x)).chunk(2, 1)
        return x + self.narrow(left * right)


class NafNet(nn.Module):
    """NAFNet of two levels."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.before, self.after, self.down = Gated(width), Gated(width), nn.Conv2d(width, 2 * width, 2, 2)
        self.middle = nn.Sequential(Gated(2 * width), Gated(2 * width))
        self.up = nn.Sequential(nn.Conv2d(2 * width, 4 * width, 1, bias=False), nn.PixelShuffle(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, 3, h, w]."""
        level = self.before(self.enter(x))
        return x + self.leave(self.after(level + self.up(self.middle(self.down(level)))))


class Transposed(nn.Module):
    """A block of Restormer (arXiv:2111.09881): attention between channels, a gated perceptron with windows."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()

        def windows(channels: int) -> nn.Sequential:
            depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
            return nn.Sequential(nn.Conv2d(width, channels, 1, bias=False), depthwise)

        self.heads, self.scale = heads, nn.Parameter(torch.ones(heads, 1, 1))
        self.one, self.two = ChannelNorm(width), ChannelNorm(width)
        self.qkv, self.wide = windows(3 * width), windows(4 * width)
        self.leave, self.narrow = nn.Conv2d(width, width, 1, bias=False), nn.Conv2d(2 * width, width, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, width, h, w]."""
        parts = self.qkv(self.one(x)).flatten(2).unflatten(1, (3, self.heads, -1))
        q, k, v = functional.normalize(parts[:, 0], dim=-1), functional.normalize(parts[:, 1], dim=-1), parts[:, 2]
        attended = (q @ k.transpose(-2, -1) * self.scale).softmax(-1) @ v
        x = x + self.leave(attended.flatten(1, 2).unflatten(2, x.shape[2:]))
        left, right = self.wide(self.two(x)).chunk(2, 1)
        return x + self.narrow(functional.gelu(left) * right)


class Restormer(nn.Module):
    """Two blocks of Restormer at one level."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        blocks = (Transposed(width, 4), Transposed(width, 4))
        self.layers = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *blocks, nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, 3, h, w]."""
        return x + self.layers(x)


class Modulated(nn.Module):
    """StyleGAN2 (arXiv:1912.04958): filters are scaled by the style and normalized, image by image."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.map = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.LeakyReLU(0.2)) for _ in range(4)))
        self.start, self.last = nn.Parameter(torch.randn(1, width, 4, 4)), nn.Conv2d(32, 3, 1)
        sizes = ((width, width), (width, width), (width, 64), (64, 32))
        self.styles = nn.ModuleList(nn.Linear(width, a) for a, _ in sizes)
        self.filters = nn.ParameterList(nn.Parameter(torch.randn(b, a, 3, 3) / math.sqrt(9 * a)) for a, b in sizes)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        """Return [1, 3, 64, 64]."""
        style, x = self.map(z * torch.rsqrt((z * z).mean(1, keepdim=True) + 1e-8)), self.start
        for layer, filters in zip(self.styles, self.filters, strict=True):
            scaled = filters * (layer(style) + 1)[0, :, None, None]
            scaled = scaled * torch.rsqrt((scaled * scaled).sum((1, 2, 3), keepdim=True) + 1e-8)
            x = functional.interpolate(x, scale_factor=2.0, mode="bilinear")
            x = functional.leaky_relu(functional.conv2d(x, scaled, padding=1), 0.2)
        return self.last(x)


RESTORATION = [
    own("nafnet", "image to image", NafNet, image(96)),
    own("restormer", "image to image", Restormer, image(64)),
    own("stylegan2", "generator", Modulated, lambda: {"z": noise(1, 128)}),
]
