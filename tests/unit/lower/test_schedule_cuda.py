"""GPU schedules without a GPU: loops bound to threads run as plain loops on the CPU, and lower to CUDA within limits.

A scheduled function computes the same whatever its loops are bound to, so that running it as serial loops checks
tiling, guards and layouts. How threads exchange values is TVM's lowering; benchmarks/gpu/schedules.py checks it on
a GPU.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.s_tir import ScheduleError, dlight
from tvm.tirx import stmt as st
from tvm_ffi import structural_map, structural_walk

from packager.errors import BackendError
from packager.graph.normalize import Normalization, normalize
from packager.ir.primitives import Kernel
from packager.lower.blocks import blocks, extents, schedule_of
from packager.lower.cuda.kernels import lower_cuda_kernels
from packager.lower.cuda.matmul import schedule_matmul
from packager.lower.cuda.schedule import schedule_cuda
from packager.lower.cuda.widen_float16 import widen
from packager.lower.kernels import make_group
from packager.plan.in_place import in_place
from tests.stages import primfuncs_of

TARGET = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
THREADS = 1024
SHARED_BYTES = 48 * 1024
R = relax.op
Shape = tuple[int | str, ...]


def functions(make: Callable[..., Any], *inputs: tuple[Shape, str]) -> list[Any]:
    """Return the PrimFuncs of an operator, fused as packager does; a dim that is a string is symbolic."""
    return primfuncs_of("cuda", make, *inputs)


def serial(primfunc: Any) -> Any:
    def unbind(loop: Any) -> Any:
        return st.For(loop.loop_var, loop.min, loop.extent, st.ForKind.SERIAL, loop.body)

    return primfunc.with_body(structural_map(primfunc.body, [(st.For, unbind)]))


def lower(primfunc: Any) -> tuple[str, dict[str, Any]]:
    """Lower a scheduled function; return its source and launches, after a look at what a GPU allows."""
    group = make_group("f", primfunc, "cuda")
    module, launches = lower_cuda_kernels(group.functions, TARGET)
    for launch in launches.values():
        threads = [int(extent) for axis, extent in launch.extents.items() if axis.startswith("threadIdx")]
        assert math.prod(threads) <= THREADS
    for function in module.functions.values():
        assert shared_bytes(function.body) <= SHARED_BYTES
    return tvm.get_global_func("target.build.cuda")(module, TARGET).inspect_source(), dict(launches)


def shared_bytes(body: Any) -> int:
    sizes = []

    def visit(allocation: Any) -> None:
        if allocation.buffer.scope() == "shared":
            bits = int(tvm.runtime.DataType(allocation.buffer.dtype).bits)
            sizes.append(math.prod(int(e) for e in allocation.buffer.shape) * bits // 8)

    structural_walk(body, [(st.AllocBuffer, visit)])
    return sum(sizes)


def relax_rotary(x: Any, cos: Any, sin: Any, dtype: str = "") -> Any:
    """Write a rotary embedding as transformers does; half of a head of 40 fills no vectors."""
    half = int(cos.ty.shape[1]) // 2
    wide = R.astype(x, F)
    first, second = R.strided_slice(wide, [3], [0], [half]), R.strided_slice(wide, [3], [half], [2 * half])
    turned = R.concat([R.negative(second), first], -1)
    return R.astype(R.add(R.multiply(wide, cos), R.multiply(turned, sin)), dtype or x.ty.dtype)


def rotary(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    first, second = np.split(x, 2, -1)
    return x * cos + np.concatenate((-second, first), -1) * sin


def relax_rotary_of_rows(x: Any, cos: Any, sin: Any) -> Any:
    """Rotate the first three heads of rows that a product has made, as they lie in them."""
    batch, rows, _ = map(int, x.ty.shape.values)
    depth = int(cos.ty.shape[1])
    heads = R.reshape(R.strided_slice(x, [2], [0], [3 * depth]), (batch, rows, 3, depth))
    rotated = relax_rotary(R.permute_dims(heads, [0, 2, 1, 3]), cos, sin, str(x.ty.dtype))
    return R.permute_dims(rotated, [0, 2, 1, 3])


def rotary_of_rows(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    heads = x[..., : 3 * cos.shape[1]].reshape(*x.shape[:2], 3, cos.shape[1]).swapaxes(1, 2)
    return rotary(heads, cos, sin).swapaxes(1, 2)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(x: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * scale + shift


def max_pool(x: np.ndarray) -> np.ndarray:
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    rows, columns = (x.shape[1] - 1) // 2 + 1, (x.shape[2] - 1) // 2 + 1
    windows = [padded[:, i : i + 2 * rows - 1 : 2, j : j + 2 * columns - 1 : 2] for i in range(3) for j in range(3)]
    return np.max(windows, axis=0)


def depthwise(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    rows, columns = w.shape[1:3]
    padded = np.pad(x, ((0, 0), (rows // 2, rows // 2), (columns // 2, columns // 2), (0, 0)))
    height, width = x.shape[1:3]
    return sum(padded[:, i : i + height, j : j + width] * w[:, i, j, 0] for i in range(rows) for j in range(columns))


def relax_layer_norm(x: Any, scale: Any, shift: Any) -> Any:
    return R.nn.layer_norm(x, scale, shift, axes=[-1])


def relax_norm_of_volumes(x: Any, scale: Any) -> Any:
    rows = normalize(x, Normalization((2, 3, 4), 1e-5))
    return R.astype(R.nn.relu(R.multiply(rows, scale)), x.ty.dtype)


def norm_of_volumes(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    axes = (2, 3, 4)
    return np.maximum((x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5) * scale, 0)


def relax_norm_of_planes(x: Any, scale: Any) -> Any:
    return R.multiply(R.subtract(x, R.mean(x, [2, 3], keepdims=True)), scale)


def norm_of_planes(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return (x - x.mean((2, 3), keepdims=True)) * scale


def relax_pool_mixer(x: Any) -> Any:
    pooled = R.nn.avg_pool2d(x, pool_size=(3, 3), padding=(1, 1), layout="NHWC", count_include_pad=True)
    return R.subtract(pooled, x)


def pool_mixer(x: np.ndarray) -> np.ndarray:
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    rows, columns = x.shape[1:3]
    return sum(padded[:, i : i + rows, j : j + columns] for i in range(3) for j in range(3)) / 9 - x


def relax_max_pool(x: Any) -> Any:
    return R.nn.max_pool2d(x, pool_size=(3, 3), strides=(2, 2), padding=(1, 1), layout="NHWC")


def relax_depthwise(x: Any, w: Any) -> Any:
    around = tuple(int(extent) // 2 for extent in list(w.ty.shape)[1:3])
    return R.nn.conv2d(x, w, padding=around, groups=16, data_layout="NHWC", kernel_layout="OHWI")


def relax_product(x: Any, w: Any) -> Any:
    """Both operands have the reduction axis last."""
    return R.sum(R.multiply(R.expand_dims(x, -2), R.expand_dims(w, -3)), axis=-1)


def product(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return x @ w.swapaxes(-1, -2)


def relax_gelu(x: Any, shift: Any) -> Any:
    return R.nn.gelu(R.add(x, shift))


def gelu(x: np.ndarray, shift: np.ndarray) -> np.ndarray:
    z = x + shift
    return z * 0.5 * (1 + np.vectorize(math.erf)(z / math.sqrt(2)))


def relax_strided_depthwise(x: Any, w: Any) -> Any:
    y = R.nn.conv2d(x, w, strides=(2, 2), groups=24, data_layout="NHWC", kernel_layout="OHWI")
    return R.nn.relu(y)


def strided_depthwise(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    rows, columns = (x.shape[1] - 3) // 2 + 1, (x.shape[2] - 5) // 2 + 1
    windows = [
        x[:, i : i + 2 * rows - 1 : 2, j : j + 2 * columns - 1 : 2] * w[:, i, j, 0] for i in range(3) for j in range(5)
    ]
    return np.maximum(sum(windows), 0)


def relax_centered(x: Any) -> Any:
    return R.subtract(x, R.mean(x, [-1], keepdims=True))


def relax_root_mean(squares: Any, x: Any, scale: Any) -> Any:
    """RMS normalization as exporters write it, behind the squares; the constant keeps them positive."""
    root = R.sqrt(R.add(R.mean(squares, [-1], keepdims=True), relax.const(9, x.ty.dtype)))
    return R.multiply(scale, R.divide(x, root))


def root_mean(squares: np.ndarray, x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return scale * x / np.sqrt(squares.mean(-1, keepdims=True) + 9)


def relax_rms_norm(x: Any, scale: Any) -> Any:
    """As models of half precision have it: computed in float32, and rounded once."""
    attributes = Normalization((len(x.ty.shape) - 1,), 1e-5, centered=False)
    if x.ty.dtype == "float32":
        return R.multiply(normalize(x, attributes), scale)
    return R.astype(R.multiply(normalize(x, attributes), scale), x.ty.dtype)


def rms_norm(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * scale


def relax_grouped_channels(x: Any, shift: Any) -> Any:
    return R.reshape(R.permute_dims(R.add(x, shift), [0, 3, 1, 2]), (2, 4, 96))


def grouped_channels(x: np.ndarray, shift: np.ndarray) -> np.ndarray:
    return (x + shift).transpose(0, 3, 1, 2).reshape(2, 4, 96)


def relax_channels_last(x: Any, scale: Any) -> Any:
    return R.permute_dims(R.nn.relu(R.multiply(R.reshape(x, (2, 16, 4, 6)), scale)), [0, 2, 3, 1])


def channels_last(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return np.maximum(x.reshape(2, 16, 4, 6) * scale, 0).transpose(0, 2, 3, 1)


def relax_shuffled(x: Any) -> Any:
    return R.reshape(R.permute_dims(R.reshape(x, (1, 3, 4, 35)), [0, 2, 1, 3]), (1, 12, 5, 7))


def shuffled(x: np.ndarray) -> np.ndarray:
    return x.reshape(1, 3, 4, 35).transpose(0, 2, 1, 3).reshape(1, 12, 5, 7)


def relax_lookups(places: Any, table: Any) -> Any:
    slices = [R.astype(R.squeeze(R.strided_slice(places, [1], [i], [i + 1]), [1]), "int64") for i in (0, 1)]
    return R.concat([R.expand_dims(R.take(table, each, 0, mode="wrap"), [1]) for each in slices], axis=1)


def lookups(places: np.ndarray, table: np.ndarray) -> np.ndarray:
    return np.stack([table[place.astype(int)] for place in places.T], axis=1)


def relax_gated_part(x: Any, gate: Any) -> Any:
    return R.multiply(R.strided_slice(x, [3], [0], [16]), gate)


def relax_phases(x: Any) -> Any:
    """Four phases of a transposed convolution, interleaved, without the outermost rows and columns."""
    parts = R.permute_dims(R.reshape(x, (2, 4, 6, 2, 2, 16)), [0, 1, 3, 2, 4, 5])
    return R.strided_slice(R.reshape(parts, (2, 8, 12, 16)), [1, 2], [1, 1], [7, 11], None, True)


def phases(x: np.ndarray) -> np.ndarray:
    parts = x.reshape(2, 4, 6, 2, 2, 16).transpose(0, 1, 3, 2, 4, 5)
    return parts.reshape(2, 8, 12, 16)[:, 1:7, 1:11]


def relax_raised_layer_norm(x: Any, scale: Any, shift: Any) -> Any:
    return R.add(R.multiply(normalize(x, Normalization((len(x.ty.shape) - 1,), 1e-5)), scale), shift)


def relax_few_channels(x: Any, shift: Any) -> Any:
    """Five of the channels, each on its own plane."""
    return R.add(R.permute_dims(R.strided_slice(x, [3], [0], [5]), [0, 3, 1, 2]), shift)


def few_channels(x: Any, shift: Any) -> Any:
    return x[..., :5].transpose(0, 3, 1, 2) + shift


def relax_moved_channels(x: Any) -> Any:
    """Blocks of 8 x 12 pixels of 3 channels, side by side, without the outermost pixels."""
    pixels = R.permute_dims(R.reshape(x, [2, 19, 20, 8, 12, 3]), [0, 1, 3, 2, 4, 5])
    planes = R.permute_dims(R.reshape(pixels, [2, 152, 240, 3]), [0, 3, 1, 2])
    return R.strided_slice(planes, [2, 3], [4, 5], [148, 235])


def moved_channels(x: Any) -> Any:
    pixels = x.reshape(2, 19, 20, 8, 12, 3).transpose(0, 1, 3, 2, 4, 5).reshape(2, 152, 240, 3)
    return pixels.transpose(0, 3, 1, 2)[:, :, 4:148, 5:235]


H, F = "float16", "float32"
# Name, operator, numpy's version, inputs, sizes of the symbolic dim n. Every case is one PrimFunc.
CASES: list[tuple[str, Callable[..., Any], Callable[..., Any], list[tuple[Shape, str]], list[int]]] = [
    ("add", lambda x, y: R.nn.relu(R.add(x, y)), lambda x, y: np.maximum(x + y, 0), [(("n", 7, 64), H)] * 2, [1, 5]),
    ("add_odd", R.add, np.add, [(("n", 33), F)] * 2, [1, 7, 33]),
    ("bias", R.add, np.add, [((2, 3, 1000), H), ((1000,), H)], [0]),
    ("channels", R.multiply, np.multiply, [(("n", 64, 7, 7), H), ((64, 1, 1), H)], [1, 3]),
    (
        "channels_7x7",
        lambda x, y: R.nn.relu(R.add(x, y)),
        lambda x, y: np.maximum(x + y, 0),
        [(("n", 128, 7, 7), H), ((128, 1, 1), H)],
        [1, 3],
    ),
    ("gelu", relax_gelu, gelu, [(("n", 5, 64), H), ((64,), H)], [1, 3]),
    ("exp", R.exp, np.exp, [(("n", 40), "float16")], [1, 3]),
    ("scalar", R.add, np.add, [((), F), ((), F)], [0]),
    ("compare", lambda x, y: R.where(R.greater(x, y), x, y), np.maximum, [(("n", 40), H)] * 2, [1, 9]),
    ("softmax", R.nn.softmax, softmax, [(("n", 3, 128), H)], [1, 5]),
    ("softmax_odd", R.nn.softmax, softmax, [(("n", 33), F)], [1, 7]),
    ("softmax_7", R.nn.softmax, softmax, [(("n", 7), F)], [1, 33]),
    ("softmax_1000", R.nn.softmax, softmax, [(("n", 1000), H)], [1, 7]),
    ("softmax_1000_rows", R.nn.softmax, softmax, [((3, "n", 1000), H)], [1, 5]),
    ("softmax_1250", R.nn.softmax, softmax, [(("n", 1250), F)], [1, 3]),
    ("softmax_long", R.nn.softmax, softmax, [((3, 70000), F)], [0]),
    ("softmax_30522", R.nn.softmax, softmax, [((2, 30522), H)], [0]),
    ("softmax_dyn", R.nn.softmax, softmax, [((2, 3, "n", "n"), H)], [1, 33, 200]),
    ("softmax_dyn_rows", R.nn.softmax, softmax, [((3, "n"), F)], [1, 33, 5000]),
    ("layer_norm", relax_layer_norm, layer_norm, [(("n", 2, 768), H), ((768,), H), ((768,), H)], [1, 3]),
    ("layer_norm_odd", relax_layer_norm, layer_norm, [((5, "n", 33), F), ((33,), F), ((33,), F)], [1, 7]),
    ("layer_norm_long", relax_layer_norm, layer_norm, [((2, 16384), F), ((16384,), F), ((16384,), F)], [0]),
    ("rms_norm", relax_rms_norm, rms_norm, [((1, "n", 4096), H), ((4096,), F)], [1, 128]),
    ("rms_norm_odd", relax_rms_norm, rms_norm, [((1, 7, 33), F), ((33,), F)], [0]),
    ("rms_norm_dyn", relax_rms_norm, rms_norm, [((2, "n"), H), (("n",), F)], [33, 5000]),
    ("raised_layer_norm", relax_raised_layer_norm, layer_norm, [((5, "n", 768), F), ((768,), F), ((768,), F)], [1, 7]),
    (
        "raised_layer_norm_long",
        relax_raised_layer_norm,
        layer_norm,
        [((2, 16384), F), ((16384,), F), ((16384,), F)],
        [0],
    ),
    ("centered", relax_centered, lambda x: x - x.mean(-1, keepdims=True), [((2, "n", 768), F)], [1, 3]),
    ("centered_one", relax_centered, lambda x: x - x.mean(-1, keepdims=True), [((1, 1, 4096), H)], [0]),
    (
        "root_mean",
        relax_root_mean,
        root_mean,
        [((1, 5, 4096), F), ((1, 5, 4096), F), ((4096,), F)],
        [0],
    ),
    (
        "centered_planes",
        lambda x: R.subtract(x, R.mean(x, [2, 3], keepdims=True)),
        lambda x: x - x.mean((2, 3), keepdims=True),
        [((2, 3, 56, 56), F)],
        [0],
    ),
    (
        "centered_whole",
        lambda x: R.subtract(x, R.mean(x, None, keepdims=True)),
        lambda x: x - x.mean(),
        [((2, 64, 100), F)],
        [0],
    ),
    (
        "heads",
        lambda x: R.permute_dims(x, [0, 2, 1, 3]),
        lambda x: x.transpose(0, 2, 1, 3),
        [(("n", 9, 3, 16), H)],
        [2],
    ),
    ("transpose", R.permute_dims, np.transpose, [((100, 66), H)], [0]),
    ("transpose_odd", R.permute_dims, np.transpose, [((33, 1001), F)], [0]),
    ("grouped_channels", relax_grouped_channels, grouped_channels, [((2, 4, 6, 16), H), ((16,), H)], [0]),
    ("channels_last", relax_channels_last, channels_last, [((2, 4, 96), F), ((16, 1, 1), F)], [0]),
    ("channels_of_sequence", relax_shuffled, shuffled, [((1, 12, 35), H)], [0]),
    ("phases", relax_phases, phases, [((2, 4, 6, 64), H)], [0]),
    ("few_channels", relax_few_channels, few_channels, [((2, 150, 130, 8), H), ((1, 5, 1, 1), H)], [0]),
    ("few_channels_moved", relax_moved_channels, moved_channels, [((2, 19, 20, 8, 36), F)], [0]),
    ("transpose_dyn", R.permute_dims, np.transpose, [(("n", 40), H)], [1, 33]),
    (
        "concat",
        lambda x, y: R.concat([x, y], axis=-1),
        lambda *x: np.concatenate(x, -1),
        [(("n", 8), H), (("n", 3), H)],
        [3],
    ),
    (
        "concat_wide",
        lambda x, y: R.concat([x, y], axis=-1),
        lambda *x: np.concatenate(x, -1),
        [((2, "n", 64), H), ((2, "n", 33), H)],
        [3, 40],
    ),
    ("rotary", relax_rotary, rotary, [((2, 3, 5, 64), H), ((5, 64), F), ((5, 64), F)], [0]),
    ("rotary_of_rows", relax_rotary_of_rows, rotary_of_rows, [((2, 5, 320), H), ((5, 64), F), ((5, 64), F)], [0]),
    ("rotary_dyn", relax_rotary, rotary, [(("n", 3, 5, 32), F), ((5, 32), F), ((5, 32), F)], [1, 3]),
    ("rotary_narrow", relax_rotary, rotary, [((2, 3, 5, 40), H), ((5, 40), F), ((5, 40), F)], [0]),
    ("lookups", relax_lookups, lookups, [(("n", 2), F), ((7, 64), F)], [1, 9, 40]),
    ("slice", lambda x: R.strided_slice(x, [1], [1], [17]), lambda x: x[:, 1:17], [(("n", 24), H)], [3]),
    ("gated part", relax_gated_part, lambda x, g: x[..., :16] * g, [(("n", 5, 2, 19), H), (("n", 5, 2, 16), H)], [3]),
    ("sum_rows", lambda x: R.sum(x, axis=[0]), lambda x: x.sum(0), [((4096, 96), F)], [0]),
    ("sum_rows_odd", lambda x: R.sum(x, axis=[1]), lambda x: x.sum(1), [(("n", 100, 33), F)], [1, 3]),
    # Tiles of few columns join axes, which they divide, or have all of one.
    ("sum_6_columns", lambda x: R.sum(x, axis=[1]), lambda x: x.sum(1), [((2, 2559, 6), F)], [0]),
    ("sum_8_columns", lambda x: R.sum(x, axis=[1]), lambda x: x.sum(1), [((2, 12544, 8), F)], [0]),
    ("sum_20_columns", lambda x: R.sum(x, axis=[1]), lambda x: x.sum(1), [((1, 2048, 20), F)], [0]),
    ("sum_3_of_axes", lambda x: R.sum(x, axis=[2]), lambda x: x.sum(2), [((2, 3, 1024, 6), H)], [0]),
    ("mean_tokens", lambda x: R.mean(x, axis=[1]), lambda x: x.mean(1), [(("n", 128, 256), H)], [1, 3]),
    (
        "squeeze",
        lambda x: R.mean(x, axis=[1, 2], keepdims=True),
        lambda x: x.mean((1, 2), keepdims=True),
        [((2, 14, 14, 208), H)],
        [0],
    ),
    ("squeeze_blocks", lambda x: R.mean(x, axis=[1, 2]), lambda x: x.mean((1, 2)), [((2, 56, 56, 48), F)], [0]),
    ("squeeze_odd", lambda x: R.mean(x, axis=[1, 2]), lambda x: x.mean((1, 2)), [(("n", 7, 7, 56), H)], [1, 3]),
    ("mean_last", lambda x: R.mean(x, axis=[-1]), lambda x: x.mean(-1), [(("n", 1024), F)], [1, 5]),
    ("max_last", lambda x: R.max(x, axis=[-1]), lambda x: x.max(-1), [(("n", 100), H)], [1, 5]),
    ("sum_all", R.sum, np.sum, [(("n", 33), F)], [1, 7]),
    ("average_nhwc", lambda x: R.mean(x, axis=[1, 2]), lambda x: x.mean((1, 2)), [(("n", 7, 7, 64), H)], [1, 3]),
    ("average_nchw", lambda x: R.mean(x, axis=[2, 3]), lambda x: x.mean((2, 3)), [(("n", 64, 7, 7), H)], [1, 3]),
    ("average_7x7", lambda x: R.mean(x, axis=[2, 3]), lambda x: x.mean((2, 3)), [(("n", 256, 7, 7), H)], [1, 3]),
    ("average_rows", lambda x: R.mean(x, axis=[-1]), lambda x: x.mean(-1), [((2, 128, 33), F)], [0]),
    ("pool_mixer", relax_pool_mixer, pool_mixer, [((2, 14, 14, 32), F)], [0]),
    ("max_pool", relax_max_pool, max_pool, [(("n", 14, 14, 16), H)], [1, 2]),
    ("depthwise", relax_depthwise, depthwise, [((2, 9, 9, 16), H), ((16, 3, 3, 1), H)], [0]),
    ("depthwise_5x3", relax_strided_depthwise, strided_depthwise, [(("n", 9, 17, 24), H), ((24, 3, 5, 1), H)], [1, 2]),
    ("depthwise_9x9", relax_depthwise, depthwise, [((2, 6, 10, 16), H), ((16, 9, 9, 1), H)], [0]),
    ("depthwise_1x31", relax_depthwise, depthwise, [((2, 1, 24, 16), H), ((16, 1, 31, 1), H)], [0]),
    ("depthwise_1x39", relax_depthwise, depthwise, [((2, 1, 24, 16), H), ((16, 1, 39, 1), H)], [0]),
    ("depthwise_13x13", relax_depthwise, depthwise, [((1, 10, 12, 16), H), ((16, 13, 13, 1), H)], [0]),
    ("depthwise_of_37", relax_depthwise, depthwise, [((1, 37, 37, 16), H), ((16, 3, 3, 1), H)], [0]),
    ("depthwise_f32", relax_depthwise, depthwise, [((2, 8, 28, 16), F), ((16, 3, 3, 1), F)], [0]),
    ("norm_of_volumes", relax_norm_of_volumes, norm_of_volumes, [((2, 3, 8, 6, 9), H), ((3, 1, 1, 1), F)], [0]),
    ("norm_of_few_steps", relax_norm_of_volumes, norm_of_volumes, [((2, 3, 16, 16, 40), H), ((3, 1, 1, 1), F)], [0]),
    ("norm_of_long_rows", relax_norm_of_volumes, norm_of_volumes, [((2, 2, 32, 32, 35), H), ((2, 1, 1, 1), F)], [0]),
    ("norm_of_planes", relax_norm_of_planes, norm_of_planes, [((3, 2, 12, 10), F), ((12, 10), F)], [0]),
    ("norm_of_any_planes", relax_norm_of_planes, norm_of_planes, [(("n", 2, 12, 10), F), ((12, 10), F)], [1, 3]),
    ("matmul", R.matmul, np.matmul, [(("n", 40), F), ((40, 33), F)], [1, 7]),
    ("skinny_matmul", relax_product, product, [((3, 40), F), ((21, 40), F)], [0]),
    ("skinny_matmuls", relax_product, product, [((2, 5, 70), F), ((2, 12, 70), F)], [0]),
    ("row_matmul", R.matmul, np.matmul, [((1, 768), H), ((768, 64), H)], [0]),
]


def in_shapes_of(primfunc: Any, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return arrays in the shapes that a schedule sees its parameters in; several symbolic extents are the array's."""
    shapes = [[int(e) if isinstance(e, tirx.IntImm) else -1 for e in p.shape] for p in primfunc.params]
    return [
        a.reshape(shape if shape.count(-1) < 2 else [*shape[:-2], *a.shape[-2:]])
        for a, shape in zip(arrays, shapes, strict=True)
    ]


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.slow
@pytest.mark.parametrize(("make", "expected", "inputs", "sizes"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_schedule_computes_what_numpy_does(
    make: Callable[..., Any], expected: Callable[..., Any], inputs: list[tuple[Shape, str]], sizes: list[int]
) -> None:
    (primfunc,) = functions(make, *inputs)
    scheduled = schedule_cuda(primfunc, TARGET)
    lower(scheduled)
    library = tvm.compile(tvm.IRModule({"main": serial(scheduled).with_attr("global_symbol", "main")}), target="llvm")
    for size in sizes:
        generator = np.random.default_rng(size)
        arrays = [
            generator.standard_normal([size if isinstance(e, str) else e for e in shape]).astype(dtype)
            for shape, dtype in inputs
        ]
        want = np.asarray(expected(*(array.astype(np.float64) for array in arrays)))
        out = np.full(want.shape, np.nan, arrays[0].dtype)
        tensors = [tvm.runtime.tensor(a) for a in in_shapes_of(scheduled, (*arrays, out))]
        library["main"](*tensors)
        error = np.linalg.norm(tensors[-1].numpy().reshape(want.shape) - want) / max(np.linalg.norm(want), 1e-30)
        assert error < (1e-3 if out.dtype == np.float16 else 1e-5)


def test_parameters_stay_as_they_are() -> None:
    (primfunc,) = functions(R.nn.softmax, (("n", 1000), H))
    scheduled = schedule_cuda(primfunc, TARGET)
    assert [str(p.dtype) for p in scheduled.params] == [str(p.dtype) for p in primfunc.params]
    assert all(a.same_as(b) for a, b in zip(scheduled.params, primfunc.params, strict=True))


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (relax_grouped_channels, [((2, 4, 6, 16), H), ((16,), H)]),
        (relax_channels_last, [((2, 4, 96), F), ((16, 1, 1), F)]),
    ],
)
def test_a_transpose_behind_a_reshape_has_tiles(make: Callable[..., Any], inputs: list[tuple[Shape, str]]) -> None:
    (primfunc,) = functions(make, *inputs)
    assert "__shared__" in lower(schedule_cuda(primfunc, TARGET))[0]


