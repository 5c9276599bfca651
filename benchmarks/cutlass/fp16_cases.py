"""The problems of cutlass/fp16.py as tensors: what our kernels are given, what torch is, and what it should come to."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.cutlass.fp16_problems import Attention, Conv, Problem, Product
from benchmarks.cutlass.launch import AttentionProblem, ConvProblem, GemmProblem

DTYPE = torch.float16
# Sets of operands that calls take in turns: together they are larger than the L2 cache, as a model's are.
ROTATED_BYTES = 192 << 20
MOST_SETS, FEWEST_SETS = 128, 3
FLASH, CUDNN = "sdpa, flash", "sdpa, cuDNN"
# A layer's product with its bias is one call of cuBLASLt (CUBLASLT_EPILOGUE_BIAS) in torch.addmm, which linear calls.
LINEAR, BMM = "linear (cuBLASLt, bias in its epilogue)", "bmm (cuBLAS)"
MEMORY_FORMATS = {"NHWC": torch.channels_last, "NCHW": torch.contiguous_format}

Call = Callable[[], torch.Tensor]


@dataclass
class Case:
    """A problem with several sets of operands.

    ``rivals`` are torch's ways to solve it, by name: for each set a call. ``counts`` names those that our time is
    compared with, the fastest of them. ``want`` computes the result of the first set in float32; ``result`` is what a
    kernel of ours has written for it, seen as torch has it. ``tensors`` is what else must live as long as the case.
    """

    structures: list[ctypes.Structure]
    outputs: list[torch.Tensor]
    want: Call
    result: Call
    rivals: dict[str, list[Call]]
    counts: tuple[str, ...]
    tensors: list[torch.Tensor] = field(default_factory=list)


def make_case(problem: Problem, device: str = "cuda", sets: int = 0) -> Case:
    """Return random operands for a problem; ``sets`` 0 is as many as exceed the cache."""
    count = sets or min(MOST_SETS, max(FEWEST_SETS, math.ceil(ROTATED_BYTES / problem.nbytes)))
    makers = {"linear": _linear, "bmm": _bmm, "attention": _attention, "conv": _convolution}
    return makers[problem.group](problem, partial(_random, device=device), count)


def errors(got: torch.Tensor, want: torch.Tensor) -> tuple[float, float]:
    """Return the relative error in the Euclidean norm, and the largest one of an element, relative to 1 + its size."""
    difference = got.float() - want
    norm = float(torch.linalg.vector_norm(difference) / torch.linalg.vector_norm(want))
    return norm, float((difference.abs() / (1 + want.abs())).max())


@contextmanager
def exact() -> Iterator[None]:
    """float32 that is not rounded to tf32, and no search for the fastest convolution."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    yield
    torch.backends.cudnn.benchmark = True


