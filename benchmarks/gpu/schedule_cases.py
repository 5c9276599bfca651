"""The operators of gpu/schedules.py: how relax and torch write each, its inputs and its sizes."""

# ruff: noqa: ARG005 - how relax and torch write an operator has one signature

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

N = "n"  # the symbolic dim
F, B = "float32", "bfloat16"
Write = Callable[..., Any]
Input = tuple[tuple[Any, ...], str]


@dataclass(frozen=True)
class Case:
    """An operator: how relax and torch write it, its inputs, and sizes of the symbolic dim; the last one is timed.

    ``memory`` says that its time should be that of its bytes.
    """

    relax: Write
    torch: Write
    inputs: tuple[Input, ...]
    sizes: tuple[int, ...] = ()
    timed: bool = True
    memory: bool = True
    flops: Callable[[int], float] | None = None


def conv(stride: int, pad: int, groups: int = 1) -> tuple[Write, Write]:
    """Write a convolution and ReLU, NHWC."""
    attributes = {"strides": (stride, stride), "padding": (pad, pad), "groups": groups}
    layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI"}

    def torch_conv(t: Any, x: Any, w: Any) -> Any:
        x, w = x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2)
        y = t.nn.functional.conv2d(x, w, stride=stride, padding=pad, groups=groups)
        return t.relu(y).permute(0, 2, 3, 1)

    return lambda r, x, w: r.nn.relu(r.nn.conv2d(x, w, **attributes, **layouts)), torch_conv


def rotary(half: int) -> tuple[Write, Write]:
    """Write a rotary embedding of heads of twice ``half`` elements, as transformers does."""

    def relax(r: Any, x: Any, cos: Any, sin: Any) -> Any:
        wide = r.astype(x, F)
        first, second = r.strided_slice(wide, [3], [0], [half]), r.strided_slice(wide, [3], [half], [2 * half])
        return r.astype(
            r.add(r.multiply(wide, cos), r.multiply(r.concat([r.negative(second), first], -1), sin)), x.ty.dtype
        )

    def torch(t: Any, x: Any, cos: Any, sin: Any) -> Any:
        return x * cos + t.cat((-x[..., half:], x[..., :half]), -1) * sin

    return relax, torch


def permute(*axes: int) -> tuple[Write, Write]:
    """Write a transpose."""
    return lambda r, x: r.permute_dims(x, list(axes)), lambda t, x: x.permute(*axes)


def mean(*axes: int) -> tuple[Write, Write]:
    """Write a mean."""
    return lambda r, x: r.mean(x, axis=list(axes)), lambda t, x: x.mean(axes)


def total(axis: int) -> tuple[Write, Write]:
    """Write a sum."""
    return lambda r, x: r.sum(x, axis=[axis]), lambda t, x: x.sum(axis)


def concat(axis: int) -> tuple[Write, Write]:
    """Write a concatenation."""
    return lambda r, *x: r.concat(list(x), axis=axis), lambda t, *x: t.cat(x, axis)


def torch_layer_norm(t: Any, x: Any, w: Any, c: Any) -> Any:
    """Normalize the last axis."""
    return t.nn.functional.layer_norm(x, (x.shape[-1],), w, c)