@pytest.mark.parametrize(
    ("make", "inputs", "pixels"),
    [
        (relax_few_channels, [((2, 150, 130, 8), H), ((1, 5, 1, 1), H)], 2 * 150 * 130),
        (relax_moved_channels, [((2, 19, 20, 8, 36), F)], 2 * 144 * 230),
    ],
)
def test_a_thread_has_all_of_few_channels(
    make: Callable[..., Any], inputs: list[tuple[Shape, str]], pixels: int
) -> None:
    """Its neighbors read the same cache lines, one channel after the other."""
    (primfunc,) = functions(make, *inputs)
    (launch,) = lower(schedule_cuda(primfunc, TARGET))[1].values()
    blocks, threads = (int(launch.extents[name]) for name in ("blockIdx.x", "threadIdx.x"))
    assert pixels <= blocks * threads < pixels + threads


def test_depthwise_convolutions_read_vectors_of_channels() -> None:
    (primfunc,) = functions(relax_depthwise, ((2, 8, 28, 16), H), ((16, 3, 3, 1), H))
    source, _ = lower(schedule_cuda(primfunc, TARGET))
    assert "= *(uint4*)(p0" in source
    assert "*(uint4*)(p2" in source
    assert "__shared__" in source


def test_a_pooling_whose_operand_is_read_again_loads_vectors() -> None:
    (primfunc,) = functions(relax_pool_mixer, ((2, 14, 14, 64), F))
    source, launches = lower(schedule_cuda(primfunc, TARGET))
    (launch,) = launches.values()
    assert "*(float4*)(p0" in source
    assert int(launch.extents["blockIdx.x"]) * int(launch.extents["threadIdx.x"]) == 2 * 14 * 14 * 64 // 4


