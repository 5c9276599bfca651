"""The GPU's half of cutlass/int8.py: each kernel's results compared with exact sums, and its time with torch's own."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from benchmarks.cutlass.fp16_run import capture, spread
from benchmarks.cutlass.int8_problems import Conv, Form, Problem, Product
from benchmarks.cutlass.launch import ConvProblem, Driver, Filled, GemmProblem

# Sets of operands that calls take in turns: together they are larger than the L2 cache, as a model's are.
ROTATED_BYTES = 192 << 20
MOST_SETS, FEWEST_SETS, FEWEST_CALLS = 128, 3, 12
DTYPES = {
    "int8": torch.int8,
    "uint8": torch.uint8,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int32": torch.int32,
    "float32": torch.float32,
}
FLOAT8_TOLERANCE = 4e-3
RANGES = {"int8": (-128, 127), "uint8": (0, 255), "float8_e4m3fn": (-448, 448)}
# Of a float result, relative to 1 + its size: half of a unit in the last place, and what float32 sums lose. Tensor
# cores add up products of 8-bit floats with fewer bits than a float32 has.
TOLERANCES = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-4, "float8_e4m3fn": 0.07}
# A quotient so near to a half may be rounded to either side.
TIE = 2e-4

DEVICE = "cuda"
Call = Callable[[], torch.Tensor]


class Scales(ctypes.Structure):
    """As pk_scales_t."""

    _fields_ = (
        *[(name, ctypes.c_uint64) for name in ("offset", "scale", "bias")],
        ("offset_of_all", ctypes.c_int32),
        *[(name, ctypes.c_float) for name in ("scale_of_all", "bias_of_all", "beta", "gain", "zero", "low", "high")],
    )


class QuantizedGemm(ctypes.Structure):
    """As pk_quantized_gemm_t."""

    _fields_ = (("gemm", GemmProblem), ("scales", Scales))


class QuantizedConv(ctypes.Structure):
    """As pk_quantized_conv_t."""

    _fields_ = (("conv", ConvProblem), ("scales", Scales))


@dataclass
class Operands:
    """A problem's tensors. Vectors are there where its form has them; else the numbers of ``scales`` are for all."""

    x: torch.Tensor
    w: torch.Tensor
    y: torch.Tensor
    residual: torch.Tensor | None
    scales: Scales
    vectors: dict[str, torch.Tensor] = field(default_factory=dict)


