"""Videos, volumes and point clouds."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import nn

from benchmarks.zoo.entry import Inputs, hugging, noise, own


class Block3d(nn.Module):
    """The block of R3D-18 (arXiv:1711.11248); with ``factored`` space and time have windows of their own."""

    def __init__(self, channels: int, out: int, stride: int, *, factored: bool) -> None:
        super().__init__()

        def layer(a: int, b: int, s: int) -> nn.Sequential:
            if not factored:
                return nn.Sequential(nn.Conv3d(a, b, 3, s, 1, bias=False), nn.BatchNorm3d(b))
            space = nn.Conv3d(a, b, (1, 3, 3), (1, s, s), (0, 1, 1), bias=False)
            time = nn.Conv3d(b, b, (3, 1, 1), (s, 1, 1), (1, 0, 0), bias=False)
            return nn.Sequential(space, nn.BatchNorm3d(b), nn.ReLU(), time, nn.BatchNorm3d(b))

        self.layers = nn.Sequential(layer(channels, out, stride), nn.ReLU(), layer(out, out, 1))
        short = nn.Sequential(nn.Conv3d(channels, out, 1, stride, bias=False), nn.BatchNorm3d(out))
        self.shortcut = nn.Identity() if stride == 1 and channels == out else short

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, out, t, h, w]."""
        return torch.relu(self.layers(x) + self.shortcut(x))


def resnet3d(*, factored: bool) -> nn.Module:
    """Return R3D-10 or R(2+1)D-10: one block of each width."""
    stem = nn.Sequential(nn.Conv3d(3, 64, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False), nn.BatchNorm3d(64), nn.ReLU())
    sizes = ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
    blocks = [Block3d(a, b, s, factored=factored) for a, b, s in sizes]
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(512, 400))


class Expanded3d(nn.Module):
    """The block of X3D (arXiv:2004.04730): a depthwise convolution of volumes between two products."""

    def __init__(self, channels: int, inner: int, out: int, stride: int) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Conv3d(channels, inner, 1, bias=False), nn.BatchNorm3d(inner), nn.ReLU())
        depthwise = nn.Conv3d(inner, inner, 3, (1, stride, stride), 1, groups=inner, bias=False)
        self.middle = nn.Sequential(depthwise, nn.BatchNorm3d(inner), nn.SiLU())
        self.leave = nn.Sequential(nn.Conv3d(inner, out, 1, bias=False), nn.BatchNorm3d(out))
        self.is_residual = stride == 1 and channels == out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, out, t, h, w]."""
        y = self.leave(self.middle(self.enter(x)))
        return x + y if self.is_residual else y


def x3d() -> nn.Module:
    """Return X3D-S with two blocks of each of its first three widths."""
    space = nn.Conv3d(3, 24, (1, 3, 3), (1, 2, 2), (0, 1, 1), bias=False)
    time = nn.Conv3d(24, 24, (5, 1, 1), padding=(2, 0, 0), groups=24, bias=False)
    layers: list[nn.Module] = [space, time, nn.BatchNorm3d(24), nn.ReLU()]
    for channels, out in ((24, 24), (24, 48), (48, 96)):
        layers += [Expanded3d(channels, out * 9 // 4, out, 2), Expanded3d(out, out * 9 // 4, out, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(96, 400))


class UNet3d(nn.Module):
    """A U-Net of volumes (arXiv:1606.06650) of three levels."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()

        def double(a: int, b: int) -> nn.Sequential:
            convs = [nn.Sequential(nn.Conv3d(x, b, 3, padding=1), nn.InstanceNorm3d(b, affine=True), nn.LeakyReLU())
                     for x in (a, b)]  # fmt: skip
            return nn.Sequential(*convs)

        self.one, self.two, self.three = double(1, width), double(width, 2 * width), double(2 * width, 4 * width)
        self.up2, self.up1 = nn.ConvTranspose3d(4 * width, 2 * width, 2, 2), nn.ConvTranspose3d(2 * width, width, 2, 2)
        self.back2, self.back1 = double(4 * width, 2 * width), double(2 * width, width)
        self.pool, self.last = nn.MaxPool3d(2), nn.Conv3d(width, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, 3, d, h, w]."""
        one = self.one(x)
        two = self.two(self.pool(one))
        back = self.back2(torch.cat([two, self.up2(self.three(self.pool(two)))], 1))
        return self.last(self.back1(torch.cat([one, self.up1(back)], 1)))


def shared(*widths: int) -> nn.Sequential:
    """Return a perceptron that all points share, as convolutions of length 1."""
    pairs = itertools.pairwise(widths)
    return nn.Sequential(*(nn.Sequential(nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU()) for a, b in pairs))


class PointNet(nn.Module):
    """Classification of 1,024 points (arXiv:1612.00593), with the transform of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.turn, self.angles = shared(3, 64, 128, 1024), nn.Sequential(nn.Linear(1024, 256), nn.ReLU())
        self.matrix, self.body = nn.Linear(256, 9), shared(3, 64, 128, 1024)
        self.head = nn.Sequential(nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 40))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        """Return [n, 40]; ``points`` is [n, 3, points]."""
        unit = torch.eye(3, dtype=points.dtype, device=points.device)
        matrix = self.matrix(self.angles(self.turn(points).amax(2))).view(-1, 3, 3) + unit
        return self.head(self.body((points.transpose(1, 2) @ matrix).transpose(1, 2)).amax(2))


