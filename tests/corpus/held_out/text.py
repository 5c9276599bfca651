"""Encoders and decoders of text of other architectures than those of ``tests.corpus.text`` and ``decoders``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import transformers as tr

from ..case import Model
from ..decoders import GROUPED, prefill, step
from ..text import SEQ2SEQ, SMALL, encoder, translator

DYNAMO, TORCHSCRIPT = ("dynamo",), ("torchscript",)
LATENT: dict[str, Any] = {
    **SMALL,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "first_k_dense_replace": 2,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
}


def by(exporters: tuple[str, ...], *models: Model) -> list[Model]:
    """Return the models with other exporters."""
    return [replace(model, exporters=exporters) for model in models]


TEXT = [
    *by(
        DYNAMO,
        encoder("ConvBert", embedding_size=64, conv_kernel_size=3),
        encoder("Esm", position_embedding_type="rotary", pad_token_id=1, mask_token_id=2),
        encoder("MegatronBert"),
        encoder("Ernie", types=True),
        encoder("RemBert", input_embedding_size=32, output_embedding_size=32),
        prefill("Cohere", GROUPED),
        prefill("Olmo2", GROUPED),
        prefill("StableLm", GROUPED),
        prefill("GPTBigCode", {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 64}),
        prefill("CodeGen", {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100, "rotary_dim": 8}),
        prefill("SmolLM3", {**GROUPED, "no_rope_layer_interval": 2, "pad_token_id": 0}),
        prefill("DeepseekV3", LATENT),
        translator("m2m100", lambda: tr.M2M100ForConditionalGeneration(tr.M2M100Config(**SEQ2SEQ))),
    ),
    *by(
        TORCHSCRIPT,
        encoder("Nystromformer", num_landmarks=8, segment_means_seq_len=8),
        encoder("Camembert", head="ForTokenClassification", num_labels=3),
        encoder("Deberta", relative_attention=True, pos_att_type=["p2c", "c2p"], max_relative_positions=16),
        encoder("Flaubert", emb_dim=64, n_layers=2, n_heads=4),
        encoder("IBert"),
        prefill("Granite", GROUPED),
        prefill("Starcoder2", GROUPED),
        prefill("Mpt", {"d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 100, "max_seq_len": 64}),
        prefill("Persimmon", SMALL),
        prefill("Nemotron", GROUPED),
        step("Olmo2", GROUPED, heads=2),
        translator("blenderbot", lambda: tr.BlenderbotForConditionalGeneration(tr.BlenderbotConfig(**SEQ2SEQ))),
        translator(
            "blenderbot_small", lambda: tr.BlenderbotSmallForConditionalGeneration(tr.BlenderbotSmallConfig(**SEQ2SEQ))
        ),
    ),
]
