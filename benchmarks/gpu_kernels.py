"""GPU schedules by operator: compiled on a machine that has no GPU, checked and timed on one that has.

    python benchmarks/gpu_kernels.py build -o build/gpu_kernels     (packager[build], a CUDA toolkit)
    python benchmarks/gpu_kernels.py run build/gpu_kernels          (a GPU, torch, cupy)

``build`` takes operators through packager's own passes and schedules. ``run`` compares each with torch in float32 on
random data, outputs filled with NaN before, and times those marked as large with CUDA events. Bytes are each input
read once and each output written once; the bar is 80 % of what a device-to-device copy moves.
"""

# ruff: noqa: ARG005 - how relax and torch write a case has one signature

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

BAR = 0.8
TOLERANCE = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 2e-5, "int64": 0.0}
N = "n"  # the symbolic dim


@dataclass(frozen=True)
class Case:
    """An operator: how relax and torch write it, its inputs, and sizes of the symbolic dim; the last one is timed.

    ``memory`` says that its time should be that of its bytes.
    """

    relax: Callable[..., Any]
    torch: Callable[..., Any]
    inputs: tuple[tuple[tuple[Any, ...], str], ...]
    sizes: tuple[int, ...] = ()
    timed: bool = True
    memory: bool = True
    flops: Callable[[int], float] | None = None


