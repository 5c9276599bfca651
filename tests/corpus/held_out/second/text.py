"""Encoders, decoders and mixtures of experts of transformers that no other file of the corpus has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import transformers as tr
from torch import nn

from ...case import Call, Model, tokens
from ...decoders import GROUPED, prefill, step
from ...text import SEQ2SEQ, SMALL, TEXT_AXES, TEXT_DIMS, TEXT_SIZES, encoder, first, translator
from ..text import DYNAMO, TORCHSCRIPT, by

EAGER = {"experts_implementation": "eager"}
MOE: dict[str, Any] = {
    **GROUPED,
    **EAGER,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "pad_token_id": 0,
}
T5: dict[str, Any] = {
    "d_model": 64,
    "d_kv": 16,
    "num_layers": 2,
    "num_heads": 4,
    "d_ff": 128,
    "vocab_size": 100,
    "decoder_start_token_id": 0,
}


def at_opset(opset: int, model: Model) -> Model:
    """Return the model written at another operator set, whose number its name ends with."""
    return replace(model, name=f"{model.name}_{opset}", opset=opset, dynamo_opset=opset)


def tower(kind: str, *, head: str = "Model", heads: str = "last_hidden_state", **options: Any) -> Model:
    """Return an encoder of tokens alone, which ``Config`` knows by other names than most."""

    def make() -> nn.Module:
        return Call(getattr(tr, f"{kind}{head}")(getattr(tr, f"{kind}Config")(**options)).eval(), first("input_ids"))

    return Model(
        kind.lower(),
        make,
        {"input_ids": tokens(2, 8)},
        {heads: TEXT_AXES},
        {"input_ids": TEXT_AXES},
        TEXT_DIMS,
        TEXT_SIZES,
    )


def pair(name: str, make: Callable[[], nn.Module]) -> Model:
    """Return a translator by the name given."""
    return translator(name, make)


TEXT = [
    *by(
        DYNAMO,
        encoder("NomicBert", pad_token_id=0),
        at_opset(20, encoder("MobileBert", embedding_size=32, intra_bottleneck_size=32, true_hidden_size=32)),
        at_opset(23, encoder("Data2VecText")),
        encoder("FNet", head="Model"),
        encoder("EuroBert", num_key_value_heads=2, pad_token_id=0),
        encoder("LayoutLM"),
        at_opset(23, prefill("Olmo", GROUPED)),
        at_opset(20, prefill("Glm", {**GROUPED, "head_dim": 16, "pad_token_id": 0})),
        prefill("Helium", {**GROUPED, "head_dim": 16}),
        prefill("BioGpt", SMALL),
        at_opset(
            23,
            prefill("XGLM", {"d_model": 64, "num_layers": 2, "attention_heads": 4, "ffn_dim": 64, "vocab_size": 100}),
        ),
        prefill("Cohere2", {**GROUPED, "sliding_window": 6}),
        prefill("Qwen2Moe", {**MOE, "shared_expert_intermediate_size": 32, "experts_implementation": "batched_mm"}),
        pair("mt5", lambda: tr.MT5ForConditionalGeneration(tr.MT5Config(**T5))),
        pair("led", lambda: tr.PLBartForConditionalGeneration(tr.PLBartConfig(**SEQ2SEQ))),
    ),
    *by(
        TORCHSCRIPT,
        at_opset(20, encoder("Luke", entity_vocab_size=10, entity_emb_size=16, use_entity_aware_attention=False)),
        at_opset(11, encoder("BigBird", attention_type="original_full")),
        encoder(
            "Perceiver",
            head="ForMaskedLM",
            num_latents=8,
            d_latents=32,
            d_model=32,
            num_blocks=1,
            num_self_attends_per_block=1,
            qk_channels=32,
            v_channels=32,
            num_self_attention_heads=4,
            num_cross_attention_heads=4,
        ),
        encoder("XLM", emb_dim=64, n_layers=2, n_heads=4),
        at_opset(
            13,
            prefill(
                "OpenAIGPT",
                {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 64},
                "LMHeadModel",
            ),
        ),
        prefill(
            "CTRL",
            {"n_embd": 64, "n_layer": 2, "n_head": 4, "dff": 64, "vocab_size": 100, "n_positions": 64},
            "LMHeadModel",
        ),
        prefill("Qwen3Moe", MOE),
        prefill("Olmoe", MOE),
        prefill("GraniteMoe", {**GROUPED, **EAGER, "num_local_experts": 4, "num_experts_per_tok": 2}),
        prefill(
            "Phimoe", {**GROUPED, **EAGER, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}
        ),
        step("Gemma", {**GROUPED, "head_dim": 16}, heads=2),
        at_opset(20, step("Qwen3", {**GROUPED, "head_dim": 16}, heads=2)),
        step("GPTNeoX", {**SMALL, "use_parallel_residual": False}),
        pair("plbart", lambda: tr.PLBartForConditionalGeneration(tr.PLBartConfig(**SEQ2SEQ))),
        pair("umt5", lambda: tr.UMT5ForConditionalGeneration(tr.UMT5Config(**T5))),
        pair("longt5", lambda: tr.LongT5ForConditionalGeneration(tr.LongT5Config(**T5, local_radius=4))),
        pair(
            "switch",
            lambda: tr.SwitchTransformersForConditionalGeneration(
                tr.SwitchTransformersConfig(
                    **T5, num_experts=4, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1
                )
            ),
        ),
        tower("Canine", **{**SMALL, "downsampling_rate": 2, "num_hash_buckets": 64, "local_transformer_stride": 4}),
        encoder("Longformer", attention_window=4),
    ),
]
