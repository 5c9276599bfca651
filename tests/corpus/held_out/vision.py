"""Networks of images of other architectures than those of ``tests.corpus.vision``, of transformers and of timm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import transformers as tr
from torch import nn

from ..case import Bounds, Call, Case, Model, Sizes, noise
from ..exporting import cases
from ..text import first
from ..vision import SMALL, image, sized
from .text import DYNAMO, TORCHSCRIPT, by

SLIM = {key: value for key, value in SMALL.items() if key != "intermediate_size"}
FORMER: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}
BATCH: dict[str, Bounds] = {"batch_size": (1, 4)}
SIZES: tuple[Sizes, ...] = ({"batch_size": 1}, {"batch_size": 3})


def _depth(model: nn.Module, pixels: torch.Tensor) -> torch.Tensor:
    return model(pixel_values=pixels).predicted_depth


def _depth_anything() -> nn.Module:
    backbone = tr.Dinov2Config(**SLIM, out_indices=[1, 2], apply_layernorm=True, reshape_hidden_states=False)
    config = tr.DepthAnythingConfig(
        backbone_config=backbone,
        patch_size=8,
        reassemble_hidden_size=64,
        reassemble_factors=[2, 1],
        neck_hidden_sizes=[16, 32],
        fusion_hidden_size=16,
        head_hidden_size=8,
    )
    return Call(tr.DepthAnythingForDepthEstimation(config).eval(), _depth)


def _boxes(model: nn.Module, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    result = model(pixel_values=pixels)
    return result.logits, result.pred_boxes


def _detr() -> nn.Module:
    backbone = tr.ResNetConfig(embedding_size=16, hidden_sizes=[16, 24, 32], depths=[1, 1, 1], out_features=["stage3"])
    config = tr.DetrConfig(use_timm_backbone=False, backbone_config=backbone, num_queries=6, num_labels=5, **FORMER)
    return Call(tr.DetrForObjectDetection(config).eval(), _boxes)


def _yolos() -> nn.Module:
    config = tr.YolosConfig(**{**SMALL, "image_size": [32, 48]}, num_detection_tokens=5, num_labels=4)
    return Call(tr.YolosForObjectDetection(config).eval(), _boxes)


def _mask_former() -> nn.Module:
    backbone = tr.SwinConfig(
        image_size=64,
        embed_dim=16,
        depths=[1, 1, 1, 1],
        num_heads=[2, 2, 4, 4],
        window_size=4,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    config = tr.MaskFormerConfig(
        fpn_feature_size=32,
        mask_feature_size=32,
        backbone_config=backbone,
        decoder_config=tr.DetrConfig(**FORMER, num_queries=6),
        num_labels=5,
    )

    def call(model: nn.Module, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        result = model(pixel_values=pixels)
        return result.class_queries_logits, result.masks_queries_logits

    return Call(tr.MaskFormerForInstanceSegmentation(config).eval(), call)


def _swin2sr() -> nn.Module:
    config = tr.Swin2SRConfig(image_size=16, embed_dim=16, depths=[2, 2], num_heads=[2, 2], window_size=4, upscale=2)
    return Call(tr.Swin2SRForImageSuperResolution(config).eval(), first("pixel_values"))


def pictures(name: str, make: Any, *outputs: str, shape: tuple[int, ...] = (2, 3, 32, 32)) -> Model:
    """Return a network with a dynamic batch and a fixed size."""
    return Model(
        name,
        make,
        {"pixel_values": noise(*shape)},
        {output: {0: "batch_size"} for output in outputs},
        {"pixel_values": {0: "batch_size"}},
        BATCH,
        SIZES,
    )


VISION = [
    *by(
        DYNAMO,
        image("Swinv2", image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4),
        image("FocalNet", image_size=32, embed_dim=16, depths=[1, 1], focal_levels=[2, 2], focal_windows=[3, 3]),
        image("Pvt", size=64, image_size=64, hidden_sizes=[16, 32, 40, 64], depths=[1, 1, 1, 1]),
        image("Data2VecVision", **SMALL),
        image("MobileViTV2", size=64, image_size=64, width_multiplier=0.25),
        image("Dinov2WithRegisters", **SLIM),
        pictures("detr_resnet", _detr, "logits", "boxes", shape=(2, 3, 64, 64)),
        pictures("maskformer", _mask_former, "classes", "masks", shape=(2, 3, 64, 64)),
        pictures("swin2sr", _swin2sr, "image", shape=(2, 3, 16, 16)),
    ),
    *by(
        TORCHSCRIPT,
        image("Levit", size=64, image_size=64, hidden_sizes=[32, 48, 64], num_attention_heads=[2, 3, 4]),
        image("Bit", size=64, embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], num_groups=4),
        image("ViTMSN", **SMALL),
        pictures("depth_anything", _depth_anything, "depth"),
        pictures("yolos", _yolos, "logits", "boxes", shape=(2, 3, 32, 48)),
        sized(
            "ConvNext",
            "ForImageClassification",
            low=32,
            high=96,
            at=((32, 32), (64, 96)),
            hidden_sizes=[16, 24, 32, 40],
            depths=[1, 1, 1, 1],
        ),
    ),
]


def _timm(name: str, size: int = 64, **options: Any) -> Model:
    def make() -> nn.Module:
        import timm

        return Call(
            timm.create_model(name, pretrained=False, num_classes=5, **options).eval(), lambda model, x: model(x)
        )

    return pictures(f"timm_{name}", make, "logits", shape=(2, 3, size, size))


def timm_cases() -> list[Case]:
    """Return networks of timm, alternately by both exporters."""
    models = [
        _timm("mobilenetv4_conv_small"),
        _timm("ghostnetv2_100"),
        _timm("repvgg_a0"),
        _timm("res2net50_26w_4s"),
        _timm("densenet121"),
        _timm("inception_v3", 96),
        _timm("mixer_s32_224", 224),
        _timm("xcit_nano_12_p16_224", 64, img_size=64),
        _timm("coatnet_pico_rw_224", 64, img_size=64),
        _timm("maxvit_rmlp_pico_rw_256", 64, img_size=64),
        _timm("hrnet_w18_small", 64),
        _timm("fastvit_t8", 64),
        _timm("nf_regnet_b0"),
        _timm("edgenext_xx_small"),
        _timm("eva02_tiny_patch14_224", 56, img_size=56),
        _timm("tf_efficientnetv2_b0", 64),
        _timm("volo_d1_224", 64, img_size=64),
        _timm("poolformerv2_s12", 64),
    ]
    return [
        replace(case, needs=(*case.needs, "timm"))
        for number, model in enumerate(models)
        for case in cases(by((DYNAMO, TORCHSCRIPT)[number % 2], model))
    ]
