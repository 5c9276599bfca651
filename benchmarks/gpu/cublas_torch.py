"""What benchmarks.gpu.cublas does by torch: tensors on the device, the same products, and times by events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.cublas_cases import linear_weights, mlp_weights
from benchmarks.gpu.torch_models import captured

TURNS, MILLISECONDS = 40, 2.0


def device_inputs(bundle: Any) -> dict[str, Any]:
    """Return random inputs of a bundle's static shapes, on the device."""
    found = {}
    for tensor in bundle.inputs:
        if tensor.dtype == "int64":
            found[tensor.name] = torch.randint(0, 30522, tuple(tensor.shape), device="cuda")
        else:
            found[tensor.name] = torch.randn(*tensor.shape, device="cuda").to(getattr(torch, tensor.dtype))
    return found


def device_outputs(bundle: Any) -> dict[str, Any]:
    """Return room for a bundle's outputs, on the device."""
    return {t.name: torch.empty(*t.shape, device="cuda", dtype=getattr(torch, t.dtype)) for t in bundle.outputs}


def torch_graph(name: str, given: Mapping[str, Any]) -> Callable[[], Any] | None:
    """Return a model's run by torch under a CUDA graph; it calls the same library."""
    if name not in ("linear", "mlp"):
        return None
    weights = linear_weights() if name == "linear" else mlp_weights()
    # As torch.nn.Linear has them: [out, in].
    w = {key: torch.from_numpy(np.ascontiguousarray(array.T)).cuda() for key, array in weights.items()}
    x = given["x"]

    def linear() -> Any:
        return torch._addmm_activation(w["b"], x, w["w"].t(), use_gelu=False)  # bias and ReLU by cuBLASLt

    def mlp() -> Any:
        functional = torch.nn.functional
        gate, up = functional.linear(x, w["gate"]), functional.linear(x, w["up"])
        return functional.linear(functional.silu(gate) * up, w["down"])

    return captured(linear if name == "linear" else mlp)


def in_turns(runs: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """Return the least and median microseconds of a run, as ``turns_of`` measures it."""
    found = turns_of(runs)
    return {name: {"least": round(min(t), 2), "median": round(float(np.median(t)), 2)} for name, t in found.items()}


def timed(call: Callable[[], Any], repeats: int) -> float:
    """Return the mean milliseconds of a call on the device."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / repeats


def turns_of(runs: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Return the microseconds of a run in each turn; each is run for 2 ms at a time, in an order that changes.

    So none always follows the same other one, whose load the clocks remember.
    """
    for call in runs.values():
        timed(call, 10)
    repeats = {name: max(2, int(MILLISECONDS / timed(call, 10))) for name, call in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    names, order = list(runs), np.random.default_rng(0)
    for _ in range(TURNS):
        for name in order.permutation(names):
            times[name].append(timed(runs[name], repeats[name]) * 1e3)
    return times
