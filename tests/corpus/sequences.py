"""Sound, text and time series: recurrent networks, wav2vec2, Whisper, spectra and what draws random numbers."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tr
from torch import nn
from torch.nn import functional

from .case import Bounds, Call, Model, Sizes, noise, tokens
from .text import first

TIME = {0: "batch", 1: "time"}
DIMS: dict[str, Bounds] = {"batch": (1, 4), "time": (1, 32)}
SIZES: tuple[Sizes, ...] = ({"batch": 1, "time": 1}, {"batch": 2, "time": 9}, {"batch": 4, "time": 32})


class Tagger(nn.Module):
    """Embeddings, a recurrent network in both directions, and scores for each token."""

    def __init__(self, cell: type[nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 16)
        self.rnn = cell(16, 24, num_layers=2, batch_first=True, bidirectional=True)
        self.last = nn.Linear(48, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.last(self.rnn(self.embedding(ids))[0])


class Forecast(nn.Module):
    """An LSTM that takes and returns its state, as streaming models do."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.last = nn.LSTM(6, 16, num_layers=1, batch_first=True), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden, (h, c) = self.rnn(x, (h, c))
        return self.last(hidden[:, -1]), h, c


class Separable(nn.Module):
    """A temporal convolutional network of causal, dilated convolutions over normalized time series."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(6 if n == 0 else 16, 16, 3, dilation=2**n) for n in range(3))
        self.last = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, spread = x.mean(1, keepdim=True), x.std(1, keepdim=True, unbiased=False)
        y = ((x - mean) / (spread + 1e-5)).transpose(1, 2)
        for number, layer in enumerate(self.convs):
            y = functional.relu(layer(functional.pad(y, (2 * 2**number, 0))))
        return self.last(y.mean(2))


class Spectrum(nn.Module):
    """A short-time Fourier transform and its power in decibel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.stft(x, 64, 16, window=torch.hann_window(64), return_complex=False, center=False)
        return torch.log10(found.pow(2).sum(-1).clamp(min=1e-6))


