"""Errors of single layers against float64, beside onnxruntime's: convolutions, products, transposed ones, front ends.

    python -m benchmarks.cpu.errors
    python -m benchmarks.cpu.errors --layers conv2d_c64 tconv3d_k3s2 --target llvm --target "ccompiler -winograd=4"

Each layer is a model of one input. It is fed normal numbers, and their positive part, as after a ReLU: sums of numbers
of one sign grow, and their roundings with them. An error is the greatest one, as a part of the greatest output.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import nn

from benchmarks.cpu.engines import run_packager
from benchmarks.cpu.models import OPSET
from benchmarks.harness.measure import Report, Threshold, finish, make_parser
from benchmarks.zoo.audio import LogMelConv, LogMelStft

SMALL_ERROR, ERROR_RATIO = 1e-6, 2.0
SEED = 11
Make = Callable[[], nn.Module]


def conv(axes: int, c: int, o: int, kernel: int, *, transposed: bool = False, **options: int) -> Make:
    """Return what makes a convolution of so many axes."""
    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    return lambda: kinds[axes - 1 + 3 * transposed](c, o, kernel, **options)


def tconv(axes: int, c: int, o: int, kernel: int, stride: int, **options: int) -> Make:
    """Return what makes a transposed convolution."""
    return conv(axes, c, o, kernel, transposed=True, stride=stride, **options)


def norm(module: nn.Module) -> Make:
    """Return what makes a layer without weights of its own."""
    return lambda: module


LAYERS: dict[str, tuple[Make, tuple[int, ...]]] = {
    # 3x3 of stride 1, which Winograd's algorithm may compute
    **{
        f"conv2d_c{c}": (conv(2, c, o, 3, padding=1), (1, c, side, side))
        for c, o, side in (
            (16, 32, 56), (32, 32, 56), (48, 64, 40), (64, 64, 56), (96, 96, 28), (128, 128, 28),
            (256, 256, 14), (384, 128, 20), (512, 512, 7), (512, 64, 28), (1024, 64, 14),
        )
    },
    "conv2d_c64_batch": (conv(2, 64, 64, 3, padding=1), (3, 64, 23, 17)),
    "conv2d_c320": (conv(2, 320, 320, 3, padding=1), (1, 320, 16, 16)),
    "conv2d_c40": (conv(2, 40, 24, 3, padding=1), (1, 40, 40, 40)),
    "conv2d_g16": (conv(2, 128, 128, 3, padding=1, groups=8), (1, 128, 28, 28)),
    "conv2d_g2": (conv(2, 64, 64, 3, padding=1, groups=32), (1, 64, 40, 40)),
    # others
    "conv1d_k5_c256": (conv(1, 256, 128, 5, padding=2), (1, 256, 100)),
    "conv1d_k400_c1": (conv(1, 1, 128, 400, stride=160), (1, 1, 8000)),
    "conv1d_k41_groups": (conv(1, 64, 128, 41, stride=4, groups=4), (1, 64, 400)),
    "conv2d_k1_c2048": (conv(2, 2048, 128, 1), (1, 2048, 7, 7)),
    "conv2d_k1_c64": (conv(2, 64, 128, 1), (1, 64, 28, 28)),
    "conv2d_k3s2_c128": (conv(2, 128, 128, 3, stride=2, padding=1), (1, 128, 28, 28)),
    "conv2d_k3_dilated": (conv(2, 128, 64, 3, padding=4, dilation=4), (1, 128, 20, 20)),
    "conv2d_k5_c64": (conv(2, 64, 64, 5, padding=2), (1, 64, 28, 28)),
    "conv2d_k7s2_c3": (conv(2, 3, 64, 7, stride=2, padding=3), (1, 3, 112, 112)),
    "conv2d_k16s16_c3": (conv(2, 3, 192, 16, stride=16), (1, 3, 112, 112)),
    "conv2d_k9_c32": (conv(2, 32, 3, 9, padding=4), (1, 32, 40, 40)),
    "conv2d_groups": (conv(2, 128, 128, 3, padding=1, groups=8), (1, 128, 28, 28)),
    "conv2d_depthwise_k7": (conv(2, 96, 96, 7, padding=3, groups=96), (1, 96, 28, 28)),
    "conv3d_k3_c64": (conv(3, 64, 64, 3, padding=1), (1, 64, 6, 12, 12)),
    "conv3d_k3_c16": (conv(3, 16, 32, 3, padding=1), (1, 16, 8, 16, 16)),
    "tconv1d_k16s8": (tconv(1, 256, 128, 16, 8, padding=4), (1, 256, 40)),
    "tconv2d_k2s2": (tconv(2, 256, 128, 2, 2), (1, 256, 14, 14)),
    "tconv2d_k3s2": (tconv(2, 64, 32, 3, 2, padding=1, output_padding=1), (1, 64, 28, 28)),
    "tconv2d_k4s2": (tconv(2, 128, 64, 4, 2, padding=1), (1, 128, 16, 16)),
    "tconv2d_k64s32": (tconv(2, 21, 21, 64, 32, padding=16), (1, 21, 7, 7)),
    "tconv3d_k2s2": (tconv(3, 64, 32, 2, 2), (1, 64, 6, 6, 6)),
    "tconv3d_k3s2": (tconv(3, 32, 16, 3, 2, padding=1, output_padding=1), (1, 32, 8, 8, 8)),
    "linear_768": (lambda: nn.Linear(768, 768), (1, 128, 768)),
    "linear_3072": (lambda: nn.Linear(3072, 768), (1, 64, 3072)),
    "linear_9216": (lambda: nn.Linear(9216, 512), (1, 9216)),
    "softmax": (norm(nn.Softmax(-1)), (4, 12, 64, 197)),
    "log_softmax": (norm(nn.LogSoftmax(-1)), (8, 1000)),
    "layer_norm": (lambda: nn.LayerNorm(768), (1, 64, 768)),
    "group_norm": (lambda: nn.GroupNorm(8, 64), (1, 64, 24, 24)),
    "instance_norm": (lambda: nn.InstanceNorm2d(32, affine=True), (1, 32, 40, 40)),
    "gelu": (norm(nn.GELU()), (64, 512)),
    "gelu_tanh": (norm(nn.GELU(approximate="tanh")), (64, 512)),
    "silu": (norm(nn.SiLU()), (64, 512)),
    "tanh": (norm(nn.Tanh()), (64, 512)),
    "mish": (norm(nn.Mish()), (64, 512)),
    "softplus": (norm(nn.Softplus()), (64, 512)),
    "mean_plane": (norm(nn.AdaptiveAvgPool2d(1)), (1, 64, 56, 56)),
    "gru": (lambda: First(nn.GRU(128, 256, batch_first=True)), (1, 20, 128)),
    "lstm": (lambda: First(nn.LSTM(128, 512, batch_first=True)), (1, 20, 128)),
    "log_mel_conv": (LogMelConv, (1, 16000)),
    "log_mel_stft": (LogMelStft, (1, 16000)),
}  # fmt: skip


class First(nn.Module):
    """A module that returns the first of its results."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the first result."""
        first: torch.Tensor = self.module(x)[0]
        return first


