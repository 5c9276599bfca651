"""Detectors, segmenters, video and pairs of images and text that no other file of the corpus has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tr
from torch import nn

from ...case import Call, Model, noise, tokens
from ...nets import conv, net
from ...vision import SMALL, image
from ..text import DYNAMO, TORCHSCRIPT, by
from ..vision import FORMER, SLIM, pictures
from .text import at_opset

STAGES: dict[str, Any] = {"embedding_size": 16, "hidden_sizes": [16, 24, 32], "depths": [1, 1, 1]}
WINDOWS: dict[str, Any] = {
    "image_size": 64,
    "embed_dim": 16,
    "depths": [1, 1, 1, 1],
    "num_heads": [2, 2, 4, 4],
    "window_size": 4,
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}
TEXT: dict[str, Any] = {
    **{k: v for k, v in SMALL.items() if k not in {"image_size", "patch_size"}},
    "vocab_size": 100,
    "max_position_embeddings": 16,
}


def outputs_of(*names: str) -> Callable[[nn.Module, torch.Tensor], Any]:
    """Return a function that calls a model of images and returns the outputs of these names."""

    def call(model: nn.Module, pixels: torch.Tensor) -> Any:
        result = model(pixel_values=pixels)
        return tuple(getattr(result, name) for name in names)

    return call


def _detector(kind: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        backbone = tr.ResNetConfig(**STAGES, out_features=["stage3"])
        config = getattr(tr, f"{kind}Config")(
            use_timm_backbone=False, backbone_config=backbone, num_queries=6, num_labels=5, **{**FORMER, **options}
        )
        return Call(getattr(tr, f"{kind}ForObjectDetection")(config).eval(), outputs_of("logits", "pred_boxes"))

    return make


def _real_time() -> nn.Module:
    backbone = tr.RTDetrResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 24, 32, 40],
        depths=[1, 1, 1, 1],
        out_features=["stage2", "stage3", "stage4"],
        layer_type="basic",
    )
    config = tr.RTDetrConfig(
        backbone_config=backbone,
        encoder_hidden_dim=32,
        encoder_in_channels=[24, 32, 40],
        encoder_ffn_dim=64,
        encoder_attention_heads=4,
        d_model=32,
        num_queries=8,
        decoder_in_channels=[32, 32, 32],
        decoder_ffn_dim=64,
        decoder_layers=1,
        decoder_attention_heads=4,
        num_denoising=0,
        num_labels=5,
        anchor_image_size=None,
    )
    return Call(tr.RTDetrForObjectDetection(config).eval(), outputs_of("logits", "pred_boxes"))


def _mask2former() -> nn.Module:
    config = tr.Mask2FormerConfig(
        backbone_config=tr.SwinConfig(**WINDOWS),
        feature_size=32,
        mask_feature_size=32,
        hidden_dim=32,
        encoder_feedforward_dim=64,
        encoder_layers=1,
        decoder_layers=2,
        num_attention_heads=4,
        dim_feedforward=64,
        num_queries=6,
        num_labels=5,
    )
    call = outputs_of("class_queries_logits", "masks_queries_logits")
    return Call(tr.Mask2FormerForUniversalSegmentation(config).eval(), call)


def _dpt() -> nn.Module:
    config = tr.DPTConfig(
        **{**SMALL, "num_hidden_layers": 4},
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 16, 24, 32],
        fusion_hidden_size=16,
    )
    return Call(tr.DPTForDepthEstimation(config).eval(), outputs_of("predicted_depth"))


def _simple(kind: str, head: str, *outputs: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        config = getattr(tr, f"{kind}Config")(**options)
        return Call(getattr(tr, f"{kind}{head}")(config).eval(), outputs_of(*outputs))

    return make


def both(name: str, make: Callable[[], nn.Module], *outputs: str) -> Model:
    """Return a model of pictures and texts, whose numbers and length are dynamic."""
    axes = {0: "text_batch_size", 1: "sequence_length"}
    return Model(
        name,
        make,
        {"input_ids": tokens(3, 8), "pixel_values": noise(2, 3, 32, 32), "attention_mask": torch.ones(3, 8).long()},
        {output: {} for output in outputs},
        {"input_ids": axes, "pixel_values": {0: "image_batch_size"}, "attention_mask": axes},
        {"text_batch_size": (1, 4), "image_batch_size": (1, 4), "sequence_length": (1, 16)},
        (
            {"text_batch_size": 1, "image_batch_size": 1, "sequence_length": 1},
            {"text_batch_size": 2, "image_batch_size": 3, "sequence_length": 7},
            {"text_batch_size": 4, "image_batch_size": 4, "sequence_length": 16},
        ),
    )


def _towers(model: nn.Module, ids: torch.Tensor, pixels: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    result = model(input_ids=ids, pixel_values=pixels, attention_mask=mask)
    return result.text_embeds, result.image_embeds


def _siglip() -> nn.Module:
    config = tr.SiglipConfig(text_config=TEXT, vision_config=SMALL)
    return Call(tr.SiglipModel(config).eval(), _towers)


def _blip() -> nn.Module:
    config = tr.BlipConfig(
        text_config={
            **TEXT,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "sep_token_id": 2,
            "pad_token_id": 0,
            "encoder_hidden_size": 64,
        },
        vision_config=SMALL,
        projection_dim=32,
    )
    return Call(tr.BlipModel(config).eval(), _towers)


def _chinese() -> nn.Module:
    config = tr.ChineseCLIPConfig(text_config=TEXT, vision_config=SMALL, projection_dim=32)
    return Call(tr.ChineseCLIPModel(config).eval(), _towers)


def _align() -> nn.Module:
    config = tr.AltCLIPConfig(text_config={**TEXT, "project_dim": 32}, vision_config=SMALL, projection_dim=32)
    return Call(tr.AltCLIPModel(config).eval(), _towers)


class Hybrid(nn.Module):
    """What torchvision's and timm's networks have: grouped and asymmetric convolutions, squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 7, 2, 3), nn.GroupNorm(4, 16), nn.Hardswish(), nn.MaxPool2d(3, 2, 1, ceil_mode=True)
        )
        self.wide, self.tall = nn.Conv2d(16, 16, (1, 5), padding="same"), nn.Conv2d(16, 16, (5, 1), padding=(2, 0))
        self.grouped = nn.Conv2d(16, 32, 3, groups=4, bias=False)
        self.norm, self.act = nn.BatchNorm2d(32), nn.Mish()
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(32, 8, 1), nn.ReLU6(), nn.Conv2d(8, 32, 1), nn.Hardsigmoid()
        )
        self.local = nn.LocalResponseNorm(3)
        self.last = conv(32, 24, 3, 2, nn.ELU)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.stem(image)
        x = self.local(self.wide(x) + self.tall(x))
        x = self.act(self.norm(self.grouped(nn.functional.pad(x, (1, 1, 1, 1), mode="reflect"))))
        x = self.last(x * self.squeeze(x))
        channels = (
            torch.nn.functional.channel_shuffle(x, 4)
            if False
            else x.view(x.shape[0], 4, 6, *x.shape[2:]).transpose(1, 2).flatten(1, 2)
        )
        return torch.cat([channels.amax((2, 3)), channels.mean((2, 3)), channels.std((2, 3))], 1)


