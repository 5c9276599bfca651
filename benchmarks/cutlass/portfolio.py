"""Choose the default portfolio of kernels by what models ask for, and count what others find in it. Compiles nothing.

    python -m benchmarks.cutlass.portfolio choose      write packager/backends/cutlass/portfolios/default.json
    python -m benchmarks.cutlass.portfolio hits        the share of the kernels of held-out models that are in it

Models are those of ``benchmarks.gpu.zoo`` and ``benchmarks.gpu.decoder`` in half precision, whose kernels builds with
the defaults ship: those with batches of their own and the decoders choose, all others are held out.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu import decoder
from benchmarks.gpu.zoo.cases import BATCHES, ENTRIES, OTHERS, module_of
from benchmarks.zoo.models import export
from packager.backends.cutlass.core.kernel import KernelConfig
from packager.backends.cutlass.gemm.block_weights import BlockRowsGemm, DequantizeBlocks
from packager.backends.cutlass.module import kernels_for
from packager.backends.cutlass.portfolio import FOLDER, GROUPS, group_of, read_portfolio, to_json
from packager.pipeline.import_models import import_model
from packager.pipeline.options import BuildOptions
from packager.pipeline.place import place
from packager.pipeline.request import make_build_request
from packager.placement.preparation import preparation_for
from packager.transforms.prepare import prepare

ARCHS = ("sm_90a", "sm_80")


def asked(options: BuildOptions) -> list[tuple[KernelConfig, int]]:
    """Return the kernels of cutlass that a build asks for, each for sm_90a (90) or any GPU (0)."""
    request = make_build_request(options)
    targets = request.targets.specialized
    placement = place(request, prepare(import_model(request), preparation_for(targets), request.targets.device))
    target = next(target for target in targets if target.kind == "cutlass")
    taken = [v.partition for v in placement.verdicts if v.backend == "cutlass" and not v.reason]
    return kernels_for(taken, target)


def options_of(path: Path, states: dict[str, str], arch: str) -> BuildOptions:
    """Return the build of a model by the defaults, in half precision."""
    return BuildOptions(path, targets=[f"cuda -arch={arch}", "cutlass"], precision="fp16", states=states)


def choosing_models(folder: Path) -> Iterator[tuple[str, Path, dict[str, str]]]:
    """Yield the models that choose: name with its batch, file, and states."""
    for model, batches in BATCHES.items():
        for batch in batches:
            yield from _exported(model, batch, folder)
    for case in decoder.CASES:
        path = folder / f"{case}.onnx"
        yield case, path, decoder.export(case, path, layers=2)  # all layers ask for the same
        path.unlink()


def held_out_models(folder: Path) -> Iterator[tuple[str, Path, dict[str, str]]]:
    """Yield the others as ONNX files, but what torch cannot export so."""
    for model in ENTRIES:
        if model not in BATCHES:
            try:
                yield from _exported(model, OTHERS[-1], folder)
            except Exception as failure:  # one that cannot be exported must not hide the others
                print(f"{model}: FAILED {type(failure).__name__}", flush=True)


def _exported(model: str, batch: int, folder: Path) -> Iterator[tuple[str, Path, dict[str, str]]]:
    path = folder / f"{model}-{batch}.onnx"
    export(*module_of(ENTRIES[model], batch), path)
    yield path.stem, path, {}
    path.unlink()


def of_eight_bits(config: KernelConfig) -> Iterator[KernelConfig]:
    """Yield the kernel for weights in blocks of 8 bits, of one for 4."""
    if isinstance(config, BlockRowsGemm | DequantizeBlocks) and config.bits == 4:
        yield dataclasses.replace(config, bits=8)


def choose(folder: Path) -> None:
    """Write the portfolio: what the choosing models ask for, what most of them want first."""
    wanted: dict[str, Counter[KernelConfig]] = {group: Counter() for group in GROUPS}
    for model, path, states in choosing_models(folder):
        for arch in ARCHS:
            found = asked(options_of(path, states, arch))
            for config, kernel_arch in found:
                for one in (config, *of_eight_bits(config)):
                    wanted[group_of(kernel_arch, arch)][one] += 1
            print(f"{model} {arch}: {len(found)}", flush=True)
    content = {
        group: [to_json(config) for config, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0].name))]
        for group, counts in wanted.items()
    }
    FOLDER.mkdir(exist_ok=True)
    lines = [
        f'"{group}": [\n' + ",\n".join(json.dumps(c) for c in configs) + "\n]" for group, configs in content.items()
    ]
    (FOLDER / "default.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print({group: len(configs) for group, configs in content.items()})


def hits(folder: Path) -> None:
    """Print which share of the kernels of each held-out model is in the portfolio, and of all together."""
    portfolio = read_portfolio("default")
    known = {group: set(configs) for group, configs in portfolio.items()}
    total: Counter[str] = Counter()
    for model, path, states in held_out_models(folder):
        for arch in ARCHS:
            try:
                found = asked(options_of(path, states, arch))
            except Exception as failure:  # one that cannot be built must not hide the others
                print(f"{model} {arch}: FAILED {type(failure).__name__}: {failure}", flush=True)
                continue
            have = sum(config in known[group_of(kernel_arch, arch)] for config, kernel_arch in found)
            total[f"{arch} asked"] += len(found)
            total[f"{arch} had"] += have
            print(f"{model} {arch}: {have} of {len(found)}", flush=True)
    for arch in ARCHS:
        print(f"all, {arch}: {total[f'{arch} had']} of {total[f'{arch} asked']}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        {"choose": choose, "hits": hits}[sys.argv[1]](Path(name))
