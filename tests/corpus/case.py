"""What a file of the corpus is: who writes it, the bounds of its dims, and the sizes that it is run at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

Bounds = int | tuple[int, int]
Sizes = Mapping[str, int]
VOCABULARY = 96


@dataclass(frozen=True)
class Case:
    """A file: ``make`` writes it. ``needs`` are modules that ``make`` imports, beside those of every test environment.

    ``tolerance`` is of an output's root mean square; ``apart`` is the share of elements that may be further off, as in
    quantized models, where an element on the edge between two quanta is one off for any difference before it. Outputs
    of a ``random`` model are compared by their shapes.
    """

    exporter: str
    model: str
    make: Callable[[Path], None]
    dims: Mapping[str, Bounds] = field(default_factory=dict)
    sizes: tuple[Sizes, ...] = ({},)
    needs: tuple[str, ...] = ()
    tolerance: float = 1e-4
    random: bool = False
    apart: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.model}.{self.exporter}"


class Call(nn.Module):
    """A module whose inputs are the tensors of a graph, in order: ``function`` passes them on to ``inner``."""

    def __init__(self, inner: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.inner, self.function = inner, function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(self.inner, *tensors)


@dataclass(frozen=True)
class Model:
    """A torch module to export: inputs by name, and the name of each dynamic axis of inputs and outputs."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Mapping[str, torch.Tensor]
    outputs: Mapping[str, Mapping[int, str]]
    axes: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    dims: Mapping[str, Bounds] = field(default_factory=dict)
    sizes: tuple[Sizes, ...] = ({},)
    opset: int = 17  # of TorchScript
    dynamo_opset: int | None = None  # what the exporter prefers
    exporters: tuple[str, ...] = ("torchscript", "dynamo")
    random: bool = False
    tolerance: float = 1e-4


def tokens(*shape: int) -> torch.Tensor:
    """Return token numbers; the first few are special ones in some models."""
    return torch.randint(4, VOCABULARY, shape, generator=torch.Generator().manual_seed(0))


def noise(*shape: int) -> torch.Tensor:
    """Return normally distributed float32."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))