@pytest.mark.parametrize(("shape", "least"), [((8, 14, 14, 16), 14), ((64, 56, 56, 16), 132)])
def test_depthwise_convolutions_of_small_images_leave_no_thread_the_work_of_many(shape: Shape, least: int) -> None:
    """Threads of fewer positions, as long as not all multiprocessors are busy."""
    (primfunc,) = functions(relax_depthwise, (shape, H), ((16, 9, 9, 1), H))
    (launch,) = lower(schedule_cuda(primfunc, TARGET))[1].values()
    blocks, threads = (int(launch.extents[name]) for name in ("blockIdx.x", "threadIdx.x"))
    outputs = math.prod(int(extent) for extent in shape)
    assert blocks >= least
    assert (outputs // 8 == blocks * threads) == (shape[0] == 8)  # a vector each


@pytest.mark.parametrize(
    "shape", [(8, 37, 37, 16), (2, 74, 74, 16), (1, 83, 83, 16), (1, 149, 149, 16), (8, 1, 499, 16)]
)
def test_depthwise_convolutions_fill_blocks_whatever_the_image(shape: Shape) -> None:
    window = (3, 3) if shape[1] > 1 else (1, 31)
    (primfunc,) = functions(relax_depthwise, (shape, H), ((16, *window, 1), H))
    (launch,) = lower(schedule_cuda(primfunc, TARGET))[1].values()
    assert 64 <= int(launch.extents["threadIdx.x"]) <= 512


@pytest.mark.parametrize("make", [relax_rms_norm, relax_root_mean], ids=["raised", "as written"])
def test_normalizations_have_a_block_for_each_row(make: Callable[..., Any]) -> None:
    rows = ((1, 128, 4096), F)
    (primfunc,) = functions(make, *([rows] if make is relax_rms_norm else [rows] * 2), ((4096,), F))
    _, launches = lower(schedule_cuda(primfunc, TARGET))
    (launch,) = launches.values()
    assert int(launch.extents["blockIdx.x"]) == 128


def test_rows_too_long_for_registers_lie_in_shared_memory() -> None:
    (primfunc,) = functions(R.nn.softmax, (("n", 30522), H))
    source, launches = lower(schedule_cuda(primfunc, TARGET))
    (launch,) = launches.values()
    assert launch.shared_bytes == 30522 * 2
    assert source[source.rindex("__global__") :].count("= *(half2*)(p0") == 6
    (primfunc,) = functions(lambda x: R.max(x, axis=[-1]), (("n", 30522), H))
    (launch,) = lower(schedule_cuda(primfunc, TARGET))[1].values()
    assert not launch.shared_bytes


def test_rows_of_several_axes_are_read_once_by_vectors() -> None:
    (primfunc,) = functions(relax_norm_of_volumes, ((8, 16, 32, 32, 32), H), ((16, 1, 1, 1), F))
    source, launches = lower(schedule_cuda(primfunc, TARGET))
    (launch,) = launches.values()
    assert [int(launch.extents[axis]) for axis in ("blockIdx.x", "threadIdx.x")] == [8 * 16, 1024]
    assert source[source.rindex("__global__") :].count("= *(uint4*)(p0") == 32 * 32 * 32 // (1024 * 8)


def test_rows_of_a_length_known_at_run_time_have_a_warp_each() -> None:
    (primfunc,) = functions(R.nn.softmax, ((2, 3, "n", "n"), H))
    source, launches = lower(schedule_cuda(primfunc, TARGET))
    (launch,) = launches.values()
    assert int(launch.extents["threadIdx.x"]) == 32
    assert "__syncthreads" not in source[source.rindex("__global__") :]
    assert "< (dim_n >> (int64_t)7)" in source


def test_products_of_few_rows_have_a_warp_for_each_element() -> None:
    (primfunc,) = functions(relax_product, ((4, 128), F), ((512, 128), F))
    _, launches = lower(schedule_cuda(primfunc, TARGET))
    (extents,) = [launch.extents for launch in launches.values()]
    assert (extents["blockIdx.x"], extents["threadIdx.y"], extents["threadIdx.x"]) == (512, 4, 32)


def test_rows_that_do_not_fill_a_warp_evenly_stay_in_registers() -> None:
    (primfunc,) = functions(R.nn.softmax, (("n", 1000), H))
    source, _ = lower(schedule_cuda(primfunc, TARGET))
    kernel = source[source.rindex("__global__") :]
    assert kernel.count("= *(uint4*)(p0") == 4
    assert "__syncthreads" not in kernel


def test_functions_of_16_bit_numbers_are_not_rounded_on_the_way() -> None:
    (primfunc,) = functions(relax_gelu, (("n", 64), H), ((64,), H))
    source, _ = lower(schedule_cuda(primfunc, TARGET))
    kernel = source[source.rindex("__global__") :]
    assert "erff" not in kernel
    assert kernel.count("((half)") == 8
    (primfunc,) = functions(relax_gelu, (("n", 64), F), ((64,), F))
    assert "erff" in lower(schedule_cuda(primfunc, TARGET))[0]


def test_erf_keeps_what_is_no_number() -> None:
    (primfunc,) = functions(R.erf, ((8,), H))
    library = tvm.compile(tvm.IRModule({"main": widen(primfunc).with_attr("global_symbol", "main")}), target="llvm")
    x = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1e-3, 3.7, -1], H)
    tensors = [tvm.runtime.tensor(x), tvm.runtime.tensor(np.zeros_like(x))]
    library["main"](*tensors)
    want = [math.erf(v) for v in x.astype(np.float64)]
    np.testing.assert_allclose(tensors[1].numpy(), np.array(want, H), rtol=1e-3)


