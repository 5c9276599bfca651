"""What it saves to compile structurally equal partitions once: MiniLM's six layers, and whatever else repeats.

    python -m benchmarks.cpu.sharing

The backend compiles the same model's partitions twice, in turns: as packager gives them to it, and with a partition of
its own for every call site. Both go through the check and the link of static libraries, whose objects are compared.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.harness.measure import Bar, Report, Spread, finish, make_parser
from benchmarks.harness.models import MODEL_NAMES, make_source

KINDS = ("ccompiler",)


@dataclass(frozen=True)
class Outcome:
    """One compilation: seconds, and bytes of the object with all that the model calls."""

    seconds: float
    object_bytes: int


def main() -> int:
    """Measure and report."""
    parser = make_parser("sharing", "Build time and object size, equal partitions compiled once and not.")
    parser.add_argument("--model", choices=MODEL_NAMES, default="minilm")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    path = make_source(arguments.model, arguments.workdir)
    rows, figures, bars = [], {}, []
    for kind in KINDS:
        partitions, sites, shared, alone = measure(path, kind, arguments.rounds)
        times = [Spread.of([outcome.seconds for outcome in outcomes]) for outcomes in (shared, alone)]
        sizes = [outcomes[0].object_bytes for outcomes in (shared, alone)]
        rows.append(
            (
                f"{arguments.model}, {kind}",
                str(sites),
                str(partitions),
                *map(str, times),
                f"{times[1].median / times[0].median:.2f}",
                *(f"{size:,}" for size in sizes),
                f"{sizes[1] / sizes[0]:.2f}",
            )
        )
        figures[kind] = {
            "call_sites": sites,
            "partitions": partitions,
            "seconds": {"shared": times[0], "alone": times[1]},
            "object_bytes": {"shared": sizes[0], "alone": sizes[1]},
        }
        bars.append(Bar(f"{kind}: partitions per call site", partitions / sites, 1, ""))
    header = ("model", "call sites", "partitions", "shared, s", "alone, s", "x", "shared, bytes", "alone, bytes", "x")
    return finish(Report("Equal partitions compiled once, and each on its own", header, rows, figures, bars), arguments)


def measure(path: Path, kind: str, rounds: int) -> tuple[int, int, list[Outcome], list[Outcome]]:
    """Return the numbers of partitions and of call sites, and the outcomes of both ways."""
    from packager.backends.base import Context
    from packager.backends.registry import find_backend
    from packager.codegen.toolchain import find_toolchain
    from packager.frontends.load import load_model
    from packager.link.libraries.prepare import check_libraries
    from packager.placement.place import partition
    from packager.placement.preparation import preparation_for
    from packager.targets.target_list import parse_targets
    from packager.transforms.prepare import prepare

    targets = parse_targets(["llvm", kind])
    (target,) = targets.specialized
    prepared = prepare(load_model(path, {}, None), preparation_for([target]), "cpu")
    placement = partition(prepared, [target], None)
    shared = [verdict.partition for verdict in placement.verdicts if verdict.reason is None]
    alone = [
        replace(part, name=f"{part.name}_{index}", sites=(site,))
        for part in shared
        for index, site in enumerate(part.sites)
    ]
    toolchain = find_toolchain(targets.host.machine)
    outcomes: dict[bool, list[Outcome]] = {True: [], False: []}
    for _ in range(rounds):
        for is_shared, partitions in ((True, shared), (False, alone)):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                start = time.perf_counter()
                own = folder / kind
                own.mkdir()
                output = find_backend(kind).compile(partitions, target, Context(own, toolchain, targets.host, 1))
                (library,) = check_libraries([output], toolchain, folder)
                outcomes[is_shared].append(Outcome(time.perf_counter() - start, library.path.stat().st_size))
    return len(shared), len(alone), outcomes[True], outcomes[False]


if __name__ == "__main__":
    sys.exit(main())
