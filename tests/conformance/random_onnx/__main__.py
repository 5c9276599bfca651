"""``python -m tests.conformance.random_onnx``: judge seeds and print what is not right."""

from __future__ import annotations

import argparse
import collections
import re
import time
from pathlib import Path

from tests.conformance.random_onnx.judge import judge_seeds
from tests.one_cpu import targets_here


def main() -> None:
    """Parse the command line and judge, or write the model of one seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:1000", help="FIRST:LAST, or some with commas between")
    parser.add_argument("--keep", type=Path, help="a folder: models that are not right, with inputs and outputs")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition(":")
    seeds = list(range(int(first), int(last))) if last else [int(seed) for seed in first.split(",")]
    counts: collections.Counter[str] = collections.Counter()
    reasons: collections.Counter[str] = collections.Counter()
    start = time.monotonic()
    for verdict in judge_seeds(seeds, targets_here(), arguments.keep):
        counts[verdict.status] += 1
        if verdict.status == "refused":
            reasons[re.sub(r"'[^']*'|\b\w*\d+\b|_\d+", "_", verdict.message)[:100]] += 1
        if verdict.status != "right":
            print(verdict.status, verdict.seed, verdict.message[:400].replace("\n", " "), flush=True)
    print(f"{dict(counts)} of {len(seeds)} seeds, {time.monotonic() - start:.0f} s")
    for reason, count in reasons.most_common():
        print(f"{count:4} refused: {reason}")


if __name__ == "__main__":
    main()
