"""Models of timm, one of a family each, which the zoo lacks and nothing is tuned for. They need timm.

    python -m benchmarks.zoo.held_out --engines packager onnxruntime --profile
    python -m benchmarks.zoo.held_out --models davit_tiny dla34 --threads 1

Options are those of ``benchmarks.zoo.many_cores``. ``benchmarks.gpu.zoo`` has these models where timm is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.zoo.entry import Entry, Inputs, noise
from benchmarks.zoo.models import ZOO

# Left out are architectures that the exporter has no operators for, and those that are not finite with random weights.
NAMES = (
    *("botnet26t_256", "caformer_s18", "cait_xxs24_224", "coat_lite_tiny", "coatnet_nano_rw_224", "convmixer_768_32"),
    *("convnext_atto", "crossvit_9_240", "cs3darknet_focus_m", "cspresnext50", "davit_tiny", "deit3_small_patch16_224"),
    *("deit_tiny_distilled_patch16_224", "dla34", "dla46x_c", "dm_nfnet_f0", "ecaresnet26t", "edgenext_xx_small"),
    *("efficientformer_l1", "efficientformerv2_s0", "efficientvit_b0", "efficientvit_m0"),
    *("ese_vovnet19b_dw", "eva02_tiny_patch14_224", "fasternet_t0", "fastvit_t8", "fbnetc_100", "gcresnext26ts"),
    *("gcvit_xxtiny", "ghostnetv2_100", "hardcorenas_a", "hrnet_w18_small", "inception_next_atto", "inception_v4"),
    *("inception_resnet_v2", "lambda_resnet26t", "lcnet_050", "legacy_xception", "mambaout_femto"),
    *("maxvit_tiny_tf_224", "mixnet_s", "mobilenet_edgetpu_v2_xs", "mobilenetv3_small_100", "mobilenetv4_conv_small"),
    *("mobileone_s0", "mobilevitv2_050", "mvitv2_tiny", "nasnetalarge", "nest_tiny", "nextvit_small", "pit_ti_224"),
    *("poolformerv2_s12", "rdnet_tiny", "regnetz_005", "repghostnet_050", "repvgg_a0", "repvit_m0_9"),
    *("res2net50_14w_8s", "resnest14d", "resnet50d", "resnetv2_18", "rexnet_100", "selecsls42", "shvit_s1"),
    *("skresnet18", "skresnext50_32x4d", "starnet_s1", "swiftformer_s", "swinv2_cr_tiny_224", "tiny_vit_5m_224"),
    *("tinynet_e", "tnt_s_legacy_patch16_224", "tresnet_m", "twins_pcpvt_small", "twins_svt_small", "vgg11_bn"),
    *("visformer_tiny", "vit_relpos_small_patch16_224", "vit_tiny_patch16_224", "vit_tiny_r_s16_p8_224"),
    *("xcit_nano_12_p16_224",),
)


class FirstOfSeveral(nn.Module):
    """A classifier that returns its logits alone."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return [n, classes]."""
        result = self.module(image)
        return result[0] if isinstance(result, tuple | list) else result


def _model(name: str) -> Any:
    return importlib.import_module("timm").create_model(name, pretrained=False, exportable=True)


def _make(name: str) -> nn.Module:
    return FirstOfSeveral(_model(name)).eval()


def _inputs(name: str) -> Inputs:
    return {"image": noise(1, *_model(name).default_cfg["input_size"])}


HELD_OUT: dict[str, Entry] = {
    name: Entry(name, "classifier", partial(_make, name), partial(_inputs, name))
    for name in NAMES
    if importlib.util.find_spec("timm") is not None
}


def main() -> int:
    """Measure all, or those that the options name."""
    from benchmarks.zoo import compare, many_cores  # benchmarks.gpu.zoo needs none of it

    if not HELD_OUT:
        print("timm is not installed: python -m pip install timm", file=sys.stderr)
        return 1
    if not compare.parse().models:
        sys.argv += ["--models", *HELD_OUT]
    return many_cores.main()


# Processes that build and measure import this module as the main one, too.
if __name__ in ("__main__", "__mp_main__"):
    ZOO.update(HELD_OUT)

if __name__ == "__main__":
    sys.exit(main())
