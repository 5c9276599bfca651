"""Compile kernels of the cutlass backend for the benchmarks fp16 and int8, on a machine that has no GPU."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tvm import relax

from benchmarks.cutlass.block_products import BlockProduct
from benchmarks.cutlass.block_routes import block_plan, kernels_of
from benchmarks.cutlass.convolutions import Conv, Stem
from benchmarks.cutlass.forms import HALF
from benchmarks.cutlass.problems import Attention, Problem, Product
from benchmarks.cutlass.trial import DTYPE, trial_kernels
from packager.backends.base import Context, Target
from packager.backends.cutlass.attention.kernels import Sm90Attention
from packager.backends.cutlass.attention.match import Attention as Found
from packager.backends.cutlass.attention.problem import rank_attention, read_attention
from packager.backends.cutlass.conv.cost_model import ConvShape, rank_conv
from packager.backends.cutlass.core.compile_kernels import KernelObject, compile_kernels, find_cutlass
from packager.backends.cutlass.core.drafts import Ranking
from packager.backends.cutlass.core.kernel import KernelConfig
from packager.backends.cutlass.core.options import SM90A, CutlassOptions
from packager.backends.cutlass.gemm.cost_model import GemmForm, GemmShape, rank_gemm
from packager.backends.cutlass.quantized.cost_model import rank_quantized_conv, rank_quantized_gemm
from packager.codegen.cache import Cache
from packager.codegen.cuda_toolkit import find_cuda_toolkit
from packager.codegen.toolchain import find_toolchain
from packager.graph.attention.heads import Heads
from packager.resources import folder as resource

ARCHS = (SM90A,)
OPTIONS = CutlassOptions(arch=ARCHS)
# What the host's half of a kernel asks of the driver, here of functions that the program which loads it has set; and
# all the kernels of the library by name.
TABLE = """
#include <string.h>
#include "packager_cuda.h"
typedef int tiled_fn(void *, int, unsigned, void *, const uint64_t *, const uint64_t *, const uint32_t *,
                     const uint32_t *, int, int, int, int);
typedef int im2col_fn(void *, int, unsigned, void *, const uint64_t *, const uint64_t *, const int32_t *,
                      const int32_t *, unsigned, unsigned, const uint32_t *, int, int, int, int);
