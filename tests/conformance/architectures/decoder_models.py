"""Models that generate text: a prefill of many tokens, and a step of one token with the keys and values so far."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn
from transformers.cache_utils import DynamicCache

from .example import BATCH, PAST, SEQUENCE, Example, Maker, noise, randomized, tokens

HEADS, SIZE, LAYERS = 4, 8, 2
SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}


class Prefill(nn.Module):
    """Tokens of ``[batch, sequence]`` to logits, and to keys and values of each layer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
        cache = DynamicCache()
        logits = self.model(input_ids=tokens, past_key_values=cache, use_cache=True).logits
        return logits, *(tensor for layer in cache.layers for tensor in (layer.keys, layer.values))


class Step(nn.Module):
    """One token with keys and values of ``[batch, heads, past, size]`` to logits and the longer keys and values."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, token: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        cache = DynamicCache(list(zip(past[::2], past[1::2], strict=True)))
        logits = self.model(input_ids=token, past_key_values=cache, use_cache=True).logits
        return logits, *(tensor for layer in cache.layers for tensor in (layer.keys, layer.values))


def _model(kind: str, options: dict[str, Any], head: str) -> nn.Module:
    config = getattr(transformers, f"{kind}Config")(**options)
    return randomized(getattr(transformers, f"{kind}{head}")(config))


def prefill(kind: str, options: dict[str, Any], head: str = "ForCausalLM") -> Maker:
    """Return a maker of a decoder's first run."""

    def make() -> Example:
        module = Prefill(_model(kind, options, head))
        return Example(module, (tokens(2, 12),), ({0: BATCH, 1: SEQUENCE},), ((tokens(3, 17, seed=1),),))

    return make


def step(kind: str, options: dict[str, Any], head: str = "ForCausalLM", heads: int = HEADS) -> Maker:
    """Return a maker of a decoder's later runs."""

    def make() -> Example:
        def inputs(past: int, seed: int) -> tuple[torch.Tensor, ...]:
            return tokens(2, 1, seed=seed), *(noise(2, heads, past, SIZE, seed=seed + i) for i in range(2 * LAYERS))

        module = Step(_model(kind, options, head))
        dynamic = ({}, *({2: PAST},) * (2 * LAYERS))
        # torch cannot prove the order of the strides of keys that several heads share.
        return Example(module, inputs(5, 0), dynamic, (inputs(9, 20),), deferred=heads != HEADS)

    return make


GPT2 = {"vocab_size": 64, "n_embd": 32, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 64}
GEMMA = {**GROUPED, "head_dim": SIZE, "sliding_window": 6, "query_pre_attn_scalar": SIZE}

DECODERS: dict[str, Maker] = {
    "gpt2_prefill": prefill("GPT2", GPT2, "LMHeadModel"),
    "gpt2_step": step("GPT2", GPT2, "LMHeadModel"),
    "llama_prefill": prefill("Llama", GROUPED),
    "llama_step": step("Llama", GROUPED, heads=2),
    "qwen3_prefill": prefill("Qwen3", {**GROUPED, "head_dim": SIZE}),
    "qwen3_step": step("Qwen3", {**GROUPED, "head_dim": SIZE}, heads=2),
    "mistral_prefill": prefill("Mistral", {**GROUPED, "sliding_window": 6}),
    "gemma2_prefill": prefill("Gemma2", GEMMA),
    "phi3_prefill": prefill("Phi3", {**GROUPED, "pad_token_id": 0}),
    "bloom_prefill": prefill("Bloom", {"vocab_size": 64, "hidden_size": 32, "n_layer": LAYERS, "n_head": HEADS}),
}
