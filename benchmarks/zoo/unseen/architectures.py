"""More architectures of transformers, of base widths and few layers, that no GPU had run before they were written here.

For ``benchmarks.gpu.zoo`` alone: they are too wide for what measures CPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.zoo.entry import Entry, Inputs, hugging, image, noise, tokens

VOCABULARY = {"vocab_size": 8000}
LAYERS = {"hidden_size": 768, "num_hidden_layers": 4, "num_attention_heads": 12, "intermediate_size": 3072}
ENCODER = VOCABULARY | LAYERS
DECODER = VOCABULARY | {"hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16,
                        "num_key_value_heads": 4, "intermediate_size": 2816,
                        "max_position_embeddings": 1024}  # fmt: skip
HEADS = {"head_dim": 64}
PADDED = {"pad_token_id": 0}  # the default is beyond the vocabulary
EXPERTS = DECODER | {"num_hidden_layers": 2}
SECOND = 16000


def _ids(length: int = 128) -> Callable[[], Inputs]:
    return lambda: {"input_ids": tokens(1, length)}


def _two() -> Inputs:
    return {"input_ids": tokens(1, 64), "decoder_input_ids": tokens(1, 16)}


def _sound() -> Inputs:
    return {"input_values": noise(1, SECOND)}


def _decoder(name: str, model: str, config: Mapping[str, object], length: int = 128) -> Entry:
    return hugging(name, "decoder", model, config, _ids(length), use_cache=False)


def _encoder(name: str, model: str, config: Mapping[str, object], length: int = 128) -> Entry:
    return hugging(name, "encoder", model, config, _ids(length))


def _vision(
    name: str, model: str, config: Mapping[str, object], size: int = 224, field: str = "last_hidden_state"
) -> Entry:
    return hugging(name, "vision", model, config, image(size), field)


def _speech(name: str, model: str) -> Entry:
    return hugging(name, "speech", model, LAYERS, _sound)


ARCHITECTURES = [
    _decoder("gpt_oss", "GptOssModel",
             EXPERTS | HEADS | {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 64,
                                "intermediate_size": 1024, "layer_types": ["sliding_attention", "full_attention"]}),
    _decoder("lfm2", "Lfm2Model", DECODER | {"layer_types": ["conv", "full_attention"] * 2}),
    _decoder("qwen3_next", "Qwen3NextModel",
             DECODER | HEADS | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512,
                                "shared_expert_intermediate_size": 512, "linear_num_value_heads": 8,
                                "linear_num_key_heads": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 64}),
    _decoder("recurrent_gemma", "RecurrentGemmaModel",
             VOCABULARY | {"hidden_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 8,
                           "intermediate_size": 3072, "lru_width": 1024, "attention_window_size": 128}),
    _decoder("falcon_mamba", "FalconMambaModel",
             VOCABULARY | {"hidden_size": 512, "num_hidden_layers": 2, "state_size": 16}),
    _decoder("xlstm", "xLSTMModel", VOCABULARY | {"hidden_size": 512, "num_hidden_layers": 2, "num_heads": 4}),
    _decoder("diffllama", "DiffLlamaModel", DECODER),
    _decoder("nemotron", "NemotronModel", DECODER),
    _decoder("minimax", "MiniMaxModel",
             EXPERTS | HEADS | {"num_local_experts": 8, "layer_types": ["linear_attention", "full_attention"]}),
    _decoder("starcoder2", "Starcoder2Model", DECODER | {"sliding_window": 64}),
    _decoder("olmoe", "OlmoeModel",
             EXPERTS | {"num_experts": 16, "num_experts_per_tok": 4, "intermediate_size": 512}),
    _decoder("glm4", "Glm4Model", DECODER | HEADS | PADDED),
    _decoder("helium", "HeliumModel", DECODER | HEADS),
    _decoder("bitnet", "BitNetModel", DECODER),
    _decoder("zamba2", "Zamba2Model",
             VOCABULARY | {"hidden_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8,
                           "intermediate_size": 1024, "layers_block_type": ["mamba", "hybrid", "mamba"],
                           "n_mamba_heads": 16, "mamba_d_state": 32}),
    _decoder("cohere2", "Cohere2Model", DECODER | HEADS | {"sliding_window": 64}),
    _decoder("exaone4", "Exaone4Model", DECODER | {"sliding_window": 64}),
    _decoder("persimmon", "PersimmonModel", DECODER),
    _decoder("doge", "DogeModel", DECODER),
    _decoder("codegen", "CodeGenModel", VOCABULARY | {"n_embd": 1024, "n_layer": 4, "n_head": 16, "rotary_dim": 32}),
    _decoder("mpt", "MptModel", VOCABULARY | {"d_model": 1024, "n_layers": 4, "n_heads": 16}),
    _decoder("biogpt", "BioGptModel", ENCODER),
    _decoder("jamba", "JambaModel",
             EXPERTS | {"hidden_size": 512, "num_attention_heads": 8, "attn_layer_period": 2, "attn_layer_offset": 1,
                        "expert_layer_period": 4, "expert_layer_offset": 3, "num_experts": 4,
                        "use_mamba_kernels": False}),
    _decoder("gemma3n", "Gemma3nTextModel",
             DECODER | HEADS | {"vocab_size_per_layer_input": 8000, "num_kv_shared_layers": 0,
                                "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
                                "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0], "intermediate_size": 2048,
                                "laurel_rank": 32, "hidden_size_per_layer_input": 64}),
    _encoder("bigbird", "BigBirdModel",
             ENCODER | {"attention_type": "block_sparse", "block_size": 16, "num_random_blocks": 2,
                        "max_position_embeddings": 1024}, 1024),
    _encoder("ibert", "IBertModel", ENCODER | {"quant_mode": False}),
    _encoder("mra", "MraModel", ENCODER, 512),
    _encoder("yoso", "YosoModel", ENCODER | {"use_expectation": True}, 512),
    _encoder("rembert", "RemBertModel", ENCODER | {"input_embedding_size": 256}),
    _encoder("eurobert", "EuroBertModel", DECODER | PADDED),
    _vision("regnet", "RegNetModel", {}),
    _vision("vitdet", "VitDetModel", LAYERS | {"image_size": 224, "window_size": 7, "window_block_indices": [0, 2]}),
    _vision("depth_anything", "DepthAnythingForDepthEstimation", {}, field="predicted_depth"),
    _vision("segformer", "SegformerForSemanticSegmentation", {}, 256, "logits"),
    _vision("upernet", "UperNetForSemanticSegmentation", {}, 256, "logits"),
    _vision("rtdetr", "RTDetrModel", {"num_queries": 100, "decoder_layers": 3}, 320),
    _vision("deformable_detr", "DeformableDetrModel", {"encoder_layers": 2, "decoder_layers": 2}, 256),
    _vision("mask2former", "Mask2FormerModel", {}, 256, "transformer_decoder_last_hidden_state"),
    hugging("vitpose", "vision", "VitPoseForPoseEstimation", {}, lambda: {"pixel_values": noise(1, 3, 256, 192)},
            "heatmaps"),
    _vision("textnet", "TextNetModel", {}),
    _vision("pvt_v2", "PvtV2Model", {}),
    hugging("vjepa2", "video", "VJEPA2Model", LAYERS | {"crop_size": 128, "frames_per_clip": 8},
            lambda: {"pixel_values_videos": noise(1, 8, 3, 128, 128)}),
    _vision("sam2_hiera", "Sam2VisionModel", {}, 256),
    _vision("dinov3_convnext", "DINOv3ConvNextModel", {}),
    _vision("eomt", "EomtForUniversalSegmentation", LAYERS | {"num_blocks": 2, "image_size": 224},
            field="masks_queries_logits"),
    _speech("unispeech", "UniSpeechModel"),
    _speech("sew_d", "SEWDModel"),
    hugging("wav2vec2_bert", "speech", "Wav2Vec2BertModel", LAYERS, lambda: {"input_features": noise(1, 200, 160)}),
    hugging("parakeet", "speech", "ParakeetEncoder", LAYERS, lambda: {"input_features": noise(1, 200, 80)}),
    hugging("clap", "speech", "ClapAudioModel", {}, lambda: {"input_features": noise(1, 1, 1001, 64)}),
    hugging("univnet", "speech", "UnivNetModel", {},
            lambda: {"input_features": noise(1, 50, 100), "noise_sequence": noise(1, 50, 64)}, "waveforms"),
    hugging("umt5", "translator", "UMT5Model", VOCABULARY | {"num_layers": 3}, _two, use_cache=False),
    hugging("prophetnet", "translator", "ProphetNetModel",
            VOCABULARY | {"num_encoder_layers": 2, "num_decoder_layers": 2}, _two, use_cache=False),
    hugging("timesfm", "series", "TimesFmModel",
            {"hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8, "head_dim": 64,
             "intermediate_size": 512},
            lambda: {"past_values": noise(1, 512), "past_values_padding": tokens(1, 512, below=2) - 1,
                     "freq": tokens(1, 1, below=2) - 1}),
]  # fmt: skip
