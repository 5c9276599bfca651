"""Runs engines in a CUDA graph by enqueueV3, without a bundle: a script for a Python that has TensorRT's module.

``worker.py ENGINE...`` captures one execution of each engine, in order, in one graph. It prints "ready", and
then, for each number that it reads, the mean microseconds of so many launches. Inputs are random, weights are the
engines'. Runs in Python 3.8 and later.
"""

import ctypes
import random
import struct
import sys
from pathlib import Path
from typing import Any

import tensorrt

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_VALUES = 1 << 14  # random ones, repeated
# struct's format and the bytes of an element
_FORMATS = {"FLOAT": ("f", 4), "HALF": ("e", 2), "INT32": ("i", 4), "INT64": ("q", 8), "BOOL": ("?", 1)}


class Driver:
    """The CUDA driver with the primary context of GPU 0. Raises RuntimeError where a call fails."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        context = ctypes.c_void_p()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self("cuCtxSetCurrent", context)

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a function."""
        status = getattr(self.library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: error {status}")

    def made(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        """Return the handle that a function writes through its first argument."""
        handle = ctypes.c_void_p()
        self(name, ctypes.byref(handle), *arguments)
        return handle


def contents(kind: str, elements: int) -> bytes:
    """Return random elements: floats about zero, small integers."""
    letter, size = _FORMATS[kind]
    count = min(elements, _VALUES)
    numbers = [random.gauss(0, 1) if letter in "fe" else random.randrange(2) for _ in range(count)]
    data = struct.pack(f"{count}{letter}", *numbers)
    return (data * -(-elements // count))[: elements * size]


def add_execution(driver: Driver, path: str, kept: "list[Any]") -> None:
    """Make an execution context of an engine with tensors, and keep it with what it needs."""
    runtime = tensorrt.Runtime(tensorrt.Logger(tensorrt.Logger.ERROR))
    engine = runtime.deserialize_cuda_engine(Path(path).read_bytes())
    context = engine.create_execution_context()
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        elements = 1
        for extent in engine.get_tensor_shape(name):
            elements *= extent
        data = contents(engine.get_tensor_dtype(name).name, elements)
        memory = driver.made("cuMemAlloc_v2", ctypes.c_size_t(max(len(data), 1)))
        driver("cuMemcpyHtoD_v2", memory, data, ctypes.c_size_t(len(data)))
        context.set_tensor_address(name, memory.value)
    kept += [runtime, engine, context]


def main() -> None:
    """Capture, then measure whenever asked."""
    random.seed(0)
    driver = Driver()
    stream = driver.made("cuStreamCreate", 1)
    kept: list[Any] = []
    for path in sys.argv[1:]:
        add_execution(driver, path, kept)
    contexts = kept[2::3]

    def execute() -> None:
        for context in contexts:
            if not context.execute_async_v3(stream.value):
                raise RuntimeError("enqueueV3 has failed")

    execute()  # the first does what cannot be captured
    driver("cuStreamSynchronize", stream)
    driver("cuStreamBeginCapture_v2", stream, _RELAXED)
    execute()
    graph = ctypes.c_void_p()
    driver("cuStreamEndCapture", stream, ctypes.byref(graph))
    launched = driver.made("cuGraphInstantiateWithFlags", graph, ctypes.c_ulonglong(0))
    start, end = driver.made("cuEventCreate", 0), driver.made("cuEventCreate", 0)
    print("ready", flush=True)
    for line in sys.stdin:
        count = int(line)
        driver("cuEventRecord", start, stream)
        for _ in range(count):
            driver("cuGraphLaunch", launched, stream)
        driver("cuEventRecord", end, stream)
        driver("cuEventSynchronize", end)
        passed = ctypes.c_float()
        driver("cuEventElapsedTime", ctypes.byref(passed), start, end)
        print(passed.value * 1e3 / count, flush=True)


if __name__ == "__main__":
    main()