def cases() -> dict[str, Case]:
    """Return the cases by name."""
    h, f, b = "float16", "float32", "bfloat16"

    def t(*shape: Any, dtype: str = h) -> tuple[tuple[Any, ...], str]:
        return shape, dtype

    def layer_norm(r: Any, x: Any, w: Any, c: Any) -> Any:
        return r.nn.layer_norm(x, w, c, axes=[-1])

    def torch_layer_norm(t: Any, x: Any, w: Any, c: Any) -> Any:
        return t.nn.functional.layer_norm(x, (x.shape[-1],), w, c)

    def gelu_dense(r: Any, x: Any, w: Any, c: Any) -> Any:
        return r.nn.gelu(r.add(r.matmul(x, w), c))

    def conv(stride: int, pad: int, groups: int = 1) -> Callable[..., Any]:
        def make(r: Any, x: Any, w: Any) -> Any:
            return r.nn.relu(
                r.nn.conv2d(
                    x,
                    w,
                    strides=(stride, stride),
                    padding=(pad, pad),
                    groups=groups,
                    data_layout="NHWC",
                    kernel_layout="OHWI",
                )
            )

        return make

    def torch_conv(stride: int, pad: int, groups: int = 1) -> Callable[..., Any]:
        def make(t: Any, x: Any, w: Any) -> Any:
            y = t.nn.functional.conv2d(
                x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), stride=stride, padding=pad, groups=groups
            )
            return t.relu(y).permute(0, 2, 3, 1)

        return make

    def softmax(r: Any, x: Any) -> Any:
        return r.nn.softmax(x)

    def torch_softmax(t: Any, x: Any) -> Any:
        return t.softmax(x, -1)

    def max_pool(r: Any, x: Any) -> Any:
        return r.nn.max_pool2d(x, pool_size=(3, 3), strides=(2, 2), padding=(1, 1), layout="NHWC")

    def torch_max_pool(t: Any, x: Any) -> Any:
        return t.nn.functional.max_pool2d(x.permute(0, 3, 1, 2), 3, 2, 1).permute(0, 2, 3, 1)

    return {
        "add_relu": Case(
            lambda r, x, y: r.nn.relu(r.add(x, y)),
            lambda t, x, y: t.relu(x + y),
            (t(N, 56, 56, 256), t(N, 56, 56, 256)),
            (1, 3, 128),
        ),
        "add_relu_f32": Case(
            lambda r, x, y: r.nn.relu(r.add(x, y)), lambda t, x, y: t.relu(x + y), (t(64, 56, 56, 256, dtype=f),) * 2
        ),
        "bias_gelu": Case(
            lambda r, x, c: r.nn.gelu(r.add(x, c)),
            lambda t, x, c: t.nn.functional.gelu(x + c),
            (t(N, 128, 3072), t(3072)),
            (1, 7, 512),
        ),
        "scale_nchw": Case(
            lambda r, x, s, c: r.nn.relu(r.add(r.multiply(x, s), c)),
            lambda t, x, s, c: t.relu(x * s + c),
            (t(N, 256, 56, 56), t(256, 1, 1), t(256, 1, 1)),
            (1, 128),
        ),
        "scale_nchw7": Case(
            lambda r, x, s: r.nn.relu(r.add(x, s)),
            lambda t, x, s: t.relu(x + s),
            (t(N, 2048, 7, 7), t(2048, 1, 1)),
            (1, 1024),
        ),
        "sigmoid_odd": Case(
            lambda r, x: r.sigmoid(x), lambda t, x: t.sigmoid(x), (t(N, 33, dtype=b),), (1, 7), timed=False
        ),
        "softmax128": Case(softmax, torch_softmax, (t(N, 12, 128, 128),), (1, 3, 512)),
        "softmax128_f32": Case(softmax, torch_softmax, (t(256, 12, 128, 128, dtype=f),)),
        "softmax1000": Case(softmax, torch_softmax, (t(N, 1000),), (1, 7, 131072)),
        "softmax33": Case(softmax, torch_softmax, (t(N, 33, dtype=f),), (1, 1000), timed=False),
        "softmax30522": Case(softmax, torch_softmax, (t(N, 30522),), (1, 4096)),
        "softmax_dyn": Case(softmax, torch_softmax, (t(8, 12, N, N),), (1, 33, 384)),
        "layernorm768": Case(layer_norm, torch_layer_norm, (t(N, 128, 768), t(768), t(768)), (1, 7, 1024)),
        "layernorm768_bf16": Case(
            layer_norm, torch_layer_norm, (t(N, 768, dtype=b), t(768, dtype=b), t(768, dtype=b)), (7, 131072)
        ),
        "layernorm4096_f32": Case(
            layer_norm, torch_layer_norm, (t(N, 4096, dtype=f), t(4096, dtype=f), t(4096, dtype=f)), (3, 16384)
        ),
        "layernorm16384": Case(layer_norm, torch_layer_norm, (t(8192, 16384), t(16384), t(16384))),
        "layernorm33": Case(layer_norm, torch_layer_norm, (t(N, 7, 33), t(33), t(33)), (1, 129), timed=False),
        "rms_norm": Case(
            lambda r, x, w: r.nn.rms_norm(x, w, axes=[-1]),
            lambda t, x, w: t.nn.functional.rms_norm(x, (x.shape[-1],), w, 1e-5),
            (t(N, 4096), t(4096)),
            (1, 32768),
        ),
        "transpose_heads": Case(
            lambda r, x: r.permute_dims(x, [0, 2, 1, 3]),
            lambda t, x: x.permute(0, 2, 1, 3),
            (t(N, 128, 12, 64),),
            (1, 1024),
        ),
        "transpose_keys": Case(
            lambda r, x: r.permute_dims(x, [0, 2, 3, 1]),
            lambda t, x: x.permute(0, 2, 3, 1),
            (t(N, 128, 12, 64),),
            (1, 1024),
        ),
        "transpose_2d_f32": Case(lambda r, x: r.permute_dims(x), lambda t, x: x.t(), (t(8192, 8192, dtype=f),)),
        "transpose_odd": Case(lambda r, x: r.permute_dims(x), lambda t, x: x.t(), (t(1000, 30522),)),
        "nchw_to_nhwc": Case(
            lambda r, x: r.permute_dims(x, [0, 2, 3, 1]),
            lambda t, x: x.permute(0, 2, 3, 1),
            (t(N, 64, 56, 56),),
            (1, 512),
        ),
        "concat_channels": Case(
            lambda r, x, y: r.concat([x, y], axis=1),
            lambda t, x, y: t.cat([x, y], 1),
            (t(N, 64, 56, 56), t(N, 32, 56, 56)),
            (1, 512),
        ),
        "concat_last": Case(
            lambda r, x, y: r.concat([x, y], axis=-1),
            lambda t, x, y: t.cat([x, y], -1),
            (t(N, 64), t(N, 33)),
            (7, 1 << 20),
        ),
        "slice_odd": Case(
            lambda r, x: r.strided_slice(x, axes=[1], begin=[1], end=[513]),
            lambda t, x: x[:, 1:513],
            (t(N, 768),),
            (3, 1 << 18),
        ),
        "embedding": Case(
            lambda r, w, i: r.take(w, i, axis=0),
            lambda t, w, i: w[i],
            (t(30522, 768), ((N, 128), "int64")),
            (1, 2048),
        ),
        "sum_leading": Case(lambda r, x: r.sum(x, axis=[0]), lambda t, x: x.sum(0), (t(262144, 768),)),
        "mean_tokens": Case(lambda r, x: r.mean(x, axis=[1]), lambda t, x: x.mean(1), (t(N, 128, 768),), (1, 2048)),
        "mean_last_f32": Case(
            lambda r, x: r.mean(x, axis=[-1]), lambda t, x: x.mean(-1), (t(N, 1024, dtype=f),), (5, 131072)
        ),
        "pool_average": Case(
            lambda r, x: r.mean(x, axis=[1, 2]), lambda t, x: x.mean((1, 2)), (t(N, 7, 7, 2048),), (1, 2048)
        ),
        "pool_average_nchw": Case(
            lambda r, x: r.mean(x, axis=[2, 3]), lambda t, x: x.mean((2, 3)), (t(N, 2048, 7, 7),), (1, 2048)
        ),
        "pool_max": Case(max_pool, torch_max_pool, (t(N, 112, 112, 64),), (1, 256)),
        "depthwise": Case(conv(1, 1, 256), torch_conv(1, 1, 256), (t(128, 56, 56, 256), t(256, 3, 3, 1))),
        "softmax7": Case(softmax, torch_softmax, (t(N, 3, 7),), (1, 1000), timed=False),
        "softmax2048_f32": Case(softmax, torch_softmax, (t(N, 2048, dtype=f),), (1, 65536)),
        "layernorm7": Case(layer_norm, torch_layer_norm, (t(N, 7), t(7), t(7)), (1, 1000), timed=False),
        "layernorm30522": Case(
            layer_norm,
            torch_layer_norm,
            (t(N, 30522, dtype=b), t(30522, dtype=b), t(30522, dtype=b)),
            (1, 33),
            timed=False,
        ),
        "layernorm_dyn_rows": Case(
            lambda r, x, w, c: r.nn.relu(r.nn.layer_norm(x, w, c, axes=[-1])),
            lambda t, x, w, c: t.relu(t.nn.functional.layer_norm(x, (768,), w, c)),
            (t(5, N, 768), t(768), t(768)),
            (1, 3, 33),
            timed=False,
        ),
        "max_last": Case(lambda r, x: r.max(x, axis=[-1]), lambda t, x: x.amax(-1), (t(N, 1000),), (1, 7), timed=False),
        "sum_middle_odd": Case(
            lambda r, x: r.sum(x, axis=[1]), lambda t, x: x.sum(1), (t(N, 1000, 33),), (1, 7), timed=False
        ),
        "sum_all": Case(lambda r, x: r.sum(x), lambda t, x: x.sum(), (t(N, 33, dtype=f),), (7, 1000), timed=False),
        "transpose_small": Case(
            lambda r, x: r.permute_dims(x, [0, 2, 1]),
            lambda t, x: x.permute(0, 2, 1),
            (t(N, 7, 33),),
            (1, 5),
            timed=False,
        ),
        "transpose_dyn": Case(
            lambda r, x: r.permute_dims(x, [1, 0]), lambda t, x: x.t(), (t(N, 768),), (1, 33, 1000), timed=False
        ),
        "where": Case(
            lambda r, x, y: r.where(r.greater(x, y), x, y),
            lambda t, x, y: t.where(x > y, x, y),
            (t(N, 768), t(N, 768)),
            (1, 33),
            timed=False,
        ),
        "matmul_odd": Case(
            lambda r, x, w: r.matmul(x, w),
            lambda t, x, w: x @ w,
            (t(N, 100), t(100, 77)),
            (1, 7, 1000),
            timed=False,
        ),
        "matmul_bf16": Case(
            lambda r, x, w: r.matmul(x, w),
            lambda t, x, w: x @ w,
            (t(N, 768, dtype=b), t(768, 1000, dtype=b)),
            (1, 33),
            timed=False,
        ),
        "dense_gelu": Case(
            gelu_dense,
            lambda t, x, w, c: t.nn.functional.gelu(x @ w + c),
            (t(N, 128, 768), t(768, 3072), t(3072)),
            (1, 32),
            memory=False,
            flops=lambda n: 2.0 * n * 128 * 768 * 3072,
        ),
        "dense_gelu_f32": Case(
            gelu_dense,
            lambda t, x, w, c: t.nn.functional.gelu(x @ w + c),
            (t(4096, 768, dtype=f), t(768, 3072, dtype=f), t(3072, dtype=f)),
            memory=False,
            flops=lambda _: 2.0 * 4096 * 768 * 3072,
        ),
        "attention_qk": Case(
            lambda r, q, k: r.matmul(q, k),
            lambda t, q, k: q @ k,
            (t(N, 12, 128, 64), t(N, 12, 64, 128)),
            (1, 64),
            memory=False,
            flops=lambda n: 2.0 * n * 12 * 128 * 128 * 64,
        ),
        "attention_pv": Case(
            lambda r, q, k: r.matmul(q, k),
            lambda t, q, k: q @ k,
            (t(N, 12, 128, 128), t(N, 12, 128, 64)),
            (1, 64),
            memory=False,
            flops=lambda n: 2.0 * n * 12 * 128 * 128 * 64,
        ),
        "dense_1row": Case(
            lambda r, x, w, c: r.add(r.matmul(x, w), c),
            lambda t, x, w, c: x @ w + c,
            (t(1, 4096), t(4096, 16384), t(16384)),
        ),
        "conv3x3": Case(
            conv(1, 1),
            torch_conv(1, 1),
            (t(32, 28, 28, 128), t(128, 3, 3, 128)),
            memory=False,
            flops=lambda _: 2.0 * 32 * 28 * 28 * 128 * 128 * 9,
        ),
        "conv7x7": Case(
            conv(2, 3),
            torch_conv(2, 3),
            (t(32, 224, 224, 3), t(64, 7, 7, 3)),
            memory=False,
            flops=lambda _: 2.0 * 32 * 112 * 112 * 64 * 3 * 49,
        ),
    }


