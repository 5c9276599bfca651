"""Files that Optimum writes itself: decoders with caches, merged decoders, heads and parts with its names of dims.

``optimum-onnx`` needs transformers before 5, so these files are made in an environment of their own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers as tr

from ...case import Bounds, Case, Sizes
from ...decoders import FALCON, GEMMA, GPT2, GROUPED
from ...text import SEQ2SEQ, SMALL
from ...vision import SMALL as PICTURES
from ..sound import WAVE

CACHED, PAIRS, SPEECH = "text-generation-with-past", "text2text-generation-with-past", "automatic-speech-recognition"
# Bounds of dims by the names that Optimum gives them, and what they are in three runs.
DIMS: dict[str, tuple[Bounds, tuple[int, int, int]]] = {
    "batch_size": ((1, 3), (1, 2, 3)),
    "sequence_length": ((1, 12), (1, 5, 12)),
    "past_sequence_length": ((1, 12), (7, 3, 1)),
    "encoder_sequence_length": ((1, 16), (5, 9, 16)),
    "decoder_sequence_length": ((1, 8), (1, 4, 8)),
    "past_decoder_sequence_length": ((1, 8), (3, 2, 1)),
    "samples": ((800, 3200), (1600, 2311, 3200)),
    "num_choices": ((1, 3), (2, 3, 1)),
}
TEXT, STEP = ("batch_size", "sequence_length"), ("batch_size", "sequence_length", "past_sequence_length")
TRANSLATED = ("batch_size", "encoder_sequence_length", "decoder_sequence_length")
MERGED = (*TRANSLATED, "past_decoder_sequence_length")
TOWERS: dict[str, Any] = {
    "text_config": {**{k: v for k, v in PICTURES.items() if "size" not in k or k == "hidden_size"}, "vocab_size": 100},
    "vision_config": PICTURES,
    "projection_dim": 32,
}


@dataclass(frozen=True)
class _Written:
    """A model of transformers by its kind, head and configuration, what Optimum writes it for, and which file."""

    kind: str
    head: str
    config: Mapping[str, Any]
    task: str
    dims: tuple[str, ...]
    part: str = "model"
    fixed: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.kind.lower() + ("" if self.part == "model" else f"_{self.part.removesuffix('_model')}")

    def write(self, path: Path) -> None:
        """Export the model with random weights and biases."""
        from optimum.exporters.onnx import onnx_export_from_model

        torch.manual_seed(0)
        model = getattr(tr, self.kind + self.head)(getattr(tr, f"{self.kind}Config")(**self.config)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim < 2:
                    parameter.add_(torch.randn_like(parameter), alpha=0.1)
        with tempfile.TemporaryDirectory() as folder:
            onnx_export_from_model(model, folder, task=self.task, do_validation=False)
            path.write_bytes(Path(folder, f"{self.part}.onnx").read_bytes())

    def case(self) -> Case:
        """Return the file as a case; an encoder of sound calls its samples a sequence."""
        sizes: tuple[Sizes, ...] = tuple(
            {_called(name): DIMS[name][1][run] for name in self.dims} for run in range(len(DIMS["batch_size"][1]))
        )
        bounds = {**{_called(name): DIMS[name][0] for name in self.dims}, **self.fixed}
        return Case("optimum", self.name, self.write, bounds, sizes, ("optimum",))


def _called(name: str) -> str:
    return "sequence_length" if name == "samples" else name


FILES = [
    _Written("OPT", "ForCausalLM", {**SMALL, "ffn_dim": 128, "word_embed_proj_dim": 64}, CACHED, STEP),
    _Written("Bloom", "ForCausalLM", {"vocab_size": 100, "hidden_size": 64, "n_layer": 2, "n_head": 4}, CACHED, STEP),
    _Written("Falcon", "ForCausalLM", {**FALCON, "alibi": True}, CACHED, STEP),
    _Written("Mpt", "ForCausalLM", {"d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 100}, CACHED, STEP),
    _Written("GPTBigCode", "ForCausalLM", GPT2, CACHED, STEP),
    _Written("CodeGen", "ForCausalLM", {**GPT2, "rotary_dim": 8}, CACHED, STEP),
    _Written("Mistral", "ForCausalLM", {**GROUPED, "sliding_window": 6}, CACHED, STEP),
    _Written("Gemma2", "ForCausalLM", {**GEMMA, "sliding_window": 6, "query_pre_attn_scalar": 16}, CACHED, STEP),
    _Written(
        "Qwen3Moe",
        "ForCausalLM",
        {**GROUPED, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
        CACHED,
        STEP,
    ),
    _Written(
        "GptOss",
        "ForCausalLM",
        {**GROUPED, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6},
        CACHED,
        STEP,
    ),
    _Written("Nemotron", "ForCausalLM", GROUPED, CACHED, STEP),
    _Written("StableLm", "ForCausalLM", GROUPED, CACHED, STEP),
    *(
        _Written(kind, "ForConditionalGeneration", SEQ2SEQ, PAIRS, MERGED, "decoder_model_merged")
        for kind in ("Bart", "MBart", "M2M100", "Pegasus", "Blenderbot")
    ),
    _Written("Marian", "MTModel", {**SEQ2SEQ, "pad_token_id": 0}, PAIRS, MERGED, "decoder_with_past_model"),
    _Written("BigBirdPegasus", "ForConditionalGeneration", SEQ2SEQ, PAIRS, TRANSLATED, "decoder_model"),
    _Written(
        "RemBert", "ForMultipleChoice", {**SMALL, "input_embedding_size": 32}, "multiple-choice", (*TEXT, "num_choices")
    ),
    _Written(
        "Esm", "Model", {**SMALL, "pad_token_id": 1, "position_embedding_type": "rotary"}, "feature-extraction", TEXT
    ),
    _Written("ConvBert", "Model", {**SMALL, "embedding_size": 32, "conv_kernel_size": 5}, "feature-extraction", TEXT),
    _Written(
        "Hubert",
        "ForSequenceClassification",
        {**WAVE, "classifier_proj_size": 16},
        "audio-classification",
        ("batch_size", "samples"),
    ),
    _Written("UniSpeech", "ForCTC", WAVE, SPEECH, ("batch_size", "samples")),
]
OPTIMUM = [written.case() for written in FILES]
