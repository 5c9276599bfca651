"""What GPU schedules do where TVM cannot prove or write something."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te, tirx

from packager.ir.primitives import Kernel
from packager.lower import sorting
from packager.lower.cuda.compound_extents import name_extents
from packager.lower.cuda.kernels import TRIAL_GPU, lower_cuda_kernels
from packager.lower.cuda.plain import schedule_plain
from packager.lower.devices import DEVICES
from packager.lower.kernels import make_group
from packager.lower.lowering import _make_kernels
from tests.unit.lower.algorithms.test_cuda_algorithms import legalized


def softmax() -> tirx.PrimFunc:
    """Return a softmax of ``[n, 4, 8, (h - 1) // 32 * 4 + 4]`` over its third axis."""
    n, h = tirx.Var("n", "int64"), tirx.Var("h", "int64")
    compound = tirx.floordiv(h - 1, 32) * 4 + 4
    x = te.placeholder((n, 4, 8, compound), "float32", name="x")
    k, j = te.reduce_axis((0, 8), name="k"), te.reduce_axis((0, 8), name="j")
    most = te.compute((n, 4, compound), lambda a, b, d: te.max(x[a, b, k, d], axis=k), name="most")
    exp = te.compute(x.shape, lambda a, b, c, d: te.exp(x[a, b, c, d] - most[a, b, d]), name="exp")
    total = te.compute((n, 4, compound), lambda a, b, d: te.sum(exp[a, b, j, d], axis=j), name="total")
    result = te.compute(x.shape, lambda a, b, c, d: exp[a, b, c, d] / total[a, b, d] * 2, name="result")
    return te.create_prim_func([x, h, result])


def source(kernels: Any) -> str:
    """Return the CUDA C++ of kernels."""
    module, _ = lower_cuda_kernels(kernels, TRIAL_GPU)
    return str(tvm.get_global_func("target.build.cuda")(module, TRIAL_GPU).inspect_source())


def test_compound_extents_become_variables() -> None:
    function = name_extents(softmax())
    shapes = [parameter.shape for parameter in function.params if hasattr(parameter, "shape") and parameter.shape]
    assert all(isinstance(extent, tirx.Var | tirx.IntImm) for shape in shapes for extent in shape)
    assert shapes[0][3].same_as(shapes[1][3])
    assert isinstance(_make_kernels("softmax", softmax(), DEVICES["cuda"]).functions[0], Kernel)


def test_every_block_can_be_scheduled_on_its_own() -> None:
    group = make_group("softmax", schedule_plain(softmax()), "cuda")
    assert source(group.functions).count("blockIdx.x") >= len(group.functions) >= 3


def test_threads_that_exchange_through_memory_do_not_keep_what_they_loaded() -> None:
    one = tirx.IntImm("int64", 1)
    sizes = [
        [one, tirx.IntImm("int64", 70), tirx.IntImm("int64", 4)],
        [one, one, tirx.IntImm("int64", 70)],
        [one],
        [one],
    ]
    (function,) = legalized(
        lambda *given: sorting.non_max_suppression(*given, tirx.IntImm("int64", 9), False, 70),
        *(tvm.relax.TensorType(size, "float32") for size in sizes),
    )[1]
    kernels = _make_kernels("suppress", function, DEVICES["cuda"]).functions
    texts = [text for text in source(kernels).split('extern "C"') if "{" in text]
    exchanging = [text for text in texts if "__syncthreads" in text]
    assert exchanging
    assert not any("__restrict__" in text for text in exchanging)
    assert any("__restrict__" in text for text in texts)
