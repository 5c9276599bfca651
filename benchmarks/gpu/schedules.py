"""Check and time GPU schedules by operator: compiled on a machine that has no GPU, checked and timed on one that has.

    python -m benchmarks.gpu.schedules build -o build/gpu_kernels                (packager[build], a CUDA toolkit)
    python -m benchmarks.gpu.schedules run build/gpu_kernels -o results.json     (a GPU, torch, cupy)

``build`` takes operators through packager's own passes and schedules. ``run`` compares each with torch in float32 on
random data, outputs filled with NaN before, and times those marked as large with CUDA events. Bytes are each input
read once and each output written once; the threshold is 80 % of what a device-to-device copy moves.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.schedule_cases import Case, N, cases
from benchmarks.harness.gpu import described, matches, run_each, two_commands

THRESHOLD = 0.8
TOLERANCE = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 2e-5, "int64": 0.0}


def build(out: Path, arch: str, only: str) -> int:
    """Compile the cases to cubins, and write what ``run`` needs to know."""
    from packager.codegen.cuda_toolkit import find_cuda_toolkit

    out.mkdir(parents=True, exist_ok=True)
    nvcc = find_cuda_toolkit("").nvcc
    made: dict[str, Any] = {}

    def compile_one(name: str) -> None:
        files = ["-o", str(out / f"{name}.cubin"), str(out / f"{name}.cu")]
        command = [str(nvcc), "-cubin", f"-arch={arch}", "-O3", "-std=c++17", "-w", *files]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{name}: nvcc failed\n{done.stderr[-2000:]}")

    with ThreadPoolExecutor(2) as pool:
        pending = []
        for name, case in cases().items():
            if not matches(name, only):
                continue
            made[name], source = _lower(case, arch)
            (out / f"{name}.cu").write_text(source)
            pending.append(pool.submit(compile_one, name))
        for result in pending:
            result.result()
    (out / "cases.json").write_text(json.dumps(made))
    return 0


def _lower(case: Case, arch: str) -> tuple[dict[str, Any], str]:
    import tvm
    from tvm import relax, sym, tirx
    from tvm_ffi import structural_map

    from packager.graph.rewrite import apply
    from packager.lower.cuda.kernels import lower_cuda_kernels
    from packager.lower.cuda.schedule import schedule_cuda
    from packager.lower.devices import DEVICES
    from packager.lower.kernels import make_group
    from packager.lower.lowering import FLATTEN, FUSE
    from packager.transforms.clamp_indices import clamp_indices

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
    module = apply([*DEVICES["cuda"].legalize, *FUSE, *FLATTEN], builder.finalize())
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
    return {"runs": runs}, source


def run(folder: Path, only: str, output: Path, *, only_small: bool) -> int:
    """Check and time the cases on the GPU; 1 if one is wrong or misses its threshold."""
    import torch

    made = described(folder, "cases.json")
    copy = _copy_rate(torch)
    print(f"{torch.cuda.get_device_name()}: a copy moves {copy / 1e9:.0f} GB/s")
    runs = {
        name: partial(_check_all, folder / f"{name}.cubin", case, made[name]["runs"], only_small, copy)
        for name, case in cases().items()
        if name in made and matches(name, only)
    }
    return run_each("gpu_kernels", runs, output)


def _check_all(cubin: Path, case: Case, runs: list[Any], only_small: bool, copy: float) -> dict[str, Any]:
    """Check a case at all its sizes and time it at the last; the smaller ones alone if asked for."""
    import cupy
    import torch

    module = cupy.RawModule(path=str(cubin))
    *small, large = runs
    found: dict[str, Any] = {"ok": True, "error": "not run"}
    for plan in [*small, large] if not only_small else small or ([] if case.timed else [large]):
        found = _check(torch, cupy, module, case, plan, timed=plan is large and case.timed)
        if not found["ok"]:
            return found
    if "gb_s" in found:
        found["share"] = found["gb_s"] * 1e9 / copy
        found["ok"] = not case.memory or found["share"] >= THRESHOLD
    return found


def _copy_rate(torch: Any) -> float:
    """Return the bytes that a large copy reads and writes in a second."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    return float(2 * source.numel() / _seconds(lambda: target.copy_(source)))


def _seconds(work: Callable[[], Any], repeats: int = 10) -> float:
    """Return the median time of a run."""
    from benchmarks.gpu.cublas_torch import timed  # torch is where the GPU is

    for _ in range(3):
        work()
    return statistics.median(timed(work, repeats) / 1e3 for _ in range(5))


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
        seconds = _seconds(launch)
        moved = sum(x.numel() * x.element_size() for x in [*inputs, out])
        if inputs[-1].dtype == torch.int64:  # a lookup reads the rows that it takes, not the table
            moved = 2 * out.numel() * out.element_size() + inputs[-1].numel() * 8
        found |= {"ms": seconds * 1e3, "gb_s": moved / seconds / 1e9}
        found["torch_ms"] = _seconds(lambda: case.torch(torch, *inputs).contiguous()) * 1e3
        if case.flops is not None:
            found["tflop_s"] = case.flops(size) / seconds / 1e12
    return found


def main() -> int:
    """Build or run what the command line asks for."""
    parser, _, runner = two_commands(__doc__, "gpu_kernels", "softmax*,conv3x3")
    runner.add_argument("--small", action="store_true", help="only the small sizes, as for compute-sanitizer")
    options = parser.parse_args()
    if options.command == "build":
        return build(options.output, options.arch, options.only)
    return run(options.folder, options.only, options.output, only_small=options.small)


if __name__ == "__main__":
    sys.exit(main())
