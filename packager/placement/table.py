"""The partition table as JSON: which backend compiles which parts of a model."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tvm import relax

from packager.graph.dataflow import bindings_of
from packager.placement.place import Placement
from packager.placement.placer import Verdict

TABLE_VERSION = 1


def partition_table(placement: Placement, generator: str) -> dict[str, Any]:
    """Return the table: partitions in the order in which they were tried, and the operators left to ``generator``.

    ``generator`` is the kind of the Target whose code generator compiles them.
    """
    return {
        "schema_version": TABLE_VERSION,
        "generator": generator,
        "partitions": [_row(verdict) for verdict in placement.verdicts],
        "rest": dict(sorted(operators_of(placement.model.module["main"]).items())),
    }


def _row(verdict: Verdict) -> dict[str, Any]:
    part = verdict.partition
    return {
        "partition": part.name,
        "backend": verdict.backend,
        "composite": "+".join(dict.fromkeys(composite.name for composite in part.composites)),
        "operators": [operator for composite in part.composites for operator in composite.ops],
        "flops": part.cost.flops,
        "bytes_read": part.cost.bytes_read,
        "bytes_written": part.cost.bytes_written,
        "sites": [{"nodes": list(site.nodes), "constants": list(site.constants.values())} for site in part.sites],
        "undone": verdict.reason,
    }


def operators_of(main: relax.Function) -> Counter[str]:
    """Count the operators that a function calls, without ``relax.``; calls of partitions are none."""
    values = [binding.value for binding in bindings_of(main)]
    names = [str(getattr(v.op, "name", "")).removeprefix("relax.") for v in values if isinstance(v, relax.Call)]
    return Counter(name for name in names if name and name != "call_dps_packed")
