"""A batch of any size: GPUs have the kernels for it that they have for a fixed one, and results are those of torch."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packager
from packager.graph.dataflow import bindings_of, called_function
from packager.lower.lowering import lower
from tests.integration.models.test_fronts import FORMS, GPU, saved
from tests.stages import placed_file

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

pytestmark = pytest.mark.slow
MOST = 16


class Upsampled(nn.Module):
    """A transposed convolution, beside what it is joined with, as in a U-Net (arXiv:1505.04597)."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(16, 32, 3, 2, 1), nn.ConvTranspose2d(32, 16, 2, 2)
        self.last = nn.Conv2d(32, 16, 3, padding=1)

    def forward(self, x: Any) -> Any:
        return self.last(torch.cat([x, self.up(F.relu(self.down(x)))], 1))


class Reduced(nn.Module):
    """Keys and values of fewer places than queries, as in SegFormer (arXiv:2105.15203)."""

    def __init__(self) -> None:
        super().__init__()
        self.reduction, self.norm = nn.Conv2d(32, 32, 4, 4), nn.LayerNorm(32)
        self.q, self.k, self.v, self.out = (nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: Any) -> Any:
        rows = x.flatten(2).transpose(1, 2)
        few = self.norm(self.reduction(x).flatten(2).transpose(1, 2))
        q, k, v = (t.unflatten(-1, (2, 16)).transpose(1, 2) for t in (self.q(rows), self.k(few), self.v(few)))
        return rows + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Patches(nn.Module):
    """Places of an image in the order of windows, and back: reshapes and transposes of five and six axes."""

    def forward(self, x: Any) -> Any:
        windows = x.unflatten(2, (4, 4)).unflatten(4, (4, 4)).permute(0, 2, 4, 3, 5, 1)
        return torch.relu(windows.flatten(1, 4)).transpose(1, 2).reshape(x.shape)


OWN: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "upsampled": (Upsampled(), (torch.randn(3, 16, 16, 16),)),
    "reduced": (Reduced(), (torch.randn(3, 32, 16, 16),)),
    "patches": (Patches(), (torch.randn(3, 8, 16, 16),)),
    "group norm": (nn.Sequential(nn.Conv2d(16, 32, 3), nn.GroupNorm(8, 32), nn.SiLU()), (torch.randn(3, 16, 16, 16),)),
}
# Models that name their batch where they form windows, heads or rows.
FIXED = (
    *("three axes", "windows", "split", "chunk by heads", "indexed by heads", "windows apart", "windows behind heads"),
    *("heads interleaved", "heads first", "windows of two axes", "windows with biases", "windows with masks"),
    *("biases behind heads", "transposed weights", "cosine packed", "normalized heads", "rms of heads"),
    *("channels first", "swiglu of few rows", "two swiglus of few rows", "groups of few rows", "groups of one row"),
)
MODELS = OWN | {name: form for name, form in FORMS.items() if name not in FIXED}


def symbolic(module: Any, inputs: tuple[Any, ...], path: Path) -> Path:
    """Export a module whose batch has a name."""
    batch = torch.export.Dim("batch", min=2, max=MOST)
    shapes = tuple({0: batch} if tensor.shape[0] == inputs[0].shape[0] else {} for tensor in inputs)
    kinds = [parameter.kind for parameter in inspect.signature(module.forward).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        first = kinds.index(inspect.Parameter.VAR_POSITIONAL)
        shapes = (*shapes[:first], *([shapes[first:]] if shapes[first:] else []))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(module.eval(), inputs, dynamic_shapes=shapes), path)
    return path


def kernels(path: Path) -> list[str]:
    """Return the functions that a bundle for a GPU calls."""
    model = lower(placed_file(path, targets=GPU, precision="fp16"), "cuda")
    return [name for binding in bindings_of(model.main) if (name := called_function(binding.value)) is not None]


@pytest.mark.parametrize("name", MODELS)
def test_gpus_have_as_many_kernels(tmp_path: Path, name: str) -> None:
    module, inputs = MODELS[name]
    fixed, named = saved(module, inputs, tmp_path / "fixed.pt2"), symbolic(module, inputs, tmp_path / "any.pt2")
    assert len(kernels(named)) <= len(kernels(fixed))


@pytest.mark.parametrize("batch", [2, 5])
@pytest.mark.parametrize("name", OWN)
def test_results_are_those_of_torch(tmp_path: Path, name: str, batch: int) -> None:
    module, inputs = OWN[name]
    model = symbolic(module, inputs, tmp_path / "any.pt2")
    given = torch.randn(batch, *inputs[0].shape[1:])
    with torch.no_grad():
        want = module(given).numpy()
    with packager.load(packager.build(model, tmp_path / "any.so", targets=["llvm"])) as bundle:
        (got,) = bundle(given.numpy()).values()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_the_models_that_are_left_out_are_forms() -> None:
    assert set(FIXED) <= set(FORMS)
