"""``--keep-workdir``: write all intermediate values of a build, numbered in order, as readable text."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from packager.bundle.buckets import variant_label
from packager.codegen.timings import Timings
from packager.ir.call_plan import CallPlan
from packager.ir.model import ImportedModel, LoweredModel
from packager.ir.primitives import Kernel
from packager.placement.place import Placement
from packager.placement.table import partition_table


def imported(model: ImportedModel, workdir: Path, keep: Path | None) -> None:
    """Write the Relax module as imported."""
    if keep is not None:
        (workdir / "1-imported.py").write_text(model.module.script())


def partitioned(placement: Placement, generator: str, workdir: Path, keep: Path | None) -> None:
    """Write the partitioned module, the partitions as passed to their backends, and the partition table."""
    if keep is None:
        return
    parts = [placement.model.module.script()]
    parts += [f"# {verdict.partition.name}\n{verdict.partition.function.script()}" for verdict in placement.verdicts]
    (workdir / "2-partitioned.py").write_text("\n\n".join(parts))
    (workdir / "2-partitions.json").write_text(json.dumps(partition_table(placement, generator), indent=1))


def lowered(model: LoweredModel, workdir: Path, keep: Path | None) -> None:
    """Write the flat main and the scheduled kernels."""
    if keep is not None:
        parts = [model.main.script()]
        for group in model.groups.values():
            kernels = [function for function in group.functions if isinstance(function, Kernel)]
            parts += [f"# {kernel.symbol}\n{kernel.primfunc.script()}" for kernel in kernels]
        (workdir / "3-lowered.py").write_text("\n\n".join(parts))


def planned(plan: CallPlan, workdir: Path, keep: Path | None) -> None:
    """Write the call sequence, the arena and the table of constants."""
    if keep is None:
        return
    document: dict[str, Any] = {
        "arena_bytes": plan.arena_bytes,
        "steps": [
            {"entry": variant_label(run.name, run.sizes), **dataclasses.asdict(step)}
            for entry in plan.entries
            for run in entry.runs()
            for step in run.steps
        ],
        "primitives": [dataclasses.asdict(primitive) for primitive in plan.primitives],
        "constants": [dataclasses.asdict(record) for record in plan.constants.records],
        "states": [dataclasses.asdict(state) for state in plan.states],
        "slots": [dataclasses.asdict(slot) for slot in plan.constants.slots],
    }
    (workdir / "4-plan.json").write_text(json.dumps(document, indent=1))


def timed(timings: Timings, workdir: Path, keep: Path | None) -> None:
    """Write the times of the stages and of each compiler or linker run."""
    if keep is not None:
        (workdir / "timings.json").write_text(json.dumps(timings.to_json(), indent=1))
