"""Normalization along other axes than the last one, as GPUs run it: reductions of rows and an elementwise function, or
groups of channels that registers hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from packager.graph.normalize import Normalization, normalize
from packager.lower.cuda.schedule import schedule_cuda
from tests.unit.lower.algorithms.test_cuda_algorithms import legalized, runs
from tests.unit.lower.test_schedule_cuda import (
    TARGET,
    functions,
    in_shapes_of,
    layer_norm,
    lower,
    relax_layer_norm,
    serial,
    softmax,
)


def numpy_dtype(name: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def normalized(x: np.ndarray, attributes: Normalization) -> np.ndarray:
    """Return what numpy computes in double precision."""
    wide, axes = x.astype(np.float64), attributes.axes
    channel = attributes.channel_axis
    if channel is not None:
        split = (attributes.groups, x.shape[channel] // attributes.groups)
        wide = wide.reshape(*x.shape[:channel], *split, *x.shape[channel + 1 :])
        axes = (*(axis + (axis > channel) for axis in axes), channel + 1)
    if attributes.centered:
        wide = wide - wide.mean(axes, keepdims=True)
    result: np.ndarray = wide / np.sqrt((wide**2).mean(axes, keepdims=True) + attributes.epsilon)
    return result.reshape(x.shape)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "attributes", "dtype"),
    [
        ((2, 700, 64), Normalization((1,), 1e-5), "float16"),
        ((2, 700, 64), Normalization((1,), 1e-5, centered=False), "float16"),
        ((3, 1599, 33), Normalization((1,), 1e-3), "float32"),
        # Groups of which many thread blocks have parts, and one with channels that no block has all of.
        ((2, 81, 97, 60), Normalization((1, 2), 1e-5, 3, 6), "float16"),
        ((1, 9, 6151, 6), Normalization((1, 2), 1e-5, 3, 3), "float32"),
        ((3, 41, 41, 64), Normalization((1, 2), 1e-5, 3, 32, centered=False), "bfloat16"),
        ((1, 2000, 4608), Normalization((1,), 1e-5, 2, 9), "float16"),
        # Groups that no whole warps divide.
        ((2, 9, 11, 60), Normalization((1, 2), 1e-5, 3, 6), "float16"),
        ((2, 7, 7, 40), Normalization((1, 2), 1e-5, 3, 8, centered=False), "float32"),
        ((3, 5, 4, 6, 24), Normalization((1, 2, 3), 1e-5, 4, 4), "float16"),
        ((2, 12, 7, 5), Normalization((2, 3), 1e-5, 1, 4), "float32"),
        ((2, 24, 300), Normalization((2,), 1e-5, 1, 6), "float16"),
        ((1, 2000, 4606), Normalization((1,), 1e-5, 2, 2), "float32"),
        ((2, 33, 48), Normalization((1,), 1e-5, 2, 48), "float32"),
        ((3, 4, 5, 6, 7), Normalization((1, 2, 3), 1e-5, 4, 7), "float32"),
        ((1, 96, 96, 320), Normalization((1, 2), 1e-5, 3, 32), "float16"),
        ((2, 48, 9, 12), Normalization((1,), 1e-6), "float16"),
        ((2, 70, 5, 8), Normalization((1,), 1e-6, centered=False), "float32"),
        ((2, 3, 512 * 195), Normalization((2,), 1e-5), "float16"),  # few long rows
        ((1, 640, 12, 14), Normalization((1, 2, 3), 1e-5), "float32"),
    ],
)
def test_columns_are_normalized(shape: tuple[int, ...], attributes: Normalization, dtype: str) -> None:
    module, primfuncs = legalized(lambda x: normalize(x, attributes), relax.TensorType(shape, dtype))
    assert len(primfuncs) > 1, "reductions and an elementwise function"
    functions: dict[Any, Any] = dict(module.functions.items())
    for variable, function in functions.items():
        if isinstance(function, tirx.PrimFunc):
            scheduled = schedule_cuda(function, TARGET)
            lower(scheduled)
            # Elementwise functions may see their parameters in other shapes, which their callers here do not. Threads
            # of a CPU do not wait for each other: loops that are distributed over them run one after the other.
            kept = [str(p.shape) for p in scheduled.params] == [str(p.shape) for p in function.params]
            kept = kept and "storage_sync" not in scheduled.script()
            functions[variable] = serial(scheduled if kept else function).with_attr("global_symbol", variable.name_hint)
    machine = relax.VirtualMachine(tvm.compile(tvm.IRModule(functions), "llvm"), tvm.cpu())
    # Far from zero: the difference of the mean of squares and the square of the mean would have few digits left.
    x = (np.random.default_rng(0).standard_normal(shape) + 30).astype(numpy_dtype(dtype))
    got = machine["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(got.reshape(shape), normalized(x, attributes), atol=2e-5, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 512, 1024, 1536])
def test_one_outlier_does_not_cost_digits(place: int) -> None:
    """Of statistics of parts: the distances to the outlier would all be large."""
    module, _ = legalized(
        lambda x: normalize(x, Normalization((1,), 1e-9, 2, 2)), relax.TensorType((1, 2048, 64), "float32")
    )
    x = np.random.default_rng(0).standard_normal((1, 2048, 64)).astype("float32") * 1e-3
    x[0, place, [0, 32]] = 100
    (got,) = runs(module)(x)
    np.testing.assert_allclose(got, normalized(x, Normalization((1,), 1e-9, 2, 2)), rtol=2e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "attributes", "dtype", "threads"),
    [
        ((2, 8, 12, 60), Normalization((1, 2), 1e-5, 3, 6), "float16", 96),
        ((1, 36, 36, 1024), Normalization((1, 2), 1e-5, 3, 32), "float16", 864),
        ((4, 32, 32, 128), Normalization((1, 2), 1e-5, 3, 32), "float16", 512),
        ((2, 16, 16, 512), Normalization((1, 2), 1e-5, 3, 32), "bfloat16", 512),
        ((2, 8, 8, 64), Normalization((1, 2), 1e-5, 3, 32), "float32", 32),
        ((2, 14, 14, 64), Normalization((1, 2), 1e-5, 3, 8, centered=False), "float32", 224),
        ((3, 4, 4, 6, 24), Normalization((1, 2, 3), 1e-5, 4, 4), "float16", 32),
        ((2, 128, 32, 32), Normalization((2, 3), 1e-5, 1, 32), "float16", 512),
        ((2, 12, 8, 7), Normalization((2, 3), 1e-5, 1, 4), "float32", 8),
        ((2, 24, 320), Normalization((2,), 1e-5, 1, 6), "float16", 160),
        (("n", 4, 4, 32), Normalization((1, 2), 1e-5, 3, 8), "float16", 16),
    ],
)
def test_a_thread_block_normalizes_a_group_and_ends_it(
    shape: tuple[Any, ...], attributes: Normalization, dtype: str, threads: int
) -> None:
    """GroupNorm, a scale of each channel, a residual connection and SiLU are one kernel, in both layouts."""
    channel = attributes.channel_axis or 0
    scales = [shape[channel], *[1] * (len(shape) - 1 - channel)]

    def block(x: Any, scale: Any, other: Any) -> Any:
        scaled = relax.op.multiply(relax.op.astype(normalize(x, attributes), "float32"), scale)
        return relax.op.nn.silu(relax.op.add(scaled, relax.op.astype(other, "float32")))

    (primfunc,) = functions(block, (shape, dtype), (scales, "float32"), (shape, dtype))
    scheduled = schedule_cuda(primfunc, TARGET)
    (launch,) = lower(scheduled)[1].values()
    assert int(launch.extents["threadIdx.x"]) == threads
    generator, known = np.random.default_rng(0), [3 if extent == "n" else extent for extent in shape]
    x, other = ((generator.standard_normal(known) + 30).astype(numpy_dtype(dtype)) for _ in range(2))
    scale = generator.standard_normal(scales).astype("float32")
    tensors = [tvm.runtime.tensor(a) for a in (x, scale, other, np.full(known, np.nan, "float32"))]
    tvm.compile(tvm.IRModule({"main": serial(scheduled).with_attr("global_symbol", "main")}), "llvm")["main"](*tensors)
    added = normalized(x.astype("float64"), attributes) * scale + other.astype("float64")
    # One thread adds up all elements here, one after the other, each of about 30.
    atol = max(2e-5, 1.5e-8 * np.prod(known) / known[0] / attributes.groups)
    np.testing.assert_allclose(tensors[-1].numpy(), added / (1 + np.exp(-added)), rtol=1e-5, atol=atol)


def gated_norm(x: np.ndarray, scale: np.ndarray, shift: np.ndarray, gate: np.ndarray) -> np.ndarray:
    return layer_norm(x, scale, shift) * gate


def relax_gated_norm(x: Any, scale: Any, shift: Any, gate: Any) -> Any:
    return relax.op.multiply(relax_layer_norm(x, scale, shift), gate)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "expected", "shapes", "together"),
    [
        (relax_layer_norm, layer_norm, [(2, 6, 10, 64), (64,), (64,)], 16),
        (relax_layer_norm, layer_norm, [(2, 3, 9, 24), (24,), (24,)], 32),
        (relax_layer_norm, layer_norm, [(1, 3, 9, 16), (16,), (16,)], 32),
        (relax_layer_norm, layer_norm, [("n", 6, 10, 8), (8,), (8,)], 30),
        (relax_layer_norm, layer_norm, [(2, 2, 3, 5, 96), (96,), (96,)], 8),
        (relax.op.nn.softmax, softmax, [(2, 3, 4, 17, 49)], 4),
        (relax.op.nn.softmax, softmax, [(2, 3, 197, 197)], 4),
        # The gate of an image is side by side with nothing, its pixels are merged.
        (relax_gated_norm, gated_norm, [(2, 6, 10, 64), (64,), (64,), (2, 1, 1, 64)], 15),
        (relax_gated_norm, gated_norm, [(2, 6, 10, 64), (64,), (64,), (1, 6, 1, 64)], 10),
        # Of a number without such divisors: the last block is guarded.
        (relax_gated_norm, gated_norm, [(2, 3, 49, 32), (32,), (32,), (1, 3, 1, 32)], 49),
        (relax_gated_norm, gated_norm, [(2, 3, 577, 64), (64,), (64,), (1, 3, 1, 64)], 16),
    ],
)
def test_rows_of_images_share_thread_blocks(
    make: Callable[..., Any], expected: Callable[..., Any], shapes: list[Any], together: int
) -> None:
    """Rows of several axes that do not divide each other, as those of images and of windows."""
    (primfunc,) = functions(make, *((shape, "float16") for shape in shapes))
    scheduled = schedule_cuda(primfunc, TARGET)
    (launch,) = lower(scheduled)[1].values()
    assert int(launch.extents["threadIdx.y"]) == together
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal([3 if e == "n" else e for e in shape]).astype("float16") for shape in shapes]
    tensors = [tvm.runtime.tensor(a) for a in in_shapes_of(scheduled, (*arrays, np.full_like(arrays[0], np.nan)))]
    tvm.compile(tvm.IRModule({"main": serial(scheduled).with_attr("global_symbol", "main")}), "llvm")["main"](*tensors)
    want = expected(*(array.astype(np.float64) for array in arrays))
    np.testing.assert_allclose(tensors[-1].numpy().reshape(want.shape), want, rtol=2e-3, atol=4e-3)
