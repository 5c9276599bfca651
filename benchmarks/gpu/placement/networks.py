"""Networks of the Collage paper (https://arxiv.org/abs/2111.00655) that the zoo has not, or has smaller, and GPT-2."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo.entry import Entry, hugging, image, noise, own, tokens


def _layer3d(channels: int, out: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv3d(channels, out, kernel, stride, kernel // 2, bias=False), nn.BatchNorm3d(out))


class Bottleneck3d(nn.Module):
    """Three convolutions of volumes, the middle one of 3x3x3, with the input added (https://arxiv.org/abs/1711.09577)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.first, self.middle = _layer3d(channels, width, 1), _layer3d(width, width, 3, stride)
        self.last = _layer3d(width, out, 1)
        self.short = nn.Identity() if stride == 1 and channels == out else _layer3d(channels, out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[n, 4 * width, frames, h, w]``, of extents divided by the stride."""
        y = functional.relu(self.middle(functional.relu(self.first(x))))
        return functional.relu(self.last(y) + self.short(x))


def resnet3d_50() -> nn.Module:
    """Return 3D-ResNet-50."""
    stem = nn.Conv3d(3, 64, 7, (1, 2, 2), 3, bias=False)
    layers: list[nn.Module] = [stem, nn.BatchNorm3d(64), nn.ReLU(), nn.MaxPool3d(3, 2, 1)]
    channels = 64
    for width, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(depth):
            layers.append(Bottleneck3d(channels, width, stride if index == 0 else 1))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(channels, 400))


class Separable(nn.Sequential):
    """ReLU, a depthwise convolution and one of 1x1, twice; the first one has the stride."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int = 1) -> None:
        layers: list[nn.Module] = []
        for given, step in ((channels, stride), (out, 1)):
            depthwise = nn.Conv2d(given, given, kernel, step, kernel // 2, groups=given, bias=False)
            layers += [nn.ReLU(), depthwise, nn.Conv2d(given, out, 1, bias=False), nn.BatchNorm2d(out)]
        super().__init__(*layers)


def _squeeze(channels: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.ReLU(), nn.Conv2d(channels, out, 1, bias=False), nn.BatchNorm2d(out))


class Halve(nn.Module):
    """Half the extents by two averages of single pixels, one of them moved by a pixel."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.even = nn.Conv2d(channels, out // 2, 1, bias=False)
        self.odd = nn.Conv2d(channels, out - out // 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[n, out, h / 2, w / 2]``, rounded up."""
        x = functional.relu(x)
        moved = functional.pad(x, (-1, 1, -1, 1))
        return self.norm(torch.cat([self.even(x[:, :, ::2, ::2]), self.odd(moved[:, :, ::2, ::2])], 1))


class Cell(nn.Module):
    """A cell of NASNet-A (https://arxiv.org/abs/1707.07012, figure 4): ``before`` and ``x`` are the last two results.

    With ``reduces`` it halves the extents and returns ``4 * width`` channels, else ``6 * width``.
    """

    def __init__(self, before: int, channels: int, width: int, *, reduces: bool, halves: bool) -> None:
        super().__init__()
        self.reduces = reduces
        self.before = Halve(before, width) if halves else _squeeze(before, width)
        self.enter = _squeeze(channels, width)
        kernels = (5, 7, 7, 5, 3) if reduces else (5, 3, 5, 3, 3)
        steps = (2, 2, 2, 2, 1) if reduces else (1,) * 5
        self.layers = nn.ModuleList([Separable(width, width, k, s) for k, s in zip(kernels, steps, strict=True)])
        stride = 2 if reduces else 1
        self.mean = nn.AvgPool2d(3, stride, 1, count_include_pad=False)
        self.mean_after = nn.AvgPool2d(3, 1, 1, count_include_pad=False)
        self.most = nn.MaxPool2d(3, 2, 1)

    def forward(self, before: Tensor, x: Tensor) -> Tensor:
        """Return the cell's result."""
        left, right = self.before(before), self.enter(x)
        one, two, three, four, five = self.layers
        if self.reduces:
            first, most = one(right) + two(left), self.most(right)
            second, third = most + three(left), self.mean(right) + four(left)
            return torch.cat([second, third, self.mean_after(first) + second, five(first) + most], 1)
        first, second = one(right) + two(left), three(left) + four(left)
        third, fourth = self.mean(right) + left, self.mean(left) + self.mean(left)
        return torch.cat([left, first, second, third, fourth, five(right) + right], 1)


class NasNet(nn.Module):
    """NASNet-A (4 @ 1056), the mobile one, for images of 224x224."""

    def __init__(self, width: int = 44, depth: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, 2, bias=False), nn.BatchNorm2d(32))
        cells: list[nn.Module] = []
        before = channels = 32
        halves = False
        plan = [(width // 4, True), (width // 2, True)]
        for stage in range(3):
            plan += [(width << stage, True)] if stage else []
            plan += [(width << stage, False)] * depth
        for wide, reduces in plan:
            cells.append(Cell(before, channels, wide, reduces=reduces, halves=halves))
            before, channels, halves = channels, (4 if reduces else 6) * wide, reduces
        self.cells = nn.ModuleList(cells)
        self.head = nn.Linear(channels, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[n, 1000]``."""
        before = x = self.stem(x)
        for cell in self.cells:
            before, x = x, cell(before, x)
        logits: Tensor = self.head(functional.relu(x).mean((2, 3)))
        return logits


def gpt2() -> Entry:
    """Return the entry of GPT-2 small with a mask; its vocabulary, which only embeddings have, is shortened."""
    shape = (1, 128)
    return hugging(
        "gpt2", "decoder", "GPT2Model", {"vocab_size": 4096},
        lambda: {"input_ids": tokens(*shape), "attention_mask": torch.ones(shape, dtype=torch.int64)}, use_cache=False,
    )  # fmt: skip


NETWORKS = (
    own("nasnet", "classifier", NasNet, image()),
    own("resnet3d_50", "video", resnet3d_50, lambda: {"video": noise(1, 3, 16, 112, 112)}),
    gpt2(),
)
