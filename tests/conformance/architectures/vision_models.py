"""Models of images: those of transformers."""

from __future__ import annotations

from typing import Any

import transformers

from .example import BATCH, Example, Maker, Tensors, noise, randomized

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}


def image(
    kind: str,
    *,
    size: int = 32,
    head: str = "Model",
    gives: tuple[str, ...] = ("last_hidden_state",),
    dynamic: bool = True,
    **options: Any,
) -> Maker:
    """Return a maker of a model that takes images of ``[batch, 3, size, size]``."""

    def make() -> Example:
        model = randomized(getattr(transformers, f"{kind}{head}")(getattr(transformers, f"{kind}Config")(**options)))
        module = Tensors(model, ("pixel_values",), gives)
        inputs = (noise(2, 3, size, size),)
        return (
            Example(module, inputs, ({0: BATCH},), ((noise(3, 3, size, size, seed=1),),))
            if dynamic
            else Example(module, inputs)
        )

    return make


CLASSES: dict[str, Any] = {"head": "ForImageClassification", "gives": ("logits",), "num_labels": 7}

VISION: dict[str, Maker] = {
    "vit": image("ViT", **SMALL),
    "deit": image("DeiT", **SMALL),
    "beit": image("Beit", **SMALL, use_relative_position_bias=True, use_mean_pooling=True),
    "dinov2": image("Dinov2", **{key: value for key, value in SMALL.items() if key != "intermediate_size"}),
    "clip_vision": image("CLIPVision", **SMALL, gives=("last_hidden_state", "pooler_output")),
    "siglip_vision": image("SiglipVision", **SMALL, gives=("last_hidden_state", "pooler_output")),
    "convnext": image("ConvNext", hidden_sizes=[16, 24, 32, 40], depths=[1, 1, 2, 1], **CLASSES),
    "convnext_v2": image("ConvNextV2", hidden_sizes=[16, 24, 32, 40], depths=[1, 1, 2, 1], **CLASSES),
    "swin": image(
        "Swin", image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, **CLASSES
    ),
    "resnet": image("ResNet", embedding_size=16, hidden_sizes=[16, 24, 32], depths=[1, 2, 1], **CLASSES),
    "mobilenet_v2": image("MobileNetV2", depth_multiplier=0.25, **CLASSES),
    "efficientnet": image(
        "EfficientNet",
        width_coefficient=0.25,
        depth_coefficient=0.2,
        hidden_dim=320,
        image_size=64,
        size=64,
        **CLASSES,
    ),
    "segformer": image(
        "Segformer",
        size=64,
        head="ForSemanticSegmentation",
        gives=("logits",),
        num_labels=7,
        hidden_sizes=[16, 16, 32, 32],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 2, 4],
        decoder_hidden_size=24,
    ),
}
