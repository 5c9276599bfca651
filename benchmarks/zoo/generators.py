"""Generators of images."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from benchmarks.zoo.entry import noise, own


def dcgan() -> nn.Module:
    """Return DCGAN's generator (arXiv:1511.06434)."""
    layers: list[nn.Module] = [nn.ConvTranspose2d(100, 512, 4, 1, 0, bias=False), nn.BatchNorm2d(512), nn.ReLU()]
    for a, b in ((512, 256), (256, 128), (128, 64)):
        layers += [nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh()).eval()


class Residual(nn.Module):
    """The block of diffusion models: GroupNorm, SiLU and convolution, twice."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(32, channels), nn.GroupNorm(32, out)])
        self.convs = nn.ModuleList([nn.Conv2d(channels, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)])
        self.short = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: torch.Tensor, shift: torch.Tensor | None = None) -> torch.Tensor:
        """Return [n, out, h, w]; ``shift`` is added between the convolutions."""
        y = self.convs[0](functional.silu(self.norms[0](x)))
        y = y if shift is None else y + shift[:, :, None, None]
        return self.short(x) + self.convs[1](functional.silu(self.norms[1](y)))


class Attention(nn.Module):
    """Self-attention of places."""

    def __init__(self, channels: int, heads: int = 1) -> None:
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(32, channels), heads
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, c, h, w]."""
        n, c, h, w = x.shape
        parts = self.qkv(self.norm(x)).reshape(n, 3, self.heads, c // self.heads, h * w)
        q, k, v = parts.transpose(-1, -2).unbind(1)
        scores = torch.softmax(q @ k.transpose(-1, -2) * (c // self.heads) ** -0.5, -1)
        return x + self.out((scores @ v).transpose(-1, -2).reshape(n, c, h, w))


class VaeDecoder(nn.Module):
    """The decoder of latent diffusion (arXiv:2112.10752) in half its width, latents of 16x16."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(4, 256, 3, padding=1), Residual(256, 256), Attention(256)]
        for a, b in ((256, 256), (256, 128), (128, 64)):
            layers += [Residual(a, b), Residual(b, b), nn.Upsample(scale_factor=2.0), nn.Conv2d(b, b, 3, padding=1)]
        self.layers = nn.Sequential(*layers, nn.GroupNorm(32, 64), nn.SiLU(), nn.Conv2d(64, 3, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, 3, 8 h, 8 w]."""
        return self.layers(x)


class DiffusionUNet(nn.Module):
    """A denoiser of images of 32x32: three levels, attention at the lower two."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 128 + 256 + 256))
        self.enter = nn.Conv2d(3, 128, 3, padding=1)
        self.down = nn.ModuleList([Residual(128, 128), Residual(128, 256), Residual(256, 256)])
        self.shrink = nn.ModuleList([nn.Conv2d(c, c, 3, 2, 1) for c in (128, 256)])
        self.focus = nn.ModuleList([Attention(256, 4), Attention(256, 4)])
        self.up = nn.ModuleList([Residual(512, 256), Residual(384, 128)])
        self.last = nn.Sequential(nn.GroupNorm(32, 128), nn.SiLU(), nn.Conv2d(128, 3, 3, padding=1))

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Return the noise in [n, 3, 32, 32]; ``time`` is [n, 64]."""
        shifts = self.time(time).split([128, 256, 256], 1)
        one = self.down[0](self.enter(x), shifts[0])
        two = self.focus[0](self.down[1](self.shrink[0](one), shifts[1]))
        low = self.focus[1](self.down[2](self.shrink[1](two), shifts[2]))
        two = self.up[0](torch.cat([functional.interpolate(low, scale_factor=2.0), two], 1))
        return self.last(self.up[1](torch.cat([functional.interpolate(two, scale_factor=2.0), one], 1)))


GENERATORS = [
    own("dcgan", "generator", dcgan, lambda: {"z": noise(1, 100, 1, 1)}),
    own("vae_decoder", "generator", VaeDecoder, lambda: {"z": noise(1, 4, 16, 16)}),
    own("diffusion_unet", "generator", DiffusionUNet, lambda: {"x": noise(1, 3, 32, 32), "time": noise(1, 64)}),
]
