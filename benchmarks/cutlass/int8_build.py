"""Kernels for the problems of cutlass/int8.py, made on a machine that has no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.cutlass.fp16_build import make_kernels
from benchmarks.cutlass.int8_problems import Problem, Product
from packager.backends.cutlass.conv.cost_model import ConvShape
from packager.backends.cutlass.core.drafts import SM90A, KernelConfig
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.cost_model import GemmShape
from packager.backends.cutlass.quantized.cost_model import QuantizedForm, rank_quantized_conv, rank_quantized_gemm


def build(folder: Path, problems: Sequence[tuple[str, Problem]], *, kernels: int, jobs: int) -> None:
    """Compile the first kernels of each problem, and write what the other half needs: kernels.json comes last."""
    plan, configs = {}, {}
    for _, problem in problems:
        chosen = candidates(problem)[:kernels]
        configs |= {config.name: config for config in chosen}
        plan[problem.name] = [config.name for config in chosen]
    print(f"{len(plan)} problems, {len(configs)} kernels; those that the cache lacks take a minute each", flush=True)
    make_kernels(folder, configs, {"kernels": plan}, jobs=jobs)


def candidates(problem: Problem) -> list[KernelConfig]:
    """Return the kernels that packager chooses from for a problem, as it ranks them with no GPU to ask."""
    form = QuantizedForm(problem.form.dtype, problem.form.out, problem.form.activation, problem.form.residual)
    options = CutlassOptions(arch=("sm_80",) if problem.family == "sm80" else (SM90A,))
    if isinstance(problem, Product):
        ranking = rank_quantized_gemm(GemmShape(problem.m, problem.n, problem.k, 1), form, options)
    else:
        pairs = [(n, n) for n in (problem.window, problem.padding, problem.stride, 1)]
        rows = problem.batch * problem.places**2
        ranking = rank_quantized_conv(ConvShape(rows, problem.channels, problem.filters, *pairs), form, options)
    return [candidate.choices[0].kernel for candidate in ranking.candidates]
