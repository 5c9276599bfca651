"""Checks of TensorRT engines in a bundle: their bytes, what is pending, and whether the GPU is theirs."""

from __future__ import annotations

from collections.abc import Iterator

from packager.bundle.gpu.arch import arch_number
from packager.bundle.gpu.engine_graphs import read_graphs
from packager.bundle.gpu.engines import ENGINES_SECTION, EngineRecord, check_engines, read_engines
from packager.bundle.reader import BundleFile
from packager.deploy.verify.findings import Finding, error, warning
from packager.deploy.verify.machine import Machine
from packager.errors import BundleError

CODE = "an engine is code that the GPU runs"


def engine_findings(bundle: BundleFile, machine: Machine) -> Iterator[Finding]:
    """Check the records of engines, the graphs of those that are pending, and the hashes of those at the end."""
    if bundle.manifest.form == "static" or ENGINES_SECTION not in bundle.elf.sections:
        return
    try:
        records, graphs = read_engines(bundle.path), read_graphs(bundle)
    except BundleError as damage:
        yield error("manifest.engines", damage.message, where=ENGINES_SECTION, why=CODE)
        return
    for key in check_engines(bundle.path, records):
        yield error("manifest.engines", f"engine {key[:12]} is not the one of its record", where="file", why=CODE)
    pending = [record.key for record in records if record.state == "pending"]
    if lost := sorted(key for key in pending if key not in graphs):
        yield error("manifest.engines", f"engine {lost[0][:12]} is pending, and has no graph", where=ENGINES_SECTION)
    if pending:
        yield warning(
            "manifest.engines",
            f"{len(pending)} of {len(records)} engines are pending",
            where=ENGINES_SECTION,
            why="sessions use the alternatives, which may be slower",
            hint="on the machine that runs it: packager finalize BUNDLE -o OUT.so",
        )
    yield from _of_other_gpus(records, machine)


def _of_other_gpus(records: tuple[EngineRecord, ...], machine: Machine) -> Iterator[Finding]:
    here = {arch_number(device.arch) for device in machine.cuda.devices} if machine.cuda else set()
    for record in records:
        if record.arch and here and record.arch not in here:
            yield warning(
                "machine.engines",
                f"engine {record.key[:12]} is for sm_{record.arch}; the machine has "
                + ", ".join(f"sm_{arch}" for arch in sorted(here)),
                where=ENGINES_SECTION,
                why="a session that uses it cannot be created",
                hint="finalize the bundle as it was built on this machine",
            )