ADD_RELU = (lambda r, x, y: r.nn.relu(r.add(x, y)), lambda t, x, y: t.relu(x + y))
BIAS_GELU = (lambda r, x, c: r.nn.gelu(r.add(x, c)), lambda t, x, c: t.nn.functional.gelu(x + c))
SCALE = (lambda r, x, s, c: r.nn.relu(r.add(r.multiply(x, s), c)), lambda t, x, s, c: t.relu(x * s + c))
CONCAT_RELU = (
    lambda r, x, y, s: r.nn.relu(r.multiply(r.concat([x, y], axis=-1), s)),
    lambda t, x, y, s: t.relu(t.cat([x, y], -1) * s),
)
PAD_SILU = (
    lambda r, x: r.nn.silu(r.nn.pad(x, [0, 0, 1, 2, 3, 0, 0, 0])),
    lambda t, x: t.nn.functional.silu(t.nn.functional.pad(x, (0, 0, 3, 0, 1, 2))),
)
SIGMOID = (lambda r, x: r.sigmoid(x), lambda t, x: t.sigmoid(x))
SOFTMAX = (lambda r, x: r.nn.softmax(x), lambda t, x: t.softmax(x, -1))
LAYER_NORM = (lambda r, x, w, c: r.nn.layer_norm(x, w, c, axes=[-1]), torch_layer_norm)
NORM_RELU = (lambda r, *a: r.nn.relu(LAYER_NORM[0](r, *a)), lambda t, *a: t.relu(torch_layer_norm(t, *a)))
RMS_NORM = (
    lambda r, x, w: r.nn.rms_norm(x, w, axes=[-1]),
    lambda t, x, w: t.nn.functional.rms_norm(x, (x.shape[-1],), w, 1e-5),
)
SLICE = (lambda r, x: r.strided_slice(x, axes=[1], begin=[1], end=[513]), lambda t, x: x[:, 1:513])
TAKE = (lambda r, w, i: r.take(w, i, axis=0), lambda t, w, i: w[i])
MAX_LAST = (lambda r, x: r.max(x, axis=[-1]), lambda t, x: x.amax(-1))
SUM_ALL = (lambda r, x: r.sum(x), lambda t, x: x.sum())
WHERE = (lambda r, x, y: r.where(r.greater(x, y), x, y), lambda t, x, y: t.where(x > y, x, y))
MATMUL = (lambda r, x, w: r.matmul(x, w), lambda t, x, w: x @ w)
DENSE = (lambda r, x, w, c: r.add(r.matmul(x, w), c), lambda t, x, w, c: x @ w + c)
DENSE_GELU = (lambda r, *a: r.nn.gelu(DENSE[0](r, *a)), lambda t, *a: t.nn.functional.gelu(DENSE[1](t, *a)))
MAX_POOL = (
    lambda r, x: r.nn.max_pool2d(x, pool_size=(3, 3), strides=(2, 2), padding=(1, 1), layout="NHWC"),
    lambda t, x: t.nn.functional.max_pool2d(x.permute(0, 3, 1, 2), 3, 2, 1).permute(0, 2, 3, 1),
)


def t(*shape: Any, dtype: str = "float16") -> Input:
    """Return an input."""
    return shape, dtype


def norm(*shape: Any, dtype: str = "float16") -> tuple[Input, Input, Input]:
    """Return the inputs of a layer norm."""
    return t(*shape, dtype=dtype), t(shape[-1], dtype=dtype), t(shape[-1], dtype=dtype)


def dense(*shape: Any, columns: int, dtype: str = "float16") -> tuple[Input, Input, Input]:
    """Return the inputs of a product with a bias."""
    return t(*shape, dtype=dtype), t(shape[-1], columns, dtype=dtype), t(columns, dtype=dtype)


