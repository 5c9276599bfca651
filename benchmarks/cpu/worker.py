"""Runs a model in torch, IREE or OpenVINO when it is told to: c/serve.c for engines that are driven from Python.

python -m benchmarks.cpu.worker torch MODEL_NAME MODEL.onnx -t THREADS -i NAME:DTYPE:SHAPE FILE -o NAME:DTYPE:SHAPE FILE
python -m benchmarks.cpu.worker iree MODEL_NAME MODEL.vmfb ...
python -m benchmarks.cpu.worker openvino MODEL_NAME MODEL.onnx ...
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

PR_SET_PDEATHSIG = 1
Run = Callable[[], object]
Fetch = Callable[[object], Sequence[np.ndarray]]


def start_torch(name: str, path: Path, inputs: Sequence[np.ndarray], threads: int) -> tuple[Run, Fetch]:
    """torch.compile with weights as constants, which lets it pack them."""
    import torch
    import torch._inductor.config

    from benchmarks.cpu.torch_models import module_of

    torch.set_num_threads(threads)
    torch._inductor.config.freezing = True
    torch.set_grad_enabled(False)
    module = torch.compile(module_of(name, path))
    given = [torch.from_numpy(array) for array in inputs]
    module(*given)  # compiles
    return lambda: module(*given), lambda result: [result.numpy()]


def start_iree(_: str, path: Path, inputs: Sequence[np.ndarray], threads: int) -> tuple[Run, Fetch]:
    """A module on IREE's synchronous device for one thread, else on that with a pool; called as directly as can be."""
    from iree import runtime

    if threads > 1:
        runtime.flags.parse_flags(f"--task_topology_group_count={threads}")
    device = runtime.get_device("local-sync" if threads == 1 else "local-task")
    instance = runtime.VmInstance()
    hal = runtime.create_hal_module(instance, device)
    module = runtime.VmModule.mmap(instance, str(path))
    context = runtime.VmContext(instance, [hal, module])
    (function,) = [module.lookup_function(n) for n in module.function_names if not n.startswith("__") and "$" not in n]
    arrays = [runtime.asdevicearray(device, array) for array in inputs]
    arguments = runtime.VmVariantList(len(arrays))
    for array in arrays:
        arguments.push_ref(array._buffer_view)

    def run() -> object:
        results = runtime.VmVariantList(1)
        context.invoke(function, arguments, results)
        return results

    def fetch(results: object) -> list[np.ndarray]:
        view = results.get_as_ref(0).deref(runtime.HalBufferView)
        return [runtime.DeviceArray(device, view, implicit_host_transfer=True).to_host()]

    return run, fetch


def start_openvino(_: str, path: Path, inputs: Sequence[np.ndarray], threads: int) -> tuple[Run, Fetch]:
    """A compiled model in float32 for one stream; inputs and outputs stay where they are."""
    import openvino

    options = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "ENABLE_CPU_PINNING": False,  # the cores are those that all engines share
    }
    request = openvino.Core().compile_model(str(path), "CPU", options).create_infer_request()
    for index, array in enumerate(inputs):
        request.set_input_tensor(index, openvino.Tensor(array, shared_memory=True))
    count = len(request.model_outputs)

    def fetch(_: object) -> list[np.ndarray]:
        return [request.get_output_tensor(index).data for index in range(count)]

    return request.infer, fetch


STARTS = {"torch": start_torch, "iree": start_iree, "openvino": start_openvino}


def main() -> int:
    """Load, run once, and answer."""
    parser = argparse.ArgumentParser(description="Runs a model in an engine that is driven from Python.")
    parser.add_argument("engine", choices=STARTS)
    parser.add_argument("name")
    parser.add_argument("path", type=Path)
    parser.add_argument("-t", dest="threads", type=int, default=1)
    parser.add_argument("-i", dest="inputs", nargs=2, action="append", default=[])
    parser.add_argument("-o", dest="outputs", nargs=2, action="append", default=[])
    arguments = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # who started it may be killed while it is stopped
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what engines print is not an answer
    inputs = []
    for spec, file in arguments.inputs:
        _, dtype, shape = spec.rsplit(":", 2)
        inputs.append(np.fromfile(file, dtype).reshape([int(extent) for extent in shape.split(",")]))
    start = time.perf_counter_ns()
    run, fetch = STARTS[arguments.engine](arguments.name, arguments.path, inputs, arguments.threads)
    loaded = time.perf_counter_ns()
    result = run()
    end = time.perf_counter_ns()
    for (_, file), array in zip(arguments.outputs, fetch(result), strict=True):
        Path(file).write_bytes(np.ascontiguousarray(array).tobytes())
    print("ready", 0, loaded - start, end - loaded, file=answers, flush=True)
    for line in sys.stdin:
        warmup, samples, calls = map(int, line.split()[1:])
        print(*measure(run, warmup, samples, calls), file=answers, flush=True)
    return 0


def measure(run: Run, warmup: int, samples: int, calls: int) -> list[int]:
    """Return nanoseconds of so many calls in a row, for each sample."""
    for _ in range(warmup):
        run()
    taken = []
    for _ in range(samples):
        start = time.perf_counter_ns()
        for _ in range(calls):
            run()
        taken.append(time.perf_counter_ns() - start)
    return taken


if __name__ == "__main__":
    sys.exit(main())
