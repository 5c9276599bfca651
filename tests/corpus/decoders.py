"""Models that generate text, as Optimum exports them: without a past, and with one whose length is dynamic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import transformers as tr
from torch import nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from .case import Bounds, Call, Model, Sizes, noise, tokens
from .text import SMALL, TEXT_AXES, TEXT_DIMS, TEXT_SIZES, t5

LAYERS, HEADS, SIZE = 2, 4, 16
GROUPED = {**SMALL, "num_key_value_heads": 2}
TOTAL = "past_sequence_length + sequence_length"
PAST_DIMS: dict[str, Bounds] = {"batch_size": (1, 4), "sequence_length": (1, 8), "past_sequence_length": (1, 16)}
PAST_SIZES: tuple[Sizes, ...] = (
    {"batch_size": 1, "sequence_length": 1, "past_sequence_length": 7},
    {"batch_size": 2, "sequence_length": 3, "past_sequence_length": 5},
)


def cache_of(tensors: tuple[torch.Tensor, ...]) -> DynamicCache:
    """Return a cache with keys and values of each layer."""
    cache = DynamicCache()
    for layer in range(len(tensors) // 2):
        cache.update(tensors[2 * layer], tensors[2 * layer + 1], layer)
    return cache


def _prefill(model: nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return model(input_ids=ids, attention_mask=mask, use_cache=False)[0]


def _step(model: nn.Module, ids: torch.Tensor, mask: torch.Tensor, at: torch.Tensor, *past: torch.Tensor) -> Any:
    result = model(input_ids=ids, attention_mask=mask, position_ids=at, past_key_values=cache_of(past), use_cache=True)
    layers = result.past_key_values.layers
    return result[0], *(tensor for layer in layers for tensor in (layer.keys, layer.values))


def _make(kind: str, head: str, options: dict[str, Any]) -> nn.Module:
    return getattr(tr, f"{kind}{head}")(getattr(tr, f"{kind}Config")(**options)).eval()


def prefill(kind: str, options: dict[str, Any], head: str = "ForCausalLM") -> Model:
    """Return a decoder without a past: tokens and their mask to logits."""
    names = ("input_ids", "attention_mask")
    return Model(
        kind.lower(),
        lambda: Call(_make(kind, head, options), _prefill),
        {"input_ids": tokens(2, 8), "attention_mask": torch.ones(2, 8, dtype=torch.long)},
        {"logits": TEXT_AXES},
        dict.fromkeys(names, TEXT_AXES),
        TEXT_DIMS,
        TEXT_SIZES,
    )


def step(kind: str, options: dict[str, Any], head: str = "ForCausalLM", heads: int = HEADS) -> Model:
    """Return a decoder with the keys and values so far, and the longer ones as outputs."""
    past = [f"past_key_values.{layer}.{part}" for layer in range(LAYERS) for part in ("key", "value")]
    present = [name.replace("past_key_values", "present") for name in past]
    return Model(
        f"{kind.lower()}_past",
        lambda: Call(_make(kind, head, options), _step),
        {
            "input_ids": tokens(2, 3),
            "attention_mask": torch.ones(2, 8, dtype=torch.long),
            "position_ids": torch.arange(5, 8)[None].expand(2, 3),
            **{name: noise(2, heads, 5, SIZE) for name in past},
        },
        {"logits": TEXT_AXES, **{name: {0: "batch_size", 2: TOTAL} for name in present}},
        {
            "input_ids": TEXT_AXES,
            "attention_mask": {0: "batch_size", 1: TOTAL},
            "position_ids": TEXT_AXES,
            **{name: {0: "batch_size", 2: "past_sequence_length"} for name in past},
        },
        PAST_DIMS,
        PAST_SIZES,
        exporters=("torchscript",),  # the other one wants dims by identifiers
    )


def _t5_step(model: nn.Module, ids: torch.Tensor, states: torch.Tensor, mask: torch.Tensor, *past: torch.Tensor) -> Any:
    cache = EncoderDecoderCache(cache_of(past), DynamicCache())
    result = model(
        decoder_input_ids=ids,
        encoder_outputs=(states,),
        attention_mask=mask,
        past_key_values=cache,
        use_cache=True,
    )
    layers = result.past_key_values.self_attention_cache.layers
    return result.logits, *(tensor for layer in layers for tensor in (layer.keys, layer.values))


def t5_step() -> Model:
    """Return T5's decoder with keys and values of its own layers; the cross-attention is computed anew."""
    past = [f"past_key_values.{layer}.decoder.{part}" for layer in range(LAYERS) for part in ("key", "value")]
    source = {0: "batch_size", 1: "encoder_sequence_length"}
    return Model(
        "t5_past",
        lambda: Call(t5().eval(), _t5_step),
        {
            "decoder_input_ids": tokens(2, 1),
            "encoder_hidden_states": noise(2, 8, 64),
            "encoder_attention_mask": torch.ones(2, 8, dtype=torch.long),
            **{name: noise(2, HEADS, 5, SIZE) for name in past},
        },
        {
            "logits": {0: "batch_size"},
            **{n.replace("past_key_values", "present"): {0: "batch_size", 2: "past_sequence_length + 1"} for n in past},
        },
        {
            "decoder_input_ids": {0: "batch_size"},
            "encoder_hidden_states": source,
            "encoder_attention_mask": source,
            **{name: {0: "batch_size", 2: "past_sequence_length"} for name in past},
        },
        {"batch_size": (1, 4), "encoder_sequence_length": (1, 16), "past_sequence_length": (1, 16)},
        (
            {"batch_size": 1, "encoder_sequence_length": 5, "past_sequence_length": 1},
            {"batch_size": 3, "encoder_sequence_length": 9, "past_sequence_length": 4},
        ),
    )


