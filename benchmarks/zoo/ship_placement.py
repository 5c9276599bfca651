"""Write what ``packager tune`` measured of models to packager's shipped placements of regions.

    python -m benchmarks.zoo.ship_placement records.json digits mobilenet_v2 --workdir DIR \\
        -o packager/placement/devices/epyc.json

The records have placements of these models for one device and number of threads, with today's code. Regions that other
models have too are written once; where models disagree, the first one counts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.zoo.placement import BACKENDS, model_of
from packager.bundle.tuning_records import find_placement, read_records
from packager.errors import UsageError
from packager.pipeline.import_models import import_model
from packager.pipeline.options import BuildOptions
from packager.pipeline.place import choosing_of, revision_of
from packager.pipeline.request import Request, make_build_request
from packager.placement.choices.partition import find_choices
from packager.placement.placer import Placer
from packager.placement.preparation import preparation_for
from packager.placement.shipped import ShippedDevice, ShippedRegion
from packager.transforms.prepare import prepare

Measured = tuple[list[ShippedRegion], tuple[str, int]]
"""The regions of a model, and the device and number of threads that they were measured with."""


def measured_regions(request: Request, records: Path) -> Measured:
    """Return the regions of a model as its placement in the records has them, and its device and threads."""
    specialized = request.targets.specialized
    prepared = prepare(import_model(request), preparation_for(specialized), request.targets.device)
    found = find_choices(prepared, Placer(prepared), choosing_of(request, measured=True))
    placement = find_placement(read_records([records]), found.classes.model, revision_of(request))
    regions = [
        ShippedRegion(r.pattern, r.extents, r.problem.rpartition(" ")[0], placement.choices[r.problem])
        for r in found.regions
        if r.problem in placement.choices
    ]
    return regions, (placement.device, placement.threads)


def ship(models: Sequence[Path], records: Path, targets: Sequence[str]) -> ShippedDevice:
    """Return what the records say of the regions of all models. Raises UsageError for several devices."""
    requests = [make_build_request(BuildOptions(model, targets=list(targets), place=records)) for model in models]
    return join((measured_regions(request, records) for request in requests), requests[0])


def join(models: Iterable[Measured], request: Request) -> ShippedDevice:
    """Return the regions of all models, for the Targets of ``request``. Raises UsageError for several devices."""
    regions: dict[tuple[str, tuple[int, ...]], ShippedRegion] = {}
    devices: set[tuple[str, int]] = set()
    for found, device in models:
        devices.add(device)
        regions = {(region.pattern, region.extents): region for region in found} | regions
    if len(devices) != 1:
        raise UsageError(f"the records are of several devices: {sorted(devices)}")
    ((device_name, threads),) = devices
    kinds = tuple(sorted(target.kind for target in (request.targets.generator, *request.targets.specialized)))
    versions = revision_of(request)
    return ShippedDevice(1, device_name, threads, kinds, versions, tuple(regions[key] for key in sorted(regions)))


def main() -> int:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="of the zoo, or of benchmarks.cpu")
    parser.add_argument("--backends", nargs="+", default=[*BACKENDS], help="beside llvm; default: ccompiler")
    parser.add_argument("--workdir", type=Path, required=True, help="for models")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    models = [Path(model_of(name, arguments.workdir).path) for name in arguments.models]
    shipped = ship(models, arguments.records, ["llvm", *arguments.backends])
    arguments.output.write_bytes(shipped.to_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
