"""``finalize``: a copy of a bundle with its engines, that uses them where they are faster."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from packager.bundle.gpu.arch import arch_number
from packager.bundle.gpu.engine_graphs import EngineGraph, read_graphs
from packager.bundle.gpu.engine_job import Builder, find_builder
from packager.bundle.gpu.engines import EngineRecord, NewEngine, append_engines, read_engines
from packager.bundle.graph.section import read_call_graph
from packager.bundle.manifest import SELECTION_SECTION, Manifest
from packager.bundle.reader import inspect, read_bundle
from packager.bundle.section import write_manifest
from packager.bundle.staging import replacing
from packager.deploy.finalize.build import EngineCache, Outcome, build_engines
from packager.deploy.finalize.choose import Comparison, compare, selection_of, ways
from packager.deploy.load.folders import library_folders
from packager.deploy.load.selection import choose
from packager.errors import ToolchainError, UsageError
from packager.progress import Receiver, received, report

Use = Literal["measured", "engines", "fallbacks"]


@dataclass(frozen=True)
class FinalizeResult:
    """What became of each engine, and what the new bundle uses."""

    path: str
    output: str
    builder: str
    outcomes: tuple[Outcome, ...]
    records: tuple[EngineRecord, ...]
    comparison: Comparison

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value of ``packager finalize --json``."""
        known = {record.key: record for record in self.records}
        engines = [
            {
                "key": one.key,
                "library": one.library,
                "state": known[one.key].state,
                "seconds": round(one.seconds, 3),
                "cached": one.cached,
                "bytes": known[one.key].bytes,
                "memory": known[one.key].memory,
                "refused": one.refused or None,
            }
            for one in self.outcomes
        ]
        return {
            "schema_version": 1,
            "bundle": self.path,
            "output": self.output,
            "builder": self.builder,
            "engines": engines,
            "comparison": dataclasses.asdict(self.comparison),
        }


def finalize(
    path: str | Path,
    output: str | Path,
    *,
    python: str | Path | None = None,
    device: int = 0,
    use: Use = "measured",
    rounds: int = 30,
    tolerance: float = 0.02,
    libraries: Sequence[str | Path] | None = None,
    cache: bool = True,
    progress: Receiver | None = None,
) -> FinalizeResult:
    """Write a copy of a bundle with the engines that are pending in it, built by the TensorRT of ``python``.

    ``use`` says what the copy runs: what is faster in turns of ``rounds`` measurements if its results differ from the
    fallbacks' by at most ``tolerance`` of the largest value, or engines or fallbacks without a run. ``libraries`` is as
    in ``packager.load``; the folder of the interpreter's TensorRT is searched too. Engines are kept in the user's
    cache.

    Raises UsageError if there is nothing to build, ToolchainError if no engine could be built, BundleError, RunError.
    """
    source, target = Path(path), Path(output)
    if target.exists() and source.exists() and target.samefile(source):
        raise UsageError(f"{target} is the bundle itself", hint="give the copy another name: -o OUT.so")
    with received(progress):
        bundle = inspect(source)
        known = read_graphs(bundle)
        graphs = _pending(source, read_engines(source), known)
        builder = _builder(Path(python or sys.executable), graphs, device)
        archs = _archs(bundle.manifest) if builder.library == "tensorrt_rtx" else []
        if not archs and not builder.arch:
            raise UsageError("there is no GPU here: TensorRT builds engines on one like the target's")
        outcomes = build_engines(
            bundle, graphs, builder, device=device, archs=archs, cache=EngineCache.of_user() if cache else None
        )
        built = {
            one.key: NewEngine(one.engine.data, one.engine.version, one.engine.arch, one.engine.memory)
            for one in outcomes
            if one.engine is not None
        }
        if not built:
            raise ToolchainError(
                f"{builder.text} has built none of {len(graphs)} engines",
                stderr="\n".join(dict.fromkeys(one.refused for one in outcomes)),
            )
        folders = [*library_folders(libraries), *builder.folders]
        with replacing(target) as staged:
            shutil.copyfile(source, staged)
            records = append_engines(staged, built)
            _seal(staged, bundle.manifest, {})
            pending = {known[record.key].function for record in records if record.state == "pending"}
            choices = ways(bundle.manifest, read_call_graph(bundle), pending)
            comparison = _compare(staged, choices, use, rounds, device, tolerance, folders)
            _seal(staged, bundle.manifest, comparison.chosen)
    return FinalizeResult(str(source), str(target), builder.text, tuple(outcomes), records, comparison)


def _pending(path: Path, records: Sequence[EngineRecord], graphs: dict[str, EngineGraph]) -> list[EngineGraph]:
    """Return the graphs of the engines that can be built: all but those inside the code."""
    wanted = [record.key for record in records if record.state != "embedded"]
    if not wanted:
        what = "all engines are built" if records else "it has no engines"
        raise UsageError(f"{path}: {what}", hint="nothing is pending in it: it can be used as it is")
    if lost := [key for key in wanted if key not in graphs]:
        raise UsageError(f"{path} has no graph for engine {lost[0][:12]}", hint="rebuild it, without stripping it")
    return [graphs[key] for key in wanted]


def _builder(python: Path, graphs: Sequence[EngineGraph], device: int) -> Builder:
    found = find_builder(python, graphs[0].library, device)
    if isinstance(found, str):
        raise UsageError(
            f"there is no TensorRT: {found}",
            hint="install it, or name the Python interpreter that has it: --python PATH",
        )
    return found


def _archs(manifest: Manifest) -> list[int]:
    cuda = manifest.requirements.cuda
    return sorted({arch_number(name) for name in (cuda.archs if cuda else ())})


def _compare(
    path: Path,
    choices: Sequence[Any],
    use: Use,
    rounds: int,
    device: int,
    tolerance: float,
    folders: Sequence[Path],
) -> Comparison:
    if not choices:
        return Comparison("", None, None, None, None, {}, "in each choice an engine is still pending")
    if use != "measured":
        chosen = selection_of(choices, engines=use == "engines")
        return Comparison("", None, None, None, None, chosen, f"--use {use}")
    return compare(path, choices, rounds=rounds, device=device, tolerance=tolerance, libraries=folders)


def _seal(path: Path, manifest: Manifest, chosen: Any) -> None:
    """Write a manifest that says the file's size, and what it uses."""
    report("sealing")
    changed = choose(manifest, chosen)
    changed = dataclasses.replace(changed, sizes=dataclasses.replace(changed.sizes, file=path.stat().st_size))
    bundle = read_bundle(path)
    if digits := changed.digits():
        with path.open("r+b") as file:
            file.seek(bundle.elf.sections[SELECTION_SECTION].offset)
            file.write(digits)
    write_manifest(path, changed, bundle.section.offset, bundle.section.size)
