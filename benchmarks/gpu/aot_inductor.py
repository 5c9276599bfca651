"""AOTInductor beside bundles: torch's own ahead-of-time packages of the modules that ``gpu/torch_models.py`` runs.

    python -m benchmarks.gpu.aot_inductor bert2 build/gpu --work /tmp/aoti --device cpu

makes ``bert2.pt2`` for the array in ``build/gpu/bert2.npz``, loads it and compares it with the module. ``prepare`` runs
that in a process for each model, where all that can fail may fail: without a C++ compiler, in an export that torch
refuses, in generated code that crashes. The caller gets a package that has run once, or a text that says why not.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch._inductor.package  # so that opening the first package imports nothing

from benchmarks.gpu.check import error
from benchmarks.gpu.torch_models import Run, captured, torch_input, torch_module

LIMIT_S = 180
JOBS = 4
Loaded = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Package:
    """A package that has run; ``error`` is relative to the module, ``no_graph`` tells why no CUDA graph takes it."""

    file: str
    compile_s: float
    error: float
    no_graph: str


class Result(torch.nn.Module):
    """A module whose result is its first tensor, not a class of transformers that a package would have to know."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """Return the last hidden state, or the scores."""
        result = self.module(given)
        return result if isinstance(result, torch.Tensor) else result[0]


def prepare(folder: Path, names: Sequence[str], work: Path, device: str = "cuda") -> dict[str, Package | str]:
    """Make packages, some at a time, before anything is measured. Returns for each model one, or why there is none."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        return dict.fromkeys(names, f"AOTInductor needs a C++ compiler, and {compiler} is not on PATH")
    work.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(work / "inductor")}
    if libraries := driver_folder(work):
        found = [str(libraries), *filter(None, [os.environ.get("LIBRARY_PATH")])]
        environment["LIBRARY_PATH"] = os.pathsep.join(found)
    one = functools.partial(_prepare, folder, work, device, environment)
    with ThreadPoolExecutor(JOBS) as pool:
        return dict(zip(names, pool.map(one, names), strict=True))


def driver_folder(work: Path) -> Path | None:
    """Return a folder where the linker finds the driver as libcuda.so; machines have it as libcuda.so.1, if at all."""
    found = re.search(r"\S+/libcuda\.so\S*", Path("/proc/self/maps").read_text())
    if found is None:
        return None
    (work / "driver").mkdir(exist_ok=True)
    link = work / "driver" / "libcuda.so"
    link.unlink(missing_ok=True)
    link.symlink_to(found[0])
    return link.parent


def _prepare(folder: Path, work: Path, device: str, environment: dict[str, str], name: str) -> Package | str:
    log, described = work / f"{name}.log", work / f"{name}.json"
    described.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "benchmarks.gpu.aot_inductor", name, folder, "--work", work, "--device", device]
    ended = ""
    with log.open("w") as output:
        # A session of its own: inductor's compilers end with the process that started them.
        process = subprocess.Popen(
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            code = process.wait(LIMIT_S)
            ended = f"the process was ended by {signal.Signals(-code).name}" if code < 0 else ""
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
            ended = f"it took more than {LIMIT_S} s"
    if described.exists():  # without graphs at least
        package = Package(**json.loads(described.read_text()))
        return package if code == 0 else Package(**asdict(package) | {"no_graph": ended or _why(log)})
    print(f"AOTInductor, {name}:", *log.read_text(errors="replace").splitlines()[-40:], sep="\n  ", flush=True)
    return ended or _why(log)


def _why(log: Path) -> str:
    """Return what a process printed last, of several lines the one that a compiler complains in."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    last = next(
        (i for i in reversed(range(len(lines))) if re.match(r"[\w.]*(Error|Exception|Compiler)\b", lines[i])), -1
    )
    told = lines[last:] if lines else ["the process ended and said nothing"]
    return next((line for line in told if re.search(r"\berror: |cannot find -l", line)), told[0])[:300]


def load(path: Path, *, single_threaded: bool = False) -> Loaded:
    """Open a package; CUDA graphs take runs of a single-threaded one only."""
    opened: Loaded = torch._inductor.aoti_load_package(str(path), run_single_threaded=single_threaded)
    return opened


def replay(package: Package, given: torch.Tensor) -> Run | str:
    """Return the replay of a package's run, captured as a CUDA graph, or why there is none."""
    try:
        single = load(Path(package.file), single_threaded=True)
        return captured(lambda: single(given))
    except Exception as failure:  # whatever torch raises is what the column says
        return said(failure)


def said(failure: Exception) -> str:
    """Return an exception in one line."""
    return f"{type(failure).__name__}: {next(iter(str(failure).strip().splitlines()), '')}"[:300]


def make(name: str, folder: Path, work: Path, device: str) -> None:
    """Export, compile, load, run and compare one model; ``NAME.json`` tells of it, first without graphs."""
    arrays = np.load(folder / f"{name}.npz")
    (array,) = [arrays[key] for key in arrays if key.startswith("input:")]
    module, given = Result(torch_module(name, device)).eval(), torch_input(name, array, device)
    path, described = work / f"{name}.pt2", work / f"{name}.json"
    path.unlink(missing_ok=True)
    want = module(given).float().cpu().numpy()
    start = time.perf_counter()
    program = torch.export.export(module, (given,))
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    seconds = time.perf_counter() - start
    apart = error(load(path)(given).float().cpu().numpy(), want)
    if not apart < 0.05:
        raise RuntimeError(f"the package differs from the module by {apart:.2g}")
    no_graph = "the process ended while it captured a run" if device == "cuda" else f"no graphs on device {device}"
    described.write_text(json.dumps(asdict(Package(str(path), seconds, apart, no_graph))))
    if device == "cuda":
        no_graph = replays(path, given, want)
        described.write_text(json.dumps(asdict(Package(str(path), seconds, apart, no_graph))))


def replays(path: Path, given: torch.Tensor, want: np.ndarray) -> str:
    """Capture a run of a package and replay it; returns why that does not work, or nothing."""
    results: list[torch.Tensor] = []
    try:
        single = load(path, single_threaded=True)
        again = captured(lambda: results.append(single(given)))
        results[-1].zero_()
        again()
        torch.cuda.synchronize()
        apart = error(results[-1].float().cpu().numpy(), want)
    except Exception as failure:  # as above
        return said(failure)
    return "" if apart < 0.05 else f"a replay differs from the module by {apart:.2g}"


def main() -> int:
    """Make the package of one model."""
    parser = argparse.ArgumentParser(description="Compile one model with AOTInductor.")
    parser.add_argument("name")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        make(arguments.name, arguments.folder, arguments.work, arguments.device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
