"""Bundles of the GPU zoo, built on a machine that needs no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import torch

import packager
from benchmarks.gpu.torch_models import DTYPES
from benchmarks.gpu.zoo.cases import ENTRIES, FORMS, MOST, Case, cases, in_precision, module_of
from benchmarks.zoo.models import export


def build_one(case: Case, folder: Path, arch: str, home: str, jobs: int) -> None:
    """Build a bundle, and write how long it took."""
    form = FORMS[case.form]
    module, inputs = module_of(ENTRIES[case.model], case.batch)
    if form.halves:
        module, inputs = module.to(DTYPES[form.precision]), in_precision(inputs, DTYPES[form.precision])
    path = folder / f"{case.stem}{form.suffix}"
    if form.suffix == ".pt2":
        torch.export.save(torch.export.export(module, tuple(inputs.values())), path)
    else:
        export(module, inputs, path, {0: "batch"} if form.batches else None)
    start = time.perf_counter()
    targets = [f"cuda -arch={arch}" + (f" -home={home}" if home else ""), *form.targets]
    place = "trial" if case.form == "trial" else "greedy"
    packager.build(
        path,
        path.with_suffix(".so"),
        targets=targets,
        precision=None if form.halves else form.precision,
        dims={"batch": (1, MOST)} if form.batches else None,
        golden=None,
        place=place,
        jobs=jobs,
    )
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

    def one(case: Case) -> None:
        words = [case.model, str(case.batch), case.form, str(folder), arch, home, str(compilers)]
        command = [sys.executable, "-m", "benchmarks.gpu.zoo", "one", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        made = folder / f"{case.stem}.json"
        built = done.returncode == 0
        said = f"{json.loads(made.read_text())['seconds']} s" if built else f"FAILED {done.stderr[-600:]}"
        print("built", case.stem, said, flush=True)

    with ThreadPoolExecutor(jobs) as threads:
        list(threads.map(one, cases(only)))
