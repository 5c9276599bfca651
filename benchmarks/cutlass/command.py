"""The command line of cutlass/fp16.py and cutlass/int8.py: build kernels here, run them on a machine with a GPU."""

from __future__ import annotations

import importlib
import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cutlass.forms import HALF
from benchmarks.cutlass.problems import CHECKS, Problem, select
from benchmarks.harness.gpu import described, header, text_of, two_commands

Found = dict[str, Any]


def medians(measured: Found) -> dict[str, float]:
    """Return the median times, in microseconds, of what was timed."""
    return {name: each["us"]["median"] for name, each in measured.items() if "us" in each}


def ratios(found: Found) -> dict[str, float]:
    """Return the fastest time of torch over that of packager's choice and of the best kernel; NaN if not timed."""
    own = medians(found["ours"])
    rival = medians(found["torch"]).get(found["rival"], math.nan)
    choice, best = own.get(found["choice"], math.nan), min(own.values(), default=math.nan)
    return {"choice": round(rival / choice, 4), "best": round(rival / best, 4)}


def line(name: str, found: Found) -> str:
    """Return what is printed of a problem: times in microseconds, ratios, torch's other ways, and errors."""
    own, theirs, ratio = medians(found["ours"]), medians(found["torch"]), found["ratios"]
    text = f"{'ok   ' if found['ok'] else 'WRONG'} {name:34}"
    if own:
        best = min(own, key=own.__getitem__)
        text += f" torch {theirs.get(found['rival'], math.nan):8.2f} us"
        text += f"  choice {own.get(found['choice'], math.nan):8.2f} x{ratio['choice']:.2f}"
        text += f"  best {own[best]:8.2f} x{ratio['best']:.2f} {best.removeprefix('pk_')}"
    others = [f"{key} {time:.2f}" for key, time in theirs.items() if key != found["rival"]]
    others += [f"no {key}: {each['unavailable']}" for key, each in found["torch"].items() if "unavailable" in each]
    if not found["ok"]:
        others += [f"{kernel} {each.get('errors', 'refuses')}" for kernel, each in found["ours"].items()]
    return text + "".join(f"; {other}" for other in others)


@dataclass(frozen=True)
class Benchmark:
    """A set of problems, the module with its ``make_case``, and how many kernels of each are built (0: all).

    ``rivals`` says which of torch's ways our time is compared with: the fastest whose name begins so. ``close`` adds to
    a report what the figures come to, and returns what is printed of it and whether all thresholds are met.
    """

    name: str
    sets: Mapping[str, Sequence[Problem]]
    cases: str
    kernels: int
    rivals: tuple[str, ...] = ("",)
    close: Callable[[Found], tuple[list[str], bool]] = lambda _: ([], True)

    def run(self, folder: Path, output: Path, problems: Sequence[tuple[str, Problem]], options: Any) -> int:
        """Measure the problems, and write all figures after each; 1 if a kernel is wrong or a threshold is missed."""
        made = described(folder, "kernels.json")
        problems = [(group, problem) for group, problem in problems if problem.name in made["kernels"]]
        if not problems:
            raise SystemExit(f"error: {folder} has none of these problems\nhint: build with the same --set and --only")
        try:
            import torch
        except ImportError as error:
            raise SystemExit(f"error: run needs torch: {error}") from error
        if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
            raise SystemExit("error: run needs a GPU for sm_90a: an H100 or H200")
        from benchmarks.cutlass.bench import Bench

        make_case = importlib.import_module(self.cases).make_case
        versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
        report = header(self.name)
        report["versions"] = versions | {"python": platform.python_version(), "build": made["versions"]}
        report |= {"tiles": made["tiles"], "problems": {}}
        bench, results = Bench(folder, rounds=options.rounds), report["problems"]
        for group, problem in problems:
            timed = group not in CHECKS and not options.check
            try:
                case = make_case(problem, sets=0 if timed else 1)
                found = bench.measure(case, made["kernels"][problem.name], timed=timed)
            except Exception as error:
                error.add_note(f"at {problem.name}")
                raise
            theirs = {name: time for name, time in medians(found["torch"]).items() if name.startswith(self.rivals)}
            found |= {"group": problem.group if problem.form == HALF else group}
            found |= {"rival": min(theirs, key=theirs.__getitem__, default=None)}
            results[problem.name] = found | {"ratios": ratios(found)}
            print(line(problem.name, results[problem.name]), flush=True)
            said, met = self.close(report)
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(text_of(report, "problems"))
        wrong = [name for name, found in results.items() if not found["ok"]]
        print("\n".join(["", *said, f"WRONG: {', '.join(wrong)}" if wrong else "all results are right"]))
        return int(bool(wrong) or not met)

    def main(self, doc: str | None) -> int:
        """Build or run what the command line asks for."""
        parser, builder, runner = two_commands(doc, self.name, "linear_16x*,bmm_*")
        for each in (builder, runner):
            each.add_argument("--set", action="append", choices=tuple(self.sets), dest="sets", help="default: all")
        text = f"of each problem, as packager ranks them; 0: all; default: {self.kernels}"
        builder.add_argument("--kernels", type=int, default=self.kernels, help=text)
        text = "also convolutions by tiles that packager does not choose from"
        builder.add_argument("--trial", action="store_true", help=text)
        builder.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
        builder.add_argument("--home", default="", help="folder of a CUDA toolkit; default: the wheels")
        runner.add_argument("--rounds", type=int, default=15, help="replays of each graph; default: 15")
        runner.add_argument("--check", action="store_true", help="time nothing")
        options = parser.parse_args()
        try:
            problems = select(self.sets, options.sets or (), options.only)
        except ValueError as error:
            parser.error(str(error))
        if options.command == "run":
            return self.run(options.folder, options.output, problems, options)
        from benchmarks.cutlass.build import build

        chosen = [problem for _, problem in problems]
        kinds = {"home": options.home, "trial": options.trial}
        build(options.output, chosen, kernels=options.kernels, jobs=options.jobs, **kinds)
        return 0
