"""The GPUs that plans are chosen for: descriptions of them, as cuDNN reads and writes them (JSON)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packager.bundle.gpu.arch import parse_arch
from packager.errors import UsageError, valid_names

FOLDER = Path(__file__).parent / "gpus"
DEFAULTS = {80: "A100", 89: "L40S", 90: "H100", 100: "B200", 120: "RTX5090"}


@dataclass(frozen=True)
class Device:
    """A GPU: the file that describes it, and its architecture, as 90."""

    path: Path
    arch: int


def known_devices() -> list[str]:
    """Return the names of the GPUs that packager describes."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def default_devices(archs: Sequence[str]) -> tuple[str, ...]:
    """Return a GPU for each architecture that has one."""
    versions = (parse_arch(arch).version for arch in archs)
    names = (DEFAULTS.get(10 * major + minor) for major, minor in versions)
    return tuple(dict.fromkeys(name for name in names if name is not None))


def find_device(name: str) -> Device:
    """Return a GPU by its name, or by a file. Raises UsageError."""
    path = FOLDER / f"{name}.json" if name in known_devices() else Path(name)
    try:
        version = json.loads(path.read_bytes())["deviceVer"]
    except OSError:
        hint = f"{valid_names(name, known_devices(), 'devices')}, or a file that describes one"
        raise UsageError(f"Target 'cudnn': device {name!r} is not known", hint=hint) from None
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            f"Target 'cudnn': {path} does not describe a GPU",
            hint="it is JSON as cuDNN writes it: docs/cudnn.md",
        ) from None
    if not isinstance(version, int) or version < 100:
        raise UsageError(f"Target 'cudnn': {path}: deviceVer is {version!r}", hint="it is 900 for sm_90")
    return Device(path, version // 10)


def find_devices(names: Sequence[str]) -> tuple[Device, ...]:
    """Return GPUs by names or files, at most one of an architecture. Raises UsageError."""
    found = tuple(find_device(name) for name in names)
    archs = [device.arch for device in found]
    if len(set(archs)) < len(archs):
        raise UsageError(
            f"Target 'cudnn': two of the devices {', '.join(names)} have one architecture",
            hint="a session takes plans by its GPU's architecture: name one GPU for each",
        )
    return found
