"""Sound and time series of other architectures than those of ``tests.corpus.sequences``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tr
from torch import nn

from ..case import Call, Model, noise
from ..sequences import SOUND_DIMS, SOUND_SIZES
from ..text import first
from .text import DYNAMO, TORCHSCRIPT, by
from .vision import BATCH, SIZES

WAVE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "conv_dim": (32, 32, 32),
    "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 3),
    "num_feat_extract_layers": 3,
    "vocab_size": 32,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}


def sound(kind: str, **options: Any) -> Model:
    """Return a recognizer of speech: samples to scores of frames; batch and length are dynamic."""

    def make() -> nn.Module:
        config = getattr(tr, f"{kind}Config")(**{**WAVE, **options})
        return Call(getattr(tr, f"{kind}ForCTC")(config).eval(), first("input_values"))

    return Model(
        kind.lower(),
        make,
        {"input_values": noise(2, 1600)},
        {"logits": {0: "batch_size", 1: "frames"}},
        {"input_values": {0: "batch_size", 1: "sequence_length"}},
        SOUND_DIMS,
        SOUND_SIZES,
    )


def fixed(name: str, make: Callable[[], nn.Module], given: str, output: str, *shape: int) -> Model:
    """Return a model of one input whose batch is dynamic."""
    return Model(
        name, make, {given: noise(*shape)}, {output: {0: "batch_size"}}, {given: {0: "batch_size"}}, BATCH, SIZES
    )


def _spectrogram() -> nn.Module:
    config = tr.ASTConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_length=48,
        num_mel_bins=32,
    )
    return Call(tr.ASTForAudioClassification(config).eval(), first("input_values"))


def _patches() -> nn.Module:
    config = tr.PatchTSTConfig(
        num_input_channels=3,
        context_length=32,
        patch_length=8,
        patch_stride=8,
        d_model=32,
        num_attention_heads=4,
        ffn_dim=64,
        num_hidden_layers=2,
        prediction_length=6,
    )
    return Call(tr.PatchTSTForPrediction(config).eval(), lambda model, x: model(past_values=x).prediction_outputs)


def _mixer() -> nn.Module:
    config = tr.PatchTSMixerConfig(
        num_input_channels=3, context_length=32, patch_length=8, patch_stride=8, d_model=16, prediction_length=6
    )
    return Call(tr.PatchTSMixerForPrediction(config).eval(), lambda model, x: model(past_values=x).prediction_outputs)


class Separator(nn.Module):
    """Conv-TasNet in small: an encoder, masks from dilated convolutions with global norms, and the way back."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv1d(1, 16, 16, 8), nn.ConvTranspose1d(16, 1, 16, 8)
        self.norm = nn.GroupNorm(1, 16)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv1d(16, 32, 1), nn.PReLU(), nn.GroupNorm(1, 32), nn.Conv1d(32, 16, 3, 1, 2**n, 2**n))
            for n in range(3)
        )
        self.masks = nn.Conv1d(16, 32, 1)

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        frames = torch.relu(self.enter(wave.unsqueeze(1)))
        body = self.norm(frames)
        for block in self.blocks:
            body = body + block(body)
        batch, channels, length = frames.shape
        masks = self.masks(body).sigmoid().view(batch, 2, channels, length)
        split = (masks * frames.unsqueeze(1)).reshape(batch * 2, channels, length)
        return self.leave(split).view(batch, 2, -1)


class Conformer(nn.Module):
    """A conformer's block: relative attention by einsum, gated convolutions and half steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 32)) for _ in range(2)
        )
        self.norm, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.enter, self.depth, self.leave = (
            nn.Conv1d(32, 64, 1),
            nn.Conv1d(32, 32, 7, padding=3, groups=32),
            nn.Conv1d(32, 32, 1),
        )
        self.batch = nn.BatchNorm1d(32)
        self.bias = nn.Parameter(torch.randn(4, 127))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 0.5 * self.first(x)
        batch, time, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, time, 3, 4, 8).unbind(2)
        at = torch.arange(time)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / 8**0.5 + self.bias[:, at[:, None] - at[None] + 63]
        x = x + self.out(torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).reshape(batch, time, 32))
        y = nn.functional.glu(self.enter(x.transpose(1, 2)), 1)
        x = x + self.leave(nn.functional.silu(self.batch(self.depth(y)))).transpose(1, 2)
        return x + 0.5 * self.second(x)


SOUND = [
    *by(
        DYNAMO,
        sound("Hubert"),
        sound("SEW", squeeze_factor=2),
        fixed("ast", _spectrogram, "input_values", "logits", 2, 48, 32),
        fixed("patchtst", _patches, "past_values", "y", 2, 32, 3),
        fixed("patchtsmixer", _mixer, "past_values", "y", 2, 32, 3),
        Model(
            "conformer",
            lambda: Call(Conformer().eval(), lambda inner, x: inner(x)),
            {"x": noise(2, 9, 32)},
            {"y": {0: "batch", 1: "time"}},
            {"x": {0: "batch", 1: "time"}},
            {"batch": (1, 4), "time": (1, 60)},
            ({"batch": 1, "time": 1}, {"batch": 3, "time": 47}),
        ),
    ),
    *by(
        TORCHSCRIPT,
        sound("WavLM"),
        sound("Data2VecAudio", conv_pos_kernel_size=5),
        sound("UniSpeechSat"),
        Model(
            "conv_tasnet",
            lambda: Call(Separator().eval(), lambda inner, x: inner(x)),
            {"wave": noise(2, 800)},
            {"parts": {0: "batch", 2: "length"}},
            {"wave": {0: "batch", 1: "time"}},
            {"batch": (1, 4), "time": (64, 1600)},
            ({"batch": 1, "time": 64}, {"batch": 3, "time": 1234}),
        ),
    ),
]
