"""Speech, codecs and time series that no other file of the corpus has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import transformers as tr
from torch import nn

from ...case import Call, Model, noise, tokens
from ...text import TEXT_AXES, TEXT_DIMS, TEXT_SIZES, first
from ..sound import fixed, sound
from ..text import DYNAMO, TORCHSCRIPT, by
from .text import at_opset

VITS: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "ffn_dim": 32,
    "spectrogram_bins": 33,
    "flow_size": 32,
    "posterior_encoder_num_wavenet_layers": 1,
    "prior_encoder_num_flows": 2,
    "prior_encoder_num_wavenet_layers": 1,
    "duration_predictor_num_flows": 2,
    "duration_predictor_flow_bins": 4,
    "duration_predictor_filter_channels": 32,
    "depth_separable_num_layers": 1,
    "depth_separable_channels": 2,
    "upsample_initial_channel": 32,
    "upsample_rates": [4, 4],
    "upsample_kernel_sizes": [8, 8],
    "resblock_kernel_sizes": [3],
    "resblock_dilation_sizes": [[1, 3]],
}


def _vits() -> nn.Module:
    config = tr.VitsConfig(**VITS, use_stochastic_duration_prediction=False)  # or random numbers decide the length
    return Call(tr.VitsModel(config).eval(), lambda model, ids: model(input_ids=ids).waveform)


def vits() -> Model:
    """Return VITS: text to sound, whose length the durations decide."""
    return Model(
        "vits_model",
        _vits,
        {"input_ids": tokens(1, 9)},
        {"sound": {1: "samples"}},
        {"input_ids": {1: "sequence_length"}},
        {"sequence_length": (1, 12), "reducemax_0": (1, 400)},
        ({"sequence_length": 1}, {"sequence_length": 7}, {"sequence_length": 12}),
        exporters=("torchscript",),
        random=True,
    )


def _encodec() -> nn.Module:
    config = tr.EncodecConfig(
        num_filters=4,
        hidden_size=16,
        num_residual_layers=1,
        upsampling_ratios=[4, 2],
        codebook_size=16,
        codebook_dim=16,
        num_lstm_layers=1,
    )
    return Call(tr.EncodecModel(config).eval(), lambda model, x: model.decoder(model.encoder(x)))


def _dac() -> nn.Module:
    config = tr.DacConfig(
        encoder_hidden_size=8,
        downsampling_ratios=[2, 4],
        decoder_hidden_size=32,
        n_codebooks=2,
        codebook_size=16,
        upsampling_ratios=[4, 2],
    )
    return Call(tr.DacModel(config).eval(), lambda model, x: model(x).audio_values)


def _hifigan() -> nn.Module:
    config = tr.SpeechT5HifiGanConfig(
        model_in_dim=16,
        upsample_initial_channel=32,
        upsample_rates=[4, 4],
        upsample_kernel_sizes=[8, 8],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3]],
    )
    return Call(tr.SpeechT5HifiGan(config).eval(), lambda model, x: model(x))


def _speech_t5() -> nn.Module:
    config = tr.SpeechT5Config(
        hidden_size=32,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        vocab_size=100,
    )
    return Call(tr.SpeechT5ForTextToSpeech(config).speecht5.encoder.eval(), first("input_values"))


def _clap() -> nn.Module:
    config = tr.ClapAudioConfig(
        spec_size=64,
        num_mel_bins=16,
        patch_size=4,
        patch_stride=[4, 4],
        patch_embeds_hidden_size=16,
        depths=[1, 1],
        num_attention_heads=[2, 2],
        window_size=4,
        hidden_size=32,
        num_hidden_layers=2,
        projection_dim=16,
        enable_fusion=False,
    )
    return Call(tr.ClapAudioModelWithProjection(config).eval(), first("input_features"))


def _speech2text() -> nn.Module:
    config = tr.Speech2TextConfig(
        vocab_size=100,
        d_model=32,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        input_feat_per_channel=16,
        conv_channels=32,
        max_source_positions=100,
    )
    return Call(tr.Speech2TextForConditionalGeneration(config).model.encoder.eval(), first("input_features"))


def _transducer() -> nn.Module:
    config = tr.Wav2Vec2BertConfig(
        vocab_size=32,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        feature_projection_input_dim=16,
        max_source_positions=64,
        conv_depthwise_kernel_size=7,
    )
    return Call(tr.Wav2Vec2BertForCTC(config).eval(), first("input_features"))


def wave(name: str, make: Any, given: str, output: str, channels: int, **options: Any) -> Model:
    """Return a model of channels of samples or frames [batch, channels, time], or frames [batch, time, channels]."""
    last = options.pop("last", False)
    shape = (2, 64, channels) if last else (2, channels, 64)
    axes = {0: "batch", 1 if last else 2: "time"}
    return Model(
        name,
        make,
        {given: noise(*shape)},
        {output: {0: "batch"}},
        {given: axes},
        {"batch": (1, 3), "time": (32, 128)},
        ({"batch": 1, "time": 32}, {"batch": 2, "time": 72}, {"batch": 3, "time": 128}),
        **options,
    )


SERIES: dict[str, Any] = {
    "prediction_length": 4,
    "context_length": 12,
    "lags_sequence": [1, 2],
    "num_time_features": 2,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}


def forecast(kind: str, **options: Any) -> Model:
    """Return the means that a transformer of time series forecasts."""

    def make() -> nn.Module:
        config = getattr(tr, f"{kind}Config")(**{**SERIES, **options})
        return Call(getattr(tr, f"{kind}Model")(config).eval(), call)

    def call(
        model: nn.Module, values: torch.Tensor, times: torch.Tensor, after: torch.Tensor, next_: torch.Tensor
    ) -> Any:
        return model(
            past_values=values,
            past_time_features=times,
            past_observed_mask=torch.ones_like(values),
            future_values=next_,
            future_time_features=after,
        ).last_hidden_state

    inputs = {"values": noise(2, 14), "times": noise(2, 14, 2), "after": noise(2, 4, 2), "next": noise(2, 4)}
    return Model(
        kind.lower(),
        make,
        inputs,
        {"y": {0: "batch_size"}},
        {key: {0: "batch_size"} for key in inputs},
        {"batch_size": (1, 4)},
        ({"batch_size": 1}, {"batch_size": 2}, {"batch_size": 4}),
    )


SOUND = [
    *by(
        DYNAMO,
        wave("dac", _dac, "x", "y", 1),
        wave("hifigan", _hifigan, "spectrogram", "y", 16, last=True),
        wave("wav2vec2_bert", _transducer, "input_features", "logits", 16, last=True),
        at_opset(20, fixed("clap", _clap, "input_features", "y", 2, 1, 64, 16)),
        forecast("TimeSeriesTransformer"),
        at_opset(23, sound("Wav2Vec2Conformer", position_embeddings_type="rotary")),
    ),
    *by(
        TORCHSCRIPT,
        vits(),
        # onnxruntime refuses to reflect more than there is: shorter sounds have layers of few samples.
        replace(
            wave("encodec", _encodec, "x", "y", 1),
            dims={"batch": (1, 3), "time": (64, 400)},
            sizes=({"batch": 1, "time": 320}, {"batch": 2, "time": 257}, {"batch": 3, "time": 400}),
        ),
        at_opset(20, wave("hifigan", _hifigan, "spectrogram", "y", 16, last=True)),
        wave("speech2text", _speech2text, "input_features", "y", 16, last=True),
        at_opset(13, sound("SEWD", squeeze_factor=2, position_buckets=8, max_position_embeddings=64)),
        replace(
            fixed("speecht5_encoder", _speech_t5, "input_ids", "y", 2, 8),
            inputs={"input_ids": tokens(2, 8)},
            axes={"input_ids": TEXT_AXES},
            dims=TEXT_DIMS,
            sizes=TEXT_SIZES,
        ),
    ),
]