def build(out: Path, arch: str, only: list[str]) -> int:
    """Compile the cases to cubins, and write what ``run`` needs to know."""
    from packager.cuda_toolkit import find_cuda_toolkit

    out.mkdir(parents=True, exist_ok=True)
    nvcc = find_cuda_toolkit("").nvcc
    made: dict[str, Any] = {}

    def compile_one(name: str) -> None:
        command = [
            str(nvcc),
            "-cubin",
            f"-arch={arch}",
            "-O3",
            "-std=c++17",
            "-w",
            "-Xptxas=-v",
            "-o",
            str(out / f"{name}.cubin"),
        ]
        done = subprocess.run([*command, str(out / f"{name}.cu")], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{name}: nvcc failed\n{done.stderr[-2000:]}")
        spills = [line for line in done.stderr.splitlines() if "spill" in line and "0 bytes spill stores" not in line]
        made[name]["spills"] = spills

    with ThreadPoolExecutor(2) as pool:
        pending = []
        for name, case in cases().items():
            if only and name not in only:
                continue
            try:
                made[name], source = _lower(case, arch)
            except Exception as error:
                raise SystemExit(f"{name}: {error}") from error
            (out / f"{name}.cu").write_text(source)
            pending.append(pool.submit(compile_one, name))
        for result in pending:
            result.result()
    (out / "cases.json").write_text(json.dumps(made))
    for name, entry in made.items():
        kernels = entry["runs"][-1]["kernels"]
        print(f"{name:20s} {[(k['grid'], k['block'], k['shared']) for k in kernels]} {' '.join(entry['spills'])}")
    return 0


def _lower(case: Case, arch: str) -> tuple[dict[str, Any], str]:
    import tvm
    from tvm import relax, sym, tirx
    from tvm_ffi import structural_map

    from packager.lower import FLATTEN, FUSE, LEGALIZE
    from packager.lower.indices import clamp_indices
    from packager.lower.kernels import make_group
    from packager.lower.kernels_cuda import lower_cuda_kernels
    from packager.lower.schedule_cuda import schedule_cuda
    from packager.passes import apply

    n = tirx.Var("n", "int64")
    builder = relax.BlockBuilder()
    parameters = [
        relax.Var(f"a{i}", relax.TensorType([n if e == N else e for e in shape], dtype))
        for i, (shape, dtype) in enumerate(case.inputs)
    ]
    with builder.function("main", parameters):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(case.relax(relax.op, *parameters)))
        builder.emit_func_output(result)
    module = apply([*LEGALIZE, *FUSE, *FLATTEN], builder.finalize())
    functions = {v.name_hint: f for v, f in module.functions.items() if isinstance(f, tirx.PrimFunc)}
    if len(functions) != 1:
        raise SystemExit(f"one PrimFunc expected, got {list(functions)}")
    (primfunc,) = functions.values()
    target = tvm.target.Target({"kind": "cuda", "arch": arch})
    group = make_group("kernel", schedule_cuda(clamp_indices(primfunc), target), "cuda")
    lowered, launches = lower_cuda_kernels(group.functions, target)
    source = tvm.get_global_func("target.build.cuda")(lowered, target).inspect_source()
    bound = {v.__chandle__() for p in primfunc.params for e in p.shape for v in [e] if isinstance(e, tirx.Var)}

    def at(expr: Any, size: int) -> int:
        def replace(var: Any) -> Any:
            return tirx.IntImm(var.ty, size) if var.__chandle__() in bound else var

        return int(sym.Analyzer().simplify(structural_map(tirx.convert(expr), [(tirx.Var, replace)])))

    runs = []
    for size in case.sizes or (1,):
        kernels = []
        for kernel in group.functions:
            launch = launches[kernel.symbol]
            axes = {axis: at(extent, size) for axis, extent in launch.extents.items()}
            kernels.append(
                {
                    "symbol": kernel.symbol,
                    "grid": [axes.get(f"blockIdx.{a}", 1) for a in "xyz"],
                    "block": [axes.get(f"threadIdx.{a}", 1) for a in "xyz"],
                    "shared": launch.shared_bytes,
                    "arguments": [(p.kind, p.index) for p in kernel.parameters],
                    "scalars": [at(scalar, size) for scalar in kernel.scalars],
                }
            )
        runs.append({"size": size, "kernels": kernels, "workspaces": [at(w, size) for w in group.workspaces]})
    outputs = [[[str(e) for e in p.shape], str(p.dtype)] for p in primfunc.params[len(case.inputs) :]]
    return {"runs": runs, "outputs": outputs}, source


