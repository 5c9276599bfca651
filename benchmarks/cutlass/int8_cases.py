"""Make the problems of cutlass/int8.py as tensors: what our kernels are given, the exact result, and torch's ways."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch.nn import functional

from benchmarks.cutlass.bench import Call, Case, count_sets
from benchmarks.cutlass.convolutions import Conv
from benchmarks.cutlass.forms import Form
from benchmarks.cutlass.launch import GemmProblem, QuantizedConv, QuantizedGemm, Scales, conv_problem
from benchmarks.cutlass.problems import Problem, Product

RANGES = {"int8": (-128, 127), "uint8": (0, 255), "float8_e4m3fn": (-448, 448)}
# Of a float result, relative to 1 + its size: half of a unit in the last place, and what float32 sums lose. Tensor
# cores add up products of 8-bit floats with fewer bits than a float32 has.
TOLERANCES = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-4, "float8_e4m3fn": 0.07}
FLOAT8_TOLERANCE = 4e-3
# A quotient so near to a half may be rounded to either side.
TIE = 2e-4


@dataclass
class Operands:
    """A problem's tensors. Vectors are there where its form has them; else the numbers of ``scales`` are for all."""

    x: torch.Tensor
    w: torch.Tensor
    y: torch.Tensor
    residual: torch.Tensor | None
    scales: Scales
    vectors: dict[str, torch.Tensor] = field(default_factory=dict)


def make_case(problem: Problem, device: str = "cuda", sets: int = 0) -> Case:
    """Return random operands for a problem; ``sets`` 0 is as many as exceed the cache."""
    operands = [make(problem, device) for _ in range(sets or count_sets(problem))]
    first = operands[0]
    return Case(
        [structure_of(problem, each) for each in operands],
        [each.y for each in operands],
        expected(problem, first),
        lambda: first.y,
        partial(errors, problem.form),
        (0, math.inf),
        rivals(problem, operands),
        judged=False,
        tensors=operands,
    )


def make(problem: Problem, device: str = "cuda") -> Operands:
    """Return random operands, whose results use most of the range of their type."""
    form = problem.form
    weights = "int8" if form.dtype == "uint8" else form.dtype
    if isinstance(problem, Product):
        columns, depth = problem.n, problem.k
        x, w = _data(form.dtype, device, problem.m, depth), _data(weights, device, columns, depth)
        shape: tuple[int, ...] = (problem.m, columns)
    else:
        columns, depth = problem.filters, problem.channels * problem.window**2
        x = _data(form.dtype, device, problem.batch, problem.size, problem.size, problem.channels)
        w = _data(weights, device, columns, problem.window, problem.window, problem.channels)
        shape = (problem.batch, problem.out_size, problem.out_size, columns)
    unit = 1 / math.sqrt(depth) if form.dtype == "float8_e4m3fn" else 1 / (70 * 70 * math.sqrt(depth))
    gain = 1.0 if form.out not in ("int8", "uint8") else 50.0
    low, high = RANGES.get(form.out, (0, 0))
    scales = Scales(gain=gain, zero=form.zero, low=low if form.low is None else form.low, high=high)
    vectors: dict[str, torch.Tensor] = {}
    if form.rows:
        vectors["scale"] = unit * (0.5 + torch.rand(columns, device=device))
        vectors["bias"] = 0.3 * torch.randn(columns, device=device)
        if form.offset:
            vectors["offset"] = torch.randint(-5000, 5000, (columns,), device=device, dtype=torch.int32)
    scales.offset_of_all, scales.scale_of_all, scales.bias_of_all = (100 if form.offset else 0), unit, 0.25
    for name, vector in vectors.items():
        setattr(scales, name, vector.data_ptr())
    residual = None
    if form.residual:
        scales.beta = 0.5 if form.out in ("float16", "bfloat16", "float32") else 0.01
        residual = _data(form.out, device, *shape)
    y = torch.empty(shape, device=device, dtype=getattr(torch, form.out))
    return Operands(x, w, y, residual, scales, vectors)


def _data(dtype: str, device: str, *shape: int) -> torch.Tensor:
    if dtype in ("int8", "uint8"):
        low, high = RANGES[dtype]
        return torch.randint(low, high + 1, shape, device=device, dtype=getattr(torch, dtype))
    return torch.randn(shape, device=device).to(getattr(torch, dtype))


