"""What the GPU zoo has beside ``benchmarks.zoo``: blocks as wide as those that people deploy."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.gpu.llama_layer import HIDDEN, Layer
from benchmarks.zoo.classifiers import resnext
from benchmarks.zoo.entry import Entry, hugging, image, noise, own, tokens


class ResidualBlock(nn.Module):
    """GroupNorm, SiLU and convolution, twice, with the time step's embedding between (https://arxiv.org/abs/2112.10752)."""

    def __init__(self, channels: int, out: int, time: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, channels), nn.GroupNorm(32, out)
        self.conv1, self.conv2 = nn.Conv2d(channels, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.time = nn.Linear(time, out)
        self.skip = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Return the block's result."""
        mixed = self.conv1(functional.silu(self.norm1(x)))
        mixed = mixed + self.time(functional.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(functional.silu(self.norm2(mixed)))


class Attention(nn.Module):
    """Attention of tokens to others, or to themselves."""

    def __init__(self, channels: int, context: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(channels, channels, bias=False)
        self.k, self.v = nn.Linear(context, channels, bias=False), nn.Linear(context, channels, bias=False)
        self.out = nn.Linear(channels, channels)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """Return what the tokens gather, of the shape of ``x``."""
        q, k, v = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in (self.q(x), self.k(context), self.v(context))
        )
        return self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    """Attention within an image, to a text, and a gated MLP, between two 1x1 convolutions."""

    def __init__(self, channels: int, context: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, channels, eps=1e-6)
        self.enter, self.leave = nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, channels, 1)
        self.norms = nn.ModuleList([nn.LayerNorm(channels) for _ in range(3)])
        self.own, self.cross = Attention(channels, channels, heads), Attention(channels, context, heads)
        self.gate, self.down = nn.Linear(channels, 8 * channels), nn.Linear(4 * channels, channels)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """Return the block's result, of the shape of ``x``."""
        rows = self.enter(self.norm(x)).flatten(2).transpose(1, 2)
        normed = self.norms[0](rows)
        rows = rows + self.own(normed, normed)
        rows = rows + self.cross(self.norms[1](rows), context)
        values, gates = self.gate(self.norms[2](rows)).chunk(2, -1)
        rows = rows + self.down(values * functional.gelu(gates))
        return x + self.leave(rows.transpose(1, 2).unflatten(2, x.shape[2:]))


class DownBlock(nn.Module):
    """The first down block of Stable Diffusion's U-Net: residual blocks, transformers, a strided convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.residuals = nn.ModuleList([ResidualBlock(320, 320, 1280) for _ in range(2)])
        self.transformers = nn.ModuleList([TransformerBlock(320, 768, 8) for _ in range(2)])
        self.down = nn.Conv2d(320, 320, 3, stride=2, padding=1)

    def forward(self, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
        """Return the block's result, of half the extents."""
        for residual, transformer in zip(self.residuals, self.transformers, strict=True):
            x = transformer(residual(x, time), context)
        down: Tensor = self.down(x)
        return down


def llama(rows: int) -> Entry:
    """Return the entry of a layer of a Llama decoder, for prompts of ``rows`` tokens."""
    return own(f"llama_layer_{rows}", "decoder", lambda: Layer(rows), lambda: {"x": noise(1, rows, HIDDEN)})


def vit_b16() -> Entry:
    """Return the entry of ViT-B/16."""
    return hugging("vit_b16", "transformer", "ViTModel", {}, lambda: {"pixel_values": noise(1, 3, 224, 224)})


def bert_base() -> Entry:
    """Return the entry of BERT-base, with a mask."""
    shape = (1, 128)
    return hugging(
        "bert_base", "text", "BertModel", {"vocab_size": 4096},
        lambda: {"input_ids": tokens(*shape), "attention_mask": torch.ones(shape, dtype=torch.int64)},
    )  # fmt: skip


def resnet50() -> Entry:
    """Return the entry of ResNet-50."""
    return own("resnet50", "classifier", lambda: resnext(groups=1, width=64, squeeze=False), image())


GPU_ENTRIES = (
    *map(llama, (1, 16, 128, 512, 2048)),
    resnet50(),
    vit_b16(),
    bert_base(),
    own(
        "diffusion_down",
        "generator",
        DownBlock,
        lambda: {"x": noise(2, 320, 64, 64), "time": noise(2, 1280), "context": noise(2, 77, 768)},
    ),
)
