"""The zoo on a GPU in half precision, beside the best that torch does: numbers, times, and where they go.

    python -m benchmarks.gpu.zoo build -o build/gpu_zoo [--jobs 2] [--home FOLDER]     packager[build,cutlass], no GPU
    python -m benchmarks.gpu.zoo run build/gpu_zoo -o gpu_zoo.json [--compile]         where the GPU and torch are

Cases are a model and a batch, ``convnext_tiny-16``. Both engines run with CUDA graphs, in turns, with tensors on the
device; torch has its fused attention where transformers gives it no mask, and for images also channels last.
Errors are relative to the greatest output, from float64. ``--only`` takes patterns of CASE/TARGETS: ``vit*/mixed``.
"""

from __future__ import annotations

import copy
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

import packager
from benchmarks.gpu.cublas_torch import device_outputs, in_turns
from benchmarks.gpu.entries import GPU_ENTRIES
from benchmarks.gpu.torch_models import captured, repeat_weights, settle_norms
from benchmarks.harness.gpu import header, matches, tuned, two_commands
from benchmarks.zoo.entry import Entry
from benchmarks.zoo.held_out import HELD_OUT
from benchmarks.zoo.models import SEED, ZOO, export, instance

ENTRIES: dict[str, Entry] = ZOO | HELD_OUT | {entry.name: entry for entry in GPU_ENTRIES}
BATCHES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("resnext50", "regnety_400mf", "mobilenet_v2", "efficientnet_b0", "convnext_tiny"), (1, 16)),
    **dict.fromkeys(("densenet", "vit_b16", "swin_tiny", "mixer_s16", "segformer_b0", "yolo_n"), (1, 16)),
    **dict.fromkeys(
        ("unet", "vae_decoder", "diffusion_unet", "esrgan", "dcgan", "stylegan2", "r3d", "hifigan"), (1, 8)
    ),
    **dict.fromkeys(("whisper_encoder", "wav2vec2", "conformer", "conv_tasnet"), (1, 8)),
    **dict.fromkeys(("bert_base", "modernbert", "t5_encoder", "gpt2_small", "llama_prompt", "qwen3_prompt"), (1, 8)),
    **dict.fromkeys(("dlrm", "deepfm", "ft_transformer", "lstm_batch", "pointnet", "patchtst"), (1, 8)),
    **dict.fromkeys((entry.name for entry in GPU_ENTRIES if entry.name.startswith("llama_layer")), (1,)),
    "diffusion_down": (1,),
    "resnet50": (1, 32),
}
OTHERS = (1, 8)  # of models that BATCHES lacks
CUTLASS = "cutlass -candidates=1"  # what runs without `tune`
TARGETS = {
    "cuda": [],
    "cutlass": [CUTLASS],
    "cublas": ["cublas"],
    "cudnn": ["cudnn"],
    "libraries": ["cublas", "cudnn"],
    "mixed": [CUTLASS, "cublas", "cudnn"],
    "tensorrt": ["tensorrt -engines=pending", CUTLASS],  # for `packager finalize`, before `run`
    "tensorrt_fp16": ["tensorrt -engines=pending -precision=fp16", CUTLASS],
    "trial": [CUTLASS, "cublas", "cudnn -operators=conv1d,conv2d,conv3d,conv_transpose,depthwise"],
}
FUNCTIONS = 6


def cases(only: str) -> Iterator[tuple[str, int, str]]:
    """Yield model, batch and Targets that the patterns take."""
    for model in ENTRIES:
        for batch in BATCHES.get(model, OTHERS):
            for targets in TARGETS:
                if matches(f"{model}-{batch}/{targets}", only or "*/cutlass"):
                    yield model, batch, targets


