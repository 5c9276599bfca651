"""What an entry of the zoo is: a module that returns one tensor, and inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Inputs = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Entry:
    """An architecture: its name, its family, and what makes its module and its inputs, both seeded by the caller."""

    name: str
    family: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]


class First(nn.Module):
    """A module of transformers that returns one field of its result, given inputs by name."""

    def __init__(self, module: nn.Module, field: str, names: tuple[str, ...], options: Mapping[str, Any]) -> None:
        super().__init__()
        self.module, self.field, self.names, self.options = module, field, names, dict(options)

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Return the field."""
        result = self.module(**dict(zip(self.names, tensors, strict=True)), **self.options)
        return result if isinstance(result, torch.Tensor) else getattr(result, self.field)


def noise(*shape: int) -> torch.Tensor:
    """Return normal numbers."""
    return torch.randn(*shape)


def tokens(*shape: int, below: int = 1000) -> torch.Tensor:
    """Return token ids."""
    return torch.randint(1, below, shape)


def image(size: int = 224, channels: int = 3) -> Callable[[], Inputs]:
    """Return what makes one square image, as ``pixel_values``."""
    return lambda: {"pixel_values": noise(1, channels, size, size)}


def own(name: str, family: str, make: Callable[[], nn.Module], inputs: Callable[[], Inputs]) -> Entry:
    """Return an entry by a module of this folder."""
    return Entry(name, family, lambda: make().eval(), inputs)


def hugging(
    name: str,
    family: str,
    model: str,
    config: Mapping[str, Any],
    inputs: Callable[[], Inputs],
    field: str = "last_hidden_state",
    **options: Any,
) -> Entry:
    """Return an entry by a class of transformers; ``config`` are fields of its configuration."""

    def make() -> nn.Module:
        import transformers

        cls = getattr(transformers, model)
        return First(cls(cls.config_class(**config)), field, tuple(inputs()), options).eval()

    return Entry(name, family, make, inputs)