def _random(*shape: int, device: str, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(shape, device=device, dtype=DTYPE) * scale


def _unwritten(like: torch.Tensor, *shape: int) -> torch.Tensor:
    """What a kernel does not write stays NaN, which no comparison lets pass."""
    return torch.full(shape, math.nan, device=like.device, dtype=DTYPE)


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _gemm(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, d: torch.Tensor, sizes: tuple[int, int, int, int]
) -> GemmProblem:
    """``sizes`` are batch, m, n and k; with a batch b is [batch, k, n], else [n, k]."""
    batch, m, n, k = sizes
    made = GemmProblem(a=_address(a), b=_address(b), bias=_address(bias), d=_address(d), m=m, n=n, k=k)
    made.batch, made.lda, made.ldb, made.ldd = max(1, batch), k, n if batch else k, n
    made.batch_a, made.batch_b, made.batch_d = m * k, n * k, m * n
    made.alpha = 1.0
    return made


def _linear(problem: Product, random: Callable[..., torch.Tensor], count: int) -> Case:
    m, n, k = problem.m, problem.n, problem.k
    sets = [(random(m, k), random(n, k, scale=k**-0.5), random(n)) for _ in range(count)]
    outputs = [_unwritten(x, m, n) for x, _, _ in sets]
    return Case(
        [_gemm(x, w, bias, d, (0, m, n, k)) for (x, w, bias), d in zip(sets, outputs, strict=True)],
        outputs,
        lambda: functional.linear(*(tensor.float() for tensor in sets[0])),
        lambda: outputs[0],
        {LINEAR: [partial(functional.linear, x, w, bias) for x, w, bias in sets]},
        (LINEAR,),
    )


def _bmm(problem: Product, random: Callable[..., torch.Tensor], count: int) -> Case:
    batch, m, n, k = problem.batch, problem.m, problem.n, problem.k
    sets = [(random(batch, m, k), random(batch, k, n, scale=k**-0.5)) for _ in range(count)]
    outputs = [_unwritten(a, batch, m, n) for a, _ in sets]
    return Case(
        [_gemm(a, b, None, d, (batch, m, n, k)) for (a, b), d in zip(sets, outputs, strict=True)],
        outputs,
        lambda: torch.bmm(*(tensor.float() for tensor in sets[0])),
        lambda: outputs[0],
        {BMM: [partial(torch.bmm, a, b) for a, b in sets]},
        (BMM,),
    )


def _attention(problem: Attention, random: Callable[..., torch.Tensor], count: int) -> Case:
    batch, heads, length, depth = problem.batch, problem.heads, problem.length, problem.depth
    fused = [random(batch, length, 3, heads, depth) for _ in range(count)]
    outputs = [_unwritten(x, batch, length, heads, depth) for x in fused]
    # As torch takes them: [batch, heads, length, depth].
    split = [tuple(part.transpose(1, 2) for part in x.unbind(2)) for x in fused]

    def attend(backend: SDPBackend, operands: Sequence[torch.Tensor]) -> torch.Tensor:
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(*operands)

    backends = {FLASH: SDPBackend.FLASH_ATTENTION, CUDNN: SDPBackend.CUDNN_ATTENTION}
    return Case(
        [_attention_problem(problem, x, o) for x, o in zip(fused, outputs, strict=True)],
        outputs,
        lambda: attend(SDPBackend.MATH, [tensor.float() for tensor in split[0]]),
        lambda: outputs[0].transpose(1, 2),
        {name: [partial(attend, backend, each) for each in split] for name, backend in backends.items()},
        (FLASH,),
    )


def _attention_problem(problem: Attention, fused: torch.Tensor, output: torch.Tensor) -> AttentionProblem:
    made = AttentionProblem(o=_address(output), scale=problem.depth**-0.5)
    for name, part in zip("qkv", fused.unbind(2), strict=True):
        setattr(made, name, _address(part))
        getattr(made, f"{name}_strides")[:] = part.stride()[:3]
    made.o_strides[:] = output.stride()[:3]
    made.batch, made.heads, made.queries, made.keys = problem.batch, problem.heads, problem.length, problem.length
    made.depth = made.value_depth = problem.depth
    return made


def _convolution(problem: Conv, random: Callable[..., torch.Tensor], count: int) -> Case:
    batch, size, channels, filters, window = (
        *(problem.batch, problem.size, problem.channels),
        *(problem.filters, problem.window),
    )
    scale = (window**2 * channels) ** -0.5
    sets = [
        (random(batch, size, size, channels), random(filters, window, window, channels, scale=scale), random(filters))
        for _ in range(count)
    ]
    outputs = [_unwritten(x, batch, problem.places, problem.places, filters) for x, _, _ in sets]
    stride, padding = (problem.stride,) * 2, (problem.padding,) * 2
    rivals: dict[str, list[Call]] = {}
    kept = []

    def by_two(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(x, w, bias, stride, padding).relu_()

    def by_one(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.cudnn_convolution_relu(x, w, bias, stride, padding, (1, 1), 1)

    for name, memory_format in MEMORY_FORMATS.items():
        # A clone has the strides of its format even where an extent of 1 would allow others.
        arranged = [
            (
                x.permute(0, 3, 1, 2).clone(memory_format=memory_format),
                w.permute(0, 3, 1, 2).clone(memory_format=memory_format),
                bias,
            )
            for x, w, bias in sets
        ]
        kept += [tensor for each in arranged for tensor in each]
        rivals[f"cudnn_convolution_relu, {name}"] = [partial(by_one, *each) for each in arranged]
        rivals[f"conv2d and relu_, {name}"] = [partial(by_two, *each) for each in arranged]
    x, w, bias = sets[0]
    return Case(
        [_conv_problem(problem, *each, y) for each, y in zip(sets, outputs, strict=True)],
        outputs,
        lambda: by_two(x.float().permute(0, 3, 1, 2), w.float().permute(0, 3, 1, 2), bias.float()),
        lambda: outputs[0].permute(0, 3, 1, 2),
        rivals,
        tuple(rivals),
        [*kept, *(tensor for each in sets for tensor in each)],
    )


def _conv_problem(
    problem: Conv, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, y: torch.Tensor
) -> ctypes.Structure:
    if problem.is_product:
        return _gemm(x, w, bias, y, (0, problem.rows, problem.filters, problem.channels))
    made = ConvProblem(x=_address(x), w=_address(w), bias=_address(bias), y=_address(y), batch=problem.batch)
    made.height = made.width = problem.size
    made.channels, made.filters = problem.channels, problem.filters
    made.out_height = made.out_width = problem.places
    for name, number in (("window", problem.window), ("padding", problem.padding), ("stride", problem.stride)):
        getattr(made, name)[:] = (number, number)
    made.dilation[:] = (1, 1)
    return made