tiled_fn *encode_tiled;
im2col_fn *encode_im2col;
typedef struct { _Alignas(128) uint8_t bytes[128]; } tensor_map_t;
static int32_t finish(void *map, const tensor_map_t *encoded, int result) {
  if (!result) memcpy(map, encoded, sizeof *encoded);
  return result;
}
int32_t pk_tensor_map_encode(void *map, int32_t type, uint32_t rank, void *address, const uint64_t *extents,
                             const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int32_t interleave,
                             int32_t swizzle, int32_t promotion, int32_t fill) {
  tensor_map_t made;
  if (!encode_tiled) return -1;
  return finish(map, &made, encode_tiled(&made, type, rank, address, extents, strides, box, steps, interleave, swizzle,
                                         promotion, fill));
}
int32_t pk_tensor_map_encode_im2col(void *map, int32_t type, uint32_t rank, void *address, const uint64_t *extents,
                                    const uint64_t *strides, const int32_t *lower, const int32_t *upper,
                                    uint32_t channels, uint32_t pixels, const uint32_t *steps, int32_t interleave,
                                    int32_t swizzle, int32_t promotion, int32_t fill) {
  tensor_map_t made;
  if (!encode_im2col) return -1;
  return finish(map, &made, encode_im2col(&made, type, rank, address, extents, strides, lower, upper, channels, pixels,
                                          steps, interleave, swizzle, promotion, fill));
}
typedef struct {
  const char *name;
  pk_cuda_fill_fn *fill;
  const uint32_t *bytes, *shared_bytes;
} entry_t;
"""


def build(
    folder: Path, problems: Sequence[Problem], *, kernels: int, jobs: int, home: str = "", trial: bool = False
) -> None:
    """Compile the first kernels of each problem, or all (0), and write what the other half needs.

    ``trial``: also those of tiles that packager does not choose from.
    """
    chosen = {
        problem.name: candidates(problem)[: None if isinstance(problem, BlockProduct) else kernels or None]
        for problem in problems
    }
    if trial:
        for problem in problems:
            chosen[problem.name] += trial_kernels(problem, chosen[problem.name])
    configs = {config.name: config for each in chosen.values() for config in each}
    print(f"{len(chosen)} problems, {len(configs)} kernels; those that the cache lacks take a minute each", flush=True)
    plan = {name: [config.name for config in each] for name, each in chosen.items()}
    plan |= {each.name: block_plan(each) for each in problems if isinstance(each, BlockProduct)}
    tiles = "heuristic" if kernels else "all"
    make_kernels(folder, configs, {"arch": SM90A, "tiles": tiles, "kernels": plan}, jobs=jobs, home=home)
    nbytes = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{folder}: {nbytes / 1e6:.1f} MB")


def make_kernels(
    folder: Path, configs: Mapping[str, Any], described: Mapping[str, Any], *, jobs: int, home: str = ""
) -> None:
    """Compile kernels, by their names, and link their host's halves; kernels.json, which comes last, describes them."""
    toolkit, cutlass, toolchain = find_cuda_toolkit(home), find_cutlass(), find_toolchain("x86_64")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        work = Path(temporary)
        context = Context(work, toolchain, Target("llvm", {}), jobs, Cache.of_user())
        sources = [(configs[name].source(ARCHS), 90) for name in sorted(configs)]
        objects = compile_kernels(sources, cutlass, toolkit, context)
        _link(objects, toolchain.cc, work)
        for old in (folder / "kernels.json", *folder.glob("*.fatbin")):
            old.unlink(missing_ok=True)
        for file in (work / "kernels.so", *(made.fatbin for made in objects)):
            shutil.move(file, folder / file.name)
    versions = {"cutlass": cutlass.version, "nvcc": toolkit.version, "python": sys.version.split()[0]}
    record = {"schema_version": 1, "versions": versions, **described}
    (folder / "kernels.json").write_text(json.dumps(record, indent=1) + "\n")


def candidates(problem: Problem) -> list[KernelConfig]:
    """Return the kernels that packager chooses from for a problem, as it ranks them with no GPU to ask."""
    if problem.form != HALF:
        ranking = _of_8_bits(problem)
    elif isinstance(problem, BlockProduct):
        few, floats, gemms = kernels_of(problem)
        return [few] if problem.m <= 16 else [*dict.fromkeys((few, floats, *gemms))]
    elif isinstance(problem, Product):
        form = GemmForm(DTYPE, DTYPE, b_rows=problem.batch > 0, constant=problem.batch == 0)
        ranking = _of_product(problem.m, problem.n, problem.k, max(1, problem.batch), form)
    elif isinstance(problem, Attention):
        if problem.group == "tiles":
            return list(_tiles_of_attention(problem))
        ranking = _of_attention(problem)
    elif problem.is_product:
        form = GemmForm(DTYPE, DTYPE, activation="relu", constant=True)
        ranking = _of_product(problem.rows, problem.filters, problem.channels, 1, form)
    else:
        ranking = _of_convolution(problem)
    return [candidate.choices[0].kernel for candidate in ranking.candidates]


def _of_product(m: int, n: int, k: int, batch: int, form: GemmForm) -> Ranking:
    """All of them, those too that are estimated to be slow."""
    return rank_gemm(GemmShape(m, n, k, batch, True), form, (math.gcd(n, k), n), OPTIONS, margin=math.inf)