class EdgeConv(nn.Module):
    """Features of a point and its nearest neighbors (arXiv:1801.07829)."""

    def __init__(self, channels: int, out: int, neighbors: int) -> None:
        super().__init__()
        self.neighbors = neighbors
        self.conv = nn.Sequential(nn.Conv2d(2 * channels, out, 1), nn.BatchNorm2d(out), nn.LeakyReLU(0.2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, out, points]."""
        rows = x.transpose(1, 2)
        squares = (rows * rows).sum(-1)
        distance = squares[:, :, None] - 2 * rows @ x + squares[:, None]
        nearest = distance.topk(self.neighbors, largest=False).indices[0]
        around = rows[0][nearest.flatten()].view(1, -1, self.neighbors, x.shape[1])
        center = rows[:, :, None].expand_as(around)
        return self.conv(torch.cat([around - center, center], -1).permute(0, 3, 1, 2)).amax(3)


class Dgcnn(nn.Module):
    """Two layers of a dynamic graph net over 256 points."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = EdgeConv(3, 64, 16), EdgeConv(64, 128, 16)
        self.head = nn.Linear(192, 40)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        """Return [1, 40]."""
        one = self.one(points)
        return self.head(torch.cat([one, self.two(one)], 1).amax(2))


class PointTransformer(nn.Module):
    """One layer of Point Transformer (arXiv:2012.09164): attention by vectors among neighbors."""

    def __init__(self, width: int = 64, neighbors: int = 16) -> None:
        super().__init__()
        self.neighbors = neighbors
        self.embed = nn.Conv1d(3, width, 1)
        self.query, self.key, self.value = (nn.Conv1d(width, width, 1) for _ in range(3))
        self.place, self.weigh = (
            nn.Sequential(nn.Conv2d(channels, width, 1), nn.ReLU(), nn.Conv2d(width, width, 1))
            for channels in (3, width)
        )
        self.last = nn.Linear(width, 13)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        """Return [n, points, 13]."""
        x = self.embed(points)
        distances = torch.cdist(points.transpose(1, 2), points.transpose(1, 2))
        near = distances.topk(self.neighbors, largest=False)[1]
        place = self.place(points[..., None] - _taken(points, near))
        weights = torch.softmax(self.weigh(self.query(x)[..., None] - _taken(self.key(x), near) + place), -1)
        return self.last((x + (weights * (_taken(self.value(x), near) + place)).sum(-1)).transpose(1, 2))


def _taken(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Return the columns of [n, c, points] that indices [n, rows, k] name: [n, c, rows, k]."""
    n, channels, _ = x.shape
    flat = indices.reshape(n, 1, -1).expand(n, channels, -1)
    return torch.gather(x, 2, flat).view(n, channels, *indices.shape[1:])


def _clip(frames: int, size: int) -> Callable[[], Inputs]:
    return lambda: {"video": noise(1, 3, frames, size, size)}


VOLUMES = [
    own("r3d", "video", lambda: resnet3d(factored=False), _clip(8, 64)),
    own("r2plus1d", "video", lambda: resnet3d(factored=True), _clip(8, 64)),
    own("x3d", "video", x3d, _clip(8, 112)),
    hugging("videomae", "video", "VideoMAEModel",
            {"image_size": 64, "num_frames": 8, "hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 3,
             "intermediate_size": 768}, lambda: {"pixel_values": noise(1, 8, 3, 64, 64)}),
    own("unet3d", "volumes", UNet3d, lambda: {"volume": noise(1, 1, 32, 32, 32)}),
    own("pointnet", "points", PointNet, lambda: {"points": noise(1, 3, 1024)}),
    own("dgcnn", "points", Dgcnn, lambda: {"points": noise(1, 3, 256)}),
    own("point_transformer", "points", PointTransformer, lambda: {"points": noise(1, 3, 512)}),
]  # fmt: skip
