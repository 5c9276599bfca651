"""Images in, images, maps or boxes out: segmentation, detection, super-resolution, style."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from benchmarks.zoo.classifiers import Bottleneck, conv
from benchmarks.zoo.entry import hugging, image, noise, own


class Aspp(nn.Module):
    """Dilated convolutions side by side (arXiv:1706.05587), of 16x16 places."""

    def __init__(self, channels: int, out: int, rates: tuple[int, ...]) -> None:
        super().__init__()
        dilated = [nn.Conv2d(channels, out, 3, padding=r, dilation=r, bias=False) for r in rates]
        norms = [nn.Sequential(layer, nn.BatchNorm2d(out), nn.ReLU()) for layer in dilated]
        self.branches = nn.ModuleList([conv(channels, out, 1), *norms])
        self.pooled, self.join = nn.Conv2d(channels, out, 1), conv(out * (len(rates) + 2), out, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, out, h, w]."""
        whole = torch.relu(self.pooled(x.mean((2, 3), keepdim=True)))
        whole = functional.interpolate(whole, size=x.shape[-2:], mode="bilinear", align_corners=False)
        return self.join(torch.cat([*(branch(x) for branch in self.branches), whole], 1))


class Segmenter(nn.Module):
    """A small residual net, a head, and a bilinear way back to the image's size."""

    def __init__(self, head: nn.Module, channels: int) -> None:
        super().__init__()
        blocks = [Bottleneck(c, w, 4 * w, s, 1, squeeze=False)
                  for c, w, s in ((64, 64, 1), (256, 64, 2), (256, 128, 2), (512, 128, 1), (512, 256, 1))]  # fmt: skip
        self.body = nn.Sequential(conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), *blocks)
        self.head, self.last = head, nn.Conv2d(channels, 21, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, 21, h, w]."""
        scores = self.last(self.head(self.body(x)))
        return functional.interpolate(scores, size=x.shape[-2:], mode="bilinear", align_corners=False)


class Fcn(nn.Module):
    """FCN-32s (arXiv:1411.4038): one transposed convolution of 64x64 with stride 32."""

    def __init__(self) -> None:
        super().__init__()
        widths = ((3, 32), (32, 64), (64, 128), (128, 256), (256, 256))
        self.body = nn.Sequential(*(conv(a, b, 3, 2) for a, b in widths), nn.Conv2d(256, 21, 1))
        self.up = nn.ConvTranspose2d(21, 21, 64, 32, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, 21, h, w]."""
        return self.up(self.body(x))


class UNet(nn.Module):
    """U-Net (arXiv:1505.04597) of four levels with transposed convolutions."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        widths = [width << level for level in range(4)]
        ins = [3, *widths[:-1]]
        self.down = nn.ModuleList(nn.Sequential(conv(a, b), conv(b, b)) for a, b in zip(ins, widths, strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * b, b, 2, 2) for b in widths[-2::-1])
        self.back = nn.ModuleList(nn.Sequential(conv(2 * b, b), conv(b, b)) for b in widths[-2::-1])
        self.last = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, 2, h, w]."""
        kept = []
        for level, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if level else x)
            kept.append(x)
        for up, back, skip in zip(self.up, self.back, kept[-2::-1], strict=True):
            x = back(torch.cat([skip, up(x)], 1))
        return self.last(x)


class Style(nn.Module):
    """Fast style transfer (arXiv:1603.08155): InstanceNorm, reflected edges, residual blocks."""

    def __init__(self) -> None:
        super().__init__()

        def layer(a: int, b: int, kernel: int, stride: int = 1) -> nn.Sequential:
            padded = nn.ReflectionPad2d(kernel // 2)
            return nn.Sequential(padded, nn.Conv2d(a, b, kernel, stride), nn.InstanceNorm2d(b, affine=True), nn.ReLU())

        self.down = nn.Sequential(layer(3, 32, 9), layer(32, 64, 3, 2), layer(64, 128, 3, 2))
        self.blocks = nn.ModuleList(nn.Sequential(layer(128, 128, 3), layer(128, 128, 3)) for _ in range(3))
        ups = (nn.Upsample(scale_factor=2.0), layer(128, 64, 3), nn.Upsample(scale_factor=2.0), layer(64, 32, 3))
        self.up = nn.Sequential(*ups, nn.ReflectionPad2d(4), nn.Conv2d(32, 3, 9))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, 3, h, w]."""
        x = self.down(x)
        for block in self.blocks:
            x = x + block(x)
        return self.up(x)


def espcn() -> nn.Module:
    """Return sub-pixel super-resolution by 3 (arXiv:1609.05158)."""
    layers = (nn.Conv2d(1, 64, 5, padding=2), nn.Tanh(), nn.Conv2d(64, 32, 3, padding=1), nn.Tanh())
    return nn.Sequential(*layers, nn.Conv2d(32, 9, 3, padding=1), nn.PixelShuffle(3)).eval()


class Edsr(nn.Module):
    """EDSR (arXiv:1707.02921) of eight blocks: residuals without norms, two pixel shuffles."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, 64, 3, padding=1)
        pairs = [(nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)) for _ in range(8)]
        self.blocks = nn.ModuleList(nn.Sequential(one, nn.ReLU(), two) for one, two in pairs)
        ups = [nn.Sequential(nn.Conv2d(64, 256, 3, padding=1), nn.PixelShuffle(2)) for _ in range(2)]
        self.leave = nn.Sequential(*ups, nn.Conv2d(64, 3, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, 3, 4 h, 4 w]."""
        start = x = self.enter(x)
        for block in self.blocks:
            x = x + 0.1 * block(x)
        return self.leave(x + start)


class DenseResidual(nn.Module):
    """A dense block of ESRGAN (arXiv:1809.00219)."""

    def __init__(self, width: int, grow: int) -> None:
        super().__init__()
        outs = (grow, grow, grow, grow, width)
        self.convs = nn.ModuleList(nn.Conv2d(width + i * grow, out, 3, padding=1) for i, out in enumerate(outs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, width, h, w]."""
        parts = [x]
        for layer in self.convs[:-1]:
            parts.append(functional.leaky_relu(layer(torch.cat(parts, 1)), 0.2))
        return x + 0.2 * self.convs[-1](torch.cat(parts, 1))


def esrgan() -> nn.Module:
    """Return three dense blocks and an upsampling by 2."""
    blocks = [DenseResidual(64, 32) for _ in range(3)]
    tail = (nn.Upsample(scale_factor=2.0), nn.Conv2d(64, 64, 3, padding=1), nn.LeakyReLU(0.2))
    return nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), *blocks, *tail, nn.Conv2d(64, 3, 3, padding=1)).eval()