def _of_attention(problem: Attention) -> Ranking:
    """Say it as the backend finds it in a model."""
    batch, heads, length, depth = problem.batch, problem.heads, problem.length, problem.depth
    width = heads * depth

    def tensor(name: str, *shape: int) -> Any:
        return relax.Var(name, relax.TensorType(shape, DTYPE))

    if problem.shared:
        first = tensor("q", batch, heads, problem.rows, depth)
        others = [tensor(name, batch, problem.shared, length, depth) for name in "kv"]
        q = Heads(first, 0, depth, 0, head_major=True)
        k, v = (Heads(other, 0, depth, 0, head_major=True, group=heads // problem.shared) for other in others)
    else:
        fused = tensor("qkv", batch, length, 3 * width)
        q, k, v = (Heads(fused, offset, 3 * width, depth) for offset in (0, width, 2 * width))
    result = tensor("o", batch, problem.rows, width)
    mask = tensor("mask", 1, 1, problem.rows, length) if problem.filled else None
    found = Found(
        *((result,), q, k, v, Heads(result, 0, width, depth)),
        *(batch, heads, problem.rows, length, depth, depth),
        *(depth**-0.5, mask, problem.causal),
    )
    known = read_attention(found)
    assert known is not None
    return rank_attention(known, OPTIONS)


def _tiles_of_attention(problem: Attention) -> Iterator[KernelConfig]:
    """Yield kernels for the head dim, and for the next one that the portfolio has, which fit into shared memory."""
    padded = next(depth for depth in (32, 64, 96, 128, 192, 256) if problem.depth <= depth)
    for depth in sorted({-(-problem.depth // 16) * 16, padded}):
        for keys, blocks in ((64, 1),) if depth > 128 else ((64, 3), (128, 2), (128, 3)):
            yield Sm90Attention(DTYPE, 64, keys, depth, problem.causal, "none", "tma", blocks)
        for keys in () if depth > 192 else (64,) if depth > 128 else (64, 128, 192):
            yield Sm90Attention(DTYPE, 128, keys, depth, problem.causal, "none", "pingpong")
        for keys in (64,) if depth > 128 else (128, 256) if depth <= 64 else (128,):
            yield Sm90Attention(DTYPE, 128, keys, depth, problem.causal, "none", "cooperative")


def _of_convolution(problem: Conv) -> Ranking:
    return rank_conv(_shape(problem), GemmForm(DTYPE, DTYPE, activation="relu"), OPTIONS, margin=math.inf)


def _shape(problem: Conv) -> ConvShape:
    window, padding, stride = ((number, number) for number in (problem.window, problem.padding, problem.stride))
    shape = ConvShape(problem.rows, problem.channels, problem.filters, window, padding, stride, (1, 1))
    if problem.groups > 1:
        return replace(shape, groups=problem.groups)
    if not isinstance(problem, Stem):
        return shape
    top = (problem.padding + problem.above) // problem.fold
    return replace(
        shape,
        channels=problem.fold * problem.pixel,
        window=problem.padded_window,
        padding=(top, 0),
        stride=(problem.stride // problem.fold, problem.stride),
        width=problem.padded_width,
    )


def _of_8_bits(problem: Product | Conv) -> Ranking:
    form = GemmForm(
        problem.form.dtype, problem.form.out, activation=problem.form.activation, residual=problem.form.residual
    )
    options = CutlassOptions(arch=("sm_80",) if problem.family == "sm80" else ARCHS)
    if isinstance(problem, Product):
        return rank_quantized_gemm(GemmShape(problem.m, problem.n, problem.k, 1), form, options)
    return rank_quantized_conv(_shape(problem), form, options)


def _link(objects: Sequence[KernelObject], compiler: str, work: Path) -> None:
    """Link kernels.so: the host's halves of all kernels, and their table."""
    names = [made.source.name for made in objects]
    lines = [
        *(
            f"extern const uint32_t {name}_bytes, {name}_shared_bytes;\nextern pk_cuda_fill_fn {name}_fill;"
            for name in names
        ),
        "const entry_t table[] = {",
        *(f'  {{"{name}", {name}_fill, &{name}_bytes, &{name}_shared_bytes}},' for name in names),
        "  {0, 0, 0, 0},\n};\n",
    ]
    (work / "table.c").write_text(TABLE + "\n".join(lines))
    include = f"-I{resource('runtime_stub') / 'include'}"
    options = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-Wl,-z,defs,-z,noexecstack"]
    hosts = [made.host.name for made in objects]
    subprocess.run([compiler, *options, include, "-o", "kernels.so", "table.c", *hosts], cwd=work, check=True)
