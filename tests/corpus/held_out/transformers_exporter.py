"""Files of ``transformers.exporters``: whole models with their caches, plain and with fusions for onnxruntime."""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import torch
import transformers as tr
from torch import nn

from tests.conformance.architectures.example import randomized

from ..case import Bounds, Case, Sizes, noise, tokens
from ..decoders import GPT2, GROUPED, cache_of
from ..text import SMALL, t5
from ..vision import SMALL as PICTURES

Feeds = Callable[[], dict[str, Any]]
Names = Mapping[str, str]  # the exporter's name of an input and an axis, "input_ids.0" -> the dim's name here


def _write(make: Callable[[], nn.Module], inputs: Feeds, names: Names, fusions: str | None) -> Any:
    def write(path: Path) -> None:
        from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

        torch.manual_seed(0)
        model = randomized(make()).eval()
        with (
            tempfile.TemporaryDirectory() as folder,
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            config = OnnxConfig(dynamic=True, ort_fusions=fusions)
            OnnxExporter().export(model, inputs(), config=config).save_pretrained(folder)
            proto = onnx.load(Path(folder, "model.onnx"))
        renamed: dict[str, str] = {}
        for value in proto.graph.input:
            for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                key = f"{'past' if 'past_key_values' in value.name else value.name}.{axis}"
                if dim.dim_param and not dim.dim_param.isdigit():
                    dim.dim_param = renamed.setdefault(dim.dim_param, names.get(key, dim.dim_param))
        # Those of results are expressions over the names that were.
        for value in (*proto.graph.output, *proto.graph.value_info):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param in renamed:
                    dim.dim_param = renamed[dim.dim_param]
                elif dim.dim_param:
                    dim.Clear()
        onnx.save(proto, path)

    return write


def _case(
    name: str,
    make: Callable[[], nn.Module],
    inputs: Feeds,
    names: Names,
    dims: dict[str, Bounds],
    sizes: tuple[Sizes, ...],
    fusions: str | None = None,
) -> Case:
    exporter = "transformers" if fusions is None else f"transformers_{fusions}"
    return Case(exporter, name, _write(make, inputs, names, fusions), dims, sizes, ("onnxscript",))


TEXT: Names = {
    "input_ids.0": "batch",
    "input_ids.1": "length",
    "attention_mask.0": "masks",
    "attention_mask.1": "total",
}
STEP: Names = {**TEXT, "position_ids.0": "places", "past.0": "pasts", "past.2": "past_sequence_length"}
TEXT_DIMS: dict[str, Bounds] = {"batch": (2, 4), "masks": (2, 4), "length": (2, 16)}
TEXT_SIZES: tuple[Sizes, ...] = ({"batch": 2, "masks": 2, "length": 2}, {"batch": 3, "masks": 3, "length": 16})


def _text() -> dict[str, Any]:
    return {"input_ids": tokens(2, 8), "attention_mask": torch.ones(2, 8, dtype=torch.long)}


def _step(heads: int) -> Feeds:
    def inputs() -> dict[str, Any]:
        return {
            "input_ids": tokens(2, 3),
            "attention_mask": torch.ones(2, 8, dtype=torch.long),
            "position_ids": torch.arange(5, 8)[None].expand(2, 3),
            "past_key_values": cache_of(tuple(noise(2, heads, 5, 16) for _ in range(4))),
        }

    return inputs


def _all(batch: int, length: int, past: int) -> Sizes:
    return {
        **dict.fromkeys(("batch", "masks", "places", "pasts"), batch),
        **{"length": length, "past_sequence_length": past, "total": past + length},
    }


def _step_dims(*names: str) -> dict[str, Bounds]:
    every: dict[str, Bounds] = {
        **dict.fromkeys(("batch", "masks", "places", "pasts"), (2, 4)),
        **{"length": (2, 8), "past_sequence_length": (2, 16), "total": (4, 24)},
    }
    return {name: every[name] for name in names}


STEP_SIZES = (_all(2, 3, 5), _all(4, 2, 16))
EXPORTED = [
    case
    for fusions in (None, "cpu")
    for case in (
        _case(
            "llama_step",
            lambda: tr.LlamaForCausalLM(tr.LlamaConfig(**GROUPED)),
            _step(2),
            STEP,
            _step_dims("batch", "length", "masks", "total", "past_sequence_length"),
            STEP_SIZES,
            fusions,
        ),
        _case(
            "gpt2_step",
            lambda: tr.GPT2LMHeadModel(tr.GPT2Config(**GPT2)),
            _step(4),
            STEP,
            _step_dims("batch", "length", "total", "past_sequence_length"),
            STEP_SIZES,
            fusions,
        ),
        _case("bert_whole", lambda: tr.BertModel(tr.BertConfig(**SMALL)), _text, TEXT, TEXT_DIMS, TEXT_SIZES, fusions),
        _case(
            "vit_whole",
            lambda: tr.ViTForImageClassification(tr.ViTConfig(**PICTURES)),
            lambda: {"pixel_values": noise(2, 3, 32, 32)},
            {"pixel_values.0": "batch"},
            {"batch": (2, 4)},
            ({"batch": 2}, {"batch": 4}),
            fusions,
        ),
        _case("t5_encoder_whole", lambda: t5().encoder, _text, TEXT, TEXT_DIMS, TEXT_SIZES, fusions),
    )
]