class Bench:
    """The kernels of a folder."""

    def __init__(self, folder: Path, *, rounds: int) -> None:
        torch.cuda.init()
        torch.zeros(1, device=DEVICE)  # makes torch's context current
        torch.manual_seed(0)
        self._driver = Driver(folder, torch.cuda.get_device_properties(0).multi_processor_count)
        self._rounds = rounds

    def check(self, problem: Problem, kernels: Sequence[str]) -> dict[str, Any]:
        """Return what is wrong with each kernel's results: nothing, or how many elements and the largest error."""
        operands = make(problem)
        want = expected(problem, operands)
        structure = structure_of(problem, operands)
        found: dict[str, Any] = {}
        for kernel in kernels:
            filled = self._driver.fill(kernel, structure)
            if filled is None:
                found[kernel] = "refused"
                continue
            operands.y.view(torch.uint8).fill_(0x7F)
            self._launch(kernel, [filled])
            torch.cuda.synchronize()
            found[kernel] = wrong(problem.form, operands.y, want)
        return found

    def measure(self, problem: Problem, kernels: Sequence[str]) -> dict[str, Any]:
        """Return the times in microseconds of our kernels and of torch's ways."""
        count = min(MOST_SETS, max(FEWEST_SETS, math.ceil(ROTATED_BYTES / problem.nbytes)))
        sets = [make(problem) for _ in range(count)]
        works: dict[str, Callable[[], list[torch.Tensor]]] = {}
        for kernel in kernels:
            filled = [self._driver.fill(kernel, structure_of(problem, operands)) for operands in sets]
            works[kernel] = partial(self._launch, kernel, [each for each in filled if each is not None])
        unavailable = {}
        for name, calls in rivals(problem, sets).items():
            try:
                calls[0]()
                torch.cuda.synchronize()
            except RuntimeError as error:
                unavailable[name] = str(error).partition("\n")[0]
                continue
            works[name] = partial(_all, calls)
        repeats = -(-FEWEST_CALLS // count)
        graphs = {name: capture(work, repeats) for name, work in works.items()}
        samples: dict[str, list[float]] = {name: [] for name in graphs}
        for _ in range(2):
            for graph, _ in graphs.values():
                graph.replay()
        for _ in range(self._rounds):
            for name, (graph, _) in graphs.items():
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                graph.replay()  # the GPU is busy from here on: no time of the host's lies between two events
                start.record()
                graph.replay()
                end.record()
                torch.cuda.synchronize()
                samples[name].append(start.elapsed_time(end) * 1e3 / (repeats * count))
        return {"us": {name: spread(times) for name, times in samples.items()}, "unavailable": unavailable}

    def _launch(self, kernel: str, launches: Sequence[Filled]) -> list[torch.Tensor]:
        stream = torch.cuda.current_stream().cuda_stream
        for index, filled in enumerate(launches):
            self._driver.launch(kernel, filled, stream, programmatic=index > 0)
        return []


def _all(calls: Sequence[Call]) -> list[torch.Tensor]:
    return [call() for call in calls]


def make(problem: Problem) -> Operands:
    """Return random operands, whose results use most of the range of their type."""
    form = problem.form
    if isinstance(problem, Product):
        columns, depth = problem.n, problem.k
        x, w = _data(form.dtype, problem.m, depth), _weights(form.dtype, columns, depth)
        shape: tuple[int, ...] = (problem.m, columns)
    else:
        columns, depth = problem.filters, problem.channels * problem.window**2
        x = _data(form.dtype, problem.batch, problem.size, problem.size, problem.channels)
        w = _weights(form.dtype, columns, problem.window, problem.window, problem.channels)
        shape = (problem.batch, problem.places, problem.places, columns)
    floats = form.dtype == "float8_e4m3fn"
    unit = 1 / math.sqrt(depth) if floats else 1 / (70 * 70 * math.sqrt(depth))
    spread_of = 1.0 if form.out not in ("int8", "uint8") else 50.0
    low, high = RANGES.get(form.out, (0, 0))
    scales = Scales(gain=spread_of, zero=form.zero, low=low if form.low is None else form.low, high=high)
    vectors: dict[str, torch.Tensor] = {}
    if form.rows:
        vectors["scale"] = unit * (0.5 + torch.rand(columns, device=DEVICE))
        vectors["bias"] = 0.3 * torch.randn(columns, device=DEVICE)
        if form.offset:
            vectors["offset"] = torch.randint(-5000, 5000, (columns,), device=DEVICE, dtype=torch.int32)
    scales.offset_of_all, scales.scale_of_all, scales.bias_of_all = (100 if form.offset else 0), unit, 0.25
    for name, vector in vectors.items():
        setattr(scales, name, vector.data_ptr())
    residual = None
    if form.residual:
        scales.beta = 0.5 if form.out in ("float16", "bfloat16", "float32") else 0.01
        residual = _data(form.out, *shape)
    y = torch.empty(shape, device=DEVICE, dtype=DTYPES[form.out])
    return Operands(x, w, y, residual, scales, vectors)


def _data(dtype: str, *shape: int) -> torch.Tensor:
    if dtype in ("int8", "uint8"):
        low, high = RANGES[dtype]
        return torch.randint(low, high + 1, shape, device=DEVICE, dtype=DTYPES[dtype])
    return torch.randn(shape, device=DEVICE).to(DTYPES[dtype])


def _weights(dtype: str, *shape: int) -> torch.Tensor:
    return _data("int8" if dtype == "uint8" else dtype, *shape)


def expected(problem: Problem, operands: Operands) -> torch.Tensor:
    """Return the result in float64, before it is rounded to the type that it has: sums of 8 bits are exact in that."""
    form, scales = problem.form, operands.scales
    x, w = operands.x.double(), operands.w.double()
    if isinstance(problem, Product):
        sums = x @ w.T
    else:
        channels_first = functional.conv2d(
            x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), None, problem.stride, problem.padding
        )
        # Convolutions of doubles may be computed by transforms.
        sums = channels_first.permute(0, 2, 3, 1).round()
    vectors = operands.vectors
    sums = sums + (vectors["offset"].double() if "offset" in vectors else scales.offset_of_all)
    if form.out == "int32":
        return sums
    y = sums * (vectors["scale"].double() if "scale" in vectors else scales.scale_of_all)
    y = y + (vectors["bias"].double() if "bias" in vectors else scales.bias_of_all)
    if operands.residual is not None:
        y = y + scales.beta * operands.residual.double()
    y = functional.gelu(y) if form.activation == "gelu" else y
    if form.out not in RANGES:
        return y
    if form.out == "float8_e4m3fn":
        return (y * scales.gain).clamp(scales.low, scales.high)
    return y * scales.gain


