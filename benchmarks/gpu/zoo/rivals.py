"""The ways to run a model in torch that bundles are measured beside."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn

from benchmarks.gpu.torch_models import captured
from benchmarks.gpu.zoo.cases import in_precision


def given_to(module: nn.Module, inputs: dict[str, torch.Tensor], dtype: torch.dtype) -> tuple[nn.Module, list[Any]]:
    """Return a model and its inputs on the device, floats in a precision."""
    moved = copy.deepcopy(module).cuda().to(dtype)
    return moved, [tensor.cuda() for tensor in in_precision(inputs, dtype).values()]


def attention_of_torch(module: nn.Module) -> None:
    """Let torch use its fused attention where transformers' modules would write it out."""
    for part in module.modules():
        config = getattr(part, "config", None)
        if config is not None and hasattr(config, "_attn_implementation"):
            config._attn_implementation = "sdpa"


@contextmanager
def without_true_masks(module: nn.Module, inputs: dict[str, torch.Tensor]) -> Iterator[None]:
    """Keep transformers from masks that are all true, which it makes in graphs and which exclude fused attention."""
    with ExitStack() as stack:
        for name in {type(part).__module__ for part in module.modules()}:
            source = sys.modules[name]
            if "attention_mask" not in inputs and hasattr(source, "create_bidirectional_mask"):
                stack.enter_context(mock.patch.object(source, "create_bidirectional_mask", return_value=None))
        yield


def torch_runs(
    module: nn.Module,
    inputs: dict[str, torch.Tensor],
    dtype: torch.dtype = torch.float16,
    *,
    compiled: bool,
    autotuned: bool = False,
) -> dict[str, Callable[[], Any]]:
    """Return the ways to run a model in torch that work, under CUDA graphs where one can be captured.

    Floats have a precision. ``compiled``: torch.compile, too; ``autotuned``: also in its mode max-autotune, which takes
    minutes.
    """
    half, given = given_to(module, inputs, dtype)
    attention_of_torch(half)
    ways: dict[str, Callable[[], Any]] = {"torch": lambda: half(*given)}
    # Of tensors with more axes, as a layer of volumes has, torch makes nothing with channels last.
    if any(tensor.ndim == 4 for tensor in given) and all(weight.ndim <= 4 for weight in half.parameters()):
        last = copy.deepcopy(half).to(memory_format=torch.channels_last)
        images = [t.to(memory_format=torch.channels_last) if t.ndim == 4 else t for t in given]
        ways["torch, channels last"] = lambda: last(*images)
    if compiled:
        fast = torch.compile(half, dynamic=False)
        ways["torch.compile"] = lambda: fast(*given)
    if autotuned:
        # Graphs are captured here for all ways alike.
        tuned = torch.compile(copy.deepcopy(half), dynamic=False, mode="max-autotune-no-cudagraphs")
        ways["torch.compile, max-autotune"] = lambda: tuned(*given)
    found, stream = {}, torch.cuda.current_stream()
    for name, way in ways.items():
        for how, make_run in (("", captured), (", no graph", warmed)):
            try:
                with without_true_masks(half, inputs):
                    found[name + how] = make_run(way)
                break
            except Exception as failure:  # what torch cannot run is no rival
                print(f"  {name}{how}: {type(failure).__name__}: {str(failure)[:200]}", flush=True)
                torch.cuda.set_stream(stream)  # a capture that fails leaves its own behind
                torch.cuda.synchronize()
    return found


def warmed(run: Callable[[], Any]) -> Callable[[], Any]:
    """Return a run that works."""
    run()
    torch.cuda.synchronize()
    return run
