"""Text: encoders, decoders of a prompt and of a token, convolutional and recurrent nets."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from benchmarks.zoo.entry import Entry, Inputs, hugging, noise, own, tokens

BASE = {"hidden_size": 384, "num_hidden_layers": 4, "num_attention_heads": 6, "intermediate_size": 1536,
        "vocab_size": 4000}  # fmt: skip
LLAMA = BASE | {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 48}


def _ids(length: int = 128) -> Callable[[], Inputs]:
    return lambda: {"input_ids": tokens(1, length)}


def _masked(length: int = 128) -> Callable[[], Inputs]:
    return lambda: {"input_ids": tokens(1, length), "attention_mask": torch.ones(1, length, dtype=torch.int64)}


def _encoder(name: str, model: str, config: Mapping[str, object] = BASE, length: int = 128) -> Entry:
    return hugging(name, "encoder", f"{model}Model", config, _masked(length))


def _decoder(name: str, model: str, config: Mapping[str, object], length: int = 128) -> Entry:
    return hugging(name, "decoder", f"{model}Model", config, _masked(length), use_cache=False)


class TextCnn(nn.Module):
    """Sentence classification by windows of 3, 4 and 5 tokens (arXiv:1408.5882)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4000, 300)
        self.convs = nn.ModuleList(nn.Conv1d(300, 100, k) for k in (3, 4, 5))
        self.last = nn.Linear(300, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return [n, 2]."""
        x = self.embed(ids).transpose(1, 2)
        return self.last(torch.cat([torch.relu(conv(x)).amax(2) for conv in self.convs], 1))


class Tagger(nn.Module):
    """A tag for each token by a bidirectional recurrent net of two layers."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.embed, self.last = nn.Embedding(4000, 128), nn.Linear(512, 20)
        self.net = kind(128, 256, 2, batch_first=True, bidirectional=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return [n, tokens, 20]."""
        hidden, _ = self.net(self.embed(ids))
        return self.last(hidden)


class CharCnn(nn.Module):
    """A character-level net (arXiv:1509.01626), three of its six convolutions."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((70, 7, 3), (256, 7, 3), (256, 3, 1))
        layers = [nn.Sequential(nn.Conv1d(a, 256, k), nn.ReLU(), nn.MaxPool1d(p)) for a, k, p in sizes]
        self.layers, self.embed, self.last = nn.Sequential(*layers), nn.Embedding(100, 70), nn.Linear(256, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return [n, 4]."""
        return self.last(self.layers(self.embed(ids).transpose(1, 2)).mean(2))


class Retention(nn.Module):
    """A block of RetNet (arXiv:2307.08621) in its parallel form."""

    def __init__(self, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.gate, self.last = (nn.Linear(width, width) for _ in range(5))
        self.first, self.normalize = nn.LayerNorm(width), nn.GroupNorm(heads, width)
        up, down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.feed = nn.Sequential(nn.LayerNorm(width), up, nn.GELU(), down)
        self.register_buffer("decay", 1 - 2.0 ** (-5 - torch.arange(heads)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, tokens, width]."""
        y = self.first(x)
        n, tokens_, width = y.shape
        query, key, value = (
            layer(y).view(n, tokens_, self.heads, -1).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        places = torch.arange(tokens_, device=x.device)
        distance = places[:, None] - places
        decay = self.decay[:, None, None] ** distance.clamp(min=0) * (distance >= 0)
        joined = (query @ key.transpose(2, 3) * decay @ value).transpose(1, 2).reshape(n * tokens_, width)
        joined = self.normalize(joined).view(n, tokens_, width)
        x = x + self.last(nn.functional.silu(self.gate(y)) * joined)
        return x + self.feed(x)


TEXT = [
    _encoder("bert_small", "Bert"),
    _encoder("roberta_small", "Roberta", BASE | {"max_position_embeddings": 514}),
    _encoder("mpnet_small", "MPNet"),
    _encoder("deberta_v2", "DebertaV2", BASE | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, 64),
    _encoder("modernbert", "ModernBert", BASE | {"pad_token_id": 0}),
    _encoder("mobilebert", "MobileBert", {"num_hidden_layers": 4, "vocab_size": 4000}),
    _encoder("squeezebert", "SqueezeBert", {"num_hidden_layers": 3, "vocab_size": 4000}),
    hugging("t5_encoder", "encoder", "T5EncoderModel",
            {"num_layers": 3, "vocab_size": 4000, "d_model": 384, "d_kv": 64, "num_heads": 6, "d_ff": 1024}, _ids()),
    _decoder("gpt2_small", "GPT2", {"n_embd": 384, "n_layer": 4, "n_head": 6, "vocab_size": 4000}),
    _decoder("opt_small", "OPT", {"hidden_size": 384, "num_hidden_layers": 4, "num_attention_heads": 6,
             "ffn_dim": 1536, "vocab_size": 4000, "word_embed_proj_dim": 384}),
    _decoder("gptneox", "GPTNeoX", BASE),
    _decoder("llama_prompt", "Llama", LLAMA),
    _decoder("llama_token", "Llama", LLAMA, 1),
    _decoder("qwen3_prompt", "Qwen3", LLAMA, 64),
    _decoder("gemma_prompt", "Gemma", LLAMA, 64),
    hugging("clip_text", "encoder", "CLIPTextModel", {"hidden_size": 512, "num_hidden_layers": 4,
            "num_attention_heads": 8, "intermediate_size": 2048, "vocab_size": 4000}, _ids(77)),
    hugging("xlnet", "encoder", "XLNetModel",
            {"d_model": 384, "n_layer": 3, "n_head": 6, "d_inner": 1536, "vocab_size": 4000}, _ids()),
    hugging("perceiver", "encoder", "PerceiverModel",
            {"num_latents": 64, "d_latents": 256, "d_model": 128, "num_self_attends_per_block": 3,
             "num_cross_attention_heads": 4, "num_self_attention_heads": 4}, lambda: {"inputs": noise(1, 512, 128)}),
    hugging("bart", "sequence to sequence", "BartModel",
            {"d_model": 384, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 6,
             "decoder_attention_heads": 6, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536, "vocab_size": 4000},
            lambda: {"input_ids": tokens(1, 64), "decoder_input_ids": tokens(1, 32)}, use_cache=False),
    hugging("mamba", "decoder", "MambaModel",
            {"hidden_size": 192, "num_hidden_layers": 2, "state_size": 8, "vocab_size": 4000}, _ids(32),
            use_cache=False),
    hugging("rwkv", "decoder", "RwkvModel",
            {"hidden_size": 256, "num_hidden_layers": 2, "vocab_size": 4000, "context_length": 64}, _ids(16),
            use_cache=False),
    own("retnet", "decoder", lambda: nn.Sequential(*(Retention() for _ in range(3))), lambda: {"x": noise(1, 96, 256)}),
    _encoder("convbert", "ConvBert", BASE | {"embedding_size": 128}),
    own("text_cnn", "convolutional", TextCnn, _ids(256)),
    own("char_cnn", "convolutional", CharCnn, lambda: {"input_ids": tokens(1, 1014, below=100)}),
    own("lstm_tagger", "recurrent", lambda: Tagger(nn.LSTM), _ids()),
    own("gru_tagger", "recurrent", lambda: Tagger(nn.GRU), _ids()),
]  # fmt: skip
