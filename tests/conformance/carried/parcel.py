"""A parcel: a folder with bundles, and for each run of them inputs and expected outputs. Needs numpy alone."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

INDEX = "parcel.json"


@dataclass(frozen=True)
class CarriedRun:
    """One run of a bundle ``{bundle}.so`` in the parcel, or of an entry of it; the arrays are in ``{bundle}.npz``."""

    name: str
    bundle: str
    entry: str | None
    inputs: Mapping[str, Any]
    outputs: Sequence[Any]
    rtol: float
    atol: float


def widened(array: Any) -> Any:
    """Return an array that every numpy can hold and compute with: bfloat16 as float32, exactly; others as bytes."""
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else as_bytes(array)


def as_bytes(array: Any) -> Any:
    """Return an array of what numpy itself does not have, of a byte each, as uint8; others as they are."""
    registered = array.dtype.isbuiltin == 2 and array.dtype.itemsize == 1
    return array.view(np.uint8) if registered else array


def add_runs(folder: Path, runs: Sequence[CarriedRun]) -> None:
    """Write all runs of one bundle. bfloat16 is 16 bits in inputs, float32 in outputs; narrow types are bytes."""
    arrays = {f"{run.name}/in/{name}": _storable(array) for run in runs for name, array in run.inputs.items()}
    arrays |= {
        f"{run.name}/out/{number}": widened(np.asarray(array))
        for run in runs
        for number, array in enumerate(run.outputs)
    }
    np.savez_compressed(folder / f"{runs[0].bundle}.npz", **arrays)


def _storable(array: Any) -> Any:
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else as_bytes(array)


def write_index(folder: Path, runs: Iterable[CarriedRun], not_built: Mapping[str, Mapping[str, str]]) -> None:
    """Write what is in a parcel, and what was not built: its status and why, by name."""
    listed = [
        {
            **{field.name: getattr(run, field.name) for field in dataclasses.fields(run) if field.name != "outputs"},
            "inputs": list(run.inputs),
            "outputs": len(run.outputs),
        }
        for run in runs
    ]
    (folder / INDEX).write_text(json.dumps({"runs": listed, "not built": not_built}, indent=0) + "\n")


def read_index(folder: Path) -> tuple[list[CarriedRun], dict[str, dict[str, str]]]:
    """Return the runs, with their arrays, and what was not built."""
    index = json.loads((folder / INDEX).read_text())
    files = {run["bundle"]: np.load(folder / f"{run['bundle']}.npz") for run in index["runs"]}
    runs = []
    for item in index["runs"]:
        arrays, name = files[item["bundle"]], item["name"]
        inputs = {key: arrays[f"{name}/in/{key}"] for key in item["inputs"]}
        outputs = tuple(arrays[f"{name}/out/{number}"] for number in range(item["outputs"]))
        runs.append(CarriedRun(**{**item, "inputs": inputs, "outputs": outputs}))
    return runs, index["not built"]
