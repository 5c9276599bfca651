"""``python -m tests.conformance.onnx.fuzz_files FOLDER``: altered files are imported, or refused with a node's name.

Each seed takes one file of a folder, alters one or two things in any of its graphs, and imports it in a process of its
own. A crash, a hang, an error that is not packager's, or one that names no node or has no hint is a finding.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import multiprocessing
import random
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import onnx

from packager.errors import ModelError, PackagerError
from packager.frontends.dims import DimRequest
from packager.frontends.load import load_model
from packager.frontends.onnx.graph.nodes import inner_graphs
from tests.conformance.onnx import fuzz

LIMIT = 60.0
MAX_BYTES = 1 << 20
CHANGES = (
    *(fuzz._drop_node, fuzz._repeat_node, fuzz._swap_inputs, fuzz._drop_input, fuzz._rename_edge, fuzz._swap_nodes),
    *(fuzz._change_attribute, fuzz._change_dim, fuzz._change_type, fuzz._change_operator, fuzz._drop_attribute),
    fuzz._change_rank,
)


@dataclass(frozen=True)
class Finding:
    """What became of a seed: ``imported``, ``refused``, or a fault: ``unnamed``, ``raised``, ``crashed``, ``hung``."""

    seed: int
    file: str
    changes: str
    status: str
    message: str = ""

    @property
    def is_fault(self) -> bool:
        return self.status not in ("imported", "refused")


@dataclass(frozen=True)
class _Part:
    """One of the graphs of a model, as the changes of ``tests.conformance.onnx.fuzz`` see a model."""

    graph: Any


def altered(path: Path, rng: random.Random) -> tuple[onnx.ModelProto, str]:
    """Return a file with one or two changes, and their names."""
    model = onnx.load(path)
    chosen = [rng.choice(CHANGES) for _ in range(rng.randint(1, 2))]
    for change in chosen:
        parts = [model.graph, *(graph for node in model.graph.node for graph in inner_graphs(node))]
        change(_Part(rng.choice(parts)), rng)  # type: ignore[arg-type]
    return model, "+".join(change.__name__.strip("_") for change in chosen)


def imported(path: Path) -> tuple[str, str]:
    """Import a file whose dims are from 1 to 6; return the status of a finding and a message."""
    shapes = (value.type.tensor_type.shape.dim for value in onnx.load(path).graph.input)
    names = {dim.dim_param for shape in shapes for dim in shape}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load_model(path, {name: DimRequest(1, 6) for name in names if name.isidentifier()}, "m")
    except PackagerError as error:
        unnamed = isinstance(error, ModelError) and "cannot be imported: " in str(error)
        return ("unnamed" if unnamed or not error.hint else "refused"), error.render()
    except Exception as error:
        return "raised", f"{type(error).__name__}: {error}"
    return "imported", ""


def _child(path: Path, answer: Connection) -> None:
    answer.send(imported(path))


def judge(files: Sequence[Path], seeds: Sequence[int]) -> Iterator[Finding]:
    """Yield what becomes of each seed."""
    importlib.import_module("packager.frontends.onnx.load")  # here, not in each process: TVM takes seconds
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "altered.onnx")
        for seed in seeds:
            rng = random.Random(seed)
            file = rng.choice(files)
            model, changes = altered(file, rng)
            path.write_bytes(model.SerializeToString())
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_child, args=(path, theirs))
            process.start()
            theirs.close()
            status, message = "hung", f"no answer in {LIMIT:.0f} s"
            if ours.poll(LIMIT):
                try:
                    status, message = ours.recv()
                except EOFError:
                    process.join()
                    code = process.exitcode or 0
                    status, message = "crashed", signal.Signals(-code).name if code < 0 else f"exit code {code}"
            process.kill()
            process.join()
            yield Finding(seed, file.name, changes, status, message)


def files_of(folder: Path) -> list[Path]:
    """Return the small files of a folder, in order."""
    return sorted(path for path in folder.glob("*.onnx") if path.stat().st_size < MAX_BYTES)


def main() -> None:
    """Parse the command line and judge."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.onnx.fuzz_files", description=__doc__)
    parser.add_argument("folder", type=Path, help="of files, such as the --folder of python -m tests.corpus --make")
    parser.add_argument("--seeds", default="0:200", help="FIRST:LAST")
    options = parser.parse_args()
    first, last = map(int, options.seeds.split(":"))
    counts: collections.Counter[str] = collections.Counter()
    for finding in judge(files_of(options.folder), range(first, last)):
        counts[finding.status] += 1
        if finding.is_fault:
            print(finding, flush=True)
    print(dict(counts))
    sys.exit(any(status not in ("imported", "refused") for status in counts))


if __name__ == "__main__":
    main()