def wrong(form: Form, got: torch.Tensor, want: torch.Tensor) -> str:
    """Return what is wrong with results, nothing where they are right."""
    if form.out == "int32":
        bad = got.double() != want
        error = (got.double() - want).abs()
    elif form.out in ("int8", "uint8"):
        low, high = RANGES[form.out]
        low = low if form.low is None else form.low
        rounded = (want.round() + form.zero).clamp(low, high)
        error = (got.double() - rounded).abs()
        tie = ((want - want.floor()) - 0.5).abs() < TIE
        bad = (error != 0) & ~(tie & (error == 1))
    else:
        error = (got.double() - want).abs() / (1 + want.abs())
        least = FLOAT8_TOLERANCE if form.dtype == "float8_e4m3fn" else 0
        bad = ~(error <= max(least, TOLERANCES[form.out]))
    count = int(bad.sum())
    return f"{count} of {bad.numel()} elements, by {float(error.max()):.3g}" if count else ""


def structure_of(problem: Problem, operands: Operands) -> ctypes.Structure:
    """Return the problem as kernels are given it."""
    x, w, y = (tensor.data_ptr() for tensor in (operands.x, operands.w, operands.y))
    residual = 0 if operands.residual is None else operands.residual.data_ptr()
    is_product = isinstance(problem, Conv) and problem.window == problem.stride == 1
    if isinstance(problem, Product) or is_product:
        m, n = operands.y.numel() // operands.y.shape[-1], operands.y.shape[-1]
        k = operands.x.shape[-1]
        gemm = GemmProblem(a=x, b=w, c=residual, d=y, m=m, n=n, k=k, batch=1, lda=k, ldb=k, ldc=n, ldd=n)
        return QuantizedGemm(gemm, operands.scales)
    conv = ConvProblem(x=x, w=w, residual=residual, y=y, batch=problem.batch)
    conv.height = conv.width = problem.size
    conv.channels, conv.filters = problem.channels, problem.filters
    conv.out_height = conv.out_width = problem.places
    for name, number in (("window", problem.window), ("padding", problem.padding), ("stride", problem.stride)):
        getattr(conv, name)[:] = (number, number)
    conv.dilation[:] = (1, 1)
    return QuantizedConv(conv, operands.scales)


def rivals(problem: Problem, sets: Sequence[Operands]) -> dict[str, list[Call]]:
    """Return torch's ways to come to the sums, or further: for each set of operands a call."""
    if isinstance(problem, Conv):
        made: list[Call] = []
        for operands in sets:
            x, w = (tensor.half().permute(0, 3, 1, 2) for tensor in (operands.x, operands.w))
            made.append(partial(functional.conv2d, x, w, None, problem.stride, problem.padding))
        return {"conv2d of fp16 alone": made}
    halves = [(operands.x.half(), operands.w.half()) for operands in sets]
    found: dict[str, list[Call]] = {"linear of fp16 alone": [partial(functional.linear, *each) for each in halves]}
    if problem.form.dtype == "int8":
        found["_int_mm alone"] = [partial(torch._int_mm, operands.x, operands.w.T) for operands in sets]
    if problem.form.dtype == "float8_e4m3fn":
        one = torch.ones((), device=DEVICE)
        bias = torch.zeros(problem.n, device=DEVICE, dtype=torch.bfloat16)
        for name, fast in (("_scaled_mm", False), ("_scaled_mm, fast sums", True)):
            call = partial(torch._scaled_mm, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, bias=bias)
            found[name] = [partial(call, operands.x, operands.w.T, use_fast_accum=fast) for operands in sets]
    return found