def run(folder: Path, only: list[str], output: Path | None, *, only_small: bool) -> int:
    """Check and time the cases on the GPU; 1 if one is wrong or misses its bar."""
    import cupy
    import torch

    made = json.loads((folder / "cases.json").read_text())
    copy = _copy_rate(torch)
    print(f"{torch.cuda.get_device_name()}: a copy moves {copy / 1e9:.0f} GB/s")
    results: dict[str, Any] = {"copy_gb_s": copy / 1e9}
    failed = False
    for name, case in cases().items():
        if name not in made or (only and name not in only):
            continue
        entry = made[name]
        try:
            module = cupy.RawModule(path=str(folder / f"{name}.cubin"))
            *small, large = entry["runs"]
            results[name] = {"ok": True, "error": "not run"}
            for plan in [*small, large] if not only_small else small or ([] if case.timed else [large]):
                results[name] = _check(torch, cupy, module, case, plan, timed=plan is large and case.timed)
                if not results[name]["ok"]:
                    break
        except Exception as error:  # one kernel that fails must not hide the others
            results[name] = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        found = results[name]
        shown = f"{found['error']:.1e}" if isinstance(found["error"], float) else found["error"]
        line = f"{name:20s} {'ok   ' if found['ok'] else 'WRONG'} error {shown}"
        failed |= not found["ok"]
        if "ms" in found:
            share = found["gb_s"] * 1e9 / copy
            found["share"] = share
            line += f"  {found['ms']:8.4f} ms {found['gb_s']:7.0f} GB/s {share:5.0%}  torch {found['torch_ms']:8.4f} ms"
            if case.flops is not None:
                line += f"  {found['tflop_s']:6.1f} TFLOP/s"
            if case.memory and share < BAR:
                line += "  below the bar"
                failed = True
        print(line, flush=True)
    if output is not None:
        output.write_text(json.dumps(results, indent=1))
    return int(failed)


