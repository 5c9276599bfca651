"""The steps of lowering that differ per device: layout passes, schedules, and a trial lowering of each schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm.s_tir import dlight

from packager.ir.primitives import Kernel
from packager.lower.cpu.kernels import lower_kernels
from packager.lower.cpu.pack_weights import pack_weights
from packager.lower.cpu.schedule import schedule as schedule_cpu
from packager.lower.cuda.codegen_workarounds import name_parameters
from packager.lower.cuda.kernels import lower_cuda_kernels
from packager.lower.cuda.schedule import schedule_cuda
from packager.lower.legalize.accumulate import accumulate_in_float32
from packager.transforms.layout.channels_last import to_channels_last

# Whether a schedule lowers does not depend on the CPU level or the GPU architecture.
TRIAL_CPU = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3"})
TRIAL_GPU = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})


@dataclass(frozen=True)
class Device:
    """The device-specific steps of lowering.

    ``change_layouts(module, num_inputs)`` runs before weights are folded. ``schedules`` are tried in order until
    ``try_lower`` accepts the kernels.
    """

    name: str
    change_layouts: Callable[[tvm.IRModule, int], tvm.IRModule]
    schedules: tuple[Callable[[Any], Any], ...]
    try_lower: Callable[[Sequence[Kernel]], object]


def _one_element_per_thread(primfunc: Any) -> Any:
    with TRIAL_GPU:
        module = tvm.IRModule({"main": name_parameters(primfunc)})
        return dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())(module)["main"]


def device_named(name: str) -> Device:
    """Return the device ``cpu`` or ``cuda``."""
    return _DEVICES[name]


_DEVICES = {
    "cpu": Device(
        "cpu",
        lambda module, num_inputs: pack_weights(accumulate_in_float32(module), num_inputs),
        (schedule_cpu, lambda unscheduled: unscheduled),
        lambda kernels: lower_kernels(tuple(kernels), TRIAL_CPU),
    ),
    "cuda": Device(
        "cuda",
        lambda module, _num_inputs: to_channels_last(accumulate_in_float32(module)),
        (lambda primfunc: schedule_cuda(name_parameters(primfunc), TRIAL_GPU), _one_element_per_thread),
        lambda kernels: lower_cuda_kernels(kernels, TRIAL_GPU),
    ),
}
