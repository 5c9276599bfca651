"""cutlass/fp16.py as far as it goes without a GPU: its problems, what kernels are told of them, a build, a launch.

Launches are seen by the recording stand-in for libcuda, which computes nothing; figures come from a GPU alone.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided, sliding_window_view

ROOT = Path(__file__).parents[2]
LAYOUT = """
#include <stddef.h>
#include <stdio.h>
#include "problems.h"
#include "driver.h"
#define FIELD(type, name) printf("%s.%s %zu\\n", #type, #name, offsetof(type, name))
int main(void) {
  FIELD(pk_gemm_t, workspace), FIELD(pk_gemm_t, batch), FIELD(pk_gemm_t, ldd), FIELD(pk_gemm_t, batch_a);
  FIELD(pk_gemm_t, beta), FIELD(pk_gemm_t, counters), printf("pk_gemm_t %zu\\n", sizeof(pk_gemm_t));
  FIELD(pk_attention_t, o), FIELD(pk_attention_t, lengths), FIELD(pk_attention_t, value_depth);
  FIELD(pk_attention_t, o_strides), FIELD(pk_attention_t, scale), FIELD(pk_attention_t, counters);
  printf("pk_attention_t %zu\\n", sizeof(pk_attention_t));
  FIELD(pk_conv_t, y), FIELD(pk_conv_t, filters), FIELD(pk_conv_t, out_width), FIELD(pk_conv_t, window);
  FIELD(pk_conv_t, dilation), printf("pk_conv_t %zu\\n", sizeof(pk_conv_t));
  FIELD(pk_cuda_launch_t, block), FIELD(pk_cuda_launch_t, shared_bytes), FIELD(pk_cuda_launch_t, flags);
  printf("pk_cuda_launch_t %zu\\n", sizeof(pk_cuda_launch_t));
  printf("pk_launch_attribute_t %zu\\n", sizeof(pk_launch_attribute_t));
  FIELD(pk_launch_config_t, stream), FIELD(pk_launch_config_t, attributes), FIELD(pk_launch_config_t, num_attributes);
  printf("pk_launch_config_t %zu\\n", sizeof(pk_launch_config_t));
}
"""
STRUCTURES = {
    "pk_gemm_t": "GemmProblem",
    "pk_attention_t": "AttentionProblem",
    "pk_conv_t": "ConvProblem",
    "pk_cuda_launch_t": "Launch",
    "pk_launch_attribute_t": "LaunchAttribute",
    "pk_launch_config_t": "LaunchConfig",
}
RECORDED = """
import ctypes, sys
from pathlib import Path
from benchmarks.cutlass.launch import ConvProblem, CudaError, Driver, Filled, Launch
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxPushCurrent_v2(context)
cuda.recorder_take.restype = ctypes.c_char_p
driver, kernel = Driver(Path(sys.argv[1]), 132), sys.argv[2]
problem = ConvProblem(x=1 << 20, w=1 << 21, bias=1 << 22, y=1 << 23, batch=2, channels=3, filters=64)
problem.height = problem.width = 30
problem.out_height = problem.out_width = 15
problem.window[:], problem.padding[:], problem.stride[:], problem.dilation[:] = (7, 7), (3, 3), (2, 2), (1, 1)
filled = driver.fill(kernel, problem)
driver.launch(kernel, filled, 0, programmatic=False)
driver.launch(kernel, filled, 0, programmatic=True)
for line in cuda.recorder_take().decode().splitlines():
    print(line)
problem.y += 2
print(driver.fill(kernel, problem))
filled.launch.grid[0] = 0
try:
    driver.launch(kernel, filled, 0, programmatic=False)
except CudaError as error:
    print(error)