class Side(nn.Module):
    """Layers side by side, an input each: one bundle of all."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return a result for each layer."""
        return tuple(layer(x) for layer, x in zip(self.layers, tensors, strict=True))


def inputs_of(names: Sequence[str]) -> dict[str, dict[str, torch.Tensor]]:
    """Return the inputs of each kind, by layer."""
    normal = {name: torch.randn(*LAYERS[name][1]) for name in names}
    return {"normal": normal, "positive": {name: tensor.relu() for name, tensor in normal.items()}}


def error(got: np.ndarray, exact: np.ndarray) -> float:
    """Return the greatest error as a part of the greatest output."""
    return float(np.abs(got.astype(np.float64) - exact).max() / np.abs(exact).max())


def measure(names: Sequence[str], workdir: Path, targets: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Return errors by layer, kind of input and engine."""
    import packager

    torch.manual_seed(SEED)
    side = Side([LAYERS[name][0]() for name in names]).eval()
    inputs = inputs_of(names)
    workdir.mkdir(parents=True, exist_ok=True)
    path, bundle = workdir / "layers.onnx", workdir / "layers.so"
    results = [f"{name}_result" for name in names]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            side, tuple(inputs["normal"].values()), path, dynamo=False, opset_version=OPSET,
            input_names=list(names), output_names=results,
        )  # fmt: skip
    run_packager(workdir, "build", path, "-o", bundle, *(part for target in targets for part in ("-t", target)))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    theirs, ours = onnxruntime.InferenceSession(path, options), packager.load(bundle)
    side = side.double()
    found: dict[str, dict[str, dict[str, float]]] = {name: {} for name in names}
    for kind, tensors in inputs.items():
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        with torch.no_grad():
            exact = [result.numpy() for result in side(*(tensor.double() for tensor in tensors.values()))]
        own, other = ours.run(arrays), theirs.run(results, arrays)
        for name, result, one, two in zip(names, results, exact, other, strict=True):
            found[name][kind] = {"packager": error(own[result], one), "onnxruntime": error(two, one)}
    return found


def is_above(errors: dict[str, float]) -> bool:
    """Whether packager's error is too great."""
    return not errors["packager"] <= max(SMALL_ERROR, ERROR_RATIO * errors["onnxruntime"])


def main() -> int:
    """Measure and report."""
    parser: argparse.ArgumentParser = make_parser("cpu_errors", "Errors of layers on the CPU against float64.")
    parser.add_argument("--layers", nargs="+", choices=LAYERS, default=list(LAYERS), metavar="LAYER")
    parser.add_argument("--target", action="append", default=[], help="as of packager build; default: its own")
    arguments = parser.parse_args()
    found = measure(arguments.layers, arguments.workdir, arguments.target)
    rows = [
        (
            f"{name}, {kind}",
            *(f"{errors[engine]:.1e}" for engine in ("packager", "onnxruntime")),
            f"{errors['packager'] / errors['onnxruntime'] if errors['onnxruntime'] else np.nan:.2f}",
            "above" if is_above(errors) else "",
        )
        for name, kinds in found.items()
        for kind, errors in kinds.items()
    ]
    above = [f"{name}, {kind}" for name, kinds in found.items() for kind, errors in kinds.items() if is_above(errors)]
    report = Report(
        title="Greatest errors against float64, as a part of the greatest output",
        header=("layer, input", "packager", "onnxruntime", "ratio", ""),
        rows=rows,
        figures={"layers": found},
        thresholds=[Threshold(f"layers of too great an error {above}", len(above), 1, "")],
        packages=("torch",),
    )
    return finish(report, arguments)


if __name__ == "__main__":
    sys.exit(main())