def test_phases_are_interleaved_by_vectors() -> None:
    (primfunc,) = functions(relax_phases, ((2, 4, 6, 64), H))
    source, _ = lower(schedule_cuda(primfunc, TARGET))
    assert source.count("*(uint4*)") == 2


def test_a_lookup_reads_whole_rows() -> None:
    (primfunc,) = functions(lambda w, i: R.take(w, i, axis=0), ((30522, 768), H), (("n", 128), "int64"))
    source, _ = lower(schedule_cuda(primfunc, TARGET))
    assert "*(uint4*)(p2" in source
    assert "= *(uint4*)(p0" in source


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (lambda x, w, c: R.nn.gelu(R.add(R.matmul(x, w), c)), [(("n", 128, 768), H), ((768, 3072), H), ((3072,), H)]),
        (R.matmul, [(("n", 12, 128, 64), H), (("n", 12, 64, 128), H)]),
        (R.matmul, [(("n", 12, 128, 128), H), (("n", 12, 128, 64), H)]),
        (
            lambda x, w: R.nn.relu(R.nn.conv2d(x, w, padding=(1, 1), data_layout="NHWC", kernel_layout="OHWI")),
            [((8, 28, 28, 64), H), ((64, 3, 3, 64), H)],
        ),
    ],
    ids=["dense", "scores", "values", "conv"],
)
def test_products_of_float16_use_tensor_cores(make: Callable[..., Any], inputs: list[tuple[Shape, str]]) -> None:
    (primfunc,) = functions(make, *inputs)
    source, launches = lower(schedule_cuda(primfunc, TARGET))
    assert "mma_sync" in source
    (launch,) = launches.values()
    assert all(isinstance(launch.extents.get(axis, 1), int | tirx.IntImm) for axis in ("blockIdx.y", "blockIdx.z"))