GPT2 = {"n_embd": 64, "n_layer": LAYERS, "n_head": HEADS, "vocab_size": 100, "n_positions": 64}
PHI3 = {**GROUPED, "pad_token_id": 0}
GEMMA = {**GROUPED, "head_dim": SIZE}
FALCON = {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}

DECODERS = [
    prefill("GPT2", GPT2, "LMHeadModel"),
    step("GPT2", GPT2, "LMHeadModel"),
    prefill("Llama", GROUPED),
    step("Llama", GROUPED, heads=2),
    prefill("Mistral", {**GROUPED, "sliding_window": 6}),
    prefill("Qwen2", GROUPED),
    step("Qwen2", GROUPED, heads=2),
    prefill("Qwen3", {**GROUPED, "head_dim": SIZE}),
    prefill("Phi", SMALL),
    prefill("Phi3", PHI3),
    prefill("Gemma", GEMMA),
    prefill("Gemma2", {**GEMMA, "sliding_window": 6, "query_pre_attn_scalar": SIZE}),
    prefill("OPT", {**SMALL, "ffn_dim": 128, "word_embed_proj_dim": 64}),
    prefill("Bloom", {"vocab_size": 100, "hidden_size": 64, "n_layer": LAYERS, "n_head": HEADS}),
    prefill("GPTNeoX", SMALL),
    step("GPTNeoX", SMALL),
    prefill(
        "GPTNeo",
        {
            "vocab_size": 100,
            "hidden_size": 64,
            "num_layers": 2,
            "num_heads": 4,
            "window_size": 4,
            "attention_types": [[["global", "local"], 1]],
            "max_position_embeddings": 64,
        },
    ),
    prefill("GPTJ", {**GPT2, "rotary_dim": 8}),
    prefill("Falcon", FALCON),
    # The other exporter cannot write choices of experts by the data.
    replace(
        prefill(
            "Mixtral", {**GROUPED, "num_local_experts": 4, "sliding_window": None, "experts_implementation": "eager"}
        ),
        exporters=("torchscript",),
    ),
    t5_step(),
]
