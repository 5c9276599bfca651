"""Encoders of text, and the two halves of models that translate or transcribe."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from .example import BATCH, PAST, SEQUENCE, Example, Maker, Tensors, mask, noise, randomized, tokens

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 48,
}


def encoder(kind: str, dynamic: bool = True, **options: Any) -> Maker:
    """Return a maker of a model that takes tokens and a mask of ``[batch, sequence]``."""

    def make() -> Example:
        config = getattr(transformers, f"{kind}Config")(**options)
        model = randomized(getattr(transformers, f"{kind}Model")(config))
        module = Tensors(model, ("input_ids", "attention_mask"), ("last_hidden_state",))
        inputs = (tokens(2, 12), mask(12, 7, size=12))
        if not dynamic:
            return Example(module, inputs)
        # A token near none that is kept sees nothing where attention is local: ONNX says so in another way than torch.
        others = (tokens(3, 17, seed=1), mask(12, 17, 14, size=17))
        return Example(module, inputs, ({0: BATCH, 1: SEQUENCE},) * 2, (others,))

    return make


def _t5() -> Any:
    config = transformers.T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu"
    )
    return randomized(transformers.T5Model(config))


def t5_encoder() -> Example:
    """Tokens and their mask to hidden states; positions are relative, in buckets."""
    module = Tensors(_t5().encoder, ("input_ids", "attention_mask"), ("last_hidden_state",))
    others = (tokens(3, 17, seed=1), mask(3, 17, 9, size=17))
    return Example(module, (tokens(2, 12), mask(12, 7, size=12)), ({0: BATCH, 1: SEQUENCE},) * 2, (others,))


class DecoderStep(nn.Module):
    """One token of a decoder that attends to an encoder's states.

    Takes the token, the encoder's states and keys and values of each layer, ``[batch, heads, past, size]``; returns the
    hidden state and the longer keys and values.
    """

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, token: torch.Tensor, states: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        cache = EncoderDecoderCache(DynamicCache(list(zip(past[::2], past[1::2], strict=True))), DynamicCache())
        hidden = self.decoder(
            input_ids=token, encoder_hidden_states=states, past_key_values=cache, use_cache=True
        ).last_hidden_state
        layers = cache.self_attention_cache.layers
        return hidden, *(tensor for layer in layers for tensor in (layer.keys, layer.values))


def decoder_step(decoder: nn.Module, heads: int = 4, size: int = 8, hidden: int = 32, layers: int = 2) -> Example:
    """Return a decoder's step with a past of a dynamic length."""

    def inputs(past: int, seed: int) -> tuple[torch.Tensor, ...]:
        states = noise(1, 10, hidden, seed=seed)
        return tokens(1, 1, seed=seed), states, *(noise(1, heads, past, size, seed=seed + i) for i in range(2 * layers))

    dynamic = ({}, {}, *({2: PAST},) * (2 * layers))
    return Example(DecoderStep(decoder), inputs(5, 0), dynamic, (inputs(9, 20),))


def t5_decoder() -> Example:
    """A step of T5's decoder."""
    return decoder_step(_t5().decoder)


def _whisper() -> Any:
    config = transformers.WhisperConfig(
        vocab_size=64,
        num_mel_bins=16,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_source_positions=20,
        max_target_positions=40,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    return randomized(transformers.WhisperModel(config))


def whisper_encoder() -> Example:
    """Mel bins to hidden states."""
    return Example(Tensors(_whisper().encoder, ("input_features",), ("last_hidden_state",)), (noise(1, 16, 40),))


def whisper_decoder() -> Example:
    """A step of Whisper's decoder."""
    return decoder_step(_whisper().decoder)


def _bart() -> Any:
    config = transformers.BartConfig(
        vocab_size=64,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_position_embeddings=40,
    )
    return randomized(transformers.BartModel(config))


def bart() -> Example:
    """The whole of BART: source and target tokens to hidden states."""
    takes = ("input_ids", "attention_mask", "decoder_input_ids")
    module = Tensors(_bart(), takes, ("last_hidden_state",), use_cache=False)
    return Example(module, (tokens(2, 12), mask(12, 7, size=12), tokens(2, 6, seed=1)))


def wav2vec2() -> Example:
    """Samples of sound to hidden states: convolutions, group norm, attention."""
    config = transformers.Wav2Vec2Config(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        conv_dim=(16, 16, 16),
        conv_stride=(4, 2, 2),
        conv_kernel=(8, 3, 3),
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=4,
    )
    model = randomized(transformers.Wav2Vec2Model(config))
    return Example(Tensors(model, ("input_values",), ("last_hidden_state",)), (noise(1, 800),))


def clip_text() -> Example:
    """CLIP's text tower: hidden states, and that of the last token, which it finds by its number."""
    config = transformers.CLIPTextConfig(**{**SMALL, "eos_token_id": 63, "bos_token_id": 62, "pad_token_id": 1})
    model = randomized(transformers.CLIPTextModel(config))
    module = Tensors(model, ("input_ids", "attention_mask"), ("last_hidden_state", "pooler_output"))

    def inputs(*lengths: int, size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids = tokens(len(lengths), size, vocabulary=62, seed=seed)
        for row, length in enumerate(lengths):
            ids[row, length - 1 :] = 63
        return ids, mask(*lengths, size=size)

    return Example(
        module,
        inputs(12, 7, size=12, seed=0),
        ({0: BATCH, 1: SEQUENCE},) * 2,
        (inputs(3, 17, 9, size=17, seed=1),),
    )


TEXT: dict[str, Maker] = {
    "bert": encoder("Bert", **SMALL),
    "roberta": encoder("Roberta", **SMALL, pad_token_id=1),
    "distilbert": encoder(
        "DistilBert", vocab_size=64, dim=32, n_layers=2, n_heads=4, hidden_dim=48, max_position_embeddings=48
    ),
    "albert": encoder("Albert", **SMALL, embedding_size=16),
    "electra": encoder("Electra", **SMALL, embedding_size=16),
    "mpnet": encoder("MPNet", **SMALL, pad_token_id=1),
    "deberta_v2": encoder(
        "DebertaV2",
        dynamic=False,
        **SMALL,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=8,
    ),
    "modernbert": encoder("ModernBert", **SMALL, pad_token_id=0, local_attention=12),
    "squeezebert": encoder("SqueezeBert", **SMALL, embedding_size=32),
    "clip_text": clip_text,
    "t5_encoder": t5_encoder,
    "t5_decoder_step": t5_decoder,
    "bart": bart,
    "whisper_encoder": whisper_encoder,
    "whisper_decoder_step": whisper_decoder,
    "wav2vec2": wav2vec2,
}
