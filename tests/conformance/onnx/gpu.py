"""``python -m tests.conformance.onnx.gpu``: judge cases on a GPU that is in another machine than what builds them.

``build`` needs all of packager and no GPU; ``run`` needs its deploy side, numpy, and torch for bfloat16.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packager.deploy.verify.machine import this_machine
from tests.conformance.carried.parcel import CarriedRun, read_index
from tests.conformance.carried.running import run_parcel
from tests.conformance.onnx.compare import difference

TARGET = "cuda -arch=sm_90a"
LANES = 8


def main() -> None:
    """Parse the command line, and build or run."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.onnx.gpu", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build")
    building.add_argument("-o", "--output", type=Path, required=True, help="the folder of the parcel")
    building.add_argument("--target", action="append", default=[])
    building.add_argument("--only", default="", help="a regular expression: cases whose name or operator has it")
    building.add_argument("--stride", type=int, default=1, help="every n-th case only")
    building.add_argument("--not-right", type=Path, metavar="RESULTS", help="cases alone that are not right in these")
    running = commands.add_parser("run")
    running.add_argument("parcel", type=Path)
    running.add_argument("-o", "--output", type=Path, required=True, help="the results, as JSON")
    running.add_argument("--lanes", type=int, default=LANES)
    writing = commands.add_parser("verdicts", help="write the verdicts and the document of what run has written")
    writing.add_argument("results", type=Path, nargs="+", help="later ones take the place of earlier ones")
    arguments = parser.parse_args()
    start = time.monotonic()
    {"build": _build, "run": _run, "verdicts": _write}[arguments.command](arguments)
    print(f"{time.monotonic() - start:.0f} s")


def _build(arguments: argparse.Namespace) -> None:
    from tests.conformance.onnx.cases import all_cases
    from tests.conformance.onnx.grouping import ParcelBuilder
    from tests.conformance.onnx.table import VERDICTS

    record = json.loads(VERDICTS.read_text())
    done = json.loads(arguments.not_right.read_text())["cases"] if arguments.not_right else {}
    pattern = re.compile(arguments.only)
    cases = [
        case
        for case in all_cases()
        if record["verdicts"][case.name] == "right"
        and (pattern.search(case.name) or pattern.search(case.operator))
        and done.get(case.name, {}).get("status") != "right"
    ][:: arguments.stride]
    builder = ParcelBuilder(
        arguments.output,
        arguments.target or [TARGET],
        frozenset(record["frozen"]),
        lambda text: print(text, flush=True),
    )
    builder.build(cases)
    print(f"{len(cases)} cases: {len(builder.runs)} built, {len(builder.not_built)} not")


def _run(arguments: argparse.Namespace) -> None:
    runs, not_built = read_index(arguments.parcel)

    def tell(name: str, outcome: Mapping[str, str]) -> None:
        if outcome["status"] != "right":
            print(f"{outcome['status']:<8} {name}  {outcome['message'][:200]}", flush=True)

    outcomes = {**run_parcel(arguments.parcel, runs, _judge, tell, arguments.lanes), **not_built}
    record = {"machine": this_machine().to_json(), "cases": outcomes}
    arguments.output.write_text(json.dumps(record, indent=0, sort_keys=True) + "\n")
    print(dict(collections.Counter(outcome["status"] for outcome in outcomes.values())))


def _write(arguments: argparse.Namespace) -> None:
    from tests.conformance.onnx import table
    from tests.conformance.onnx.cases import all_cases

    table.write_cuda([json.loads(path.read_text()) for path in arguments.results], TARGET)
    table.DOCUMENT.write_text(table.render(all_cases()))


def _judge(run: CarriedRun, made: Mapping[str, Any]) -> str:
    return difference(run, [*made.values()])


if __name__ == "__main__":
    main()
