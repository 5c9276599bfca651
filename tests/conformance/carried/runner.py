"""A process that runs bundles of a parcel on this machine: it needs numpy, and torch where there is bfloat16."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import packager
from packager.errors import PackagerError
from tests.conformance.carried.parcel import as_bytes
from tests.conformance.server import serve

# The first run of a shape calls the kernels, the second captures a CUDA graph, the third replays it.
TIMES = 3


def main() -> None:
    """Serve until standard input ends."""
    serve(_answer)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    """Run what is asked for ``TIMES``; write the outputs of each time, in order, into ``request["output"]``."""
    try:
        names, times = _run(Path(request["bundle"]), request["entry"], request["inputs"])
    except PackagerError as error:
        return {"status": "failed", "message": f"{type(error).__name__}: {error.message}"}
    np.savez(request["output"], **{f"{time}/{name}": array for time, made in enumerate(times) for name, array in made})
    return {"status": "ran", "names": names}


def _run(bundle: Path, entry: str | None, inputs: str) -> Any:
    session, signature = _session(bundle)
    info = signature[entry]
    with np.load(inputs) as arrays:
        # A seed of random numbers is left out.
        given = {spec.name: _as_argument(arrays[spec.name], spec.dtype) for spec in info.inputs if spec.name in arrays}
    times = []
    for _ in range(TIMES):
        outputs = None
        if any(spec.dtype == "bfloat16" for spec in info.outputs):
            rooms = session.output_shapes(given, entry=entry)
            outputs = {spec.name: _empty(spec.dtype, rooms[spec.name]) for spec in info.outputs}
        made = session.run(given, outputs=outputs, entry=entry)
        times.append([(spec.name, _as_array(made[spec.name], spec.dtype)) for spec in info.outputs])
    return [spec.name for spec in info.outputs], times


@functools.lru_cache(maxsize=1)
def _session(path: Path) -> tuple[Any, dict[str | None, Any]]:
    bundle = packager.load(path)
    return bundle.session(), {None: bundle, **bundle.entries}


def _as_argument(array: Any, dtype: str) -> Any:
    if dtype != "bfloat16":
        return array
    import torch

    return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)


def _empty(dtype: str, shape: Sequence[int]) -> Any:
    if dtype != "bfloat16":
        return np.empty(shape, dtype if dtype in np.sctypeDict else np.uint8)
    import torch

    return torch.empty(shape, dtype=torch.bfloat16)


def _as_array(value: Any, dtype: str) -> Any:
    return value.float().numpy() if dtype == "bfloat16" else as_bytes(value)


if __name__ == "__main__":
    main()