def test_sums_of_16_bit_numbers_are_added_up_in_32() -> None:
    (primfunc,) = functions(lambda x: R.sum(x, axis=[-1]), (("n", 1000), "bfloat16"))
    root = widen(primfunc).body.block
    assert [str(buffer.dtype) for buffer in root.alloc_buffers] == ["float32"]


def test_a_product_that_is_masked_has_no_vectors_of_conditions() -> None:
    """TVM would declare them as vectors of numbers, which nvcc refuses."""

    def masked(x: Any, w: Any, length: Any) -> Any:
        return R.where(R.greater(length, relax.const(0, "int64")), R.matmul(x, w), relax.const(-1.0, "float32"))

    (primfunc,) = functions(masked, ((2, 64, 32), F), ((2, 32, 64), F), ((1,), "int64"))
    source, _ = lower(schedule_cuda(primfunc, TARGET))
    assert not re.search(r"float[24] \w+ = make_u", source)


@pytest.mark.parametrize(
    ("make", "dtypes"),
    [
        (lambda x: R.equal(x, relax.const(0, "int8")), ["int8"]),
        (R.logical_and, ["bool", "bool"]),
        (R.permute_dims, ["bool"]),
        (lambda x: R.astype(x, F), ["bool"]),
        (lambda x: R.concat([x, x], 1), ["bool"]),
        (R.where, ["bool", F, F]),
    ],
    ids=["equal", "and", "transpose", "cast", "concat", "where"],
)
def test_booleans_make_no_vectors(make: Callable[..., Any], dtypes: list[str]) -> None:
    """TVM's vectors of them have two bytes for each, memory has one."""
    (primfunc,) = functions(make, *(((64, 64), dtype) for dtype in dtypes))
    source, _ = lower(schedule_cuda(primfunc, TARGET))
    assert not re.search(r"u(short|char)[248]", source[source.rindex("__global__") :])


