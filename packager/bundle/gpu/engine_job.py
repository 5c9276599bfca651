"""Has a Python with TensorRT build an engine, as a process of its own: the library may crash, and is never imported."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packager.bundle.hashing import digest, sha256
from packager.errors import ToolchainError

SCRIPT = Path(__file__).with_name("engine_builder.py")
_PROBE_SECONDS = 120
_SHOWN = 2000  # characters of what a failing builder said


@dataclass(frozen=True)
class Builder:
    """A Python interpreter with the module of ``library``, of this version; the GPU that it sees, or none.

    ``folders`` are those that the module has its libraries from.
    """

    python: Path
    library: str
    version: tuple[int, int, int, int]
    arch: int
    gpu: str
    folders: tuple[Path, ...] = ()

    @property
    def text(self) -> str:
        """The library with its version."""
        names = {"tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT for RTX"}
        return f"{names[self.library]} {'.'.join(map(str, self.version)).removesuffix('.0')}"

    def engine_key(self, graph: str, archs: Sequence[int]) -> str:
        """Return the key, in a cache, of its engine of the graph of this key: for ``archs``, or else for its GPU.

        What the script does with a graph may change with packager.
        """
        script = sha256([SCRIPT.read_bytes()])
        return digest([graph, script, self.library, self.version, list(archs) or [self.arch, self.gpu]])


@dataclass(frozen=True)
class BuiltEngine:
    """An engine, and what its builder says of it; ``tensors`` are the name, type and shape of each input and output."""

    data: bytes
    version: tuple[int, int, int, int]
    arch: int
    memory: int
    tensors: tuple[tuple[str, str, tuple[int, ...]], ...]

    @classmethod
    def of_facts(cls, data: bytes, facts: Mapping[str, Any]) -> BuiltEngine:
        """Return an engine with what JSON says of it. Raises KeyError, TypeError, ValueError."""
        tensors = tuple((name, dtype, tuple(shape)) for name, dtype, shape in facts["tensors"])
        return cls(data, tuple(facts["version"]), facts["arch"], facts["memory"], tensors)

    @property
    def facts(self) -> dict[str, Any]:
        """All but its data, for JSON."""
        return {"version": self.version, "arch": self.arch, "memory": self.memory, "tensors": self.tensors}


def module_of(library: str) -> str:
    """Return whose module builds engines for a library: the lean runtime runs those of TensorRT."""
    return "tensorrt_rtx" if library == "tensorrt_rtx" else "tensorrt"


def find_builder(python: Path, library: str, device: int = 0) -> Builder | str:
    """Return what builds engines for a library in this interpreter, on this GPU, or why nothing does."""
    module = module_of(library)
    try:
        done = subprocess.run(
            [python, SCRIPT, module, str(device)], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{python} cannot be run: {error}"
    if done.returncode:
        return f"{python}: {_last(done.stderr)}"
    facts = json.loads(done.stdout.splitlines()[-1])
    folders = tuple(map(Path, facts["folders"]))
    return Builder(python, module, tuple(facts["version"]), facts["arch"], facts["gpu"], folders)


def build_engine(
    builder: Builder,
    model: bytes,
    *,
    library: str,
    settings: Mapping[str, Any],
    workdir: Path,
    archs: Sequence[int] = (),
    device: int = 0,
    timing_cache: Path | None = None,
) -> BuiltEngine:
    """Build an engine of an ONNX model, for ``archs`` without a GPU, or for GPU ``device``.

    Raises ToolchainError with what the library says.
    """
    files = {name: workdir / f"engine.{name}" for name in ("onnx", "plan", "facts", "job")}
    files["onnx"].write_bytes(model)
    job = {
        "model": str(files["onnx"]),
        "engine": str(files["plan"]),
        "facts": str(files["facts"]),
        "library": library,
        "settings": dict(settings),
        "archs": list(archs),
        "device": device,
        "timing_cache": str(timing_cache or ""),
    }
    files["job"].write_text(json.dumps(job), encoding="utf-8")
    command = [str(builder.python), str(SCRIPT), builder.library, str(files["job"])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=workdir)
        if done.returncode:
            raise ToolchainError(
                f"{builder.text} builds no engine: {_last(done.stderr or done.stdout)}",
                stderr=(done.stderr or done.stdout)[-_SHOWN:],
            )
        facts = json.loads(files["facts"].read_text(encoding="utf-8"))
        return BuiltEngine.of_facts(files["plan"].read_bytes(), facts)
    finally:
        for file in files.values():
            file.unlink(missing_ok=True)


def _last(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it says nothing"
