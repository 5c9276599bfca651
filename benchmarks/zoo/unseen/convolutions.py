"""Convolutional models of images, of pairs of them, and of video, of base widths, for ``benchmarks.gpu.zoo`` alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo.entry import Entry, image, noise, own


def unit(
    before: int, after: int, kernel: int = 3, stride: int = 1, groups: int = 1, dilation: int = 1
) -> nn.Sequential:
    """Return a convolution that keeps the extents, batch normalization, and ReLU."""
    padding = dilation * (kernel // 2)
    convolution = nn.Conv2d(before, after, kernel, stride, padding, dilation, groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(after), nn.ReLU())


class Pyramid(nn.Module):
    """PSPNet's head on dilated convolutions: means of four grids, resized and concatenated (arXiv:1612.01105)."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.enter = nn.Sequential(unit(3, 64, stride=2), unit(64, 128, stride=2), unit(128, 256, stride=2),
                                   unit(256, width, dilation=2), unit(width, width, dilation=4))  # fmt: skip
        self.sizes, self.reduced = (1, 2, 3, 6), nn.ModuleList(unit(width, width // 4, 1) for _ in range(4))
        self.last = nn.Sequential(unit(2 * width, width), nn.Conv2d(width, 19, 1))

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Return logits [n, 19, h, w]."""
        x = self.enter(pixel_values)
        grids = [
            functional.interpolate(reduced(functional.adaptive_avg_pool2d(x, size)), x.shape[2:], mode="bilinear")
            for size, reduced in zip(self.sizes, self.reduced, strict=True)
        ]
        logits = self.last(torch.cat([x, *grids], 1))
        return functional.interpolate(logits, pixel_values.shape[2:], mode="bilinear")


class Bottleneck(nn.Module):
    """MobileFaceNet's bottleneck: PReLU of each channel (arXiv:1804.07573)."""

    def __init__(self, before: int, after: int, stride: int, expanded: int) -> None:
        super().__init__()
        self.kept = stride == 1 and before == after
        self.layers = nn.Sequential(
            nn.Conv2d(before, expanded, 1, bias=False), nn.BatchNorm2d(expanded), nn.PReLU(expanded),
            nn.Conv2d(expanded, expanded, 3, stride, 1, groups=expanded, bias=False), nn.BatchNorm2d(expanded),
            nn.PReLU(expanded), nn.Conv2d(expanded, after, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Return [n, after, h, w]."""
        return x + self.layers(x) if self.kept else self.layers(x)


class Faces(nn.Module):
    """MobileFaceNet: a depthwise convolution of all places, embeddings of unit length."""

    def __init__(self) -> None:
        super().__init__()
        shapes = [(64, 64, 2, 128), *[(64, 64, 1, 128)] * 4, (64, 128, 2, 256), *[(128, 128, 1, 256)] * 6,
                  (128, 128, 2, 512), *[(128, 128, 1, 256)] * 2]  # fmt: skip
        self.enter = nn.Sequential(nn.Conv2d(3, 64, 3, 2, 1, bias=False), nn.BatchNorm2d(64), nn.PReLU(64))
        self.blocks = nn.Sequential(*(Bottleneck(*shape) for shape in shapes))
        self.leave = nn.Sequential(nn.Conv2d(128, 512, 1, bias=False), nn.BatchNorm2d(512), nn.PReLU(512),
                                   nn.Conv2d(512, 512, 7, groups=512, bias=False), nn.BatchNorm2d(512))  # fmt: skip
        self.last = nn.Linear(512, 128)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Return [n, 128] of faces of 112 x 112."""
        return functional.normalize(self.last(self.leave(self.blocks(self.enter(pixel_values))).flatten(1)), dim=1)


class Translated(nn.Module):
    """CycleGAN's generator: reflected borders, instance normalization (arXiv:1703.10593)."""

    def __init__(self, width: int = 64, blocks: int = 4) -> None:
        super().__init__()

        def layer(before: int, after: int, kernel: int, stride: int = 1) -> list[nn.Module]:
            pad = [nn.ReflectionPad2d(kernel // 2)] if stride == 1 else []
            return [*pad, nn.Conv2d(before, after, kernel, stride, 0 if pad else 1), nn.InstanceNorm2d(after)]

        relu = nn.ReLU()
        self.down = nn.Sequential(*layer(3, width, 7), relu, *layer(width, 2 * width, 3, 2), relu,
                                  *layer(2 * width, 4 * width, 3, 2), relu)  # fmt: skip
        self.blocks = nn.ModuleList(
            nn.Sequential(*layer(4 * width, 4 * width, 3), relu, *layer(4 * width, 4 * width, 3)) for _ in range(blocks)
        )
        up = [nn.ConvTranspose2d(4 * width, 2 * width, 3, 2, 1, 1), nn.InstanceNorm2d(2 * width), relu,
              nn.ConvTranspose2d(2 * width, width, 3, 2, 1, 1), nn.InstanceNorm2d(width), relu]  # fmt: skip
        self.up = nn.Sequential(*up, nn.ReflectionPad2d(3), nn.Conv2d(width, 3, 7), nn.Tanh())

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Return an image."""
        x = self.down(pixel_values)
        for block in self.blocks:
            x = x + block(x)
        return self.up(x)


class Stereo(nn.Module):
    """A small PSMNet: a volume of concatenated features, 3-D convolutions, a mean disparity (arXiv:1803.08669)."""

    def __init__(self, width: int = 32, disparities: int = 24) -> None:
        super().__init__()
        self.disparities = disparities
        self.features = nn.Sequential(
            unit(3, width, stride=2), unit(width, width, stride=2), unit(width, width), nn.Conv2d(width, width, 1)
        )

        def volume(before: int, after: int, stride: int = 1) -> list[nn.Module]:
            return [nn.Conv3d(before, after, 3, stride, 1, bias=False), nn.BatchNorm3d(after), nn.ReLU()]

        self.enter = nn.Sequential(*volume(2 * width, width), *volume(width, width))
        self.down = nn.Sequential(*volume(width, 2 * width, 2), *volume(2 * width, 2 * width))
        self.up = nn.Sequential(nn.ConvTranspose3d(2 * width, width, 3, 2, 1, 1, bias=False), nn.BatchNorm3d(width))
        self.last = nn.Sequential(*volume(width, width), nn.Conv3d(width, 1, 3, 1, 1))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Return disparities of a quarter of the extents."""
        left, right = self.features(left), self.features(right)
        slices = [
            torch.cat([left, functional.pad(right, (shift, 0))[..., : right.shape[-1]]], 1)
            for shift in range(self.disparities)
        ]
        x = self.enter(torch.stack(slices, 2))
        chances = self.last(x + self.up(self.down(x))).squeeze(1).softmax(1)
        return (chances * torch.arange(self.disparities, device=x.device, dtype=x.dtype).view(1, -1, 1, 1)).sum(1)


class Retina(nn.Module):
    """A pyramid of features whose levels share the heads, and boxes of all anchors (arXiv:1708.02002)."""

    def __init__(self, width: int = 256, anchors: int = 9, classes: int = 80) -> None:
        super().__init__()
        self.classes = classes
        self.stages = nn.ModuleList(
            [
                nn.Sequential(unit(3, 64, stride=2), unit(64, 128, stride=2), unit(128, 128, stride=2)),
                unit(128, 256, stride=2),
                unit(256, 512, stride=2),
            ]
        )
        self.lateral = nn.ModuleList(nn.Conv2d(each, width, 1) for each in (128, 256, 512))
        self.smooth = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(3))
        self.scores = nn.Sequential(
            *(layer for _ in range(2) for layer in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU())),
            nn.Conv2d(width, anchors * classes, 3, padding=1),
        )
        self.boxes = nn.Sequential(
            *(layer for _ in range(2) for layer in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU())),
            nn.Conv2d(width, anchors * 4, 3, padding=1),
        )

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Return [n, anchors, classes + 4]."""
        levels, x = [], pixel_values
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        below, found = None, []
        for level, lateral, smooth in zip(reversed(levels), reversed(self.lateral), reversed(self.smooth), strict=True):
            below = (
                lateral(level)
                if below is None
                else lateral(level) + functional.interpolate(below, scale_factor=2.0, mode="nearest")
            )
            y = smooth(below)
            scores = self.scores(y).permute(0, 2, 3, 1).reshape(len(y), -1, self.classes).sigmoid()
            boxes = self.boxes(y).permute(0, 2, 3, 1).reshape(len(y), -1, 4)
            moved, size = boxes[..., :2], boxes[..., 2:].clamp(max=4.0).exp()
            found.append(torch.cat([scores, moved - size / 2, moved + size / 2], -1))
        return torch.cat(found, 1)


class Nested(nn.Module):
    """UNet++: each level reads all before it and what is below, resized (arXiv:1807.10165)."""

    def __init__(self, width: int = 32, levels: int = 4) -> None:
        super().__init__()
        self.levels = levels
        widths = [width * 2**level for level in range(levels)]

        def block(before: int, after: int) -> nn.Module:
            return nn.Sequential(unit(before, after), unit(after, after))

        self.blocks = nn.ModuleDict(
            {f"{level}_0": block(widths[level - 1] if level else 3, widths[level]) for level in range(levels)}
        )
        for step in range(1, levels):
            for level in range(levels - step):
                self.blocks[f"{level}_{step}"] = block(step * widths[level] + widths[level + 1], widths[level])
        self.last = nn.Conv2d(width, 1, 1)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Return logits [n, 1, h, w]."""
        made: dict[tuple[int, int], Tensor] = {}
        x = pixel_values
        for level in range(self.levels):
            x = made[level, 0] = self.blocks[f"{level}_0"](functional.max_pool2d(x, 2) if level else x)
        for step in range(1, self.levels):
            for level in range(self.levels - step):
                up = functional.interpolate(
                    made[level + 1, step - 1], scale_factor=2.0, mode="bilinear", align_corners=True
                )
                made[level, step] = self.blocks[f"{level}_{step}"](
                    torch.cat([*(made[level, i] for i in range(step)), up], 1)
                )
        return self.last(made[0, self.levels - 1])


class Shifted(nn.Module):
    """TSM: channels moved between frames before convolutions of images (arXiv:1811.08383)."""

    def __init__(self, width: int = 256, frames: int = 8, blocks: int = 3) -> None:
        super().__init__()
        self.frames = frames
        self.enter = nn.Sequential(unit(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), unit(64, width, stride=2))
        self.blocks = nn.ModuleList(
            nn.Sequential(
                unit(width, width // 4, 1),
                unit(width // 4, width // 4),
                nn.Conv2d(width // 4, width, 1, bias=False),
                nn.BatchNorm2d(width),
            )
            for _ in range(blocks)
        )
        self.last = nn.Linear(width, 174)

    def forward(self, video: Tensor) -> Tensor:
        """Return classes of frames [n, frames, 3, h, w]."""
        x = self.enter(video.flatten(0, 1))
        for block in self.blocks:
            y = x.unflatten(0, (-1, self.frames))
            fold = y.shape[2] // 8
            after = functional.pad(y[:, 1:, :fold], (0, 0, 0, 0, 0, 0, 0, 1))
            before = functional.pad(y[:, :-1, fold : 2 * fold], (0, 0, 0, 0, 0, 0, 1, 0))
            x = functional.relu(x + block(torch.cat([after, before, y[:, :, 2 * fold :]], 2).flatten(0, 1)))
        return self.last(x.mean((2, 3))).unflatten(0, (-1, self.frames)).mean(1)


CONVOLUTIONS: list[Entry] = [
    own("pspnet", "segmentation", Pyramid, image(384)),
    own("mobileface", "classifier", Faces, image(112)),
    own("cyclegan", "generator", Translated, image(256)),
    own("stereo", "depth", Stereo, lambda: {"left": noise(1, 3, 128, 256), "right": noise(1, 3, 128, 256)}),
    own("retina", "detection", Retina, image(320)),
    own("unet_nested", "segmentation", Nested, image(256)),
    own("tsm", "video", Shifted, lambda: {"video": noise(1, 8, 3, 224, 224)}),
]
