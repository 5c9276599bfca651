"""Speech: what makes frames of phonemes, encoders of recognition, complex spectra."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from benchmarks.zoo.entry import noise, own, tokens


class Variance(nn.Module):
    """A number for each phoneme, as pitch and energy of FastSpeech 2 (arXiv:2006.04558)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(width, width, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.last = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, phonemes, 1]."""
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(torch.relu(conv(x.transpose(1, 2))).transpose(1, 2))
        return self.last(x)


class FastSpeech(nn.Module):
    """FastSpeech 2 with a layer before and after the frames, four of which each phoneme has."""

    def __init__(self, width: int = 192) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(80, width), nn.Embedding(257, width)
        self.before, self.after = (
            nn.TransformerEncoderLayer(width, 2, 4 * width, 0.0, batch_first=True) for _ in range(2)
        )
        self.pitch, self.energy = Variance(width), Variance(width)
        self.spread, self.last = nn.Conv1d(1, width, 9, padding=4), nn.Linear(width, 80)
        self.register_buffer("edges", torch.linspace(-2, 2, 256))

    def forward(self, phonemes: torch.Tensor) -> torch.Tensor:
        """Return [n, 4 * phonemes, 80]."""
        x = self.before(self.embed(phonemes))
        place = (self.pitch(x) > self.edges).sum(-1)
        x = x + self.places(place) + self.spread(self.energy(x).transpose(1, 2)).transpose(1, 2)
        return self.last(self.after(x.repeat_interleave(4, 1)))


class Zipformer(nn.Module):
    """The block of Zipformer (arXiv:2310.11230): SwooshR, SwooshL and BiasNorm, with a bypass."""

    def __init__(self, width: int = 192, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.project, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.enter, self.leave = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.conv = nn.Conv1d(width, width, 15, padding=7, groups=width)
        self.bypass, self.bias = nn.Parameter(torch.rand(width)), nn.Parameter(torch.randn(width) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, frames, width]."""
        hidden = self.up(x)
        y = x + self.down(torch.log(1 + torch.exp(hidden - 1)) - 0.08 * hidden - 0.313261687)
        parts = self.project(y).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind()
        weights = (query @ key.transpose(2, 3) * query.shape[-1] ** -0.5).softmax(-1)
        y = y + self.join((weights @ value).transpose(1, 2).flatten(2))
        taken = self.conv(functional.glu(self.enter(y), -1).transpose(1, 2)).transpose(1, 2)
        y = y + self.leave(torch.log(1 + torch.exp(taken - 4)) - 0.08 * taken - 0.035)
        y = x + (y - x) * self.bypass
        return y * ((y - self.bias) ** 2).mean(-1, keepdim=True) ** -0.5


class ComplexConv(nn.Module):
    """A convolution of complex numbers (arXiv:2008.00264), whose parts are the halves of the channels."""

    def __init__(self, channels: int, out: int, *, up: bool = False) -> None:
        super().__init__()
        size = {"kernel_size": (5, 3), "stride": (2, 1), "padding": (2, 1)}
        make = (lambda: nn.ConvTranspose2d(channels, out, **size, output_padding=(1, 0))) if up else (
            lambda: nn.Conv2d(channels, out, **size)
        )  # fmt: skip
        self.real, self.imaginary = make(), make()
        self.norm, self.activate = nn.BatchNorm2d(2 * out), nn.PReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, 2 * out, f, t]."""
        a, b = x.chunk(2, 1)
        parts = self.real(a) - self.imaginary(b), self.real(b) + self.imaginary(a)
        return self.activate(self.norm(torch.cat(parts, 1)))


class Dccrn(nn.Module):
    """DCCRN of two levels: a mask of a spectrum, with a recurrent layer over frames."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = ComplexConv(1, 16), ComplexConv(16, 32)
        self.up2, self.up1 = ComplexConv(64, 16, up=True), ComplexConv(32, 1, up=True)
        self.net, self.back = nn.LSTM(64 * 64, 128, batch_first=True), nn.Linear(128, 64 * 64)

    def forward(self, spectrum: torch.Tensor) -> torch.Tensor:
        """Return [n, 2, 256, t]."""
        one = self.down1(spectrum)
        two = self.down2(one)
        n, channels, height, frames = two.shape
        hidden, _ = self.net(two.permute(0, 3, 1, 2).reshape(n, frames, channels * height))
        middle = self.back(hidden).view(n, frames, channels, height).permute(0, 2, 3, 1)
        real, imaginary = self.up1(_joined(self.up2(_joined(middle, two)), one)).chunk(2, 1)
        size = torch.sqrt(real**2 + imaginary**2 + 1e-8)
        return torch.tanh(size) * torch.cat([real, imaginary], 1) / size


def _joined(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the channels of both, their real parts first."""
    (a, b), (c, d) = x.chunk(2, 1), y.chunk(2, 1)
    return torch.cat([a, c, b, d], 1)


SPEECH = [
    own("fastspeech2", "audio", FastSpeech, lambda: {"phonemes": tokens(1, 60, below=80)}),
    own("zipformer", "audio", lambda: nn.Sequential(Zipformer(), Zipformer()), lambda: {"frames": noise(1, 120, 192)}),
    own("dccrn", "audio", Dccrn, lambda: {"spectrum": noise(1, 2, 256, 40)}),
]
