"""Read and write pairs of inputs and of the outputs that are expected of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

Arrays = Mapping[str, np.ndarray]
Pairs = Sequence[tuple[Arrays, Arrays]]


def save_pairs(path: Path, pairs: Pairs) -> None:
    """Write an ``.npz``; the names of later pairs begin with their index."""
    arrays: dict[str, np.ndarray] = {}
    for index, (inputs, outputs) in enumerate(pairs):
        prefix = f"{index}:" if index else ""
        arrays |= {f"{prefix}input:{key}": array for key, array in inputs.items()}
        arrays |= {f"{prefix}output:{key}": array for key, array in outputs.items()}
    unfinished = path.with_stem(f"{path.stem}-unfinished")
    np.savez_compressed(unfinished, **arrays)
    unfinished.rename(path)


def load_pairs(path: Path) -> Pairs:
    """Return what ``save_pairs`` has written."""
    arrays = np.load(path)

    def named(prefix: str) -> Arrays:
        return {key.removeprefix(prefix): arrays[key] for key in arrays if key.startswith(prefix)}

    prefixes = dict.fromkeys(key.partition("input:")[0] for key in arrays if "input:" in key)
    return [(named(f"{prefix}input:"), named(f"{prefix}output:")) for prefix in prefixes]
