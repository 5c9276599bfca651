"""Architectures that transformers does not have: MobileNetV3, U-Net and an SSD with its anchors."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from .example import BATCH, Example, Maker, noise, randomized


class SqueezeExcite(nn.Module):
    """Weights of channels from their means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(channels, channels // 4, 1)
        self.up = nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = functional.relu(self.down(functional.adaptive_avg_pool2d(x, 1)))
        return x * functional.hardsigmoid(self.up(weights))


def _norm_act(channels: int, act: nn.Module) -> list[nn.Module]:
    return [nn.BatchNorm2d(channels, eps=0.001), act]


class InvertedResidual(nn.Module):
    """MobileNetV3's block: widen, depthwise, squeeze and excite, narrow."""

    def __init__(self, inner: int, out: int, channels: int, kernel: int, stride: int, hard: bool, excite: bool) -> None:
        super().__init__()
        act: nn.Module = nn.Hardswish() if hard else nn.ReLU()
        self.block = nn.Sequential(
            nn.Conv2d(channels, inner, 1, bias=False),
            *_norm_act(inner, act),
            nn.Conv2d(inner, inner, kernel, stride, kernel // 2, groups=inner, bias=False),
            *_norm_act(inner, act),
            SqueezeExcite(inner) if excite else nn.Identity(),
            nn.Conv2d(inner, out, 1, bias=False),
            nn.BatchNorm2d(out, eps=0.001),
        )
        self.shortcut = stride == 1 and channels == out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.block(x) if self.shortcut else self.block(x)


class MobileNetV3(nn.Module):
    """MobileNetV3 small, cut to five blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1, bias=False),
            *_norm_act(16, nn.Hardswish()),
            InvertedResidual(16, 16, 16, 3, 2, hard=False, excite=True),
            InvertedResidual(48, 24, 16, 3, 2, hard=False, excite=False),
            InvertedResidual(56, 24, 24, 3, 1, hard=False, excite=False),
            InvertedResidual(64, 32, 24, 5, 2, hard=True, excite=True),
            InvertedResidual(96, 32, 32, 5, 1, hard=True, excite=True),
            nn.Conv2d(32, 96, 1, bias=False),
            *_norm_act(96, nn.Hardswish()),
        )
        self.classifier = nn.Sequential(nn.Linear(96, 64), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(64, 7))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        features = functional.adaptive_avg_pool2d(self.features(image), 1)
        return self.classifier(torch.flatten(features, 1))


def _double(channels: int, out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, out, 3, padding=1),
        *_norm_act(out, nn.ReLU()),
        nn.Conv2d(out, out, 3, padding=1),
        *_norm_act(out, nn.ReLU()),
    )


class UNet(nn.Module):
    """A U-Net of three levels: one way up is a transposed convolution, the other one a bilinear enlargement."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.bottom = _double(3, 12), _double(12, 24), _double(24, 32)
        self.up = nn.ConvTranspose2d(32, 24, 2, stride=2)
        self.left, self.right = _double(48, 24), _double(36, 12)
        self.last = nn.Conv2d(12, 4, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        first = self.first(image)
        second = self.second(functional.max_pool2d(first, 2))
        bottom = self.bottom(functional.max_pool2d(second, 2))
        left = self.left(torch.cat([second, self.up(bottom)], 1))
        right = functional.interpolate(left, scale_factor=2, mode="bilinear", align_corners=True)
        return self.last(self.right(torch.cat([first, right], 1)))


class SSD(nn.Module):
    """A single-shot detector of two scales: scores of classes, and boxes decoded against anchors of the feature maps.

    Returns scores ``[batch, anchors, classes]`` and boxes ``[batch, anchors, 4]`` (left, top, right, bottom, 0 to 1).
    """

    anchors = ((0.2, 0.2), (0.35, 0.18), (0.18, 0.35))
    classes = 5

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU6(), nn.Conv2d(16, 24, 3, 2, 1), nn.ReLU6())
        self.next = nn.Sequential(nn.MaxPool2d(3, 2, 1, ceil_mode=True), nn.Conv2d(24, 32, 3, 1, 1), nn.ReLU6())
        count = len(self.anchors)
        self.scores = nn.ModuleList(nn.Conv2d(c, count * self.classes, 3, padding=1) for c in (24, 32))
        self.boxes = nn.ModuleList(nn.Conv2d(c, count * 4, 3, padding=1) for c in (24, 32))

    def _centers(self, features: torch.Tensor) -> torch.Tensor:
        height, width = features.shape[-2:]
        ys = (torch.arange(height, dtype=torch.float32) + 0.5) / height
        xs = (torch.arange(width, dtype=torch.float32) + 0.5) / width
        grid = torch.stack(torch.meshgrid(ys, xs, indexing="ij")[::-1], -1).reshape(-1, 1, 2)
        sizes = torch.tensor(self.anchors)[None].expand(height * width, -1, -1)
        return torch.cat([grid.expand_as(sizes), sizes], -1).reshape(-1, 4)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        large = self.stem(image)
        maps = (large, self.next(large))
        batch = image.shape[0]
        flat = [
            h(m).permute(0, 2, 3, 1).reshape(batch, -1, self.classes) for h, m in zip(self.scores, maps, strict=True)
        ]
        scores = torch.softmax(torch.cat(flat, 1), -1)
        offsets = torch.cat(
            [h(m).permute(0, 2, 3, 1).reshape(batch, -1, 4) for h, m in zip(self.boxes, maps, strict=True)], 1
        )
        anchors = torch.cat([self._centers(m) for m in maps])
        centers = anchors[:, :2] + 0.1 * offsets[..., :2] * anchors[:, 2:]
        sizes = anchors[:, 2:] * torch.exp(0.2 * offsets[..., 2:])
        return scores, torch.cat([centers - sizes / 2, centers + sizes / 2], -1).clamp(0, 1)


def _image(kind: type[nn.Module], size: int) -> Maker:
    def make() -> Example:
        inputs, other = (noise(2, 3, size, size),), (noise(3, 3, size, size, seed=1),)
        return Example(randomized(kind()), inputs, ({0: BATCH},), (other,))

    return make


OWN: dict[str, Maker] = {
    "mobilenet_v3": _image(MobileNetV3, 64),
    "unet": _image(UNet, 32),
    "ssd": _image(SSD, 32),
}
