"""Write what ``benchmarks.gpu.placement run`` has measured in half precision to packager's shipped placements.

    python -m benchmarks.gpu.placement.ship build/placement -o packager/placement/devices/h100.json

The folder has the models and records of ``build`` and ``run``, made by the same code. Where networks disagree about a
region, the first one counts.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from benchmarks.gpu.placement.cases import CASES, Case, exported
from benchmarks.zoo.ship_placement import Measured, join, measured_regions
from packager.pipeline.options import BuildOptions
from packager.pipeline.request import Request, make_build_request


def request_of(case: Case, folder: Path, arch: str) -> Request:
    """Return the build of a case by its records."""
    options = BuildOptions(
        exported(case, folder), targets=case.targets(arch, ""), place=records_of(case, folder), precision=case.half
    )
    return make_build_request(options)


def records_of(case: Case, folder: Path) -> Path:
    """Return the file of a case's records."""
    return folder / f"{case.name}.records.json"


def measured(case: Case, folder: Path, arch: str) -> Measured:
    """Return the regions of a case as its records place them."""
    return measured_regions(request_of(case, folder, arch), records_of(case, folder))


def main() -> int:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--jobs", type=int, default=8, help="processes; default: 8")
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    cases = [case for case in CASES if case.half and records_of(case, given.folder).exists()]
    with ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:
        found = list(pool.map(partial(measured, folder=given.folder, arch=given.arch), cases))
    given.output.write_bytes(join(found, request_of(cases[0], given.folder, given.arch)).to_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
