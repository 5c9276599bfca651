"""What an architecture of the table is, and how its weights are drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

BATCH = torch.export.Dim("batch", min=1, max=4)
SEQUENCE = torch.export.Dim("sequence", min=2, max=32)
PAST = torch.export.Dim("past", min=2, max=32)

Inputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Example:
    """A module with the inputs to export it with.

    ``dynamic`` says per input which of its axes are dynamic. ``others`` are inputs of other sizes, which the same
    bundle has to compute as well. ``deferred`` lets torch write down conditions on dims that it cannot prove.
    """

    module: nn.Module
    inputs: Inputs
    dynamic: tuple[Mapping[int, Any], ...] | None = None
    others: tuple[Inputs, ...] = field(default=())
    deferred: bool = False

    def __post_init__(self) -> None:
        if (self.dynamic is None) != (not self.others):
            raise ValueError("dynamic axes are tested with inputs of other sizes")


Maker = Callable[[], Example]


def randomized(module: nn.Module) -> nn.Module:
    """Draw all weights anew and return the module for inference.

    Initial weights of training are so small, or so regular (ones, zeros), that half a model could be left out and
    its outputs would not change by more than a tolerance.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in module.parameters():
            values = torch.randn(tensor.shape, generator=generator)
            if tensor.ndim < 2:
                looks_like_scale = tensor.numel() > 0 and bool((tensor == tensor.flatten()[0]).all())
                center = 1.0 if looks_like_scale and tensor.flatten()[0] != 0 else 0.0
                tensor.copy_(center + 0.1 * values)
            else:
                tensor.copy_(values / max(tensor[0].numel(), 1) ** 0.5)
        for name, tensor in module.named_buffers():
            if name.endswith("running_mean"):
                tensor.copy_(0.1 * torch.randn(tensor.shape, generator=generator))
            elif name.endswith("running_var"):
                tensor.copy_(0.5 + torch.rand(tensor.shape, generator=generator))
    return module.eval()


def tokens(*shape: int, vocabulary: int = 64, seed: int = 0) -> torch.Tensor:
    """Return random token numbers, int64, of which none is one of the first few: those pad."""
    return torch.randint(4, vocabulary, shape, generator=torch.Generator().manual_seed(seed))


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return normally distributed float32."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def mask(*lengths: int, size: int) -> torch.Tensor:
    """Return an attention mask of int64 ``[len(lengths), size]``: ones, then zeros."""
    return (torch.arange(size)[None, :] < torch.tensor(lengths)[:, None]).long()


class Tensors(nn.Module):
    """A model of transformers called with its tensors by name, that returns the tensors named."""

    def __init__(self, model: nn.Module, takes: tuple[str, ...], gives: tuple[str, ...], **options: Any) -> None:
        super().__init__()
        self.model, self.takes, self.gives, self.options = model, takes, gives, options

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = self.model(**dict(zip(self.takes, inputs, strict=True)), **self.options)
        return tuple(result[name] for name in self.gives)
