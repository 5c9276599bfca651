"""Classifiers of images: convolutional nets, transformers, and nets between the two."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from benchmarks.zoo.entry import Entry, hugging, image, own


def conv(channels: int, out: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Return a convolution with batch norm and ReLU."""
    layer = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(out), nn.ReLU())


class SqueezeExcite(nn.Module):
    """Channel attention (arXiv:1709.01507)."""

    def __init__(self, channels: int, by: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, channels // by, 1), nn.Conv2d(channels // by, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, c, h, w]."""
        return x * torch.sigmoid(self.up(torch.relu(self.down(x.mean((2, 3), keepdim=True)))))


class Bottleneck(nn.Module):
    """The block of ResNeXt (arXiv:1611.05431), with channel attention or without."""

    def __init__(self, channels: int, width: int, out: int, stride: int, groups: int, *, squeeze: bool) -> None:
        super().__init__()
        last = nn.Sequential(nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out))
        self.layers = nn.Sequential(conv(channels, width, 1), conv(width, width, 3, stride, groups), last)
        self.squeeze = SqueezeExcite(out, 16) if squeeze else nn.Identity()
        same = stride == 1 and channels == out
        short = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.shortcut = nn.Identity() if same else short

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, out, h, w]."""
        return torch.relu(self.squeeze(self.layers(x)) + self.shortcut(x))


def resnext(*, depths: tuple[int, ...] = (3, 4, 6, 3), groups: int = 32, width: int = 4, squeeze: bool) -> nn.Module:
    """Return ResNeXt-50 of 32 groups of 4 channels, or what the options say."""
    layers: list[nn.Module] = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, depth in enumerate(depths):
        out = 256 << stage
        for block in range(depth):
            stride = 2 if block == 0 and stage else 1
            layers.append(Bottleneck(channels, (groups * width) << stage, out, stride, groups, squeeze=squeeze))
            channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)).eval()


class ShuffleUnit(nn.Module):
    """The unit of ShuffleNetV2 (arXiv:1807.11164)."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        half, self.down = out // 2, stride == 2
        enter = channels if self.down else half
        depthwise = nn.Sequential(nn.Conv2d(half, half, 3, stride, 1, groups=half, bias=False), nn.BatchNorm2d(half))
        self.right = nn.Sequential(conv(enter, half, 1), depthwise, conv(half, half, 1))
        first = nn.Sequential(nn.Conv2d(enter, enter, 3, stride, 1, groups=enter, bias=False), nn.BatchNorm2d(enter))
        self.left = nn.Sequential(first, conv(enter, half, 1)) if self.down else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, out, h, w], the channels of both halves in turn."""
        left, right = (x, x) if self.down else x.chunk(2, 1)
        joined = torch.cat([self.left(left), self.right(right)], 1)
        n, c, h, w = joined.shape
        return joined.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def shufflenet() -> nn.Module:
    """Return ShuffleNetV2 of width 1."""
    layers: list[nn.Module] = [conv(3, 24, 3, 2), nn.MaxPool2d(3, 2, 1)]
    channels = 24
    for out, count in ((116, 4), (232, 8), (464, 4)):
        for index in range(count):
            layers.append(ShuffleUnit(channels if index == 0 else out, out, 2 if index == 0 else 1))
        channels = out
    layers += [conv(channels, 1024, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, 1000)]
    return nn.Sequential(*layers).eval()


class Ghost(nn.Module):
    """A block of GhostNet (arXiv:1911.11907): half of the channels by a product, half by a depthwise convolution."""

    def __init__(self, channels: int, out: int, *, relu: bool) -> None:
        super().__init__()
        self.main = conv(channels, out // 2, 1)
        self.cheap = conv(out // 2, out // 2, 3, groups=out // 2)
        self.relu = relu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, out, h, w]."""
        main = self.main(x)
        joined = torch.cat([main, self.cheap(main)], 1)
        return torch.relu(joined) if self.relu else joined


