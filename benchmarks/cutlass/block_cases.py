"""Make products with weights that are quantized in blocks: random bits, and what they are as halves."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from benchmarks.cutlass.bench import Case, Step
from benchmarks.cutlass.block_products import BlockProduct
from benchmarks.cutlass.launch import BlockGemmProblem, DequantizeProblem, GemmProblem

UNIT_BYTES, COLUMNS, CHUNK = 512, 16, 32  # as in templates/cutlass/gemm/block_format.h
NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)
# Weights are float16 for torch, rounded once more: errors are of both.
TOLERANCES = (1e-3, 4e-3)


def block_case(
    problem: BlockProduct,
    random: Callable[..., torch.Tensor],
    count: int,
    errors: Callable[[torch.Tensor, torch.Tensor], tuple[float, float]],
) -> Case:
    """Return a case whose rivals are torch's product with halves, and a copy that reads and writes as many bytes."""
    m, n, k = problem.m, problem.n, problem.k
    inputs = [random(m, k) for _ in range(count)]
    weights = [_weights(problem, inputs[0].device) for _ in inputs]
    outputs = [torch.full((m, n), math.nan, dtype=x.dtype, device=x.device) for x in inputs]
    structures = []
    for x, (bits, scales, zeros), y in zip(inputs, weights, outputs, strict=True):
        gemm = GemmProblem(a=x.data_ptr(), b=bits.data_ptr(), d=y.data_ptr(), m=m, n=n, k=k, alpha=1.0)
        gemm.batch, gemm.lda, gemm.ldd = 1, k, n
        given = zeros.data_ptr() if problem.zeros else 0
        structures.append(BlockGemmProblem(gemm, scales.data_ptr(), given, problem.block))
    halves = [dequantized(problem, *each).half() for each in weights]
    want = inputs[0].double() @ dequantized(problem, *weights[0]).double().T
    half = problem.nbytes // 2
    copies = [torch.empty(2, half, dtype=torch.uint8, device=x.device) for x in inputs]
    rivals = {
        "linear (cuBLASLt) of halves": [partial(functional.linear, x, w) for x, w in zip(inputs, halves, strict=True)],
        "a copy of as many bytes": [partial(each[0].copy_, each[1]) for each in copies],
    }
    floats = [torch.empty(n if m > 16 else 0, k, dtype=torch.float16, device=inputs[0].device)]
    kept = [inputs, weights, halves, copies, floats]
    case = Case(structures, outputs, want, lambda: outputs[0], errors, TOLERANCES, rivals, judged=False, tensors=kept)
    if m > 16:
        case.steps = lambda route, index: _steps(structures[index], route, halves[index], floats[0].data_ptr())
    return case


def _steps(problem: BlockGemmProblem, route: str, halves: torch.Tensor, floats: int) -> list[Step]:
    """Return the launches of a route, as templates/cutlass/gemm/block_launch.h makes them."""
    gemm = problem.gemm
    kind, *kernels = route.split(":")
    if kind == "few":
        found: list[Step] = []
        for row in range(0, gemm.m, 16):
            few = BlockGemmProblem.from_buffer_copy(problem)
            few.gemm.m = min(16, gemm.m - row)
            few.gemm.a, few.gemm.d = gemm.a + 2 * row * gemm.lda, gemm.d + 2 * row * gemm.ldd
            found.append((kernels[0], few))
        return found
    if kind == "floats":
        whole = GemmProblem.from_buffer_copy(gemm)
        whole.b, whole.ldb = halves.data_ptr(), gemm.k
        return [(kernels[0], whole)]
    found = []
    for column in range(0, gemm.n, int(kind)):
        part = GemmProblem.from_buffer_copy(gemm)
        part.n, part.b, part.ldb, part.d = min(int(kind), gemm.n - column), floats, gemm.k, gemm.d + 2 * column
        sizes = (column, part.n, gemm.k, problem.block)
        weights = DequantizeProblem(gemm.b, problem.scales, problem.zeros, floats, *sizes)
        found += [(kernels[0], weights), (kernels[1], part)]
    return found


def _weights(problem: BlockProduct, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return bits, scales and zero points at random, as kernels read them."""
    blocks = problem.n * problem.k // problem.block
    kind = {"dtype": torch.uint8, "device": device}
    bits = torch.randint(256, (problem.n * problem.k * problem.bits // 8,), **kind)
    scales = (torch.rand(blocks, device=device) + 0.5) * problem.k**-0.5 * 2.0 ** (2 - problem.bits)
    return bits, scales.half(), torch.randint(1 << problem.bits, (blocks,), **kind)


def dequantized(problem: BlockProduct, bits: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """Return the weights as float32 [n, k]."""
    unit, tiles = 8 * UNIT_BYTES // COLUMNS // problem.bits, problem.n // COLUMNS
    shape = (tiles, problem.k // unit, 8, 4, unit // CHUNK, 2)  # groups and lanes of these, chunks, columns g and g + 8
    if problem.bits == 4:
        shifts = torch.tensor([4 * place for place in NIBBLES], device=bits.device)
        numbers = bits.view(torch.int32).reshape(*shape, 1) >> shifts & 15
    else:
        numbers = bits.reshape(*shape, 8)
    numbers = numbers.permute(0, 5, 2, 1, 4, 3, 6).reshape(problem.n, -1, problem.block)
    together = max(1, unit // problem.block)

    def spread(each: torch.Tensor) -> torch.Tensor:
        parts = each.reshape(tiles, problem.k // problem.block // together, 8, together, 2)
        return parts.permute(0, 4, 2, 1, 3).reshape(problem.n, -1, 1).float()

    zero = spread(zeros) if problem.zeros else float(1 << problem.bits - 1)
    return ((numbers.float() - zero) * spread(scales)).reshape(problem.n, problem.k)