def expected(problem: Problem, operands: Operands) -> torch.Tensor:
    """Return the result in float64, before it is rounded to the type that it has: sums of 8 bits are exact in that."""
    form, scales, vectors = problem.form, operands.scales, operands.vectors
    x, w = operands.x.double(), operands.w.double()
    if isinstance(problem, Product):
        sums = x @ w.T
    else:
        x, w = x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2)
        # Convolutions of doubles may be computed by transforms.
        sums = functional.conv2d(x, w, None, problem.stride, problem.padding).permute(0, 2, 3, 1).round()

    def of_row(name: str) -> torch.Tensor | float:
        return vectors[name].double() if name in vectors else getattr(scales, f"{name}_of_all")

    sums = sums + of_row("offset")
    if form.out == "int32":
        return sums
    y = sums * of_row("scale") + of_row("bias")
    if operands.residual is not None:
        y = y + scales.beta * operands.residual.double()
    y = functional.gelu(y) if form.activation == "gelu" else y
    if form.out not in RANGES:
        return y
    return (y * scales.gain).clamp(scales.low, scales.high) if form.out == "float8_e4m3fn" else y * scales.gain


def rounded(form: Form, want: torch.Tensor) -> torch.Tensor:
    """Return a result of 8 bits as a kernel rounds it."""
    low, high = RANGES[form.out]
    return (want.round() + form.zero).clamp(low if form.low is None else form.low, high)


def errors(form: Form, got: torch.Tensor, want: torch.Tensor) -> tuple[float, float]:
    """Return how many elements are wrong, and the largest error."""
    got = got.double()
    if form.out == "int32":
        error = (got - want).abs()
        bad = got != want
    elif form.out in ("int8", "uint8"):
        error = (got - rounded(form, want)).abs()
        tie = ((want - want.floor()) - 0.5).abs() < TIE
        bad = (error != 0) & ~(tie & (error == 1))
    else:
        error = (got - want).abs() / (1 + want.abs())
        least = FLOAT8_TOLERANCE if form.dtype == "float8_e4m3fn" else 0
        bad = ~(error <= max(least, TOLERANCES[form.out]))
    return float(bad.sum()), float(error.max())


def structure_of(problem: Problem, operands: Operands) -> ctypes.Structure:
    """Return the problem as kernels are given it."""
    x, w, y = (tensor.data_ptr() for tensor in (operands.x, operands.w, operands.y))
    residual = 0 if operands.residual is None else operands.residual.data_ptr()
    if isinstance(problem, Conv) and not problem.is_product:
        return QuantizedConv(conv_problem(problem, x=x, w=w, residual=residual, y=y), operands.scales)
    n, k = operands.y.shape[-1], operands.x.shape[-1]
    gemm = GemmProblem(a=x, b=w, c=residual, d=y, m=operands.y.numel() // n, n=n, k=k, batch=1)
    gemm.lda, gemm.ldb, gemm.ldc, gemm.ldd = k, k, n, n
    return QuantizedGemm(gemm, operands.scales)


def rivals(problem: Problem, sets: Sequence[Operands]) -> dict[str, list[Call]]:
    """Return torch's ways to come to the sums, or further: for each set of operands a call."""
    halves = [(operands.x.half(), operands.w.half()) for operands in sets]
    if isinstance(problem, Conv):
        convolve = partial(functional.conv2d, stride=problem.stride, padding=problem.padding)
        arranged = [[tensor.permute(0, 3, 1, 2) for tensor in each] for each in halves]
        return {"conv2d of fp16 alone": [partial(convolve, *each) for each in arranged]}
    found: dict[str, list[Call]] = {"linear of fp16 alone": [partial(functional.linear, *each) for each in halves]}
    if problem.form.dtype == "int8":
        found["_int_mm alone"] = [partial(torch._int_mm, operands.x, operands.w.T) for operands in sets]
    if problem.form.dtype == "float8_e4m3fn":
        device = sets[0].x.device
        one, bias = torch.ones((), device=device), torch.zeros(problem.n, device=device, dtype=torch.bfloat16)
        for name, fast in (("_scaled_mm", False), ("_scaled_mm, fast sums", True)):
            call = partial(torch._scaled_mm, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, bias=bias)
            found[name] = [partial(call, operands.x, operands.w.T, use_fast_accum=fast) for operands in sets]
    return found