class C2f(nn.Module):
    """The block of YOLOv8: channels are split, and all parts are joined."""

    def __init__(self, channels: int, out: int, count: int) -> None:
        super().__init__()
        half = out // 2
        self.enter, self.leave = conv_silu(channels, out, 1), conv_silu((2 + count) * half, out, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(conv_silu(half, half, 3), conv_silu(half, half, 3)) for _ in range(count)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, out, h, w]."""
        parts = list(self.enter(x).chunk(2, 1))
        for block in self.blocks:
            parts.append(parts[-1] + block(parts[-1]))
        return self.leave(torch.cat(parts, 1))


def conv_silu(channels: int, out: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution with batch norm and SiLU."""
    layer = nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(out), nn.SiLU())


class Yolo(nn.Module):
    """YOLOv8 of the smallest width, two levels of its neck, and scores of 80 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.p3 = nn.Sequential(conv_silu(3, 16, 3, 2), conv_silu(16, 32, 3, 2), C2f(32, 32, 1),
                                conv_silu(32, 64, 3, 2), C2f(64, 64, 2))  # fmt: skip
        self.p4 = nn.Sequential(conv_silu(64, 128, 3, 2), C2f(128, 128, 2))
        self.p5 = nn.Sequential(conv_silu(128, 256, 3, 2), C2f(256, 256, 1))
        self.pool, self.spread = conv_silu(256, 128, 1), conv_silu(512, 256, 1)
        self.up4, self.up3 = C2f(384, 128, 1), C2f(192, 64, 1)
        heads = [nn.Sequential(conv_silu(c, 64, 3), nn.Conv2d(64, 144, 1)) for c in (64, 128, 256)]
        self.heads = nn.ModuleList(heads)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, 144, places]."""
        p3 = self.p3(x)
        p4 = self.p4(p3)
        pools = [self.pool(self.p5(p4))]
        for _ in range(3):
            pools.append(functional.max_pool2d(pools[-1], 5, 1, 2))
        p5 = self.spread(torch.cat(pools, 1))
        p4 = self.up4(torch.cat([functional.interpolate(p5, scale_factor=2.0), p4], 1))
        p3 = self.up3(torch.cat([functional.interpolate(p4, scale_factor=2.0), p3], 1))
        levels = zip(self.heads, (p3, p4, p5), strict=True)
        return torch.cat([head(level).flatten(2) for head, level in levels], 2)


class Reader(nn.Module):
    """Reads a line of text: CRNN (arXiv:1507.05717)."""

    def __init__(self) -> None:
        super().__init__()

        def layer(a: int, b: int, *pool: int) -> nn.Sequential:
            norm = [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
            return nn.Sequential(*norm, *([nn.MaxPool2d((pool[0], pool[1]))] if pool else []))

        layers = [layer(1, 32, 2, 2), layer(32, 64, 2, 2), layer(64, 128), layer(128, 128, 2, 1), layer(128, 256, 2, 1)]
        self.features = nn.Sequential(*layers, nn.Conv2d(256, 256, (2, 1)), nn.ReLU())
        self.net, self.last = nn.LSTM(256, 128, 2, bidirectional=True), nn.Linear(256, 97)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [places, n, 97]."""
        columns = self.features(x).squeeze(2).permute(2, 0, 1)
        return torch.log_softmax(self.last(self.net(columns)[0]), 2)


IMAGE_TO_IMAGE = [
    own("deeplab_v3", "segmentation", lambda: Segmenter(Aspp(1024, 256, (12, 24, 36)), 256), image(256)),
    own("fcn", "segmentation", Fcn, image(256)),
    own("unet", "segmentation", UNet, image(128)),
    hugging("segformer_b0", "segmentation", "SegformerForSemanticSegmentation", {}, image(256), "logits"),
    hugging("sam_encoder", "segmentation", "SamVisionModel",
            {"hidden_size": 192, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 256,
             "global_attn_indexes": [2], "window_size": 7, "mlp_dim": 768, "output_channels": 64}, image(256)),
    own("yolo_n", "detection", Yolo, image(320)),
    own("crnn", "recognition of text", Reader, lambda: {"line": noise(1, 1, 32, 128)}),
    own("style", "image to image", Style, image(128)),
    own("espcn", "image to image", espcn, image(128, 1)),
    own("edsr", "image to image", Edsr, image(64)),
    own("esrgan", "image to image", esrgan, image(64)),
    hugging("swin2sr", "image to image", "Swin2SRForImageSuperResolution",
            {"embed_dim": 60, "depths": [2, 2], "num_heads": [6, 6], "image_size": 64, "upscale": 2,
             "upsampler": "pixelshuffledirect"}, image(64), "reconstruction"),
]  # fmt: skip