class Voice(nn.Module):
    """VITS in small: a random latent, lengths from the text, a path by their sums, and upsampling to sound."""

    def __init__(self, frames: int = 64) -> None:
        super().__init__()
        self.frames = frames
        self.embedding, self.lengths = nn.Embedding(100, 16), nn.Linear(16, 1)
        self.up = nn.ConvTranspose1d(16, 8, 8, 4, 2)
        self.last = nn.Conv1d(8, 1, 7, padding=3)

    def forward(self, ids: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(ids)
        ends = torch.ceil(torch.exp(self.lengths(hidden)).clamp(max=3.0)).squeeze(-1).cumsum(1)
        frame = torch.arange(self.frames, dtype=torch.float32)
        inside = (frame[None, :, None] < ends[:, None, :]).float()
        path = functional.pad(inside, (0, 1))[:, :, 1:] - inside
        latent = torch.matmul(path.abs(), hidden)
        latent = latent + torch.randn_like(latent) * scale
        return torch.tanh(self.last(functional.leaky_relu(self.up(latent.transpose(1, 2)))))


def sequence(name: str, make: Any, inputs: dict[str, torch.Tensor], outputs: dict[str, Any], **options: Any) -> Model:
    """Return a model whose first input has a dynamic batch and time."""
    given = {"dims": DIMS, "sizes": SIZES, "axes": {next(iter(inputs)): TIME}, **options}
    return Model(name, lambda: Call(make().eval(), lambda inner, *x: inner(*x)), inputs, outputs, **given)


def _wav2vec2() -> nn.Module:
    config = tr.Wav2Vec2Config(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        conv_dim=(32, 32, 32),
        conv_stride=(5, 2, 2),
        conv_kernel=(10, 3, 3),
        num_feat_extract_layers=3,
        vocab_size=32,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
    )
    return Call(tr.Wav2Vec2ForCTC(config).eval(), first("input_values"))


def _whisper() -> tr.WhisperForConditionalGeneration:
    config = tr.WhisperConfig(
        vocab_size=100,
        num_mel_bins=16,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_source_positions=20,
        max_target_positions=40,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    return tr.WhisperForConditionalGeneration(config).eval()


def _whisper_decoder(model: nn.Module, ids: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    return model(decoder_input_ids=ids, encoder_outputs=(states,), use_cache=False).logits


SOUND_DIMS: dict[str, Bounds] = {"batch_size": (1, 2), "sequence_length": (800, 3200)}
SOUND_SIZES: tuple[Sizes, ...] = (
    {"batch_size": 1, "sequence_length": 1600},
    {"batch_size": 2, "sequence_length": 2311},
)
TARGET = {0: "batch_size", 1: "decoder_sequence_length"}
SERIES = noise(2, 9, 6)

SEQUENCES = [
    sequence("bilstm", lambda: Tagger(nn.LSTM), {"ids": tokens(2, 9)}, {"scores": TIME}),
    sequence("bigru", lambda: Tagger(nn.GRU), {"ids": tokens(2, 9)}, {"scores": TIME}),
    # torch's newer exporter cannot write plain recurrent networks.
    sequence("birnn", lambda: Tagger(nn.RNN), {"ids": tokens(2, 9)}, {"scores": TIME}, exporters=("torchscript",)),
    sequence(
        "lstm_stream",
        Forecast,
        {"x": SERIES, "h": noise(1, 2, 16), "c": noise(1, 2, 16)},
        {"y": {0: "batch"}, "hn": {1: "batch"}, "cn": {1: "batch"}},
        axes={"x": TIME, "h": {1: "batch"}, "c": {1: "batch"}},
    ),
    sequence("tcn", Separable, {"x": SERIES}, {"y": {0: "batch"}}),
    sequence(
        "transformer_series",
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0), 2),
        {"x": noise(2, 9, 16)},
        {"y": TIME},
        exporters=("dynamo",),  # TorchScript writes the sizes that it saw into attention
    ),
    sequence(
        "stft",
        Spectrum,
        {"x": noise(2, 400)},
        {"y": {0: "batch", 2: "frames"}},
        dims={"batch": (1, 2), "time": (64, 800)},
        sizes=({"batch": 1, "time": 64}, {"batch": 2, "time": 777}),
    ),
    sequence(
        "vits",
        Voice,
        {"ids": tokens(2, 9), "scale": torch.tensor([0.5])},
        {"sound": {0: "batch"}},
        random=True,
    ),
    Model(
        "wav2vec2",
        _wav2vec2,
        {"input_values": noise(2, 1600)},
        {"logits": {0: "batch_size", 1: "frames"}},
        {"input_values": {0: "batch_size", 1: "sequence_length"}},
        SOUND_DIMS,
        SOUND_SIZES,
    ),
    Model(
        "whisper_encoder",
        lambda: Call(_whisper().model.encoder, first("input_features")),
        {"input_features": noise(2, 16, 40)},
        {"last_hidden_state": {0: "batch_size"}},
        {"input_features": {0: "batch_size"}},
        {"batch_size": (1, 4)},
        ({"batch_size": 1}, {"batch_size": 3}),
    ),
    Model(
        "whisper_decoder",
        lambda: Call(_whisper(), _whisper_decoder),
        {"decoder_input_ids": tokens(2, 5), "encoder_hidden_states": noise(2, 20, 64)},
        {"logits": TARGET},
        {"decoder_input_ids": TARGET, "encoder_hidden_states": {0: "batch_size"}},
        {"batch_size": (1, 4), "decoder_sequence_length": (1, 16)},
        ({"batch_size": 1, "decoder_sequence_length": 1}, {"batch_size": 3, "decoder_sequence_length": 7}),
        exporters=("dynamo",),  # the other one has no operator for differences
    ),
]
