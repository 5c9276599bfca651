"""Make the problems of cutlass/fp16.py as tensors: what our kernels are given, what torch is, and the result."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.cutlass.bench import Call, Case, count_sets
from benchmarks.cutlass.block_cases import block_case
from benchmarks.cutlass.block_products import BlockProduct
from benchmarks.cutlass.convolutions import Conv, Stem
from benchmarks.cutlass.launch import AttentionProblem, GemmProblem, conv_problem, stem_problem
from benchmarks.cutlass.problems import Attention, Problem, Product
from packager.backends.cutlass.conv.groups import pack_groups

DTYPE = torch.float16
COUNTER_BYTES = 1 << 16  # as PK_CUDA_COUNTER_BYTES
# Of the Euclidean norm, and of one element. Rounding a result to fp16 is 2.8e-4 of the norm, and at most 4.9e-4 of one.
TOLERANCES = (1e-3, 4e-3)
FLASH, CUDNN, EFFICIENT = "sdpa, flash", "sdpa, cuDNN", "sdpa, efficient"
# A layer's product with its bias is one call of cuBLASLt (CUBLASLT_EPILOGUE_BIAS) in torch.addmm, which linear calls.
LINEAR, BMM = "linear (cuBLASLt, bias in its epilogue)", "bmm (cuBLAS)"
MEMORY_FORMATS = {"NHWC": torch.channels_last, "NCHW": torch.contiguous_format}

Random = Callable[..., torch.Tensor]


def make_case(problem: Problem, device: str = "cuda", sets: int = 0) -> Case:
    """Return random operands for a problem; ``sets`` 0 is as many as exceed the cache."""
    if isinstance(problem, Attention):
        return _attention(problem, partial(_random, device=device), sets or count_sets(problem))
    if isinstance(problem, BlockProduct):
        return block_case(problem, partial(_random, device=device), sets or count_sets(problem), errors)
    makers = {"bmm": _bmm, "conv": _convolution, "stem": _convolution}
    return makers.get(problem.group, _linear)(problem, partial(_random, device=device), sets or count_sets(problem))


def errors(got: torch.Tensor, want: torch.Tensor) -> tuple[float, float]:
    """Return the relative error in the Euclidean norm, and the largest one of an element, relative to 1 + its size."""
    difference = got.float() - want
    norm = float(torch.linalg.vector_norm(difference) / torch.linalg.vector_norm(want))
    return norm, float((difference.abs() / (1 + want.abs())).max())


@contextmanager
def exact() -> Iterator[None]:
    """Compute in float32 that is not rounded to tf32, with no search for the fastest convolution."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    yield
    torch.backends.cudnn.benchmark = True


def _case(
    structures: Sequence[ctypes.Structure],
    outputs: Sequence[torch.Tensor],
    want: Call,
    seen: Callable[[torch.Tensor], torch.Tensor],
    rivals: dict[str, list[Call]],
    tensors: Sequence[torch.Tensor] = (),
) -> Case:
    with exact():
        wanted = want()
    return Case(structures, outputs, wanted, lambda: seen(outputs[0]), errors, TOLERANCES, rivals, tensors=tensors)


