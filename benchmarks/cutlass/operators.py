"""Check single operators of the cutlass backend: bundles are made here, and their numbers checked on a GPU.

    python -m benchmarks.cutlass.operators build -o build/gpu_operators [--only 'dense_*']    (packager[build,cutlass])
    python -m benchmarks.cutlass.operators run build/gpu_operators -o results.json            (an H100 or H200)

``build`` makes a model of one operator and what follows it for every case of ``cutlass/operator_cases``, and from
onnxruntime on the CPU in float32 what it should give; it fails where cutlass does not take it as one partition. ``run``
computes each case with every kernel that its bundle ships, at every size of its symbolic dims, and compares relative
errors in the Euclidean norm with the case's tolerance.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import packager
from benchmarks.harness.gpu import described, matches, run_each, two_commands, worse, worst
from benchmarks.harness.pairs import load_pairs, save_pairs


def build(folder: Path, only: str, arch: str) -> int:
    """Make the bundles and references of the chosen cases; 1 if a model is not taken as its case says."""
    from benchmarks.cutlass.operator_cases import CASES, Case, reference
    from benchmarks.cutlass.operator_cases.volumes import volumes

    folder.mkdir(parents=True, exist_ok=True)
    chosen: Sequence[Case] = [case for case in (*CASES, *volumes()) if matches(case.name, only)]
    record = folder / "cases.json"
    made: dict[str, Any] = json.loads(record.read_text()) if record.exists() else {}
    bad = []
    for case in chosen:
        model = folder / f"{case.name}.onnx"
        model.write_bytes(case.model().SerializeToString())
        path = packager.build(
            model,
            folder / f"{case.name}.so",
            targets=[f"cuda -arch={arch}", f"cutlass {case.options}".strip()],
            dims=case.dims,
            precision=case.precision,
        )
        manifest = packager.inspect(path).manifest
        # The last function of a partition stands for the work of all of them.
        calls = sum(entry.calls for kind, entry in manifest.primitives() if kind == "cutlass" and entry.flops)
        inputs = [case.inputs(size) for size in case.sizes]
        pairs = [(each, reference(case, each)) for each in inputs]
        save_pairs(folder / f"{case.name}.npz", pairs)
        model.unlink()
        made[case.name] = {"tolerance": case.tolerance, "calls": calls}
        print(f"{case.name}: {calls} calls of cutlass", flush=True)
        if calls != 1:
            bad.append(f"{case.name}: cutlass is called {calls} times, expected once")
    record.write_text(json.dumps(made, indent=1) + "\n")
    print("\n".join(bad))
    return int(bool(bad))


def run(folder: Path, output: Path, only: str) -> int:
    """Check the cases on this machine's GPU and write what was found; 1 if a number is wrong."""
    cases = {
        name: partial(check, folder / name, case["tolerance"])
        for name, case in described(folder, "cases.json").items()
        if matches(name, only)
    }
    return run_each("gpu_operators", cases, output)


def check(stem: Path, tolerance: float) -> dict[str, Any]:
    """Run a bundle with each of its kernels at each size; return their worst errors and whether all is well."""
    pairs = load_pairs(stem.with_suffix(".npz"))
    errors: dict[str, float] = {}
    with packager.load(stem.with_suffix(".so")) as bundle:
        candidates = {entry.symbol: entry.candidates for entry in bundle.manifest.selection}
        most = max((len(names) for names in candidates.values()), default=1)
        for number in range(most):
            selection = {symbol: names[min(number, len(names) - 1)] for symbol, names in candidates.items()}
            label = " ".join(dict.fromkeys(selection.values())) or "only"
            for mode in ("off", "on"):
                with bundle.session(graph=mode, selection=selection) as session:
                    found = worst([session.run(inputs) for inputs, _ in pairs], pairs)
                errors[label] = worse(errors.get(label, 0.0), found)
    return {"errors": errors, "ok": all(value <= tolerance for value in errors.values())}


def main() -> int:
    """Build or run what the command line asks for."""
    parser, _, _ = two_commands(__doc__, "gpu_operators", "dense_*,conv_*")
    options = parser.parse_args()
    if options.command == "run":
        return run(options.folder, options.output, options.only)
    return build(options.output, options.only, options.arch)


if __name__ == "__main__":
    sys.exit(main())