@pytest.mark.parametrize(("make", "shape"), [(relax_rotary, (2, 3, 5, 64)), (relax_rotary_of_rows, (2, 5, 320))])
def test_rotary_embeddings_load_vectors(make: Callable[..., Any], shape: Shape) -> None:
    """The condition that chooses the half of a row is the same for all elements of a vector."""
    (primfunc,) = functions(make, (shape, H), ((5, 64), F), ((5, 64), F))
    source, _ = lower(schedule_cuda(primfunc, TARGET))
    kernel = source[source.rindex("__global__") :]
    assert len(re.findall(r"= \*\(uint4\*\)\(p0", kernel)) == 3, "one from its own place, one of two others"
    assert not re.search(r"p0\[", kernel), "no element is loaded alone"


def test_concatenations_of_many_products_end() -> None:
    """Each is within the condition of the one before: that of PWC-Net, of 81, had no end."""

    def make(x: Any, *others: Any) -> Any:
        return R.concat([R.multiply(x, other) for other in others], 3)

    (primfunc,) = functions(make, *[((2, 3, 5, 8), H)] * 40)
    lower(schedule_cuda(primfunc, TARGET))


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (R.scatter_elements, [((64, 8), F), ((4, 8), "int64"), ((4, 8), F)]),
        (R.scatter_nd, [((64, 8), F), ((4, 1), "int64"), ((4, 8), F)]),
        (lambda x, i, u: R.scatter_nd(x, i, u, "add"), [(("n", 8), F), (("m", 1), "int64"), (("m", 8), F)]),
    ],
    ids=["elements", "nd", "add"],
)
def test_a_scatter_is_spread_over_threads(make: Callable[..., Any], inputs: list[tuple[Shape, str]]) -> None:
    (primfunc,) = functions(make, *inputs)
    scheduled = schedule_cuda(primfunc, TARGET)
    source, _ = lower(scheduled)
    kernel = source[source.rindex("__global__") :]
    assert "__syncthreads" in kernel or "pkf_f_1" in source, "updates come after the copy"
    assert "threadIdx.x) < 1)" not in kernel, "no thread does it all"
    function, *others = make_group("f", scheduled, "cuda").functions
    assert isinstance(function, Kernel)
    changed = in_place(function, 0, len(function.parameters) - 1)
    assert changed is not None
    if others:
        assert changed.kernel is None, "what copies is dropped"
    else:
        assert changed.kernel is not None
        assert len(changed.kernel.parameters) == len(function.parameters) - 1


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (R.bitwise_not, [((3, 4, 5, 6), "uint8")]),
        (relax_gated_part, [((2, 3, 5, 19), H), ((2, 3, 5, 16), H)]),
        (relax_gated_part, [(("n", 3, 5, 20), H), (("n", 3, 5, 16), H)]),
        (lambda x: R.sum(R.strided_slice(x, [2], [0], [16]), axis=[1]), [((2, 64, 19), H)]),
    ],
)
def test_what_is_not_aligned_is_no_vector(make: Callable[..., Any], inputs: list[tuple[Shape, str]]) -> None:
    """TVM writes vectors of more than four indices that nvcc refuses."""
    (primfunc,) = functions(make, *inputs)
    source, _ = lower(schedule_cuda(primfunc, TARGET))
    kernel = source[source.rindex("__global__") :]
    assert "longlong4" not in kernel
    assert "(uint4*)(p0" not in kernel
    assert ("(uint4*)(p1" in kernel) == (len(inputs) == 2)


