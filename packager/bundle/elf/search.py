"""Finds shared libraries as a program would: in folders, then where the dynamic linker looks."""

from __future__ import annotations

import os
import site
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path

_TIMEOUT_S = 60
_OF_WHEELS = ("nvidia/*/lib", "tensorrt*_libs", "tensorrt")
"""Where NVIDIA's wheels have their libraries."""


def installed_folders() -> list[Path]:
    """Return the folders of NVIDIA's libraries that pip has installed for this interpreter."""
    places = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    if site.ENABLE_USER_SITE:
        places.append(site.getusersitepackages())
    found = (sorted(Path(place).glob(pattern)) for place in dict.fromkeys(places) for pattern in _OF_WHEELS)
    return [folder for folders in found for folder in folders if folder.is_dir()]


def find_library(soname: str, folders: Sequence[Path]) -> Path | None:
    """Return the file of a library, in ``folders`` or where the dynamic linker looks; None if there is none."""
    places = [*folders, *map(Path, filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")))]
    for folder in places:
        if (folder / soname).is_file():
            return folder / soname
    return _linker_cache().get(soname)


def _linker_cache() -> dict[str, Path]:
    """Return soname -> file of the dynamic linker's cache."""
    for tool in ("/sbin/ldconfig", "/usr/sbin/ldconfig", "ldconfig"):
        try:
            listed = subprocess.run([tool, "-p"], capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired):
            continue
        rows = (line.strip().partition(" ")[::2] for line in reversed(listed.stdout.splitlines()) if " => " in line)
        return {name: Path(rest.rpartition(" => ")[2]) for name, rest in rows}
    return {}
