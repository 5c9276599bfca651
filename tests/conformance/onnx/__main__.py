"""``python -m tests.conformance.onnx``: judge cases, print what is not right, and write the verdicts as JSON."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import re
import time
from pathlib import Path

from tests.conformance.onnx import table
from tests.conformance.onnx.cases import all_cases
from tests.conformance.onnx.judge import Verdict, judge_all
from tests.conformance.onnx.others import judge_onnxruntime


def main() -> None:
    """Parse the command line and judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a regular expression: cases whose name or operator has it")
    parser.add_argument("--target", action="append", default=[])
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--stride", type=int, default=1, help="every n-th case only")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--table", action="store_true", help="judge all, and write the verdicts and their document")
    parser.add_argument("--from", dest="known", type=Path, help="with --table: verdicts that --output has written")
    parser.add_argument("-v", "--verbose", action="store_true", help="print those that are right, too")
    arguments = parser.parse_args()
    pattern = re.compile(arguments.only)
    cases = [c for c in all_cases() if pattern.search(c.name) or pattern.search(c.operator)][:: arguments.stride]
    start = time.monotonic()

    def tell(verdict: Verdict) -> None:
        if arguments.verbose or verdict.status != "right":
            print(f"{verdict.status:<8} {verdict.name}  {verdict.message[:200]}", flush=True)

    if arguments.known:
        verdicts = {item["name"]: Verdict(**item) for item in json.loads(arguments.known.read_text())}
    else:
        verdicts = judge_all(cases, arguments.target, tell, arguments.lanes)
    counts = collections.Counter(verdict.status for verdict in verdicts.values())
    frozen = sum(v.status == "right" and bool(v.frozen) for v in verdicts.values())
    print(f"{dict(counts)} of {len(cases)}; {frozen} right with frozen inputs; {time.monotonic() - start:.0f} s")
    if arguments.table:
        table.write(all_cases(), verdicts, judge_onnxruntime(all_cases()))
    if arguments.output:
        arguments.output.write_text(json.dumps([dataclasses.asdict(v) for v in verdicts.values()], indent=0) + "\n")


if __name__ == "__main__":
    main()