@pytest.mark.parametrize("shape", [(4, 1000), (4, 6), (1000, 64)])
def test_a_maximum_starts_at_infinity(shape: Shape) -> None:
    """A row that a mask leaves nothing of has only infinities; threads that reduce together know this maximum, too."""
    (primfunc,) = functions(lambda x: R.max(x, axis=[-1]), (shape, F))
    source, _ = lower(schedule_cuda(primfunc, TARGET))
    kernel = source[source.rindex("__global__") :]
    assert "-CUDART_INF_F" in kernel
    assert "3.402" not in kernel


@pytest.mark.parametrize("name", ["1", "a\nb", 'x; asm("trap;"); float y', "é", "*/", "int"])
def test_parameters_may_have_any_names(name: str) -> None:
    """Variables of the kernel are named after tensors of the model, and TVM writes their names as they are."""
    (plain,) = functions(R.nn.relu, ((8,), F))
    old = plain.params[0]
    new = tirx.decl_buffer(old.shape, old.dtype, name, elem_offset=old.elem_offset)
    body = structural_map(plain.body, (tirx.Var, lambda var: new if var.same_as(old) else var))
    named = tirx.PrimFunc([new, plain.params[1]], body).with_attrs(dict(plain.attrs))
    sources = [lower(schedule_cuda(primfunc, TARGET))[0] for primfunc in (plain, named)]
    expected, found = (
        re.split(r"\w+_local_ptr", source[source.rindex("__global__") :], flags=re.A) for source in sources
    )
    assert len(found) > 1
    assert found == expected


