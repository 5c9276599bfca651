"""``python -m tests.conformance.architectures.gpu``: architectures on a GPU, in another machine than what builds them.

``build`` needs all of packager and no GPU; ``run`` needs its deploy side and numpy.
"""

from __future__ import annotations

import argparse
import collections
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packager.deploy.verify.machine import this_machine
from tests.conformance.carried.parcel import CarriedRun, add_runs, read_index, write_index
from tests.conformance.carried.running import run_parcel

from .compare import ATOL, RTOL, compare

if TYPE_CHECKING:
    from .example import Example

TARGETS = ("cuda -arch=sm_90a", "cutlass")
LANES = 8


def main() -> None:
    """Parse the command line, and build or run."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.architectures.gpu", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build")
    building.add_argument("-o", "--output", type=Path, required=True, help="the folder of the parcel")
    building.add_argument("--target", action="append", default=[])
    building.add_argument("--only", nargs="+", metavar="NAME")
    running = commands.add_parser("run")
    running.add_argument("parcel", type=Path)
    running.add_argument("-o", "--output", type=Path, required=True, help="the results, as JSON")
    running.add_argument("--lanes", type=int, default=LANES)
    writing = commands.add_parser("verdicts", help="write the record and the column of docs/models.md")
    writing.add_argument("results", type=Path, help="what run has written")
    writing.add_argument("--target", action="append", default=[], help="what the parcel was built for")
    arguments = parser.parse_args()
    if arguments.command == "verdicts":
        _write(arguments.results, arguments.target or TARGETS)
    elif arguments.command == "build":
        _build(arguments.output, arguments.target or TARGETS, arguments.only)
    else:
        _run(arguments.parcel, arguments.output, arguments.lanes)


def _build(folder: Path, targets: Sequence[str], only: Sequence[str] | None) -> None:
    """Build architectures one by one; the index is written anew after each, so that a part can be carried."""
    import packager
    from packager.errors import PackagerError

    from .models import ARCHITECTURES
    from .running import export, reason_of

    folder.mkdir(parents=True, exist_ok=True)
    runs: list[CarriedRun] = []
    refused: dict[str, dict[str, str]] = {}
    for name in only or ARCHITECTURES:
        start = time.monotonic()
        example = ARCHITECTURES[name]()
        with tempfile.TemporaryDirectory() as temporary:
            model = Path(temporary) / f"{name}.pt2"
            export(example, model)
            try:
                packager.build(model, folder / f"{name}.so", targets=targets, jobs=1)
            except PackagerError as error:
                refused[name] = {"status": "refused", "message": reason_of(error)}
            else:
                own = _runs(name, example, folder / f"{name}.so")
                add_runs(folder, own)
                runs += own
        write_index(folder, runs, refused)
        print(f"{name} {time.monotonic() - start:.0f} s {refused.get(name, '')}", flush=True)


def _runs(name: str, example: Example, library: Path) -> list[CarriedRun]:
    import torch

    import packager

    runs = []
    with packager.load(library) as bundle:
        for number, inputs in enumerate((example.inputs, *example.others)):
            with torch.no_grad():
                wanted = example.module(*inputs)
            feeds = {spec.name: tensor.numpy() for spec, tensor in zip(bundle.inputs, inputs, strict=True)}
            outputs = [tensor.numpy() for tensor in (wanted if isinstance(wanted, tuple) else (wanted,))]
            runs.append(CarriedRun(f"{name}/{number}", name, None, feeds, outputs, RTOL, ATOL))
    return runs


def _run(parcel: Path, output: Path, lanes: int) -> None:
    runs, refused = read_index(parcel)
    errors: dict[str, float] = {}

    def judge(run: CarriedRun, made: Mapping[str, Any]) -> str:
        found = [compare(have, want) for have, want in zip(made.values(), run.outputs, strict=True)]
        errors[run.name] = max([errors.get(run.name, 0.0), *(error for error, _ in found)])
        share = max(share for _, share in found)
        return "" if share <= 1 else f"off by {errors[run.name]:.3g}, {share:.3g} of what is allowed"

    def tell(name: str, outcome: Mapping[str, str]) -> None:
        print(f"{outcome['status']:<8} {name}  {outcome['message'][:200]}", flush=True)

    outcomes = run_parcel(parcel, runs, judge, tell, lanes)
    record = {
        "machine": this_machine().to_json(),
        "runs": {name: {**outcome, "error": errors.get(name)} for name, outcome in outcomes.items()},
        "refused": refused,
    }
    output.write_text(json.dumps(record, indent=0, sort_keys=True) + "\n")
    print(dict(collections.Counter(outcome["status"] for outcome in outcomes.values())), f"{len(refused)} refused")


def _write(results: Path, targets: Sequence[str]) -> None:
    from .cuda_column import RESULTS, record, with_cuda
    from .table import PATH

    kept = record(json.loads(results.read_text()), targets)
    RESULTS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    PATH.write_text(with_cuda(PATH.read_text(), kept))


if __name__ == "__main__":
    main()
