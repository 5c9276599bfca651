"""Tables of what ``benchmarks.gpu.placement run`` has written.

python -m benchmarks.gpu.placement.show placement.json [--only 'bert*'] [--parts]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness.gpu import matches
from benchmarks.harness.measure import Threshold, format_table

LEAST, WANTED = 0.99, 1.10
HEADER = (
    *("network", "chosen us", "best single", "us", "ratio (quartiles)", "its candidates tuned", "by parts"),
    *("torch us", "ahead", "error", "singles'", "torch's", "tune s"),
)
PARTS_HEADER = ("region", "times", "chosen us", "best single us", "fastest us", "data sheet us", "fastest alternative")


def best_single(found: Mapping[str, Any]) -> str:
    """Return the plan of one backend that is fastest in turns; of linked bundles, the backend."""
    others = [name for name in found["us"] if name not in ("chosen", "placed") and not name.startswith("torch")]
    singles = [name for name in others if "candidates" not in name]
    return min(singles, key=lambda name: float(found["us"][name]["median"]))


def row(name: str, found: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the line of a network."""
    us, ratio, errors = found["us"], found["ratio"], found["errors"]
    first, best = next(iter(us)), best_single(found)
    torch = min((spread["median"] for way, spread in us.items() if way.startswith("torch")), default=float("nan"))
    tuned = ratio.get(f"{best}, candidates as chosen")
    parts = found.get("parts")
    singles = [error for way, error in errors.items() if way not in (first, "torch")]
    return (
        name,
        f"{us[first]['median']:.1f}",
        best,
        f"{us[best]['median']:.1f}",
        "{median:.3f} ({low:.3f} to {high:.3f})".format(**ratio[best]),
        f"{tuned['median']:.3f}" if tuned else "-",
        f"{parts['plans_us'][best] / parts['floor_us']:.3f}" if parts else "-",
        f"{torch:.1f}",
        f"{torch / us[first]['median']:.2f}",
        f"{errors[first]:.1e}",
        f"{max(singles):.1e}",
        f"{errors['torch']:.1e}",
        f"{found.get('tune_s', 0.0):.0f}",
    )


def parts_rows(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the lines of regions, those first whose alternatives differ most, and of what is outside of them."""
    parts, best = found["parts"], best_single(found)
    chosen = {choice["problem"]: choice["chosen"] for choice in found["tune"]["choices"]}
    digits = parts["plans"][best]

    def gain(entry: tuple[int, Mapping[str, Any]]) -> float:
        index, choice = entry
        return float(choice["us"][digits[index]] - min(choice["us"].values()))

    for index, choice in sorted(enumerate(parts["choices"]), key=gain, reverse=True):
        times = choice["us"]
        fastest = min(times, key=times.__getitem__)
        taken = (times[chosen[choice["problem"]]], times[digits[index]], times[fastest], choice["bound_us"])
        yield (choice["problem"][:48], str(choice["regions"]), *(f"{us:.1f}" for us in taken), fastest[:60])
    rest = f"{parts['rest_us']:.1f}"
    yield ("outside of regions", "", rest, rest, rest, f"{parts['rest_bound_us']:.1f}", "")


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", metavar="NAMES", help="patterns of names, with commas: bert*,dcgan-8")
    parser.add_argument("--parts", action="store_true", help="a table of regions for each network")
    given = parser.parse_args()
    report = json.loads(given.file.read_text())
    cases = {name: found for name, found in report["cases"].items() if matches(name, given.only)}
    done = {name: found for name, found in cases.items() if "us" in found}
    print(report["gpu"], report["date"], "torch", report["torch"], end="\n\n")
    print(format_table(HEADER, [row(name, found) for name, found in done.items()]))
    gains = [found["ratio"][best_single(found)]["median"] for found in done.values()]
    if gains:
        print()
        print(Threshold("least gain over the best single backend", min(gains), LEAST, "", at_least=True))
        print(Threshold(f"networks that gain {WANTED}", sum(gain >= WANTED for gain in gains), 3, "", at_least=True))
    for name, found in cases.items():
        for key in (key for key in found if key.endswith("failed")):
            print(f"\n{name}: {key}: {found[key]}")
        if given.parts and "parts" in found:
            print(f"\n{name}: best single is {best_single(found)}\n")
            print(format_table(PARTS_HEADER, list(parts_rows(found))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
