"""The operators of gpu/schedules.py: how relax and torch write each, its inputs and its sizes."""

# ruff: noqa: ARG005 - how relax and torch write a case has one signature

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

N = "n"  # the symbolic dim


@dataclass(frozen=True)
class Case:
    """An operator: how relax and torch write it, its inputs, and sizes of the symbolic dim; the last one is timed.

    ``memory`` says that its time should be that of its bytes.
    """

    relax: Callable[..., Any]
    torch: Callable[..., Any]
    inputs: tuple[tuple[tuple[Any, ...], str], ...]
    sizes: tuple[int, ...] = ()
    timed: bool = True
    memory: bool = True
    flops: Callable[[int], float] | None = None


def cases() -> dict[str, Case]:
    """Return the cases by name."""
    h, f, b = "float16", "float32", "bfloat16"

    def t(*shape: Any, dtype: str = h) -> tuple[tuple[Any, ...], str]:
        return shape, dtype

    def layer_norm(r: Any, x: Any, w: Any, c: Any) -> Any:
        return r.nn.layer_norm(x, w, c, axes=[-1])

    def torch_layer_norm(t: Any, x: Any, w: Any, c: Any) -> Any:
        return t.nn.functional.layer_norm(x, (x.shape[-1],), w, c)

    def gelu_dense(r: Any, x: Any, w: Any, c: Any) -> Any:
        return r.nn.gelu(r.add(r.matmul(x, w), c))

    def conv(stride: int, pad: int, groups: int = 1) -> Callable[..., Any]:
        def make(r: Any, x: Any, w: Any) -> Any:
            return r.nn.relu(
                r.nn.conv2d(
                    x,
                    w,
                    strides=(stride, stride),
                    padding=(pad, pad),
                    groups=groups,
                    data_layout="NHWC",
                    kernel_layout="OHWI",
                )
            )

        return make

    def torch_conv(stride: int, pad: int, groups: int = 1) -> Callable[..., Any]:
        def make(t: Any, x: Any, w: Any) -> Any:
            y = t.nn.functional.conv2d(
                x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), stride=stride, padding=pad, groups=groups
            )
            return t.relu(y).permute(0, 2, 3, 1)

        return make

    def softmax(r: Any, x: Any) -> Any:
        return r.nn.softmax(x)

    def torch_softmax(t: Any, x: Any) -> Any:
        return t.softmax(x, -1)

    def max_pool(r: Any, x: Any) -> Any:
        return r.nn.max_pool2d(x, pool_size=(3, 3), strides=(2, 2), padding=(1, 1), layout="NHWC")

    def torch_max_pool(t: Any, x: Any) -> Any:
        return t.nn.functional.max_pool2d(x.permute(0, 3, 1, 2), 3, 2, 1).permute(0, 2, 3, 1)

    return {
        "add_relu": Case(
            lambda r, x, y: r.nn.relu(r.add(x, y)),
            lambda t, x, y: t.relu(x + y),
            (t(N, 56, 56, 256), t(N, 56, 56, 256)),
            (1, 3, 128),
        ),
        "add_relu_f32": Case(
            lambda r, x, y: r.nn.relu(r.add(x, y)), lambda t, x, y: t.relu(x + y), (t(64, 56, 56, 256, dtype=f),) * 2
        ),
        "bias_gelu": Case(
            lambda r, x, c: r.nn.gelu(r.add(x, c)),
            lambda t, x, c: t.nn.functional.gelu(x + c),
            (t(N, 128, 3072), t(3072)),
            (1, 7, 512),
        ),
        "scale_nchw": Case(
            lambda r, x, s, c: r.nn.relu(r.add(r.multiply(x, s), c)),
            lambda t, x, s, c: t.relu(x * s + c),
            (t(N, 256, 56, 56), t(256, 1, 1), t(256, 1, 1)),
            (1, 128),
        ),
        "scale_nchw7": Case(
            lambda r, x, s: r.nn.relu(r.add(x, s)),
            lambda t, x, s: t.relu(x + s),
            (t(N, 2048, 7, 7), t(2048, 1, 1)),
            (1, 1024),
        ),
        "sigmoid_odd": Case(
            lambda r, x: r.sigmoid(x), lambda t, x: t.sigmoid(x), (t(N, 33, dtype=b),), (1, 7), timed=False
        ),
        "softmax128": Case(softmax, torch_softmax, (t(N, 12, 128, 128),), (1, 3, 512)),
        "softmax128_f32": Case(softmax, torch_softmax, (t(256, 12, 128, 128, dtype=f),)),
        "softmax1000": Case(softmax, torch_softmax, (t(N, 1000),), (1, 7, 131072)),
        "softmax33": Case(softmax, torch_softmax, (t(N, 33, dtype=f),), (1, 1000), timed=False),
        "softmax30522": Case(softmax, torch_softmax, (t(N, 30522),), (1, 4096)),
        "softmax_dyn": Case(softmax, torch_softmax, (t(8, 12, N, N),), (1, 33, 384, 1023, 1024)),
        "layernorm768": Case(layer_norm, torch_layer_norm, (t(N, 128, 768), t(768), t(768)), (1, 7, 1024)),
        "layernorm768_bf16": Case(
            layer_norm, torch_layer_norm, (t(N, 768, dtype=b), t(768, dtype=b), t(768, dtype=b)), (7, 131072)
        ),
        "layernorm4096_f32": Case(
            layer_norm, torch_layer_norm, (t(N, 4096, dtype=f), t(4096, dtype=f), t(4096, dtype=f)), (3, 16384)
        ),
        "layernorm16384": Case(layer_norm, torch_layer_norm, (t(8192, 16384), t(16384), t(16384))),
        "layernorm33": Case(layer_norm, torch_layer_norm, (t(N, 7, 33), t(33), t(33)), (1, 129), timed=False),
        "rms_norm": Case(
            lambda r, x, w: r.nn.rms_norm(x, w, axes=[-1]),
            lambda t, x, w: t.nn.functional.rms_norm(x, (x.shape[-1],), w, 1e-5),
            (t(N, 4096), t(4096)),
            (1, 32768),
        ),
        "transpose_heads": Case(
            lambda r, x: r.permute_dims(x, [0, 2, 1, 3]),
            lambda t, x: x.permute(0, 2, 1, 3),
            (t(N, 128, 12, 64),),
            (1, 1024),
        ),
        "transpose_keys": Case(
            lambda r, x: r.permute_dims(x, [0, 2, 3, 1]),
            lambda t, x: x.permute(0, 2, 3, 1),
            (t(N, 128, 12, 64),),
            (1, 1024),
        ),
        "transpose_2d_f32": Case(lambda r, x: r.permute_dims(x), lambda t, x: x.t(), (t(8192, 8192, dtype=f),)),
        "transpose_odd": Case(lambda r, x: r.permute_dims(x), lambda t, x: x.t(), (t(1000, 30522),)),
        "nchw_to_nhwc": Case(
            lambda r, x: r.permute_dims(x, [0, 2, 3, 1]),
            lambda t, x: x.permute(0, 2, 3, 1),
            (t(N, 64, 56, 56),),
            (1, 512),
        ),
        "concat_channels": Case(
            lambda r, x, y: r.concat([x, y], axis=1),
            lambda t, x, y: t.cat([x, y], 1),
            (t(N, 64, 56, 56), t(N, 32, 56, 56)),
            (1, 512),
        ),
        "concat_last": Case(
            lambda r, x, y: r.concat([x, y], axis=-1),
            lambda t, x, y: t.cat([x, y], -1),
            (t(N, 64), t(N, 33)),
            (7, 1 << 20),
        ),
        "slice_odd": Case(
            lambda r, x: r.strided_slice(x, axes=[1], begin=[1], end=[513]),
            lambda t, x: x[:, 1:513],
            (t(N, 768),),
            (3, 1 << 18),
        ),
        "embedding": Case(
            lambda r, w, i: r.take(w, i, axis=0),
            lambda t, w, i: w[i],
            (t(30522, 768), ((N, 128), "int64")),
            (1, 2048),
        ),
        "sum_leading": Case(lambda r, x: r.sum(x, axis=[0]), lambda t, x: x.sum(0), (t(262144, 768),)),
        "mean_tokens": Case(lambda r, x: r.mean(x, axis=[1]), lambda t, x: x.mean(1), (t(N, 128, 768),), (1, 2048)),
        "mean_last_f32": Case(
            lambda r, x: r.mean(x, axis=[-1]), lambda t, x: x.mean(-1), (t(N, 1024, dtype=f),), (5, 131072)
        ),
        "pool_average": Case(
            lambda r, x: r.mean(x, axis=[1, 2]), lambda t, x: x.mean((1, 2)), (t(N, 7, 7, 2048),), (1, 2048)
        ),
        "pool_average_nchw": Case(
            lambda r, x: r.mean(x, axis=[2, 3]), lambda t, x: x.mean((2, 3)), (t(N, 2048, 7, 7),), (1, 2048)
        ),
        "pool_max": Case(max_pool, torch_max_pool, (t(N, 112, 112, 64),), (1, 256)),
        "depthwise": Case(conv(1, 1, 256), torch_conv(1, 1, 256), (t(128, 56, 56, 256), t(256, 3, 3, 1))),
        "softmax7": Case(softmax, torch_softmax, (t(N, 3, 7),), (1, 1000), timed=False),
        "softmax2048_f32": Case(softmax, torch_softmax, (t(N, 2048, dtype=f),), (1, 65536)),
        "layernorm7": Case(layer_norm, torch_layer_norm, (t(N, 7), t(7), t(7)), (1, 1000), timed=False),
        "layernorm30522": Case(
            layer_norm,
            torch_layer_norm,
            (t(N, 30522, dtype=b), t(30522, dtype=b), t(30522, dtype=b)),
            (1, 33),
            timed=False,
        ),
        "layernorm_dyn_rows": Case(
            lambda r, x, w, c: r.nn.relu(r.nn.layer_norm(x, w, c, axes=[-1])),
            lambda t, x, w, c: t.relu(t.nn.functional.layer_norm(x, (768,), w, c)),
            (t(5, N, 768), t(768), t(768)),
            (1, 3, 33),
            timed=False,
        ),
        "max_last": Case(lambda r, x: r.max(x, axis=[-1]), lambda t, x: x.amax(-1), (t(N, 1000),), (1, 7), timed=False),
        "sum_middle_odd": Case(
            lambda r, x: r.sum(x, axis=[1]), lambda t, x: x.sum(1), (t(N, 1000, 33),), (1, 7), timed=False
        ),
        "sum_all": Case(lambda r, x: r.sum(x), lambda t, x: x.sum(), (t(N, 33, dtype=f),), (7, 1000), timed=False),
        "transpose_small": Case(
            lambda r, x: r.permute_dims(x, [0, 2, 1]),
            lambda t, x: x.permute(0, 2, 1),
            (t(N, 7, 33),),
            (1, 5),
            timed=False,
        ),
        "transpose_dyn": Case(
            lambda r, x: r.permute_dims(x, [1, 0]), lambda t, x: x.t(), (t(N, 768),), (1, 33, 1000), timed=False
        ),
        "where": Case(
            lambda r, x, y: r.where(r.greater(x, y), x, y),
            lambda t, x, y: t.where(x > y, x, y),
            (t(N, 768), t(N, 768)),
            (1, 33),
            timed=False,
        ),
        "matmul_odd": Case(
            lambda r, x, w: r.matmul(x, w),
            lambda t, x, w: x @ w,
            (t(N, 100), t(100, 77)),
            (1, 7, 1000),
            timed=False,
        ),
        "matmul_bf16": Case(
            lambda r, x, w: r.matmul(x, w),
            lambda t, x, w: x @ w,
            (t(N, 768, dtype=b), t(768, 1000, dtype=b)),
            (1, 33),
            timed=False,
        ),
        "dense_gelu": Case(
            gelu_dense,
            lambda t, x, w, c: t.nn.functional.gelu(x @ w + c),
            (t(N, 128, 768), t(768, 3072), t(3072)),
            (1, 32),
            memory=False,
            flops=lambda n: 2.0 * n * 128 * 768 * 3072,
        ),
        "dense_gelu_f32": Case(
            gelu_dense,
            lambda t, x, w, c: t.nn.functional.gelu(x @ w + c),
            (t(4096, 768, dtype=f), t(768, 3072, dtype=f), t(3072, dtype=f)),
            memory=False,
            flops=lambda _: 2.0 * 4096 * 768 * 3072,
        ),
        "attention_qk": Case(
            lambda r, q, k: r.matmul(q, k),
            lambda t, q, k: q @ k,
            (t(N, 12, 128, 64), t(N, 12, 64, 128)),
            (1, 64),
            memory=False,
            flops=lambda n: 2.0 * n * 12 * 128 * 128 * 64,
        ),
        "attention_pv": Case(
            lambda r, q, k: r.matmul(q, k),
            lambda t, q, k: q @ k,
            (t(N, 12, 128, 128), t(N, 12, 128, 64)),
            (1, 64),
            memory=False,
            flops=lambda n: 2.0 * n * 12 * 128 * 128 * 64,
        ),
        "dense_1row": Case(
            lambda r, x, w, c: r.add(r.matmul(x, w), c),
            lambda t, x, w, c: x @ w + c,
            (t(1, 4096), t(4096, 16384), t(16384)),
        ),
        "conv3x3": Case(
            conv(1, 1),
            torch_conv(1, 1),
            (t(32, 28, 28, 128), t(128, 3, 3, 128)),
            memory=False,
            flops=lambda _: 2.0 * 32 * 28 * 28 * 128 * 128 * 9,
        ),
        "conv7x7": Case(
            conv(2, 3),
            torch_conv(2, 3),
            (t(32, 224, 224, 3), t(64, 7, 7, 3)),
            memory=False,
            flops=lambda _: 2.0 * 32 * 112 * 112 * 64 * 3 * 49,
        ),
    }