def _copy_rate(torch: Any) -> float:
    """Return the bytes that a large copy reads and writes in a second."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    return float(2 * source.numel() / _seconds(torch, lambda: target.copy_(source)))


def _seconds(torch: Any, work: Callable[[], Any], repeats: int = 10) -> float:
    """Return the median time of a run."""
    for _ in range(3):
        work()
    times = []
    for _ in range(5):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(repeats):
            work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / repeats)
    return statistics.median(times)


def _check(torch: Any, cupy: Any, module: Any, case: Case, plan: Any, *, timed: bool) -> dict[str, Any]:
    size = plan["size"]
    torch.manual_seed(size)
    inputs = []
    for shape, dtype in case.inputs:
        extents = [size if e == N else e for e in shape]
        if dtype == "int64":
            inputs.append(torch.randint(0, case.inputs[0][0][0], extents, device="cuda"))
        else:
            inputs.append(torch.randn(extents, device="cuda", dtype=getattr(torch, dtype)))
    wide = [x if x.dtype == torch.int64 else x.float() for x in inputs]
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    want = case.torch(torch, *wide)
    dtype = next(x.dtype for x in inputs if x.dtype != torch.int64)
    out = torch.full(want.shape, math.nan, device="cuda", dtype=dtype)
    workspaces = [torch.full((max(s, 4) // 4,), math.nan, device="cuda") for s in plan["workspaces"]]
    tensors = {"argument": [*inputs, out], "workspace": workspaces}
    stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
    launches = []
    for kernel in plan["kernels"]:
        function = module.get_function(kernel["symbol"])
        if kernel["shared"] > 48 * 1024:
            function.max_dynamic_shared_size_bytes = kernel["shared"]
        pointers = [cupy.uint64(tensors[kind][index].data_ptr()) for kind, index in kernel["arguments"]]
        scalars = [cupy.int64(s) for s in kernel["scalars"]]
        launches.append(
            (function, tuple(kernel["grid"]), tuple(kernel["block"]), (*pointers, *scalars), kernel["shared"])
        )

    def launch() -> None:
        with stream:
            for function, grid, block, arguments, shared in launches:
                function(grid, block, arguments, shared_mem=shared)

    launch()
    torch.cuda.synchronize()
    difference = (out.double() - want.double()).norm() / want.double().norm().clamp_min(1e-30)
    error = float(difference) if want.numel() < 1 << 28 else float((out.float() - want).abs().max())
    name = str(dtype).removeprefix("torch.")
    found = {"ok": error <= TOLERANCE[name], "error": error, "size": size}
    del want, wide
    if timed and found["ok"]:
        seconds = _seconds(torch, launch)
        moved = sum(x.numel() * x.element_size() for x in [*inputs, out])
        if inputs[-1].dtype == torch.int64:  # a lookup reads the rows that it takes, not the table
            moved = 2 * out.numel() * out.element_size() + inputs[-1].numel() * 8
        found |= {"ms": seconds * 1e3, "gb_s": moved / seconds / 1e9}
        found["torch_ms"] = _seconds(torch, lambda: case.torch(torch, *inputs).contiguous()) * 1e3
        if case.flops is not None:
            found["tflop_s"] = case.flops(size) / seconds / 1e12
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    builder = commands.add_parser("build")
    builder.add_argument("-o", "--output", type=Path, default=Path("build/gpu_kernels"))
    builder.add_argument("--arch", default="sm_90a")
    builder.add_argument("--cases", default="")
    runner = commands.add_parser("run")
    runner.add_argument("folder", type=Path)
    runner.add_argument("-o", "--output", type=Path)
    runner.add_argument("--cases", default="")
    runner.add_argument("--small", action="store_true", help="only the small sizes, as for compute-sanitizer")
    options = parser.parse_args()
    only = [name for name in options.cases.split(",") if name]
    if options.command == "build":
        return build(options.output, options.arch, only)
    return run(options.folder, only, options.output, only_small=options.small)


if __name__ == "__main__":
    sys.exit(main())
