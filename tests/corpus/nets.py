"""Networks of images that people write in torch themselves; batch, height and width are dynamic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional

from .case import Bounds, Call, Model, Sizes, noise


def conv(channels: int, out: int, kernel: int = 3, stride: int = 1, act: type[nn.Module] = nn.SiLU) -> nn.Sequential:
    """Return a convolution with its batch norm and activation."""
    return nn.Sequential(nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(out), act())


class Bottleneck(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one, self.two = conv(channels, channels), conv(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.two(self.one(x))


class C2f(nn.Module):
    """YOLOv8's block: split channels, and join the results of all bottlenecks."""

    def __init__(self, channels: int, out: int, count: int = 1) -> None:
        super().__init__()
        self.half = out // 2
        self.enter, self.leave = conv(channels, out, 1), conv((2 + count) * self.half, out, 1)
        self.blocks = nn.ModuleList(Bottleneck(self.half) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = list(self.enter(x).chunk(2, 1))
        for block in self.blocks:
            parts.append(block(parts[-1]))
        return self.leave(torch.cat(parts, 1))


class SPPF(nn.Module):
    """Max pools of a growing window, joined."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.enter, self.leave = conv(channels, channels // 2, 1), conv(channels * 2, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pools = [self.enter(x)]
        for _ in range(3):
            pools.append(functional.max_pool2d(pools[-1], 5, 1, 2))
        return self.leave(torch.cat(pools, 1))


class Detector(nn.Module):
    """YOLOv8 in small: three levels, a neck that goes up and down, and a head with distributions of distances."""

    BINS, CLASSES = 8, 5

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, 8, 3, 2), conv(8, 16, 3, 2), C2f(16, 16))
        self.p3 = nn.Sequential(conv(16, 24, 3, 2), C2f(24, 24))
        self.p4 = nn.Sequential(conv(24, 32, 3, 2), C2f(32, 32))
        self.p5 = nn.Sequential(conv(32, 48, 3, 2), C2f(48, 48), SPPF(48))
        self.up4, self.up3 = C2f(80, 32), C2f(56, 24)
        self.down4, self.join4 = conv(24, 24, 3, 2), C2f(56, 32)
        self.down5, self.join5 = conv(32, 32, 3, 2), C2f(80, 48)
        self.boxes = nn.ModuleList(nn.Conv2d(n, 4 * self.BINS, 1) for n in (24, 32, 48))
        self.classes = nn.ModuleList(nn.Conv2d(n, self.CLASSES, 1) for n in (24, 32, 48))
        self.register_buffer("bins", torch.arange(self.BINS, dtype=torch.float32))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        p3 = self.p3(self.stem(image))
        p4 = self.p4(p3)
        p5 = self.p5(p4)
        n4 = self.up4(torch.cat([functional.interpolate(p5, scale_factor=2.0, mode="nearest"), p4], 1))
        n3 = self.up3(torch.cat([functional.interpolate(n4, scale_factor=2.0, mode="nearest"), p3], 1))
        n4 = self.join4(torch.cat([self.down4(n3), n4], 1))
        n5 = self.join5(torch.cat([self.down5(n4), p5], 1))
        levels, anchors, strides = [], [], []
        for number, level in enumerate((n3, n4, n5)):
            levels.append(torch.cat([self.boxes[number](level), self.classes[number](level)], 1).flatten(2))
            height, width = level.shape[2:]
            rows = torch.arange(height, dtype=torch.float32) + 0.5
            columns = torch.arange(width, dtype=torch.float32) + 0.5
            y, x = torch.meshgrid(rows, columns, indexing="ij")
            anchors.append(torch.stack([x.flatten(), y.flatten()]))
            strides.append(torch.full_like(anchors[-1][:1], 8 * 2**number))
        boxes, scores = torch.cat(levels, 2).split([4 * self.BINS, self.CLASSES], 1)
        batch, _, count = boxes.shape
        chances = boxes.view(batch, 4, self.BINS, count).softmax(2)
        distances = (chances * self.bins.view(1, 1, -1, 1)).sum(2)
        near, far = distances.chunk(2, 1)
        centers, stride = torch.cat(anchors, 1)[None], torch.cat(strides, 1)[None]
        low, high = centers - near, centers + far
        return torch.cat([(low + high) / 2 * stride, (high - low) * stride, scores.sigmoid()], 1)


class UNet(nn.Module):
    """Two levels down, and up again by transposed convolutions or by interpolation, with cropped shortcuts."""

    def __init__(self, transposed: bool) -> None:
        super().__init__()
        self.one, self.two, self.three = (conv(a, b, act=nn.ReLU) for a, b in ((3, 8), (8, 16), (16, 32)))
        self.transposed = transposed
        self.up2 = nn.ConvTranspose2d(32, 16, 2, 2) if transposed else nn.Conv2d(32, 16, 1)
        self.up1 = nn.ConvTranspose2d(16, 8, 2, 2) if transposed else nn.Conv2d(16, 8, 1)
        self.back2, self.back1, self.last = conv(32, 16), conv(16, 8), nn.Conv2d(8, 2, 1)

    def _up(self, x: torch.Tensor, by: nn.Module, like: torch.Tensor) -> torch.Tensor:
        if self.transposed:
            return by(x)
        return by(functional.interpolate(x, size=like.shape[2:], mode="bilinear", align_corners=True))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        one = self.one(image)
        two = self.two(functional.max_pool2d(one, 2))
        three = self.three(functional.max_pool2d(two, 2))
        two = self.back2(torch.cat([two, self._up(three, self.up2, two)], 1))
        return self.last(self.back1(torch.cat([one, self._up(two, self.up1, one)], 1)))


class DeepLab(nn.Module):
    """Dilated convolutions side by side, one of them over the whole image, and a bilinear way back."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(3, 16, 3, 2, nn.ReLU), conv(16, 24, 3, 2, nn.ReLU))
        self.branches = nn.ModuleList(nn.Conv2d(24, 16, 3, padding=rate, dilation=rate) for rate in (1, 2, 4))
        self.pooled, self.last = nn.Conv2d(24, 16, 1), nn.Conv2d(64, 4, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        body = self.body(image)
        whole = functional.relu(self.pooled(functional.adaptive_avg_pool2d(body, 1)))
        parts = [functional.relu(branch(body)) for branch in self.branches]
        parts.append(functional.interpolate(whole, size=body.shape[-2:], mode="bilinear", align_corners=False))
        scores = self.last(torch.cat(parts, 1))
        return functional.interpolate(scores, size=image.shape[-2:], mode="bilinear", align_corners=False)


class SuperResolution(nn.Module):
    """Convolutions and a pixel shuffle."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.PReLU(16), nn.Conv2d(16, 9, 3, padding=1))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        up = functional.interpolate(image, scale_factor=3, mode="bicubic", align_corners=False)
        return functional.pixel_shuffle(self.body(image), 3) + up


class Detr(nn.Module):
    """A convolution, positions from the image's size, a transformer, and queries for boxes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(3, 16, 3, 4), conv(16, 32, 3, 4))
        self.transformer = nn.Transformer(32, 4, 1, 1, 64, batch_first=True, dropout=0.0)
        self.rows, self.columns = nn.Parameter(torch.rand(16, 16)), nn.Parameter(torch.rand(16, 16))
        self.queries = nn.Parameter(torch.rand(6, 32))
        self.classes, self.boxes = nn.Linear(32, 5), nn.Linear(32, 4)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        body = self.body(image)
        height, width = body.shape[-2:]
        columns = self.columns[:width].unsqueeze(0).repeat(height, 1, 1)
        rows = self.rows[:height].unsqueeze(1).repeat(1, width, 1)
        places = torch.cat([columns, rows], -1).flatten(0, 1).unsqueeze(0)
        queries = self.queries.unsqueeze(0).repeat(image.shape[0], 1, 1)
        hidden = self.transformer(places + body.flatten(2).permute(0, 2, 1), queries)
        return self.classes(hidden), self.boxes(hidden).sigmoid()


class Matcher(nn.Module):
    """Deformed sampling: a flow from convolutions, and a grid sample by it."""

    def __init__(self) -> None:
        super().__init__()
        self.flow = nn.Sequential(conv(3, 8), nn.Conv2d(8, 2, 3, padding=1), nn.Tanh())

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        height, width = image.shape[2:]
        y, x = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
        grid = torch.stack([x, y], -1)[None] + 0.1 * self.flow(image).permute(0, 2, 3, 1)
        return functional.grid_sample(image, grid, align_corners=True)


AXES = {0: "batch", 2: "height", 3: "width"}
DIMS: dict[str, Bounds] = {"batch": (1, 4), "height": (64, 160), "width": (64, 160)}
SIZES: tuple[Sizes, ...] = ({"batch": 1, "height": 64, "width": 64}, {"batch": 3, "height": 96, "width": 160})


def net(
    name: str,
    make: Callable[[], nn.Module],
    *,
    outputs: tuple[str, ...] = ("output",),
    channels: int = 3,
    tolerance: float = 1e-4,
) -> Model:
    """Return a network of images with dynamic batch, height and width."""
    return Model(
        name,
        lambda: Call(make().eval(), lambda module, image: module(image)),
        {"images": noise(2, channels, 64, 96)},
        {output: {0: "batch"} for output in outputs},
        {"images": AXES},
        DIMS,
        SIZES,
        tolerance=tolerance,
    )


NETS = [
    net("yolo", Detector),
    net("unet", lambda: UNet(transposed=True)),
    net("unet_bilinear", lambda: UNet(transposed=False)),
    net("deeplab", DeepLab),
    net("super_resolution", SuperResolution, channels=1),
    # TorchScript writes the sizes that it saw into attention, and torch's newer exporter has no grid of dynamic sizes.
    replace(net("detr", Detr, outputs=("logits", "boxes")), exporters=("dynamo",)),
    replace(net("grid_sample", Matcher, tolerance=1e-3), exporters=("torchscript",)),
]