class GhostBottleneck(nn.Module):
    """Two ghost blocks, a depthwise convolution of stride 2 between them where the image shrinks."""

    def __init__(self, channels: int, hidden: int, out: int, stride: int) -> None:
        super().__init__()
        down = nn.Sequential(nn.Conv2d(hidden, hidden, 5, 2, 2, groups=hidden, bias=False), nn.BatchNorm2d(hidden))
        between = down if stride == 2 else nn.Identity()
        enter, leave = Ghost(channels, hidden, relu=True), Ghost(hidden, out, relu=False)
        self.layers = nn.Sequential(enter, between, SqueezeExcite(hidden, 4), leave)
        short = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.shortcut = nn.Identity() if stride == 1 and channels == out else short

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, out, h, w]."""
        return self.layers(x) + self.shortcut(x)


def ghostnet() -> nn.Module:
    """Return a GhostNet with ten of its sixteen blocks."""
    sizes = ((16, 48, 24, 2), (24, 72, 24, 1), (24, 72, 40, 2), (40, 120, 40, 1), (40, 240, 80, 2), (80, 200, 80, 1),
             (80, 480, 112, 1), (112, 672, 112, 1), (112, 672, 160, 2), (160, 960, 160, 1))  # fmt: skip
    blocks = [GhostBottleneck(*size) for size in sizes]
    head = [conv(160, 960, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(960, 1000)]
    return nn.Sequential(conv(3, 16, 3, 2), *blocks, *head).eval()


class Mixer(nn.Module):
    """A block of MLP-Mixer (arXiv:2105.01601)."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(places, places * 2), nn.GELU(), nn.Linear(places * 2, places))
        self.along = nn.Sequential(nn.Linear(width, width * 4), nn.GELU(), nn.Linear(width * 4, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, places, width]."""
        x = x + self.across(self.one(x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.two(x))


class MixerNet(nn.Module):
    """Mixer-S/16 with six of its eight blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 512, 16, 16)
        self.blocks = nn.Sequential(*(Mixer(196, 512) for _ in range(6)), nn.LayerNorm(512))
        self.head = nn.Linear(512, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, 1000]."""
        return self.head(self.blocks(self.stem(x).flatten(2).transpose(1, 2)).mean(1))


class Inception(nn.Module):
    """A block of Inception v3 (arXiv:1512.00567) with windows of 1x7 and 7x1."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()

        def line(*windows: tuple[int, int]) -> nn.Sequential:
            layers: list[nn.Module] = [conv(channels, width, 1)]
            for index, (tall, wide) in enumerate(windows):
                out = 192 if index == len(windows) - 1 else width
                layer = nn.Conv2d(width, out, (tall, wide), padding=(tall // 2, wide // 2), bias=False)
                layers += [layer, nn.BatchNorm2d(out), nn.ReLU()]
            return nn.Sequential(*layers)

        self.one, self.pooled = conv(channels, 192, 1), nn.Sequential(nn.AvgPool2d(3, 1, 1), conv(channels, 192, 1))
        self.three = line((1, 7), (7, 1))
        self.five = line((7, 1), (1, 7), (7, 1), (1, 7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, 768, h, w]."""
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(x)], 1)


def inception() -> nn.Module:
    """Return a stem and three blocks of Inception v3."""
    stem = [conv(3, 32, 3, 2), conv(32, 64), nn.MaxPool2d(3, 2, 1), conv(64, 192, 3, 2), conv(192, 768, 3, 2)]
    blocks = [Inception(768, width) for width in (128, 160, 192)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(768, 1000)).eval()


def vgg() -> nn.Module:
    """Return the convolutions of VGG-11."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()] if width else [nn.MaxPool2d(2)]
        channels = width or channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)).eval()


def _net(name: str, model: str, size: int = 224, **config: object) -> Entry:
    """Return a classifier of transformers."""
    return hugging(name, "classifier", f"{model}ForImageClassification", config, image(size), "logits")


def _own(name: str, make: Callable[[], nn.Module]) -> Entry:
    return own(name, "classifier", make, image())


RESNET = {"hidden_sizes": [64, 128, 256, 512], "embedding_size": 64}
VIT = {"hidden_size": 384, "num_hidden_layers": 4, "num_attention_heads": 6, "intermediate_size": 1536}
CLASSIFIERS = [
    _net("resnet18", "ResNet", **RESNET, depths=[2, 2, 2, 2], layer_type="basic"),
    _own("resnext50", partial(resnext, squeeze=False)),
    _own("se_resnext26", partial(resnext, depths=(2, 2, 2, 2), squeeze=True)),
    _net("regnety_400mf", "RegNet", embedding_size=32, hidden_sizes=[48, 104, 208, 440], depths=[1, 3, 6, 6],
         groups_width=8, layer_type="y"),
    _net("regnetx_800mf", "RegNet", embedding_size=32, hidden_sizes=[64, 128, 288, 672], depths=[1, 3, 7, 5],
         groups_width=16, layer_type="x"),
    _own("shufflenet_v2", shufflenet),
    _own("ghostnet", ghostnet),
    _own("inception_v3", inception),
    _own("vgg11", vgg),
    _net("mobilenet_v1", "MobileNetV1"),
    _net("mobilenet_v2", "MobileNetV2"),
    _net("efficientnet_b0", "EfficientNet", hidden_dim=1280, width_coefficient=1.0, depth_coefficient=1.0),
    _net("convnext_tiny", "ConvNext", depths=[2, 2, 4, 2], hidden_sizes=[96, 192, 384, 768]),
    _net("convnextv2_nano", "ConvNextV2", depths=[2, 2, 4, 2], hidden_sizes=[80, 160, 320, 640]),
    _net("hgnet_v2", "HGNetV2"),
    _net("vit_s16", "ViT", **VIT),
    _net("dinov2_s", "Dinov2", hidden_size=384, num_hidden_layers=4, num_attention_heads=6),
    _net("beit_s", "Beit", **VIT, use_relative_position_bias=True),
    _own("mixer_s16", MixerNet),
    _net("swin_tiny", "Swin", depths=[2, 2, 2, 2]),
    _net("swinv2_tiny", "Swinv2", 256, image_size=256, window_size=8, depths=[2, 2, 2, 2]),
    _net("poolformer_s", "PoolFormer", depths=[2, 2, 4, 2]),
    _net("pvt_v2_b0", "PvtV2"),
    _net("focalnet_tiny", "FocalNet", depths=[2, 2, 2, 2]),
    _net("cvt_13", "Cvt", depth=[1, 2, 4]),
    _net("levit_128", "Levit", hidden_sizes=[128, 256, 384], num_attention_heads=[4, 8, 12], depths=[4, 4, 4]),
    _net("mobilevit_s", "MobileViT", 256, image_size=256),
    _net("swiftformer_xs", "SwiftFormer"),
]  # fmt: skip
