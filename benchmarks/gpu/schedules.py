"""GPU schedules by operator: compiled on a machine that has no GPU, checked and timed on one that has.

    python -m benchmarks.gpu.schedules build -o build/gpu_kernels     (packager[build], a CUDA toolkit)
    python -m benchmarks.gpu.schedules run build/gpu_kernels          (a GPU, torch, cupy)

``build`` takes operators through packager's own passes and schedules. ``run`` compares each with torch in float32 on
random data, outputs filled with NaN before, and times those marked as large with CUDA events. Bytes are each input
read once and each output written once; the bar is 80 % of what a device-to-device copy moves.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.gpu.schedule_cases import Case, N, cases

BAR = 0.8
TOLERANCE = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 2e-5, "int64": 0.0}


def build(out: Path, arch: str, only: list[str]) -> int:
    """Compile the cases to cubins, and write what ``run`` needs to know."""
    from packager.codegen.cuda_toolkit import find_cuda_toolkit

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

    from packager.graph.passes import apply
    from packager.lower.cuda.kernels import lower_cuda_kernels
    from packager.lower.cuda.schedule import schedule_cuda
    from packager.lower.kernels import make_group
    from packager.lower.lowering import FLATTEN, FUSE, LEGALIZE
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
