"""Models with dynamic dims, as torch's exporters to ONNX write them, and the sizes that they are measured at.

Architectures are those of transformers and of ``cpu/torch_models.py``, in full width and few layers, with random
weights: what a layer costs with dims that are dynamic, beside dims that are fixed, does not depend on their number.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.cpu.models import OPSET
from benchmarks.cpu.torch_models import mobilenet_v2
from benchmarks.gpu.torch_models import randomize
from benchmarks.harness.pairs import Arrays

VOCABULARY = 1000
LAYERS = 2
Sizes = Mapping[str, int]
# The extents of an input; those that are text are dims, or sums of dims.
Shape = tuple[int | str, ...]


class Call(nn.Module):
    """A module whose inputs are the tensors of a graph, in order: ``function`` passes them on to ``inner``."""

    def __init__(self, inner: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.inner, self.function = inner, function

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Return what the function does."""
        return self.function(self.inner, *tensors)


@dataclass(frozen=True)
class DynamicModel:
    """A module, the shapes of its inputs, the bounds of its dims, and the sizes to measure.

    Inputs with ``ids``, ``mask`` or ``position`` in their names are int64, all others float32.
    """

    make: Callable[[], nn.Module]
    inputs: Mapping[str, Shape]
    outputs: Sequence[str]
    dims: Mapping[str, tuple[int, int]]
    sizes: Sequence[Sizes]

    def at(self, sizes: Sizes) -> Arrays:
        """Return inputs of these sizes: random numbers, tokens, masks of ones, positions after the past."""
        rng = np.random.default_rng(1)
        return {name: _values(name, shape_at(shape, sizes), sizes, rng) for name, shape in self.inputs.items()}

    def export(self, exporter: str, path: Path) -> None:
        """Write the ONNX file by ``torchscript`` or ``dynamo``."""
        module = self.make()
        example = {name: max(2, (low + high) // 2) for name, (low, high) in self.dims.items()}
        inputs = tuple(torch.from_numpy(array) for array in self.at(example).values())
        axes = [
            {axis: extent for axis, extent in enumerate(shape) if isinstance(extent, str)}
            for shape in self.inputs.values()
        ]
        named: dict[str, Any] = {"input_names": list(self.inputs), "output_names": list(self.outputs)}
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        torch.backends.mha.set_fastpath_enabled(False)  # a fused operator that neither exporter knows
        # Exporters warn of their own deprecated calls, and print graphs.
        with torch.no_grad(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            if exporter == "torchscript":
                dynamic = dict(zip(self.inputs, axes, strict=True))
                torch.onnx.export(
                    module, inputs, str(path), dynamo=False, opset_version=OPSET, dynamic_axes=dynamic, **named
                )
            else:
                torch.onnx.export(
                    module, inputs, str(path), dynamo=True, external_data=False, verbose=False,
                    dynamic_shapes=(tuple(axes),), **named,
                )  # fmt: skip


def shape_at(shape: Shape, sizes: Sizes) -> tuple[int, ...]:
    """Return a shape with its dims replaced."""

    def size_of(extent: str) -> int:
        return sum(int(term) if term.isdigit() else sizes[term] for term in extent.split(" + "))

    return tuple(extent if isinstance(extent, int) else size_of(extent) for extent in shape)


def _values(name: str, shape: tuple[int, ...], sizes: Sizes, rng: np.random.Generator) -> np.ndarray:
    if "mask" in name:
        return np.ones(shape, np.int64)
    if "position" in name:
        start = sizes.get("past", 0)
        return np.broadcast_to(np.arange(start, start + shape[-1]), shape).copy()
    if "ids" in name:
        return rng.integers(4, VOCABULARY, shape)
    return rng.standard_normal(shape, dtype=np.float32)


def _transformer(kind: str, **options: Any) -> nn.Module:
    import transformers

    name, _, head = kind.partition(".")
    config = getattr(transformers, f"{name}Config")(**options)
    return randomize(getattr(transformers, f"{name}{head}")(config))


def _first(*names: str) -> Callable[..., torch.Tensor]:
    """Return a function that calls a model with tensors by name and returns its first output."""
    return lambda model, *tensors: model(**dict(zip(names, tensors, strict=True)), return_dict=True)[0]


def _text(kind: str, **options: Any) -> DynamicModel:
    """An encoder of a batch of texts of a dynamic length, with a mask."""
    names = ("input_ids", "attention_mask")
    return DynamicModel(
        lambda: Call(_transformer(kind, **options), _first(*names)),
        dict.fromkeys(names, ("batch", "sequence")),
        ["hidden"],
        {"batch": (1, 8), "sequence": (1, 128)},
        [
            {"batch": 1, "sequence": 8},
            {"batch": 1, "sequence": 37},
            {"batch": 1, "sequence": 128},
            {"batch": 4, "sequence": 100},
            {"batch": 8, "sequence": 128},
        ],
    )


def _step(kind: str, heads: int, depth: int, **options: Any) -> DynamicModel:
    """One step of a decoder: a token, with the keys and values of those before, whose number is dynamic."""

    def step(model: nn.Module, ids: torch.Tensor, mask: torch.Tensor, at: torch.Tensor, *past: torch.Tensor) -> Any:
        from transformers.cache_utils import DynamicCache

        cache = DynamicCache()
        for layer in range(LAYERS):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        result = model(input_ids=ids, attention_mask=mask, position_ids=at, past_key_values=cache, use_cache=True)
        layers = result.past_key_values.layers
        return result[0], *(tensor for layer in layers for tensor in (layer.keys, layer.values))

    past = [f"past_{layer}_{part}" for layer in range(LAYERS) for part in ("key", "value")]
    return DynamicModel(
        lambda: Call(_transformer(kind, **options), step),
        {
            "input_ids": (1, 1),
            "attention_mask": (1, "past + 1"),
            "position_ids": (1, 1),
            **dict.fromkeys(past, (1, heads, "past", depth)),
        },
        ["logits", *(name.replace("past", "present") for name in past)],
        {"past": (1, 256)},
        [{"past": 1}, {"past": 37}, {"past": 100}, {"past": 256}],
    )


def _prompt(kind: str, **options: Any) -> DynamicModel:
    """A decoder without a past."""
    names = ("input_ids", "attention_mask")
    return DynamicModel(
        lambda: Call(_transformer(kind, use_cache=False, **options), _first(*names)),
        dict.fromkeys(names, ("batch", "sequence")),
        ["logits"],
        {"batch": (1, 4), "sequence": (1, 128)},
        [{"batch": 1, "sequence": 8}, {"batch": 1, "sequence": 37}, {"batch": 1, "sequence": 128}],
    )


def _images(make: Callable[[], nn.Module], side: int = 224, most: int = 8, sizes: Sequence[int] = ()) -> DynamicModel:
    """A batch of images."""
    return DynamicModel(
        make,
        {"pixels": ("batch", 3, side, side)},
        ["logits"],
        {"batch": (1, most)},
        [{"batch": batch} for batch in sizes or (1, 3, most)],
    )


def _image_model(kind: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: Call(_transformer(f"{kind}.ForImageClassification", **options), _first("pixel_values"))


def _small_net() -> nn.Module:
    layers: list[nn.Module] = []
    for channels, out in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return randomize(nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 128), nn.ReLU(), nn.Linear(128, 10)))


def _mlp() -> nn.Module:
    return randomize(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)))


