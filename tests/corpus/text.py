"""Encoders of text, and models that translate, as Optimum exports them: batch and sequence are dynamic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tr
from torch import nn

from .case import Bounds, Call, Model, Sizes, tokens

TEXT_AXES = {0: "batch_size", 1: "sequence_length"}
TEXT_DIMS: dict[str, Bounds] = {"batch_size": (1, 4), "sequence_length": (1, 16)}
TEXT_SIZES: tuple[Sizes, ...] = (
    {"batch_size": 1, "sequence_length": 1},
    {"batch_size": 2, "sequence_length": 8},
    {"batch_size": 4, "sequence_length": 16},
)
SMALL: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 80,
}


def first(*names: str) -> Callable[..., torch.Tensor]:
    """Return a function that calls a model of transformers with tensors by name and returns its first output."""
    return lambda model, *tensors: model(**dict(zip(names, tensors, strict=True)), return_dict=True)[0]


def encoder(kind: str, *, head: str = "Model", types: bool = False, **options: Any) -> Model:
    """Return a model that takes tokens, their mask and, with ``types``, which of two texts each is from."""
    names = ("input_ids", "attention_mask", *(("token_type_ids",) if types else ()))
    inputs = (tokens(2, 8), torch.ones(2, 8, dtype=torch.long), torch.zeros(2, 8, dtype=torch.long))

    def make() -> nn.Module:
        config = getattr(tr, f"{kind}Config")(**{**SMALL, **options})
        return Call(getattr(tr, f"{kind}{head}")(config).eval(), first(*names))

    output = {"Model": "last_hidden_state"}.get(head, "logits")
    return Model(
        f"{kind.lower()}{'' if head == 'Model' else '_' + head.removeprefix('For').lower()}",
        make,
        dict(zip(names, inputs, strict=False)),
        {output: {0: "batch_size"} if head == "ForSequenceClassification" else TEXT_AXES},
        dict.fromkeys(names, TEXT_AXES),
        TEXT_DIMS,
        TEXT_SIZES,
    )


SOURCE = {0: "batch_size", 1: "encoder_sequence_length"}
TARGET = {0: "batch_size", 1: "decoder_sequence_length"}
PAIR_DIMS: dict[str, Bounds] = {
    "batch_size": (1, 4),
    "encoder_sequence_length": (1, 16),
    "decoder_sequence_length": (1, 8),
}
PAIR_SIZES: tuple[Sizes, ...] = (
    {"batch_size": 1, "encoder_sequence_length": 5, "decoder_sequence_length": 1},
    {"batch_size": 3, "encoder_sequence_length": 9, "decoder_sequence_length": 4},
)


def translator(name: str, make: Callable[[], nn.Module]) -> Model:
    """Return a whole encoder and decoder: source tokens, their mask and target tokens to logits."""
    names = ("input_ids", "attention_mask", "decoder_input_ids")

    def call(model: nn.Module, ids: torch.Tensor, mask: torch.Tensor, target: torch.Tensor) -> Any:
        return model(input_ids=ids, attention_mask=mask, decoder_input_ids=target, use_cache=False)[0]

    inputs = (tokens(2, 8), torch.ones(2, 8, dtype=torch.long), tokens(2, 4))
    axes = dict(zip(names, (SOURCE, SOURCE, TARGET), strict=True))
    return Model(
        name,
        lambda: Call(make().eval(), call),
        dict(zip(names, inputs, strict=True)),
        {"logits": TARGET},
        axes,
        PAIR_DIMS,
        PAIR_SIZES,
    )


def t5() -> tr.T5ForConditionalGeneration:
    """Return a small T5."""
    return tr.T5ForConditionalGeneration(
        tr.T5Config(d_model=64, d_kv=16, num_layers=2, num_heads=4, d_ff=128, vocab_size=100, decoder_start_token_id=0)
    )


SEQ2SEQ: dict[str, Any] = {
    "vocab_size": 100,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "max_position_embeddings": 64,
}
T5_ENCODER = Model(
    "t5_encoder",
    lambda: Call(t5().encoder.eval(), first("input_ids", "attention_mask")),
    {"input_ids": tokens(2, 8), "attention_mask": torch.ones(2, 8, dtype=torch.long)},
    {"last_hidden_state": TEXT_AXES},
    {"input_ids": TEXT_AXES, "attention_mask": TEXT_AXES},
    TEXT_DIMS,
    TEXT_SIZES,
)

TEXT = [
    encoder("Bert", types=True),
    encoder("Bert", head="ForSequenceClassification", types=True, num_labels=3),
    encoder("Bert", head="ForTokenClassification", num_labels=5, attn_implementation="eager"),
    encoder("Roberta"),
    encoder("XLMRoberta", head="ForMaskedLM"),
    encoder("DistilBert", dim=64, n_layers=2, n_heads=4, hidden_dim=128),
    encoder("Albert", embedding_size=16),
    encoder("Electra", embedding_size=16),
    encoder("MPNet"),
    encoder("ModernBert", pad_token_id=0, local_attention=8),
    encoder("SqueezeBert", embedding_size=64),
    encoder("DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8),
    encoder("RoFormer", embedding_size=64),
    T5_ENCODER,
    translator("t5", t5),
    translator("bart", lambda: tr.BartForConditionalGeneration(tr.BartConfig(**SEQ2SEQ))),
    translator("marian", lambda: tr.MarianMTModel(tr.MarianConfig(**SEQ2SEQ, pad_token_id=0))),
    translator("mbart", lambda: tr.MBartForConditionalGeneration(tr.MBartConfig(**SEQ2SEQ))),
    translator("pegasus", lambda: tr.PegasusForConditionalGeneration(tr.PegasusConfig(**SEQ2SEQ))),
]