def module_of(entry: Entry, batch: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Return a model and inputs of so many times its own batch, always the same."""
    module, single = instance(entry)
    repeat_weights(module)
    torch.manual_seed(SEED)
    several = [single, *(entry.inputs() for _ in range(batch - 1))]
    settle_norms(module.eval(), single)
    return module, {name: torch.cat([one[name] for one in several]) for name in single}


def build_one(model: str, batch: int, targets: str, folder: Path, arch: str, home: str, jobs: int) -> None:
    """Build a bundle, and write how long it took."""
    module, inputs = module_of(ENTRIES[model], batch)
    path = folder / f"{model}-{batch}-{targets}.onnx"
    export(module, inputs, path)
    start = time.perf_counter()
    wanted = [f"cuda -arch={arch}" + (f" -home={home}" if home else ""), *TARGETS[targets]]
    place = "trial" if targets == "trial" else "greedy"
    options = {"precision": "fp16", "golden": 0, "place": place, "jobs": jobs}
    packager.build(path, path.with_suffix(".so"), targets=wanted, **options)
    made = {"seconds": round(time.perf_counter() - start, 1), "versions": versions()}
    path.with_suffix(".json").write_text(json.dumps(made))
    path.unlink()


def versions() -> dict[str, str]:
    """Return the versions of the packages whose models the zoo has: they may not compute the same."""
    found = {}
    for name in ("timm", "torchvision", "transformers"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def build(folder: Path, arch: str, home: str, only: str, jobs: int) -> None:
    """Build all, several at a time; a compiler of kernels takes up to 3 GB."""
    compilers = max(1, (os.cpu_count() or 1) // jobs)
    folder.mkdir(parents=True, exist_ok=True)

    def one(case: tuple[str, int, str]) -> None:
        model, batch, targets = case
        rest = [str(batch), targets, str(folder), arch, home, str(compilers)]
        command = [sys.executable, "-m", "benchmarks.gpu.zoo", "one", model, *rest]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        made = folder / f"{model}-{batch}-{targets}.json"
        built = done.returncode == 0
        said = f"{json.loads(made.read_text())['seconds']} s" if built else f"FAILED {done.stderr[-600:]}"
        print("built", *case, said, flush=True)

    with ThreadPoolExecutor(jobs) as threads:
        list(threads.map(one, cases(only)))


def given_to(module: nn.Module, inputs: dict[str, torch.Tensor], dtype: torch.dtype) -> tuple[nn.Module, list[Any]]:
    """Return a model and its inputs on the device, floats in a precision."""
    moved = copy.deepcopy(module).cuda().to(dtype)
    return moved, [(t.to(dtype) if t.is_floating_point() else t).cuda() for t in inputs.values()]


def attention_of_torch(module: nn.Module) -> None:
    """Let torch use its fused attention where transformers' modules would write it out."""
    for part in module.modules():
        config = getattr(part, "config", None)
        if config is not None and hasattr(config, "_attn_implementation"):
            config._attn_implementation = "sdpa"


@contextmanager
def without_true_masks(module: nn.Module, inputs: dict[str, torch.Tensor]) -> Iterator[None]:
    """Keep transformers from masks that are all true, which it makes in graphs and which exclude fused attention."""
    with ExitStack() as stack:
        for name in {type(part).__module__ for part in module.modules()}:
            source = sys.modules[name]
            if "attention_mask" not in inputs and hasattr(source, "create_bidirectional_mask"):
                stack.enter_context(mock.patch.object(source, "create_bidirectional_mask", return_value=None))
        yield


def torch_runs(
    module: nn.Module, inputs: dict[str, torch.Tensor], dtype: torch.dtype = torch.float16, *, compiled: bool
) -> dict[str, Callable[[], Any]]:
    """Return the ways to run a model in torch that work, under CUDA graphs where one can be captured.

    Floats have a precision.
    """
    half, given = given_to(module, inputs, dtype)
    attention_of_torch(half)
    ways: dict[str, Callable[[], Any]] = {"torch": lambda: half(*given)}
    # Of tensors with more axes, as a layer of volumes has, torch makes nothing with channels last.
    if any(tensor.ndim == 4 for tensor in given) and all(weight.ndim <= 4 for weight in half.parameters()):
        last = copy.deepcopy(half).to(memory_format=torch.channels_last)
        images = [t.to(memory_format=torch.channels_last) if t.ndim == 4 else t for t in given]
        ways["torch, channels last"] = lambda: last(*images)
    if compiled:
        fast = torch.compile(half, dynamic=False)
        ways["torch.compile"] = lambda: fast(*given)
    found, stream = {}, torch.cuda.current_stream()
    for name, way in ways.items():
        for how, make_run in (("", captured), (", no graph", warmed)):
            try:
                with without_true_masks(half, inputs):
                    found[name + how] = make_run(way)
                break
            except Exception as failure:  # what torch cannot run is no rival
                print(f"  {name}{how}: {type(failure).__name__}: {str(failure)[:200]}", flush=True)
                torch.cuda.set_stream(stream)  # a capture that fails leaves its own behind
                torch.cuda.synchronize()
    return found


def warmed(run: Callable[[], Any]) -> Callable[[], Any]:
    """Return a run that works."""
    run()
    torch.cuda.synchronize()
    return run


def slowest(bundle: Any, inputs: dict[str, Any]) -> list[tuple[str, float]]:
    """Return the functions that take longest of a run without graphs, and their us."""
    with bundle.session(graph="off") as session:
        arrays = {name: tensor.cpu().numpy() for name, tensor in inputs.items()}
        session.run(arrays)
        steps = min((session.profile(arrays) for _ in range(3)), key=lambda each: sum(s.duration_ns for s in each))
    times: dict[str, float] = {}
    for step in steps:
        times[step.symbol] = times.get(step.symbol, 0.0) + step.duration_ns / 1e3
    return [(name, round(us, 1)) for name, us in sorted(times.items(), key=lambda item: -item[1])[:FUNCTIONS]]


def measure(model: str, batch: int, paths: dict[str, Path], *, compiled: bool, profiled: bool) -> dict[str, Any]:
    """Return errors and times of a model's bundles and of torch."""
    module, inputs = module_of(ENTRIES[model], batch)
    found: dict[str, Any] = {"errors": {}}
    if "trial" in paths:
        start = time.perf_counter()
        paths = {**paths, "tuned": tuned(paths["trial"], paths["trial"].parent)}
        found["tune_s"] = round(time.perf_counter() - start, 1)
        del paths["trial"]
    with torch.no_grad(), ExitStack() as stack:
        doubles = [t.double() if t.is_floating_point() else t for t in inputs.values()]
        exact = copy.deepcopy(module).double()(*doubles).cuda()
        stream = torch.cuda.current_stream()
        runs: dict[str, Callable[[], Any]] = {}
        for name, path in paths.items():
            bundle = stack.enter_context(packager.load(path))
            given = {tensor.name: inputs[tensor.name].cuda() for tensor in bundle.inputs}
            outputs = device_outputs(bundle)
            session = stack.enter_context(bundle.session(graph="on"))
            runs[name] = session.bind(given, outputs, stream)
            runs[name]()
            torch.cuda.synchronize()
            found["errors"][name] = error(outputs["output"], exact, name)
            if profiled:
                found.setdefault("functions", {})[name] = slowest(bundle, given)
        rivals = torch_runs(module, inputs, compiled=compiled)
        if rivals:  # some models cannot run in half precision, or on a GPU
            half, halves = given_to(module, inputs, torch.float16)
            found["errors"]["torch"] = error(half(*halves), exact, "torch")
        found["us"] = in_turns(runs | rivals)
    best = min((found["us"][name]["median"] for name in rivals), default=math.nan)
    found["ahead"] = {name: round(best / found["us"][name]["median"], 3) for name in runs}
    return found


def error(got: torch.Tensor, exact: torch.Tensor, whose: str) -> float:
    """Return the greatest difference, of the greatest output. Raises ArithmeticError if there is none."""
    found = float(((got.double() - exact).abs().max() / exact.abs().max()).item())
    if not math.isfinite(found):
        raise ArithmeticError(f"results of {whose} are not finite")
    return found


def run(folder: Path, output: Path, only: str, *, compiled: bool, profiled: bool) -> None:
    """Measure everything and write it."""
    report = header("gpu_zoo") | {"torch": torch.__version__, "cases": {}}
    wanted: dict[tuple[str, int], dict[str, Path]] = {}
    for model, batch, targets in cases(only or "*"):
        path = folder / f"{model}-{batch}-{targets}.so"
        if path.exists():
            wanted.setdefault((model, batch), {})[targets] = path
    for (model, batch), paths in wanted.items():
        try:
            found = measure(model, batch, paths, compiled=compiled, profiled=profiled)
        except Exception as failure:  # one that fails must not hide the others
            found = {"failed": f"{type(failure).__name__}: {str(failure)[-600:]}"}
        made = next(iter(paths.values())).with_suffix(".json")
        if made.exists() and (theirs := json.loads(made.read_text())["versions"]) != versions():
            found["other_versions"] = theirs  # errors say nothing then
        report["cases"][f"{model}-{batch}"] = found
        print(f"{model}-{batch}", json.dumps(found), flush=True)
        output.write_text(json.dumps(report, indent=1) + "\n")
        torch.cuda.empty_cache()
        torch._dynamo.reset()  # it gives up a function of the zoo that it has compiled for eight models


def main() -> int:
    """Build or run."""
    if sys.argv[1:2] == ["one"]:
        model, batch, targets, folder, arch, home, jobs = sys.argv[2:]
        build_one(model, int(batch), targets, Path(folder), arch, home, int(jobs))
        return 0
    parser, builder, runner = two_commands(__doc__, "gpu_zoo", "vit*/mixed")
    builder.add_argument("--jobs", type=int, default=2, help="builds at a time")
    builder.add_argument("--home", default="", help="folder of a CUDA toolkit; default: the wheels of packager[cuda]")
    runner.add_argument("--compile", action="store_true", help="torch.compile, too")
    runner.add_argument("--profile", action="store_true", help="times of functions, too")
    given = parser.parse_args()
    if given.command == "build":
        build(given.output, given.arch, given.home, given.only, given.jobs)
    else:
        run(given.folder, given.output, given.only, compiled=given.compile, profiled=given.profile)
    return 0


if __name__ == "__main__":
    sys.exit(main())
