"""A layer of a Llama decoder as an ONNX model: RMSNorm, rotary embeddings, grouped-query attention, SwiGLU.

    python -m benchmarks.gpu.llama_layer --rows 128 -o llama128.onnx

Shapes are those of Llama 3 with the MLP of Llama 2 (https://arxiv.org/abs/2302.13971, https://arxiv.org/abs/2407.21783).
Weights repeat a small block of random numbers, with a sign for each row: a bundle can be compressed and carried.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

HIDDEN, HEADS, SHARED_HEADS, WIDTH, MLP = 4096, 32, 8, 128, 11008
BLOCK = 1 << 15
EPSILON, THETA = 1e-5, 10000.0


def linear(columns: int, rows: int) -> nn.Linear:
    """Return a product without bias, of weights ``[rows, columns]`` whose outputs have a variance of about 1."""
    made = nn.Linear(columns, rows, bias=False)
    block = torch.randn(BLOCK) / math.sqrt(columns)
    values = block.repeat(math.ceil(rows * columns / BLOCK))[: rows * columns].view(rows, columns)
    made.weight.data = values * (torch.randint(0, 2, (rows, 1)) * 2.0 - 1)
    return made


class RmsNorm(nn.Module):
    """Divides rows by their root mean square."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized rows of ``[..., HIDDEN]``."""
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON))


class Layer(nn.Module):
    """A layer over ``[1, rows, HIDDEN]``, all rows of one prompt."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows
        self.before_attention, self.before_mlp = RmsNorm(), RmsNorm()
        self.q, self.o = linear(HIDDEN, HEADS * WIDTH), linear(HEADS * WIDTH, HIDDEN)
        self.k, self.v = linear(HIDDEN, SHARED_HEADS * WIDTH), linear(HIDDEN, SHARED_HEADS * WIDTH)
        self.gate, self.up, self.down = linear(HIDDEN, MLP), linear(HIDDEN, MLP), linear(MLP, HIDDEN)
        angles = torch.arange(rows)[:, None] * THETA ** (-torch.arange(0, WIDTH, 2) / WIDTH)
        angles = torch.cat((angles, angles), -1)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's result, of the shape of ``x``."""
        normed = self.before_attention(x)
        q = self._rotate(self._heads(self.q(normed), HEADS))
        k = self._rotate(self._heads(self.k(normed), SHARED_HEADS))
        v = self._heads(self.v(normed), SHARED_HEADS)
        k, v = (values.repeat_interleave(HEADS // SHARED_HEADS, 1) for values in (k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(1, self.rows, HEADS * WIDTH))
        normed = self.before_mlp(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))

    def _heads(self, x: Tensor, count: int) -> Tensor:
        return x.view(1, self.rows, count, WIDTH).transpose(1, 2)

    def _rotate(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat((-second, first), -1) * self.sin


def export(rows: int, path: Path) -> None:
    """Write the layer for prompts of ``rows`` tokens."""
    torch.manual_seed(0)
    example = torch.randn(1, rows, HIDDEN)
    layer = Layer(rows).eval()
    torch.onnx.export(
        layer, (example,), str(path), input_names=["x"], output_names=["y"], opset_version=17, dynamo=False
    )


def main() -> int:
    """Write the model."""
    parser = argparse.ArgumentParser(description="Write a layer of a Llama decoder as an ONNX model.")
    parser.add_argument("--rows", type=int, default=128, help="tokens of the prompt; default: 128")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    export(arguments.rows, arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