def test_threads_hold_what_there_is_room_for() -> None:
    """As where TVM lets each thread hold its part of all rows that may be chosen."""
    sch = schedule_of(functions(R.nn.relu, ((64, 1024), F))[0])
    (block,) = blocks(sch)
    held = sch.cache_read(block, 0, "local")
    for each in (held, block):
        sch.bind(sch.get_loops(each)[0] if each is block else sch.add_unit_loop(each), "blockIdx.x")
    with pytest.raises(BackendError, match="would hold 262144 bytes"):
        lower(sch.mod["main"])


def test_threads_exchange_nothing_by_their_registers() -> None:
    """dlight's product of a vector, for a batch that is not the first axis, mixes up the axes of the result."""
    (primfunc,) = functions(lambda x, w: R.nn.conv1d(x, w, groups=4), ((2, 4, 4), F), ((4, 1, 4), F))
    wrong = dlight.gpu.GEMV().apply(primfunc, tvm.target.Target({"kind": "cuda", "arch": "sm_80"}), False)
    with pytest.raises(BackendError, match="through registers"):
        lower(wrong.mod["main"])
    with pytest.raises(ScheduleError):
        schedule_matmul(primfunc)
    lower(schedule_cuda(primfunc, TARGET))


def test_infinities_of_bfloat16_are_float32() -> None:
    (primfunc,) = functions(lambda x: R.nn.pad(x, [0, 3], pad_value=-math.inf), ((61,), "bfloat16"))
    source, _ = lower(schedule_cuda(primfunc, TARGET))
    assert "inff" not in source
    assert "CUDART_INF_F" in source[source.rindex("__global__") :]


def test_copies_keep_16_bits() -> None:
    (primfunc,) = functions(lambda x, y: R.concat([x, y], axis=0), (("n", 8), H), (("n", 8), H))
    assert "float32" not in widen(primfunc).script()


@pytest.mark.parametrize("make", [lambda x: R.argmax(x, 1), lambda x: R.sum(R.permute_dims(x))])
def test_what_no_rule_looks_at_is_bound_to_threads_all_the_same(make: Callable[..., Any]) -> None:
    """argmax reduces two values at once; a sum of everything keeps no column."""
    for primfunc in functions(make, ((64, 100), F)):
        lower(schedule_cuda(primfunc, TARGET))


@pytest.mark.parametrize("shape", [(60_000,), (8, 64, 100), ("n", 100)])
def test_a_mean_of_everything_is_shared_by_threads(shape: tuple[Any, ...]) -> None:
    """What divides the sum has no loop: one thread added up everything."""
    (primfunc,) = functions(R.mean, (shape, F))
    source, _ = lower(schedule_cuda(primfunc, TARGET))
    assert "__shfl_down_sync" in source


def test_a_reduction_that_nothing_reads_is_computed_once() -> None:
    """A weight of zero leaves a pooling that nothing reads: each thread block computed all of it, in 123 ms."""

    def weighted(x: Any, y: Any) -> Any:
        return R.add(R.multiply(R.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1), layout="NHWC"), relax.const(0.0, F)), y)

    (primfunc,) = functions(weighted, ((2, 32, 32, 64), F), ((2, 16, 16, 64), F))
    scheduled = schedule_cuda(primfunc, TARGET)
    lower(scheduled)
    sch = schedule_of(scheduled)
    elements = 2 * 16 * 16 * 64
    assert all(math.prod(extents(sch, sch.get_loops(block))) <= 64 * elements for block in blocks(sch))


def test_a_mistake_in_a_rule_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(_primfunc: Any) -> Any:
        raise IndexError("a mistake")

    monkeypatch.setattr("packager.lower.cuda.schedule._RULES", (wrong,))
    (primfunc,) = functions(R.nn.relu, ((8,), F))
    with pytest.raises(IndexError, match="a mistake"):
        schedule_cuda(primfunc, TARGET)
