"""Known architectures at sizes that nothing divides: odd images, prime numbers of tokens and samples.

For ``benchmarks.gpu.zoo`` alone, which runs them with an odd batch, too.
"""

from __future__ import annotations

from benchmarks.zoo.entry import hugging, image, noise, tokens

VOCABULARY = {"vocab_size": 8000}
DECODER = VOCABULARY | {"hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16,
                        "num_key_value_heads": 4, "intermediate_size": 2816}  # fmt: skip
ENCODER = VOCABULARY | {"num_hidden_layers": 4}

SIZES = [
    hugging("efficientnet_299", "vision", "EfficientNetModel", {}, image(299)),
    hugging("resnet_299", "vision", "ResNetModel", {}, image(299)),
    hugging("convnext_251", "vision", "ConvNextModel", {}, image(251)),
    hugging("mobilenet_v2_331", "vision", "MobileNetV2Model", {}, image(331)),
    hugging("vit_240", "vision", "ViTModel", {"image_size": 240, "num_hidden_layers": 4}, image(240)),
    hugging("dinov2_266", "vision", "Dinov2Model", {"image_size": 266, "num_hidden_layers": 4}, image(266)),
    hugging("swin_231", "vision", "SwinModel", {"image_size": 231}, image(231)),
    hugging("segformer_235", "vision", "SegformerModel", {}, image(235)),
    hugging("bert_61", "encoder", "BertModel", ENCODER, lambda: {"input_ids": tokens(1, 61)}),
    hugging("bert_509", "encoder", "BertModel", ENCODER, lambda: {"input_ids": tokens(1, 509)}),
    hugging("llama_509", "decoder", "LlamaModel", DECODER, lambda: {"input_ids": tokens(1, 509)}, use_cache=False),
    hugging("wav2vec2_13337", "speech", "Wav2Vec2Model", {"num_hidden_layers": 4},
            lambda: {"input_values": noise(1, 13337)}),
]  # fmt: skip