BERT = {"num_hidden_layers": LAYERS, "vocab_size": VOCABULARY}
SMALL = {"hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 1376, **BERT}
GPT2 = {"n_layer": LAYERS, "vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0}
MINILM = {"hidden_size": 384, "intermediate_size": 1536, **BERT}
T5 = {"d_model": 512, "d_ff": 1024, "num_layers": LAYERS, "vocab_size": VOCABULARY}
MODELS: dict[str, DynamicModel] = {
    "bert": _text("Bert.Model", **BERT),
    "gpt2_step": _step("GPT2.LMHeadModel", 12, 64, **GPT2),
    "resnet50": _images(_image_model("ResNet")),
    "vit": _images(_image_model("ViT", num_hidden_layers=LAYERS)),
    "mobilenet_v2": _images(lambda: mobilenet_v2("")),
    "llama_step": _step("Llama.ForCausalLM", 4, 64, num_key_value_heads=4, **SMALL),
    "small_net": _images(_small_net, 32, 64, (1, 37, 64)),
    "t5_encoder": _text("T5.EncoderModel", **T5),
    "minilm": _text("Bert.Model", **MINILM),
    "gpt2": _prompt("GPT2.LMHeadModel", **GPT2),
    "llama": _prompt("Llama.ForCausalLM", num_key_value_heads=4, **SMALL),
    "mlp": DynamicModel(
        _mlp, {"rows": ("batch", 64)}, ["logits"], {"batch": (1, 64)}, [{"batch": 1}, {"batch": 37}, {"batch": 64}]
    ),
}
