"""Models of images in transformers, as Optimum exports them: the batch is dynamic, often height and width too."""

from __future__ import annotations

from typing import Any

import torch
import transformers as tr
from torch import nn

from .case import Call, Model, noise, tokens
from .text import first

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "image_size": 32,
    "patch_size": 8,
}
PIXELS = {0: "batch_size", 1: "num_channels", 2: "height", 3: "width"}


def image(kind: str, *, head: str = "ForImageClassification", size: int = 32, **options: Any) -> Model:
    """Return a classifier, or another head, with a dynamic batch; the other dims have names and are fixed."""

    def make() -> nn.Module:
        return Call(getattr(tr, f"{kind}{head}")(getattr(tr, f"{kind}Config")(**options)).eval(), first("pixel_values"))

    return Model(
        kind.lower(),
        make,
        {"pixel_values": noise(2, 3, size, size)},
        {"logits": {0: "batch_size"}},
        {"pixel_values": {0: "batch_size"}},
        {"batch_size": (1, 4)},
        ({"batch_size": 1}, {"batch_size": 3}),
    )


def sized(kind: str, head: str, *, low: int, high: int, at: tuple[tuple[int, int], ...], **options: Any) -> Model:
    """Return a model whose images may have any height and width between the bounds."""

    def make() -> nn.Module:
        return Call(getattr(tr, f"{kind}{head}")(getattr(tr, f"{kind}Config")(**options)).eval(), first("pixel_values"))

    axes = {0: "batch_size", 2: "height", 3: "width"}
    return Model(
        f"{kind.lower()}_sized",
        make,
        {"pixel_values": noise(2, 3, *at[0])},
        {"logits": {0: "batch_size", 2: "out_height", 3: "out_width"} if "Segm" in head else {0: "batch_size"}},
        {"pixel_values": axes},
        {"batch_size": (1, 2), "height": (low, high), "width": (low, high)},
        tuple({"batch_size": n % 2 + 1, "height": h, "width": w} for n, (h, w) in enumerate(at)),
    )


def _clip(model: nn.Module, ids: torch.Tensor, pixels: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    result = model(input_ids=ids, pixel_values=pixels, attention_mask=mask)
    return result.logits_per_image, result.logits_per_text, result.text_embeds, result.image_embeds


def clip() -> Model:
    """Return both towers of CLIP, with a batch of texts and a batch of images."""
    text = {key: value for key, value in SMALL.items() if key not in {"image_size", "patch_size"}}

    def config() -> Any:
        return tr.CLIPConfig(
            text_config={**text, "vocab_size": 100, "max_position_embeddings": 32, "eos_token_id": 99},
            vision_config=SMALL,
            projection_dim=32,
        )

    ids = {0: "text_batch_size", 1: "sequence_length"}
    return Model(
        "clip",
        lambda: Call(tr.CLIPModel(config()).eval(), _clip),
        {
            "input_ids": tokens(2, 8),
            "pixel_values": noise(3, 3, 32, 32),
            "attention_mask": torch.ones(2, 8, dtype=torch.long),
        },
        {
            "logits_per_image": {0: "image_batch_size", 1: "text_batch_size"},
            "logits_per_text": {0: "text_batch_size", 1: "image_batch_size"},
            "text_embeds": {0: "text_batch_size"},
            "image_embeds": {0: "image_batch_size"},
        },
        {"input_ids": ids, "pixel_values": {0: "image_batch_size"}, "attention_mask": ids},
        {"text_batch_size": (1, 4), "image_batch_size": (1, 4), "sequence_length": (1, 16)},
        (
            {"text_batch_size": 1, "image_batch_size": 2, "sequence_length": 5},
            {"text_batch_size": 4, "image_batch_size": 3, "sequence_length": 16},
        ),
    )


def sam() -> Model:
    """Return SAM: an image and points to masks; the points' numbers are dynamic."""

    def make() -> nn.Module:
        config = tr.SamConfig(
            vision_config={
                "hidden_size": 32,
                "output_channels": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": 64,
                "patch_size": 8,
                "window_size": 4,
                "global_attn_indexes": [1],
                "num_pos_feats": 16,
                "mlp_dim": 64,
            },
            prompt_encoder_config={"hidden_size": 32, "image_size": 64, "patch_size": 8, "mask_input_channels": 8},
            mask_decoder_config={
                "hidden_size": 32,
                "mlp_dim": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "iou_head_hidden_dim": 32,
            },
        )

        def call(model: nn.Module, pixels: torch.Tensor, points: torch.Tensor) -> tuple[torch.Tensor, ...]:
            result = model(pixel_values=pixels, input_points=points)
            return result.iou_scores, result.pred_masks

        return Call(tr.SamModel(config).eval(), call)

    return Model(
        "sam",
        make,
        {"pixel_values": noise(2, 3, 64, 64), "input_points": noise(2, 1, 3, 2).abs() * 20},
        {"iou_scores": {0: "batch_size"}, "pred_masks": {0: "batch_size"}},
        {"pixel_values": {0: "batch_size"}, "input_points": {0: "batch_size", 2: "points"}},
        {"batch_size": (1, 2), "points": (1, 4)},
        ({"batch_size": 1, "points": 1}, {"batch_size": 2, "points": 4}),
    )


SEGFORMER: dict[str, Any] = {
    "num_encoder_blocks": 4,
    "depths": [1, 1, 1, 1],
    "hidden_sizes": [16, 32, 40, 64],
    "num_attention_heads": [1, 2, 4, 4],
    "decoder_hidden_size": 32,
}
VISION = [
    image("ViT", **SMALL),
    image("DeiT", **SMALL),
    image("Beit", **SMALL, use_relative_position_bias=True),
    image("Dinov2", **{key: value for key, value in SMALL.items() if key != "intermediate_size"}),
    image("Siglip", vision_config=SMALL),
    image("ConvNext", hidden_sizes=[16, 24, 32, 40], depths=[1, 1, 2, 1]),
    image("ConvNextV2", hidden_sizes=[16, 24, 32, 40], depths=[1, 1, 2, 1]),
    image("Swin", image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4),
    image("ResNet", embedding_size=16, hidden_sizes=[16, 24, 32], depths=[1, 2, 1]),
    image("RegNet", embedding_size=16, hidden_sizes=[16, 24, 32], depths=[1, 2, 1], groups_width=8),
    image("MobileNetV1", depth_multiplier=0.25),
    image("MobileNetV2", depth_multiplier=0.25),
    image("EfficientNet", width_coefficient=0.25, depth_coefficient=0.2, hidden_dim=320, image_size=64, size=64),
    image("MobileViT", image_size=64, size=64, hidden_sizes=[32, 48, 64], neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 64]),
    image("PoolFormer", hidden_sizes=[16, 24, 32, 40], depths=[1, 1, 1, 1], size=64),
    sized("Segformer", "ForSemanticSegmentation", low=64, high=128, at=((64, 64), (96, 128)), **SEGFORMER),
    sized(
        "ResNet",
        "ForImageClassification",
        low=32,
        high=96,
        at=((32, 32), (57, 96)),
        embedding_size=16,
        hidden_sizes=[16, 24, 32],
        depths=[1, 2, 1],
    ),
    sized("MobileNetV2", "ForSemanticSegmentation", low=64, high=96, at=((64, 64), (96, 80)), depth_multiplier=0.25),
    clip(),
    sam(),
]
