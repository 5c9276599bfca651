"""Engines of a bundle's graphs: from the cache, or built by a Python that has TensorRT."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packager.bundle.gpu.engine_graphs import EngineGraph, read_constants, with_initializers
from packager.bundle.gpu.engine_job import Builder, BuiltEngine, build_engine
from packager.bundle.hashing import sha256
from packager.bundle.reader import BundleFile
from packager.bundle.staging import temporary_folder
from packager.errors import ToolchainError
from packager.progress import report


@dataclass(frozen=True)
class Outcome:
    """What became of an engine: itself, or why there is none; ``seconds`` are 0 if it was in the cache."""

    key: str
    library: str
    engine: BuiltEngine | None
    seconds: float = 0.0
    cached: bool = False
    refused: str = ""


@dataclass(frozen=True)
class EngineCache:
    """A folder of engines, each under a hash of its graph, of the library's version and of the GPU."""

    folder: Path

    @classmethod
    def of_user(cls) -> EngineCache:
        """Return the cache in ``$XDG_CACHE_HOME/packager`` or ``~/.cache/packager``."""
        base = os.environ.get("XDG_CACHE_HOME")
        return cls((Path(base) if base else Path("~/.cache").expanduser()) / "packager" / "finalized")

    def timings(self, builder: Builder) -> Path | None:
        """Return the file of a library's timings; None if there can be none."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError:
            return None
        return self.folder / f"timings-{builder.library}-{'.'.join(map(str, builder.version))}"

    def fetch(self, key: str) -> BuiltEngine | None:
        """Return an engine, or None if it is not there or damaged."""
        try:
            facts = json.loads((self.folder / key / "facts.json").read_text(encoding="utf-8"))
            data = (self.folder / key / "engine").read_bytes()
            return BuiltEngine.of_facts(data, facts) if sha256([data]) == facts["sha256"] else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def add(self, key: str, engine: BuiltEngine) -> None:
        """Keep an engine. A folder that cannot be written is no error: the next time it is built again."""
        facts = engine.facts | {"sha256": sha256([engine.data])}
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with temporary_folder("engine", self.folder) as staged:
                whole = staged / "whole"
                whole.mkdir()
                (whole / "engine").write_bytes(engine.data)
                (whole / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
                whole.rename(self.folder / key)
        except OSError:
            return


def build_engines(
    bundle: BundleFile,
    graphs: Sequence[EngineGraph],
    builder: Builder,
    *,
    device: int,
    archs: Sequence[int],
    cache: EngineCache | None,
) -> list[Outcome]:
    """Build the engines of ``graphs``, in order; what is built stays in the cache when this is interrupted."""
    outcomes = []
    dtypes = {name: one.dtype for one in bundle.manifest.constants for name in (one.name, *one.aliases)}
    with temporary_folder("finalize") as workdir:
        timings = cache.timings(builder) if cache else None
        for number, graph in enumerate(graphs, start=1):
            key = builder.engine_key(graph.key, archs)
            known = cache.fetch(key) if cache else None
            if known is not None:
                outcomes.append(Outcome(graph.key, graph.library, known, cached=True))
                continue
            report(f"building engine {number} of {len(graphs)} by {builder.text}")
            arrays = graph.initializers(read_constants(bundle, graph.sources))
            model = with_initializers(graph.model, arrays, graph.types(dtypes))
            started = time.monotonic()
            try:
                engine = build_engine(
                    builder,
                    model,
                    library=graph.library,
                    settings=graph.settings,
                    workdir=workdir,
                    archs=archs,
                    device=device,
                    timing_cache=timings,
                )
            except ToolchainError as error:
                outcomes.append(Outcome(graph.key, graph.library, None, refused=error.message))
                continue
            outcomes.append(Outcome(graph.key, graph.library, engine, time.monotonic() - started))
            if cache:
                cache.add(key, engine)
    return outcomes