class Pyramid(nn.Module):
    """A feature pyramid whose levels are joined by nearest and bicubic interpolation to each other's sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = conv(3, 8, 3, 2), conv(8, 12, 3, 2), conv(12, 16, 3, 2)
        self.side = nn.ModuleList(nn.Conv2d(n, 8, 1) for n in (8, 12, 16))
        self.head = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one = self.one(image)
        two = self.two(one)
        top = self.side[2](self.three(two))
        two = self.side[1](two)
        two = two + nn.functional.interpolate(top, size=two.shape[-2:], mode="nearest")
        one = self.side[0](one)
        one = one + nn.functional.interpolate(two, size=one.shape[-2:], mode="bicubic", align_corners=False)
        return tuple(self.head(level).flatten(2).permute(0, 2, 1) for level in (one, two, top))


VISION = [
    *by(
        DYNAMO,
        pictures("conditional_detr", _detector("ConditionalDetr"), "logits", "boxes", shape=(2, 3, 64, 64)),
        pictures("rt_detr", _real_time, "logits", "boxes", shape=(2, 3, 64, 64)),
        pictures("mask2former", _mask2former, "classes", "masks", shape=(2, 3, 64, 64)),
        at_opset(20, pictures("dpt", _dpt, "depth")),
        image(
            "Hiera",
            image_size=[32, 32],
            embed_dim=16,
            depths=[1, 1],
            num_heads=[1, 2],
            patch_size=[7, 7],
            patch_stride=[4, 4],
            masked_unit_size=[4, 4],
            num_query_pool=1,
            query_stride=[2, 2],
        ),
        at_opset(23, image("Cvt", embed_dim=[16, 32, 48], num_heads=[1, 2, 3], depth=[1, 1, 1], size=64)),
        at_opset(23, image("ViT", head="Model", **SMALL)),
        both("siglip_towers", _siglip, "text", "image"),
        both("chinese_clip", _chinese, "text", "image"),
        net("hybrid", Hybrid),
        net("pyramid", Pyramid, outputs=("one", "two", "three")),
    ),
    *by(
        TORCHSCRIPT,
        pictures(
            "glpn",
            _simple(
                "GLPN",
                "ForDepthEstimation",
                "predicted_depth",
                hidden_sizes=[16, 32, 40, 64],
                depths=[1, 1, 1, 1],
                num_attention_heads=[1, 2, 4, 4],
                decoder_hidden_size=16,
            ),
            "depth",
            shape=(2, 3, 64, 64),
        ),
        pictures(
            "videomae",
            _simple("VideoMAE", "ForVideoClassification", "logits", **SMALL, num_frames=4),
            "logits",
            shape=(2, 4, 3, 32, 32),
        ),
        pictures(
            "timesformer",
            _simple("Timesformer", "ForVideoClassification", "logits", **SMALL, num_frames=4),
            "logits",
            shape=(2, 4, 3, 32, 32),
        ),
        pictures(
            "vitpose",
            _simple(
                "VitPose",
                "ForPoseEstimation",
                "heatmaps",
                backbone_config=tr.VitPoseBackboneConfig(
                    **{**SLIM, "image_size": [32, 32], "patch_size": [8, 8]}, out_indices=[2]
                ),
                num_labels=5,
                scale_factor=4,
            ),
            "heatmaps",
        ),
        at_opset(13, both("blip", _blip, "text", "image")),
        both("altclip", _align, "text", "image"),
        at_opset(11, net("hybrid", Hybrid)),
        at_opset(13, net("pyramid", Pyramid, outputs=("one", "two", "three"))),
        at_opset(20, net("pyramid", Pyramid, outputs=("one", "two", "three"))),
        at_opset(11, image("ResNet", embedding_size=16, hidden_sizes=[16, 24], depths=[1, 1])),
    ),
]