MEMORY: dict[str, tuple[tuple[Write, Write], tuple[Input, ...], tuple[int, ...]]] = {
    "add_relu": (ADD_RELU, (t(N, 56, 56, 256),) * 2, (1, 3, 128)),
    "add_relu_f32": (ADD_RELU, (t(64, 56, 56, 256, dtype=F),) * 2, ()),
    "bias_gelu": (BIAS_GELU, (t(N, 128, 3072), t(3072)), (1, 7, 512)),
    "scale_nchw": (SCALE, (t(N, 256, 56, 56), t(256, 1, 1), t(256, 1, 1)), (1, 128)),
    "scale_nchw7": (ADD_RELU, (t(N, 2048, 7, 7), t(2048, 1, 1)), (1, 1024)),
    "rotary64": (rotary(32), (t(N, 12, 128, 64), t(128, 64, dtype=F), t(128, 64, dtype=F)), (1, 3, 512)),
    "softmax128": (SOFTMAX, (t(N, 12, 128, 128),), (1, 3, 512)),
    "softmax128_f32": (SOFTMAX, (t(256, 12, 128, 128, dtype=F),), ()),
    "softmax1000": (SOFTMAX, (t(N, 1000),), (1, 7, 131072)),
    "softmax30522": (SOFTMAX, (t(N, 30522),), (1, 4096)),
    "softmax_dyn": (SOFTMAX, (t(8, 12, N, N),), (1, 33, 384, 1023, 1024)),
    "softmax2048_f32": (SOFTMAX, (t(N, 2048, dtype=F),), (1, 65536)),
    "layernorm768": (LAYER_NORM, norm(N, 128, 768), (1, 7, 1024)),
    # Of images and of windows: rows of several axes that do not divide each other.
    "layernorm_image": (LAYER_NORM, norm(N, 56, 56, 96), (1, 128)),
    "softmax_windows": (SOFTMAX, (t(N, 64, 3, 49, 49),), (1, 256)),
    "layernorm768_bf16": (LAYER_NORM, norm(N, 768, dtype=B), (7, 131072)),
    "layernorm4096_f32": (LAYER_NORM, norm(N, 4096, dtype=F), (3, 16384)),
    "layernorm16384": (LAYER_NORM, norm(8192, 16384), ()),
    "rms_norm": (RMS_NORM, (t(N, 4096), t(4096)), (1, 32768)),
    "transpose_heads": (permute(0, 2, 1, 3), (t(N, 128, 12, 64),), (1, 1024)),
    "transpose_keys": (permute(0, 2, 3, 1), (t(N, 128, 12, 64),), (1, 1024)),
    "transpose_2d_f32": (permute(1, 0), (t(8192, 8192, dtype=F),), ()),
    "transpose_odd": (permute(1, 0), (t(1000, 30522),), ()),
    "nchw_to_nhwc": (permute(0, 2, 3, 1), (t(N, 64, 56, 56),), (1, 512)),
    "concat_channels": (concat(1), (t(N, 64, 56, 56), t(N, 32, 56, 56)), (1, 512)),
    "concat_last": (concat(-1), (t(N, 64), t(N, 33)), (7, 1 << 20)),
    "concat_five": (concat(-1), (t(N, 56, 56, 64), *[t(N, 56, 56, 32)] * 4), (1, 3, 32)),
    "concat_relu": (CONCAT_RELU, (t(N, 56, 56, 224), t(N, 56, 56, 32), t(256)), (1, 3, 32)),
    "concat_relu_odd": (CONCAT_RELU, (t(N, 7, 7, 20), t(N, 7, 7, 12), t(32)), (1, 3)),
    "pad_silu": (PAD_SILU, (t(N, 56, 56, 64),), (1, 3, 64)),
    "slice_odd": (SLICE, (t(N, 768),), (3, 1 << 18)),
    "embedding": (TAKE, (t(30522, 768), t(N, 128, dtype="int64")), (1, 2048)),
    "sum_leading": (total(0), (t(262144, 768),), ()),
    "mean_tokens": (mean(1), (t(N, 128, 768),), (1, 2048)),
    "mean_last_f32": (mean(-1), (t(N, 1024, dtype=F),), (5, 131072)),
    "mean_prime": (mean(1), (t(N, 3137, 64),), (1, 64)),
    "mean_heads": (mean(1), (t(64, N, 8),), (197, 3137)),
    "pool_average": (mean(1, 2), (t(N, 7, 7, 2048),), (1, 2048)),
    # What squeeze and excitation of RegNets and EfficientNets begins with.
    "squeeze_wide": (mean(1, 2), (t(16, 112, 112, 32),), ()),
    "squeeze": (mean(1, 2), (t(16, 56, 56, 48),), ()),
    "squeeze_narrow": (mean(1, 2), (t(16, 14, 14, 208),), ()),
    "squeeze_one": (mean(1, 2), (t(1, 28, 28, 96),), ()),
    "pool_average_nchw": (mean(2, 3), (t(N, 2048, 7, 7),), (1, 2048)),
    "pool_max": (MAX_POOL, (t(N, 112, 112, 64),), (1, 256)),
    "depthwise": (conv(1, 1, 256), (t(128, 56, 56, 256), t(256, 3, 3, 1)), ()),
    "dense_1row": (DENSE, dense(1, 4096, columns=16384), ()),
}
CHECKED: dict[str, tuple[tuple[Write, Write], tuple[Input, ...], tuple[int, ...]]] = {
    "sigmoid_odd": (SIGMOID, (t(N, 33, dtype=B),), (1, 7)),
    "softmax33": (SOFTMAX, (t(N, 33, dtype=F),), (1, 1000)),
    "softmax7": (SOFTMAX, (t(N, 3, 7),), (1, 1000)),
    "layernorm33": (LAYER_NORM, norm(N, 7, 33), (1, 129)),
    "layernorm7": (LAYER_NORM, norm(N, 7), (1, 1000)),
    "layernorm30522": (LAYER_NORM, norm(N, 30522, dtype=B), (1, 33)),
    "layernorm_dyn_rows": (NORM_RELU, norm(5, N, 768), (1, 3, 33)),
    "max_last": (MAX_LAST, (t(N, 1000),), (1, 7)),
    "sum_middle_odd": (total(1), (t(N, 1000, 33),), (1, 7)),
    "sum_all": (SUM_ALL, (t(N, 33, dtype=F),), (7, 1000)),
    "transpose_small": (permute(0, 2, 1), (t(N, 7, 33),), (1, 5)),
    "transpose_dyn": (permute(1, 0), (t(N, 768),), (1, 33, 1000)),
    "where": (WHERE, (t(N, 768), t(N, 768)), (1, 33)),
    "matmul_odd": (MATMUL, (t(N, 100), t(100, 77)), (1, 7, 1000)),
    "matmul_bf16": (MATMUL, (t(N, 768, dtype=B), t(768, 1000, dtype=B)), (1, 33)),
}
# FLOPs are those of a size of the symbolic dim, or of 1.
ARITHMETIC: dict[str, tuple[tuple[Write, Write], tuple[Input, ...], tuple[int, ...], float]] = {
    "dense_gelu": (DENSE_GELU, dense(N, 128, 768, columns=3072), (1, 32), 2.0 * 128 * 768 * 3072),
    "dense_gelu_f32": (DENSE_GELU, dense(4096, 768, columns=3072, dtype=F), (), 2.0 * 4096 * 768 * 3072),
    "attention_qk": (MATMUL, (t(N, 12, 128, 64), t(N, 12, 64, 128)), (1, 64), 2.0 * 12 * 128 * 128 * 64),
    "attention_pv": (MATMUL, (t(N, 12, 128, 128), t(N, 12, 128, 64)), (1, 64), 2.0 * 12 * 128 * 128 * 64),
    "conv3x3": (conv(1, 1), (t(32, 28, 28, 128), t(128, 3, 3, 128)), (), 2.0 * 32 * 28 * 28 * 128 * 128 * 9),
    "conv7x7": (conv(2, 3), (t(32, 224, 224, 3), t(64, 7, 7, 3)), (), 2.0 * 32 * 112 * 112 * 64 * 3 * 49),
}
# Depthwise convolutions of MobileNet, EfficientNet, ConvNeXt, MambaOut, StarNet and ConvMixer: window, stride, images,
# side and channels.
DEPTHWISE = (
    *((3, 1, 16, 112, 32), (3, 1, 16, 56, 144), (3, 2, 16, 56, 144), (3, 1, 8, 14, 384), (3, 1, 8, 7, 960)),
    *((3, 1, 1, 14, 384), (5, 1, 16, 28, 240), (5, 1, 1, 14, 480), (5, 2, 8, 14, 672)),
    *((7, 1, 8, 56, 96), (7, 1, 8, 28, 192), (7, 1, 8, 14, 96), (7, 1, 8, 14, 384), (7, 1, 8, 7, 768)),
    *((7, 1, 1, 14, 384), (9, 1, 8, 32, 768), (11, 1, 8, 28, 64)),
)


def depthwise(window: int, stride: int, images: int, side: int, channels: int) -> Case:
    """Return the case of a depthwise convolution of a square window, padded by half of it."""
    outputs = images * (-(-side // stride)) ** 2 * channels
    inputs = t(images, side, side, channels), t(channels, window, window, 1)
    flops = 2.0 * outputs * window**2
    return Case(*conv(stride, window // 2, channels), inputs, memory=False, flops=flops.__mul__)


def cases() -> dict[str, Case]:
    """Return the cases by name."""
    found = {name: Case(*write, inputs, sizes) for name, (write, inputs, sizes) in MEMORY.items()}
    found |= {name: Case(*write, inputs, sizes, timed=False) for name, (write, inputs, sizes) in CHECKED.items()}
    for name, (write, inputs, sizes, flops) in ARITHMETIC.items():
        found[name] = Case(*write, inputs, sizes, memory=False, flops=flops.__mul__)
    return found | {"depthwise" + "_".join(map(str, one)): depthwise(*one) for one in DEPTHWISE}