def _random(*shape: int, device: str, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(shape, device=device, dtype=DTYPE) * scale


def _unwritten(like: torch.Tensor, *shape: int) -> torch.Tensor:
    """Return NaN: what a kernel does not write passes no comparison."""
    return torch.full(shape, math.nan, device=like.device, dtype=DTYPE)


def _gemm(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, d: torch.Tensor, sizes: tuple[int, int, int, int]
) -> GemmProblem:
    """Return a product; ``sizes`` are batch, m, n and k; with a batch b is [batch, k, n], else [n, k]."""
    batch, m, n, k = sizes
    made = GemmProblem(a=a.data_ptr(), b=b.data_ptr(), d=d.data_ptr(), m=m, n=n, k=k, alpha=1.0)
    made.bias = 0 if bias is None else bias.data_ptr()
    made.batch, made.lda, made.ldb, made.ldd = max(1, batch), k, n if batch else k, n
    made.batch_a, made.batch_b, made.batch_d = m * k, n * k, m * n
    return made


def _linear(problem: Product, random: Random, count: int) -> Case:
    m, n, k = problem.m, problem.n, problem.k
    sets = [(random(m, k), random(n, k, scale=k**-0.5), random(n)) for _ in range(count)]
    outputs = [_unwritten(x, m, n) for x, _, _ in sets]
    return _case(
        [_gemm(*each, d, (0, m, n, k)) for each, d in zip(sets, outputs, strict=True)],
        outputs,
        lambda: functional.linear(*(tensor.float() for tensor in sets[0])),
        lambda output: output,
        {LINEAR: [partial(functional.linear, *each) for each in sets]},
    )


def _bmm(problem: Product, random: Random, count: int) -> Case:
    batch, m, n, k = problem.batch, problem.m, problem.n, problem.k
    sets = [(random(batch, m, k), random(batch, k, n, scale=k**-0.5)) for _ in range(count)]
    outputs = [_unwritten(a, batch, m, n) for a, _ in sets]
    return _case(
        [_gemm(*each, None, d, (batch, m, n, k)) for each, d in zip(sets, outputs, strict=True)],
        outputs,
        lambda: torch.bmm(*(tensor.float() for tensor in sets[0])),
        lambda output: output,
        {BMM: [partial(torch.bmm, *each) for each in sets]},
    )


def _attention(problem: Attention, random: Random, count: int) -> Case:
    batch, heads, length, depth = problem.batch, problem.heads, problem.length, problem.depth
    # As torch takes them: [batch, heads, length, depth].
    if problem.shared:
        shapes = ((heads, problem.rows), (problem.shared, length), (problem.shared, length))
        split = [tuple(random(batch, *shape, depth) for shape in shapes) for _ in range(count)]
    else:
        fused = [random(batch, length, 3, heads, depth) for _ in range(count)]
        split = [tuple(part.transpose(1, 2) for part in x.unbind(2)) for x in fused]
    outputs = [_unwritten(q, batch, problem.rows, heads, depth) for q, _, _ in split]
    workspace = torch.zeros(1 << 24, dtype=torch.uint8, device=outputs[0].device)
    mask = None
    if problem.filled:
        places = torch.arange(length, device=outputs[0].device).expand(1, 1, problem.rows, length)
        mask = torch.zeros(places.shape, dtype=DTYPE, device=places.device).masked_fill(
            places >= problem.filled, -math.inf
        )

    def attend(backend: SDPBackend, operands: Sequence[torch.Tensor]) -> torch.Tensor:
        options = {"attn_mask": None if mask is None else mask.to(operands[0].dtype), "is_causal": problem.causal}
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(*operands, **options, enable_gqa=problem.shared > 0)

    backends = {FLASH: SDPBackend.FLASH_ATTENTION, CUDNN: SDPBackend.CUDNN_ATTENTION}
    backends |= {EFFICIENT: SDPBackend.EFFICIENT_ATTENTION} if mask is not None else {}
    return _case(
        [_attention_problem(problem, x, o, workspace, mask) for x, o in zip(split, outputs, strict=True)],
        outputs,
        lambda: attend(SDPBackend.MATH, [tensor.float() for tensor in split[0]]),
        lambda output: output.transpose(1, 2),
        {name: [partial(attend, backend, each) for each in split] for name, backend in backends.items()},
        tensors=[workspace, *([] if mask is None else [mask])],
    )


def _attention_problem(
    problem: Attention,
    operands: Sequence[torch.Tensor],
    output: torch.Tensor,
    workspace: torch.Tensor,
    mask: torch.Tensor | None,
) -> AttentionProblem:
    """Return the problem; strides of [batch, heads, rows, depth] are of batch, row and head there."""
    made = AttentionProblem(o=output.data_ptr(), counters=workspace.data_ptr(), scale=problem.depth**-0.5)
    made.workspace = made.counters + COUNTER_BYTES
    for name, part in zip("qkvo", (*operands, output.transpose(1, 2)), strict=True):
        setattr(made, name, part.data_ptr())
        batch, head, row, _ = part.stride()
        getattr(made, f"{name}_strides")[:] = (batch, row, head)
    if mask is not None:
        made.bias = mask.data_ptr()
        made.bias_strides[:] = (0, 0, mask.stride(2) if problem.rows > 1 else 0)
    made.batch, made.heads, made.queries, made.keys = problem.batch, problem.heads, problem.rows, problem.length
    made.depth = made.value_depth = problem.depth
    made.group = problem.heads // problem.shared if problem.shared else 1
    return made


def _convolution(problem: Conv, random: Random, count: int) -> Case:
    batch, size, channels, filters = problem.batch, problem.size, problem.channels, problem.filters
    window, (stride, padding) = problem.window, ((number, number) for number in (problem.stride, problem.padding))
    inner = channels // problem.groups
    scale = (window**2 * inner) ** -0.5
    sets = [
        (random(batch, size, size, channels), random(filters, window, window, inner, scale=scale), random(filters))
        for _ in range(count)
    ]
    outputs = [_unwritten(x, batch, problem.out_size, problem.out_size, filters) for x, _, _ in sets]

    def by_two(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(x, w, bias, stride, padding, groups=problem.groups).relu_()

    def by_one(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.cudnn_convolution_relu(x, w, bias, stride, padding, (1, 1), problem.groups)

    padded: list[torch.Tensor] = []

    def structure(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, y: torch.Tensor) -> ctypes.Structure:
        if isinstance(problem, Stem):
            x, w = _padded(problem, x, w)
            padded.extend((x, w))
            return stem_problem(problem, x=x.data_ptr(), w=w.data_ptr(), bias=bias.data_ptr(), y=y.data_ptr())
        if problem.groups > 1:
            w = torch.from_numpy(pack_groups(w.cpu().numpy(), channels, problem.groups)).to(w.device)
            padded.append(w)
        if problem.is_product:
            return _gemm(x, w, bias, y, (0, problem.rows, filters, channels))
        return conv_problem(problem, x=x.data_ptr(), w=w.data_ptr(), bias=bias.data_ptr(), y=y.data_ptr())

    rivals: dict[str, list[Call]] = {}
    for name, memory_format in MEMORY_FORMATS.items():
        # A clone has the strides of its format even where an extent of 1 would allow others.
        arranged = [
            (*(tensor.permute(0, 3, 1, 2).clone(memory_format=memory_format) for tensor in (x, w)), bias)
            for x, w, bias in sets
        ]
        rivals[f"cudnn_convolution_relu, {name}"] = [partial(by_one, *each) for each in arranged]
        rivals[f"conv2d and relu_, {name}"] = [partial(by_two, *each) for each in arranged]
    x, w, bias = (tensor.float() for tensor in sets[0])
    return _case(
        [structure(*each, y) for each, y in zip(sets, outputs, strict=True)],
        outputs,
        lambda: by_two(x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), bias),
        lambda output: output.permute(0, 3, 1, 2),
        rivals,
        [*padded, *(tensor for each in sets for tensor in each)],
    )


def _padded(problem: Stem, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return image and filters of few channels as the kernels by rows take them."""
    fold, channels, (rows, columns) = problem.fold, problem.pixel - problem.channels, problem.padded_window
    right = problem.padded_width - problem.size - problem.padding
    below = rows * fold - problem.window - problem.above
    x = functional.pad(x, (0, channels, problem.padding, right, 0, -problem.size % fold))
    w = functional.pad(w, (0, channels, 0, columns - problem.window, problem.above, below))

    def folded(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.unflatten(1, (-1, fold)).transpose(2, 3).flatten(3).contiguous()

    return folded(x), folded(w)
