"""Architectures of transformers that the zoo lacked, of base widths and few layers, written before a look into them.

For ``benchmarks.gpu.zoo`` alone: they are too wide for what measures CPUs. Decoders have no mask, with which only
torch.export and the ONNX exporter upon it take them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.zoo.entry import Entry, Inputs, hugging, image, noise, tokens

VOCABULARY = {"vocab_size": 8000}
ENCODER = {"hidden_size": 768, "num_hidden_layers": 4, "num_attention_heads": 12, "intermediate_size": 3072}
LATENT = VOCABULARY | {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 2816,
                       "max_position_embeddings": 1024}  # fmt: skip
DECODER = LATENT | {"num_hidden_layers": 4, "num_key_value_heads": 4}
GPT = VOCABULARY | {"n_embd": 1024, "n_layer": 4, "n_head": 16}
BLOOM = VOCABULARY | {"hidden_size": 1024, "n_layer": 4, "n_head": 16}
EXPERTS = DECODER | {"num_hidden_layers": 2}
WIDE_HEADS = {"num_attention_heads": 4, "head_dim": 256, "sliding_window": 128}
SECOND = 16000


def _ids(length: int = 128, below: int = 1000) -> Callable[[], Inputs]:
    return lambda: {"input_ids": tokens(1, length, below=below)}


def _two(length: int = 128, target: int = 32) -> Callable[[], Inputs]:
    return lambda: {"input_ids": tokens(1, length), "decoder_input_ids": tokens(1, target)}


def _sound() -> Inputs:
    return {"input_values": noise(1, SECOND)}


def _frames(count: int) -> Callable[[], Inputs]:
    return lambda: {"pixel_values": noise(1, count, 3, 224, 224)}


def _encoder(name: str, model: str, config: Mapping[str, object], length: int = 128, below: int = 1000) -> Entry:
    return hugging(name, "encoder", model, config, _ids(length, below))


def _decoder(name: str, model: str, config: Mapping[str, object], length: int = 128) -> Entry:
    return hugging(name, "decoder", model, config, _ids(length), use_cache=False)


def _translator(name: str, model: str, heads: int, width: int) -> Entry:
    sides = {
        f"{side}_{what}": value
        for side in ("encoder", "decoder")
        for what, value in (("layers", 3), ("ffn_dim", 4 * width), ("attention_heads", heads))
    }
    config = VOCABULARY | sides | {"d_model": width, "pad_token_id": 0, "decoder_vocab_size": 8000}
    return hugging(name, "translator", model, config, _two(), use_cache=False)


def _speech(name: str, model: str, **config: object) -> Entry:
    return hugging(name, "speech", model, ENCODER | config, _sound)


def _vision(name: str, model: str, config: Mapping[str, object], size: int = 224) -> Entry:
    return hugging(name, "vision", model, config, image(size))


TRANSFORMERS = [
    _encoder("albert", "AlbertModel", ENCODER | VOCABULARY | {"embedding_size": 128}),
    _encoder("electra", "ElectraModel", ENCODER | VOCABULARY | {"embedding_size": 128}),
    _encoder("distilbert", "DistilBertModel", VOCABULARY | {"n_layers": 4}),
    _encoder("roformer", "RoFormerModel", ENCODER | VOCABULARY, 256),
    _encoder("fnet", "FNetModel", ENCODER | VOCABULARY, 256),
    _encoder("layoutlm", "LayoutLMModel", ENCODER | VOCABULARY),
    _encoder("canine", "CanineModel", ENCODER, 512),
    _encoder("funnel", "FunnelModel",
             VOCABULARY | {"block_sizes": [2, 2, 2], "d_model": 512, "d_inner": 2048, "n_head": 8}, 256),
    _encoder("esm", "EsmModel",
             ENCODER | {"vocab_size": 33, "pad_token_id": 1, "position_embedding_type": "rotary"}, 256, 30),
    _decoder("bloom", "BloomModel", BLOOM),
    _decoder("falcon", "FalconModel",
             VOCABULARY | {"hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16}),
    _decoder("gpt_neo", "GPTNeoModel",
             VOCABULARY | {"hidden_size": 768, "num_layers": 4, "num_heads": 12,
                           "attention_types": [[["global", "local"], 2]]}, 512),
    _decoder("gptj", "GPTJModel", GPT | {"rotary_dim": 32}),
    _decoder("bigcode", "GPTBigCodeModel", GPT),
    _decoder("phi", "PhiModel", DECODER),
    _decoder("mistral", "MistralModel", DECODER | {"sliding_window": 128}, 512),
    _decoder("gemma2", "Gemma2Model", DECODER | {"head_dim": 128, "sliding_window": 128}, 256),
    _decoder("gemma2_wide", "Gemma2Model",
             DECODER | WIDE_HEADS | {"num_hidden_layers": 2, "num_key_value_heads": 2}, 200),
    _decoder("gemma3", "Gemma3TextModel",
             DECODER | WIDE_HEADS | {"num_hidden_layers": 6, "num_key_value_heads": 1}, 256),
    _decoder("cohere", "CohereModel", DECODER),
    _decoder("olmo2", "Olmo2Model", DECODER),
    _decoder("granite", "GraniteModel", DECODER),
    _decoder("stablelm", "StableLmModel", DECODER),
    _decoder("deepseek", "DeepseekV3Model",
             LATENT | {"num_hidden_layers": 2, "first_k_dense_replace": 2, "n_routed_experts": 8, "kv_lora_rank": 128,
                       "q_lora_rank": 256, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64, "v_head_dim": 64}),
    _decoder("mixtral", "MixtralModel", EXPERTS | {"num_local_experts": 8, "num_experts_per_tok": 2}),
    _decoder("qwen3_moe", "Qwen3MoeModel",
             EXPERTS | {"num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 512, "head_dim": 64}),
    _decoder("mamba2_blocks", "Mamba2Model",
             VOCABULARY | {"hidden_size": 512, "num_hidden_layers": 2, "head_dim": 64, "num_heads": 16, "n_groups": 1,
                           "state_size": 64}, 256),
    hugging("xglm", "decoder", "XGLMModel",
            VOCABULARY | {"d_model": 1024, "ffn_dim": 4096, "num_layers": 4, "attention_heads": 16}, _ids(),
            use_cache=False),
    _translator("pegasus", "PegasusModel", 12, 768),
    _translator("marian", "MarianModel", 8, 512),
    _speech("hubert", "HubertModel"),
    _speech("data2vec_audio", "Data2VecAudioModel"),
    _speech("wav2vec2_conformer", "Wav2Vec2ConformerModel", position_embeddings_type="rotary"),
    hugging("audio_spectrogram", "speech", "ASTModel", ENCODER | {"max_length": 512},
            lambda: {"input_values": noise(1, 512, 128)}),
    _vision("siglip", "SiglipVisionModel", ENCODER),
    _vision("dpt", "DPTModel", ENCODER, 384),
    _vision("ijepa", "IJepaModel", ENCODER),
    _vision("glpn", "GLPNModel", {}),
    _vision("hiera", "HieraModel", {"embed_dim": 96, "depths": [1, 2, 3, 1]}),
    _vision("pvt", "PvtModel", {}),
    _vision("dinov3", "DINOv3ViTModel", ENCODER),
    _vision("yolos", "YolosModel", ENCODER | {"image_size": [256, 256], "num_detection_tokens": 100}, 256),
    _vision("bit", "BitModel",
            {"depths": [2, 2, 2, 2], "embedding_size": 64, "hidden_sizes": [256, 512, 1024, 2048]}),
    _vision("swiftformer", "SwiftFormerModel", {}),
    hugging("vivit", "video", "VivitModel", ENCODER | {"num_frames": 8}, _frames(8)),
    hugging("timesformer_blocks", "video", "TimesformerModel", ENCODER | {"num_frames": 4}, _frames(4)),
    _encoder("convbert_blocks", "ConvBertModel", ENCODER | VOCABULARY),
    hugging("patchtsmixer", "series", "PatchTSMixerModel",
            {"context_length": 512, "num_input_channels": 8, "patch_length": 16, "patch_stride": 16, "d_model": 64,
             "num_layers": 4}, lambda: {"past_values": noise(1, 512, 8)}),
]  # fmt: skip
