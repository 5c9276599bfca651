"""Numbers and times of bundles of the GPU zoo, beside torch."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn

import packager
from benchmarks.gpu.cublas_torch import in_turns
from benchmarks.gpu.torch_models import DTYPES
from benchmarks.gpu.zoo.building import versions
from benchmarks.gpu.zoo.cases import ENTRIES, FORMS, Case, cases, in_precision, module_of
from benchmarks.gpu.zoo.rivals import given_to, torch_runs
from benchmarks.harness.gpu import header, tuned

FUNCTIONS = 6


def slowest(bundle: Any, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return the functions that take longest of a run without graphs, and their us."""
    with bundle.session(graph="off") as session:
        session.run(inputs, outputs=outputs)
        runs = (session.profile(inputs, outputs=outputs) for _ in range(3))
        steps = min(runs, key=lambda each: sum(s.duration_ns for s in each))
    times: dict[str, float] = {}
    for step in steps:
        times[step.symbol] = times.get(step.symbol, 0.0) + step.duration_ns / 1e3
    return [(name, round(us, 1)) for name, us in sorted(times.items(), key=lambda item: -item[1])[:FUNCTIONS]]


def measure(cases: list[Case], folder: Path, *, compiled: bool, autotuned: bool, profiled: bool) -> dict[str, Any]:
    """Return errors and times of a model's bundles, which are of one batch and precision, and of torch."""
    module, inputs = module_of(ENTRIES[cases[0].model], cases[0].batch)
    paths = {case.form: folder / f"{case.stem}.so" for case in cases}
    found: dict[str, Any] = {"errors": {}}
    if "trial" in paths:
        start = time.perf_counter()
        paths = {**paths, "tuned": tuned(paths["trial"], folder)}
        found["tune_s"] = round(time.perf_counter() - start, 1)
        del paths["trial"]
    with torch.no_grad(), ExitStack() as stack:
        exact = exact_of(module, inputs).cuda()
        stream = torch.cuda.current_stream()
        runs: dict[str, Callable[[], Any]] = {}
        for name, path in paths.items():
            bundle = stack.enter_context(packager.load(path))
            form = FORMS.get(name)  # what is tuned has none
            tensors = in_precision(inputs, DTYPES[form.precision]) if form and form.halves else inputs
            given = {name: tensor.cuda() for name, tensor in inputs_by_name(bundle, tensors).items()}
            (output,) = bundle.outputs
            outputs = {output.name: torch.empty(exact.shape, dtype=getattr(torch, output.dtype), device=exact.device)}
            session = stack.enter_context(bundle.session(graph="on"))
            runs[name] = session.bind(given, outputs, stream)
            runs[name]()
            torch.cuda.synchronize()
            (result,) = outputs.values()
            found["errors"][name] = error(result, exact, name)
            if profiled:
                found.setdefault("functions", {})[name] = slowest(bundle, given, outputs)
        dtype = DTYPES[FORMS[cases[0].form].precision]
        rivals = torch_runs(module, inputs, dtype, compiled=compiled, autotuned=autotuned)
        if rivals:  # some models cannot run in half precision, or on a GPU
            half, halves = given_to(module, inputs, dtype)
            found["errors"]["torch"] = error(half(*halves), exact, "torch")
        found["us"] = in_turns(runs | rivals)
    best = min((found["us"][name]["median"] for name in rivals), default=math.nan)
    found["ahead"] = {name: round(best / found["us"][name]["median"], 3) for name in runs}
    return found


def exact_of(module: nn.Module, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return what float64 computes; float32 of models with masks of its own range. Raises ArithmeticError."""
    doubles = [t.double() if t.is_floating_point() else t for t in inputs.values()]
    try:
        exact = copy.deepcopy(module).double()(*doubles)
    except RuntimeError:
        exact = module(*inputs.values())
    if not exact.isfinite().all():
        raise ArithmeticError("exact results are not finite")
    return exact


def inputs_by_name(bundle: Any, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return inputs by their names in a bundle: torch.export calls them otherwise, and an ONNX file may lack some."""
    names = [tensor.name for tensor in bundle.inputs]
    if inputs.keys() >= set(names):
        return {name: inputs[name] for name in names}
    return dict(zip(names, inputs.values(), strict=True))


def error(got: torch.Tensor, exact: torch.Tensor, whose: str) -> float:
    """Return the greatest difference, of the greatest output. Raises ArithmeticError if there is none."""
    found = float(((got.double() - exact).abs().max() / exact.abs().max()).item())
    if not math.isfinite(found):
        raise ArithmeticError(f"results of {whose} are not finite")
    return found


def run(folder: Path, output: Path, only: str, *, compiled: bool, autotuned: bool, profiled: bool) -> None:
    """Measure everything and write it."""
    report = header("gpu_zoo") | {"torch": torch.__version__, "cases": {}}
    together: dict[str, list[Case]] = {}
    for case in cases(only or "*"):
        if (folder / f"{case.stem}.so").exists():
            precision = FORMS[case.form].precision
            name = f"{case.model}-{case.batch}" + ("" if precision == "fp16" else f"-{precision}")
            together.setdefault(name, []).append(case)
    for name, several in together.items():
        try:
            found = measure(several, folder, compiled=compiled, autotuned=autotuned, profiled=profiled)
        except Exception as failure:  # one that fails must not hide the others
            found = {"failed": f"{type(failure).__name__}: {str(failure)[-600:]}"}
        made = folder / f"{several[0].stem}.json"
        if made.exists() and (theirs := json.loads(made.read_text())["versions"]) != versions():
            found["other_versions"] = theirs  # errors say nothing then
        report["cases"][name] = found
        print(name, json.dumps(found), flush=True)
        output.write_text(json.dumps(report, indent=1) + "\n")
        torch.cuda.empty_cache()
        torch._dynamo.reset()  # it gives up a function of the zoo that it has compiled for eight models
