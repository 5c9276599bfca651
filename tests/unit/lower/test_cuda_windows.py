"""Windows of images that are shifted and shifted back, as Swin Transformers have them, with what is added to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
import tvm
from tvm import relax

from packager.lower.cuda.schedule import schedule_cuda
from tests.unit.lower.test_schedule_cuda import TARGET, functions, in_shapes_of, lower, serial

R = relax.op
WINDOW = 7


def windows_back(batch: int, channels: int, side: int) -> Any:
    """Return the function of windows [batch windows, 7, 7, channels] and a residual [batch, pixels, channels]."""

    def make(windows: Any, residual: Any) -> Any:
        count = side // WINDOW
        image = R.reshape(windows, (batch, count, count, WINDOW, WINDOW, channels))
        image = R.reshape(R.permute_dims(image, [0, 1, 3, 2, 4, 5]), (batch, side, side, channels))
        for axis in (1, 2):
            last = R.strided_slice(image, [axis], [side - 3], [side])
            image = R.concat([last, R.strided_slice(image, [axis], [0], [side - 3])], axis)
        return R.add(residual, R.reshape(image, (batch, side * side, channels)))

    return make


def numpy_windows_back(windows: np.ndarray, residual: np.ndarray, batch: int, side: int) -> np.ndarray:
    count = side // WINDOW
    image = windows.reshape(batch, count, count, WINDOW, WINDOW, -1).transpose(0, 1, 3, 2, 4, 5)
    return residual + np.roll(image.reshape(batch, side, side, -1), (3, 3), (1, 2)).reshape(residual.shape)


@pytest.mark.parametrize(("batch", "channels", "side"), [(1, 192, 28), (1, 24, 28), (2, 96, 14), (1, 96, 14)])
def test_windows_that_are_shifted_back(batch: int, channels: int, side: int) -> None:
    shapes = [(batch * (side // WINDOW) ** 2, WINDOW, WINDOW, channels), (batch, side * side, channels)]
    (primfunc,) = functions(windows_back(batch, channels, side), *((shape, "float16") for shape in shapes))
    scheduled = schedule_cuda(primfunc, TARGET)
    lower(scheduled)
    generator = np.random.default_rng(0)
    arrays = [generator.integers(-99, 99, shape).astype("float16") for shape in shapes]
    result = np.full_like(arrays[1], np.nan)
    tensors = [tvm.runtime.tensor(a) for a in in_shapes_of(scheduled, (*arrays, result))]
    tvm.compile(tvm.IRModule({"main": serial(scheduled).with_attr("global_symbol", "main")}), "llvm")["main"](*tensors)
    want = numpy_windows_back(*arrays, batch, side)
    np.testing.assert_array_equal(tensors[-1].numpy().reshape(want.shape), want)
