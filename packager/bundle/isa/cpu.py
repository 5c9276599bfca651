"""The CPU of this machine, as the kernel describes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cpu:
    """A CPU's model name, and the features that all processors have: ``flags`` or ``Features`` of ``/proc/cpuinfo``."""

    name: str
    features: tuple[str, ...]


def this_cpu() -> Cpu:
    """Read ``/proc/cpuinfo``; without it the name is empty, and there are no features."""
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text("utf-8", errors="replace")
    except OSError:
        cpuinfo = ""
    name = ""
    features: set[str] | None = None
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and not name:
            name = value.strip()
        if key.strip() in ("flags", "Features"):
            features = set(value.split()) if features is None else features & set(value.split())
    return Cpu(name, tuple(sorted(features or ())))