"""


def call(*arguments: object) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "benchmarks.cutlass.fp16", *arguments]
    return subprocess.run([*map(str, argv)], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_problems_are_those_that_are_asked_for() -> None:
    from benchmarks.cutlass.problems import FP16, select

    problems = [problem for _, problem in select(FP16)]
    assert len({problem.name for problem in problems}) == len(problems) == sum(map(len, FP16.values()))
    assert sum(problem.group == "linear" for problem in problems) == 30
    assert len(FP16["conv"]) == 3 * 23
    ((group, stem),) = select(FP16, ("conv",), "conv_b8_224_*")
    assert group == "conv"
    assert (stem.out_size, stem.rows, stem.padding) == (112, 8 * 112 * 112, 3)
    assert [problem.name for _, problem in select(FP16, ("gemm",), "linear_1x768x768,bmm_12x*")] == [
        "linear_1x768x768",
        "bmm_12x128x128x64",
    ]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ((), 2, "arguments are required: command"),
        (("build", "--set", "lstm"), 2, "invalid choice: 'lstm'"),
        (
            ("build", "--only", "bmm_1x1x1x1"),
            2,
            "conv, conv_wide, groups, stem matches 'bmm_1x1x1x1'",
        ),
        (("run", "nowhere"), 2, "arguments are required: -o"),
        (("run", "nowhere", "-o", "x.json"), 1, "error: nowhere has no kernels.json\nhint: make it with `build"),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...], status: int, message: str) -> None:
    done = call(*arguments)
    assert done.returncode == status
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_structures_are_those_of_the_headers(tmp_path: Path) -> None:
    from benchmarks.cutlass import launch

    (tmp_path / "layout.c").write_text(LAYOUT)
    folders = [ROOT / "templates" / "cutlass" / "common"]
    folders += [ROOT / "runtime_stub" / name for name in ("include", "cuda", "src")]
    includes = [f"-I{folder}" for folder in folders]
    subprocess.run(["gcc", *includes, "-o", tmp_path / "layout", tmp_path / "layout.c"], check=True)
    lines = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(lines) == 29
    for line in lines:
        what, number = line.split()
        name, _, field = what.partition(".")
        structure = getattr(launch, STRUCTURES[name])
        assert (getattr(structure, field).offset if field else ctypes.sizeof(structure)) == int(number), line


def view(address: int, shape: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    """Return fp16 memory as an array; strides are in elements."""
    count = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    memory = np.frombuffer((ctypes.c_uint8 * (2 * count)).from_address(address), np.float16)
    return as_strided(memory, shape, [2 * stride for stride in strides], writeable=True)


def solve(problem: Any) -> None:
    """Do what a kernel does, in numpy, from nothing but the problem."""
    if type(problem).__name__ == "GemmProblem":
        m, n, k, batch = problem.m, problem.n, problem.k, problem.batch
        a = view(problem.a, (batch, m, k), (problem.batch_a, problem.lda, 1))
        if problem.bias:  # a layer: the weight lies by columns
            b = view(problem.b, (batch, k, n), (problem.batch_b, 1, problem.ldb))
        else:
            b = view(problem.b, (batch, k, n), (problem.batch_b, problem.ldb, 1))
        result = problem.alpha * (a.astype(np.float32) @ b.astype(np.float32))
        if problem.bias:
            result += view(problem.bias, (n,), (1,)).astype(np.float32)
        view(problem.d, (batch, m, n), (problem.batch_d, problem.ldd, 1))[...] = result
    elif type(problem).__name__ == "AttentionProblem":
        rows = {"q": problem.queries, "k": problem.keys, "v": problem.keys, "o": problem.queries}
        heads = {x: problem.heads // (problem.group if x in "kv" else 1) for x in rows}
        shapes = {x: (problem.batch, rows[x], heads[x], problem.depth) for x in rows}
        q, k, v, o = (view(getattr(problem, x), shapes[x], (*getattr(problem, f"{x}_strides"), 1)) for x in "qkvo")
        k, v = (np.repeat(x, problem.group, axis=2) for x in (k, v))
        scores = problem.scale * np.einsum("bqhd,bkhd->bhqk", q.astype(np.float32), k.astype(np.float32))
        if problem.bias:
            shape = (problem.batch, problem.heads, problem.queries, problem.keys)
            scores += view(problem.bias, shape, (*problem.bias_strides, 1)).astype(np.float32)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        o[...] = np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), v.astype(np.float32))
    else:
        n, h, w, c, f = problem.batch, problem.height, problem.width, problem.channels, problem.filters
        (r, s), (top, left), stride = problem.window, problem.padding, problem.stride
        assert list(problem.dilation) == [1, 1]
        image = view(problem.x, (n, h, w, c), (h * w * c, w * c, c, 1)).astype(np.float32)
        image = np.pad(image, ((0, 0), (top, top), (left, left), (0, 0)))
        windows = sliding_window_view(image, (r, s), axis=(1, 2))[:, :: stride[0], :: stride[1]]
        filters = view(problem.w, (f, r, s, c), (r * s * c, s * c, c, 1)).astype(np.float32)
        result = np.einsum("nhwcrs,frsc->nhwf", windows, filters) + view(problem.bias, (f,), (1,))
        p, q = problem.out_height, problem.out_width
        view(problem.y, (n, p, q, f), (p * q * f, q * f, f, 1))[...] = np.maximum(result, 0)


def test_a_report_has_a_line_for_each_problem() -> None:
    from benchmarks.harness.gpu import text_of

    report = {"problems": {"a": {"ok": True}, "b": {"ours": {"x": [1.5]}}}, "summary": {"linear": 1.0}}
    text = text_of(report, "problems")
    assert json.loads(text) == report
    assert '\n  "a": {"ok": true},\n' in text


def small_problems() -> list[Any]:
    from benchmarks.cutlass.convolutions import Conv
    from benchmarks.cutlass.problems import Attention, Product

    return [
        *(Product(16, 24, 32), Product(3, 48, 64, batch=2), Attention(2, 3, 77, 64)),
        *(Attention(2, 6, 50, 64, shared=2, queries=3), Attention(1, 4, 40, 32, shared=2, queries=1, filled=30)),
        *(Conv(2, 28, 16, 24, 3, 2), Conv(1, 30, 3, 16, 7, 2), Conv(2, 14, 8, 16, 1, 2), Conv(2, 14, 8, 16, 1, 1)),
    ]


@pytest.mark.parametrize("index", range(9))
def test_kernels_are_told_the_problem_that_torch_solves(index: int) -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.cutlass.fp16_cases import make_case

    problem = small_problems()[index]
    torch.manual_seed(index)
    case = make_case(problem, "cpu", 2)
    assert len(case.structures) == len(case.outputs) == 2
    assert not case.is_right(case.errors_of(case.result()))  # what is not written is wrong
    solve(case.structures[0])
    # The kernels for convolutions that are products have the activation, their problem does not say it.
    results = {"ours": case.result().clamp_min(0) if problem.group == "conv" else case.result()}
    for name, calls in case.rivals.items():
        assert len(calls) == 2
        if not name.startswith(("cudnn_convolution_relu", "sdpa, cuDNN", "sdpa, efficient")):  # of a GPU alone
            results[name] = calls[0]()
    assert len(results) > 1
    for name, result in results.items():
        assert case.is_right(case.errors_of(result)), name
    assert bool(case.outputs[1].isnan().all())  # sets are apart


def timed(**microseconds: float) -> dict[str, Any]:
    return {name: {"us": {"median": value}, "errors": [0.0, 0.0]} for name, value in microseconds.items()}


def test_ratios_and_bars() -> None:
    from benchmarks.cutlass.command import ratios
    from benchmarks.cutlass.fp16 import find_thresholds, summarize
    from benchmarks.cutlass.problems import FP16

    found = {"group": "attention", "choice": "a", "ours": timed(a=2, b=1) | {"c": {"refused": True}}}
    found |= {"torch": timed(t=1.8) | {"u": {"unavailable": "no engine"}}, "rival": "t"}
    assert ratios(found) == {"choice": 0.9, "best": 1.8}
    found["ratios"] = ratios(found)
    names = [problem.name for problem in FP16["attention"]]
    summary = summarize(dict.fromkeys(names, found))
    assert summary["attention"]["choice"] == {"geomean": pytest.approx(0.9), "worst": 0.9, "count": 3}
    assert [each.met for each in find_thresholds(summary, every_tile=False)] == [True]
    lost = found | {"rival": None, "ratios": ratios(found | {"rival": None})}
    assert math.isnan(lost["ratios"]["choice"])
    (each,) = find_thresholds(summarize(dict.fromkeys(names[:2], found) | {names[2]: lost}), every_tile=True)
    assert str(each) == "MISSED: attention, worst of choice: nan, the threshold is 0.900"
    assert find_thresholds(summarize({names[0]: found}), every_tile=True) == []  # not all of them were measured
    linear = summarize(
        {problem.name: found | {"group": "linear"} for problem in FP16["gemm"] if problem.group == "linear"}
    )
    assert [each.met for each in find_thresholds(linear, every_tile=False)] == [False]
    assert [each.met for each in find_thresholds(linear, every_tile=True)] == [False, True, True]


def test_every_problem_has_kernels_to_choose_from() -> None:
    pytest.importorskip("tvm")
    from benchmarks.cutlass.build import candidates
    from benchmarks.cutlass.problems import FP16, select

    for _, problem in select(FP16):
        names = [config.name for config in candidates(problem)]
        assert names, problem.name
        assert len(set(names)) == len(names), problem.name


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One kernel, which takes less than others: that for an image of three channels."""
    folder = tmp_path_factory.mktemp("gpu_cutlass") / "made"
    done = call("build", "-o", folder, "--only", "conv_b1_224_*", "--kernels", "1", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_build_writes_kernels_and_which_problems_they_are_for(built: Path) -> None:
    described = json.loads((built / "kernels.json").read_text())
    ((problem, (kernel,)),) = described["kernels"].items()
    assert (described["arch"], described["tiles"], problem) == ("sm_90a", "heuristic", "conv_b1_224_3_64_7x7s2")
    assert sorted(file.name for file in built.iterdir()) == ["kernels.json", "kernels.so", f"{kernel}.fatbin"]
    assert str(built) not in (built / "kernels.json").read_text()


@pytest.mark.slow
def test_run_refuses_what_it_cannot_measure(built: Path, tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    done = call("run", built, "-o", output, "--set", "gemm")
    assert (done.returncode, "has none of these problems" in done.stderr) == (1, True)
    if not Path("/dev/nvidiactl").exists():
        done = call("run", built, "-o", output)
        assert (done.returncode, "error: run needs " in done.stderr) == (1, True)
    assert not output.exists()


@pytest.mark.slow
def test_a_launch_is_what_the_kernel_s_host_code_says(built: Path, tmp_path: Path) -> None:
    source = ROOT / "tests" / "cuda" / "recorder" / "libcuda.c"
    flags = ["-D_GNU_SOURCE", "-std=c11", "-O1", "-fPIC", "-shared", "-fvisibility=hidden"]
    subprocess.run(["gcc", *flags, source, "-o", tmp_path / "libcuda.so.1", "-lpthread"], check=True)
    ((kernel,),) = json.loads((built / "kernels.json").read_text())["kernels"].values()
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-P", "-c", RECORDED, str(built), kernel]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *_, first, second, refused, failed = done.stdout.splitlines()
    launched = re.fullmatch(
        rf"launch {kernel} grid=(\d+),(\d+),(\d+) block=128,1,1 shared=(\d+)( .*)? in default0", first
    )
    assert launched is not None, first
    assert math.prod(int(launched[axis]) for axis in (1, 2, 3)) == -(-2 * 15 * 15 // 64)
    assert second.replace(" programmatic", "") == first
    assert "programmatic" in second
    assert refused == "None"  # y is off its alignment
    assert failed.startswith(f"cuLaunchKernel of {kernel}: CUDA_ERROR_INVALID_VALUE")
