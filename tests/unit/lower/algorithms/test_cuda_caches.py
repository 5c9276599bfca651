"""Steps of decoders write to caches what one kernel computes, on GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from tvm import relax

from packager.graph.dataflow import bindings_of, called_function
from packager.graph.rewrite import apply
from packager.lower.cuda.schedule import schedule_cuda
from packager.lower.devices import DEVICES
from packager.lower.lowering import FLATTEN, FUSE
from packager.transforms.simplify.narrow_indices import narrow_indices
from tests.unit.lower.algorithms.test_cuda_algorithms import runs
from tests.unit.lower.test_schedule_cuda import TARGET, lower

HEADS, DEPTH, LENGTH, STEPS = 3, 16, 20, 2
R = relax.op


def step(builder: relax.BlockBuilder, x: Any, cos: Any, sin: Any, at: Any, cache: Any) -> Any:
    """Turn keys that lie between others, and put them at places of a cache."""
    emit = builder.emit
    own = emit(R.strided_slice(x, [2], [HEADS * DEPTH], [2 * HEADS * DEPTH]))
    keys = emit(R.permute_dims(emit(R.reshape(own, (1, STEPS, HEADS, DEPTH))), (0, 2, 1, 3)))
    first = emit(R.strided_slice(keys, [3], [0], [DEPTH // 2]))
    second = emit(R.strided_slice(keys, [3], [DEPTH // 2], [DEPTH]))
    turned = emit(R.concat([emit(R.negative(second)), first], 3))
    rotated = emit(R.add(emit(R.multiply(keys, cos)), emit(R.multiply(turned, sin))))
    index = emit(R.broadcast_to(emit(R.reshape(at, (1, 1, STEPS, 1))), (1, HEADS, STEPS, DEPTH)))
    return emit(R.scatter_elements(cache, index, rotated, 2, "update"))


def test_a_cache_gets_rotated_keys_by_one_function() -> None:
    shapes = [(1, STEPS, 3 * HEADS * DEPTH), (STEPS, DEPTH), (STEPS, DEPTH), (STEPS,), (1, HEADS, LENGTH, DEPTH)]
    kinds = ["float32", "float32", "float32", "int64", "float32"]
    builder = relax.BlockBuilder()
    parameters = [
        relax.Var(f"p{number}", relax.TensorType(*ty)) for number, ty in enumerate(zip(shapes, kinds, strict=True))
    ]
    with builder.function("main", parameters):
        with builder.dataflow():
            result = builder.emit_output(step(builder, *parameters))
        builder.emit_func_output(result)
    module = apply([*DEVICES["cuda"].legalize, *FUSE, *FLATTEN], narrow_indices(builder.finalize()))
    called = [called_function(binding.value) or "" for binding in bindings_of(module["main"])]
    (name,) = [each for each in called if each]
    (function,) = [function for variable, function in module.functions.items() if variable.name_hint == name]
    _, launches = lower(schedule_cuda(function, TARGET))
    assert len(launches) == 2, "the copy of the cache, which is none in place, and what is put there"

    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(shape).astype("float32") for shape in shapes]
    arrays[3] = np.array([17, -19])
    x, cos, sin, at, cache = arrays
    keys = x[..., HEADS * DEPTH : 2 * HEADS * DEPTH].reshape(1, STEPS, HEADS, DEPTH).transpose(0, 2, 1, 3)
    turned = np.concatenate([-keys[..., DEPTH // 2 :], keys[..., : DEPTH // 2]], -1)
    expected = cache.copy()
    expected[:, :, at] = keys * cos + turned * sin
    np.testing.assert_allclose(runs(module)(*arrays)[0], expected, rtol=1e-6, atol=1e-6)
