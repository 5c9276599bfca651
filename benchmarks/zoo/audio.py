"""Audio in or out: features, recognition, separation, vocoders."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from benchmarks.zoo.entry import Inputs, hugging, noise, own


def mel_filters(bins: int, mels: int) -> nn.Linear:
    """Return triangular filters, evenly spaced in mels (HTK's) up to 8 kHz, none narrower than a bin.

    They are not negative: sums of random signs come close to zero, where a logarithm has any error in float32.
    """
    top = 2595 * math.log10(1 + 8000 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top, mels + 2) / 2595) - 1) / 8000 * (bins - 1)
    center, low, high = edges[1:-1, None], edges[:-2, None], edges[2:, None]
    bin_ = torch.arange(bins)
    sides = [(bin_ - center) / (high - center).clamp(min=1), (center - bin_) / (center - low).clamp(min=1)]
    layer = nn.Linear(bins, mels, bias=False)
    layer.weight = nn.Parameter((1 - torch.maximum(*sides)).clamp(min=0))
    return layer


class LogMelConv(nn.Module):
    """A mel spectrogram whose STFT is a convolution, as many exports have it: windows of 400, steps of 160."""

    def __init__(self, length: int = 400, step: int = 160, mels: int = 80) -> None:
        super().__init__()
        self.stft = nn.Conv1d(1, length + 2, length, step, bias=False)
        self.mel = mel_filters(length // 2 + 1, mels)

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        """Return [n, frames, mels]."""
        real, imaginary = self.stft(wave[:, None]).chunk(2, 1)
        power = real * real + imaginary * imaginary
        return torch.log(self.mel(power.transpose(1, 2)) + 1e-5)


class LogMelStft(nn.Module):
    """A mel spectrogram by the operator STFT: windows of 512, steps of 128."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(512))
        self.mel = mel_filters(257, 80)

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        """Return [n, frames, mels]."""
        parts = torch.stft(wave, 512, 128, window=self.window, center=False, return_complex=False)
        power = (parts * parts).sum(-1)
        return torch.log(self.mel(power.transpose(1, 2)) + 1e-5)


class Separable(nn.Module):
    """A block of Conv-TasNet (arXiv:1809.07454): 1x1, dilated depthwise, 1x1, with global layer norms."""

    def __init__(self, channels: int, hidden: int, dilation: int) -> None:
        super().__init__()
        depthwise = nn.Conv1d(hidden, hidden, 3, padding=dilation, dilation=dilation, groups=hidden)
        enter = (nn.Conv1d(channels, hidden, 1), nn.PReLU(), nn.GroupNorm(1, hidden))
        middle = (depthwise, nn.PReLU(), nn.GroupNorm(1, hidden))
        self.layers = nn.Sequential(*enter, *middle, nn.Conv1d(hidden, channels, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, channels, t]."""
        return x + self.layers(x)


class ConvTasNet(nn.Module):
    """Conv-TasNet with one of its three repeats."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Conv1d(1, 512, 16, 8, bias=False)
        blocks = [Separable(128, 512, 2**i) for i in range(8)]
        self.mask = nn.Sequential(nn.GroupNorm(1, 512), nn.Conv1d(512, 128, 1), *blocks, nn.Conv1d(128, 1024, 1))
        self.decoder = nn.ConvTranspose1d(512, 1, 16, 8, bias=False)

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        """Return two sources, [n, 2, 1, samples]."""
        code = self.encoder(wave[:, None])
        masks = torch.sigmoid(self.mask(code)).unflatten(1, (2, 512))
        parts = masks * code[:, None]
        return self.decoder(parts.flatten(0, 1)).unflatten(0, (-1, 2))


class Vad(nn.Module):
    """Voice activity like Silero's: features by a convolution, an encoder, one step of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.stft = nn.Conv1d(1, 258, 256, 128, bias=False)
        sizes = ((129, 128, 1), (128, 64, 2), (64, 64, 2), (64, 128, 1))
        self.encoder = nn.Sequential(*(nn.Sequential(nn.Conv1d(a, b, 3, s, 1), nn.ReLU()) for a, b, s in sizes))
        self.lstm, self.last = nn.LSTM(128, 128, batch_first=True), nn.Conv1d(128, 1, 1)

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        """Return [n, 1, steps]."""
        real, imaginary = self.stft(wave[:, None]).chunk(2, 1)
        code = self.encoder(torch.sqrt(real * real + imaginary * imaginary + 1e-9))
        hidden, _ = self.lstm(code.transpose(1, 2))
        return torch.sigmoid(self.last(torch.relu(hidden.transpose(1, 2))))


class Dilated(nn.Module):
    """A residual block of HiFi-GAN (arXiv:2010.05646)."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()

        def same(dilation: int) -> nn.Conv1d:
            return nn.Conv1d(channels, channels, kernel, padding=dilation * (kernel - 1) // 2, dilation=dilation)

        self.wide, self.narrow = nn.ModuleList(map(same, (1, 3, 5))), nn.ModuleList(same(1) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, channels, t]."""
        for wide, narrow in zip(self.wide, self.narrow, strict=True):
            x = x + narrow(functional.leaky_relu(wide(functional.leaky_relu(x, 0.1)), 0.1))
        return x


class HifiGan(nn.Module):
    """HiFi-GAN V2: upsampling by 256 in four steps."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.enter = nn.Conv1d(80, width, 7, padding=3)
        rates, kernels = (8, 8, 2, 2), (16, 16, 4, 4)
        ups, blocks = [], []
        for level, (rate, kernel) in enumerate(zip(rates, kernels, strict=True)):
            out = width >> (level + 1)
            ups.append(nn.ConvTranspose1d(2 * out, out, kernel, rate, (kernel - rate) // 2))
            blocks.append(nn.ModuleList(Dilated(out, k) for k in (3, 7, 11)))
        self.ups, self.blocks = nn.ModuleList(ups), nn.ModuleList(blocks)
        self.last = nn.Conv1d(width >> 4, 1, 7, padding=3)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        """Return [n, 1, 256 t]."""
        x = self.enter(mel)
        for up, level in zip(self.ups, self.blocks, strict=True):
            x = up(functional.leaky_relu(x, 0.1))
            x = (level[0](x) + level[1](x) + level[2](x)) / 3
        return torch.tanh(self.last(functional.leaky_relu(x)))


class WaveNet(nn.Module):
    """Gated dilated convolutions (arXiv:1609.03499), ten layers over 2,000 samples."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.enter = nn.Conv1d(1, width, 1)
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**i) for i in range(10))
        self.outs = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(10))
        self.skips = nn.ModuleList(nn.Conv1d(width, 128, 1) for _ in range(10))
        self.last = nn.Sequential(nn.ReLU(), nn.Conv1d(128, 128, 1), nn.ReLU(), nn.Conv1d(128, 256, 1))

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        """Return [n, 256, t]."""
        x, total = self.enter(wave), torch.zeros(())
        for index, (gate, out, skip) in enumerate(zip(self.gates, self.outs, self.skips, strict=True)):
            filtered, gated = gate(functional.pad(x, (2**index, 0))).chunk(2, 1)
            y = torch.tanh(filtered) * torch.sigmoid(gated)
            total = total + skip(y)
            x = x + out(y)
        return self.last(total)


class Keywords(nn.Module):
    """Keyword spotting by depthwise separable convolutions (arXiv:1711.07128)."""

    def __init__(self) -> None:
        super().__init__()

        def layer(a: int, b: int, window: tuple[int, int], stride: tuple[int, int], groups: int = 1) -> nn.Sequential:
            padding = (window[0] // 2, window[1] // 2)
            return nn.Sequential(nn.Conv2d(a, b, window, stride, padding, groups=groups), nn.BatchNorm2d(b), nn.ReLU())

        pairs = [part for _ in range(4) for part in (layer(64, 64, (3, 3), (1, 1), 64), layer(64, 64, (1, 1), (1, 1)))]
        self.layers = nn.Sequential(layer(1, 64, (10, 4), (2, 2)), *pairs)
        self.last = nn.Linear(64, 12)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return [n, 12]; ``features`` is [n, 1, 49, 10]."""
        return self.last(self.layers(features).mean((2, 3)))


class Recognizer(nn.Module):
    """DeepSpeech-like: two convolutions, two bidirectional GRUs, letters of each frame."""

    def __init__(self) -> None:
        super().__init__()
        one = (nn.Conv2d(1, 32, (11, 41), 2, (5, 20)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20))
        two = (nn.Conv2d(32, 32, (11, 21), (1, 2), (5, 10)), nn.BatchNorm2d(32), nn.ReLU())
        self.convs = nn.Sequential(*one, *two)
        self.gru = nn.GRU(32 * 20, 256, 2, batch_first=True, bidirectional=True)
        self.last = nn.Linear(512, 29)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        """Return [n, frames, 29]."""
        code = self.convs(mel[:, None])
        hidden, _ = self.gru(code.permute(0, 2, 1, 3).flatten(2))
        return self.last(hidden)


class Demucs(nn.Module):
    """Separation on the waveform (arXiv:1911.13254): strided convolutions, gates, a bidirectional LSTM between."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        sizes = ((1, width), (width, 2 * width), (2 * width, 4 * width), (4 * width, 8 * width))
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for before, after in sizes:
            gate = nn.Sequential(nn.Conv1d(after, 2 * after, 1), nn.GLU(1))
            self.down.append(nn.Sequential(nn.Conv1d(before, after, 8, 4, 2), nn.ReLU(), gate))
            gate = nn.Sequential(nn.Conv1d(after, 2 * after, 3, padding=1), nn.GLU(1))
            self.up.insert(0, nn.Sequential(gate, nn.ConvTranspose1d(after, before, 8, 4, 2)))
        self.lstm, self.last = nn.LSTM(8 * width, 8 * width, 2, bidirectional=True), nn.Linear(16 * width, 8 * width)

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        """Return [n, 1, samples]."""
        levels = [wave[:, None]]
        for layer in self.down:
            levels.append(layer(levels[-1]))
        x = self.last(self.lstm(levels[-1].permute(2, 0, 1))[0]).permute(1, 2, 0)
        for layer in self.up[:-1]:
            x = torch.relu(layer(x + levels.pop()))
        return self.up[-1](x + levels.pop())


def _wave(samples: int) -> Callable[[], Inputs]:
    return lambda: {"wave": noise(1, samples)}


SPEECH = {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 1024}
AUDIO = [
    own("log_mel_conv", "features", LogMelConv, _wave(16000)),
    own("log_mel_stft", "features", LogMelStft, _wave(16000)),
    own("silero_vad", "recognition", Vad, _wave(512 + 64)),
    own("keywords_dscnn", "recognition", Keywords, lambda: {"features": noise(1, 1, 49, 10)}),
    own("deepspeech", "recognition", Recognizer, lambda: {"mel": noise(1, 100, 80)}),
    hugging("wav2vec2", "recognition", "Wav2Vec2ForCTC", SPEECH,
            lambda: {"input_values": noise(1, 16000)}, "logits"),
    hugging("conformer", "recognition", "Wav2Vec2ConformerModel", SPEECH | {"position_embeddings_type": "relative"},
            lambda: {"input_values": noise(1, 8000)}),
    hugging("wavlm", "recognition", "WavLMModel", SPEECH, lambda: {"input_values": noise(1, 8000)}),
    hugging("whisper_encoder", "recognition", "WhisperModel",
            {"encoder_layers": 2, "decoder_layers": 1, "d_model": 256, "encoder_attention_heads": 4,
             "decoder_attention_heads": 4},
            lambda: {"input_features": noise(1, 80, 3000), "decoder_input_ids": torch.ones(1, 1, dtype=torch.int64)}),
    hugging("ast", "recognition", "ASTForAudioClassification", {"num_hidden_layers": 2, "hidden_size": 384,
            "num_attention_heads": 6, "intermediate_size": 1536, "max_length": 256},
            lambda: {"input_values": noise(1, 256, 128)}, "logits"),
    own("conv_tasnet", "separation", ConvTasNet, _wave(8000)),
    own("demucs", "separation", Demucs, _wave(16384)),
    hugging("encodec", "codec", "EncodecModel",
            {"num_filters": 16, "hidden_size": 64, "codebook_dim": 64, "normalize": False},
            lambda: {"input_values": noise(1, 1, 6000)}, "audio_values"),
    own("hifigan", "vocoder", HifiGan, lambda: {"mel": noise(1, 80, 50)}),
    own("wavenet", "vocoder", WaveNet, lambda: {"wave": noise(1, 1, 2000)}),
]  # fmt: skip
