"""Compiles acme.c, the library that the tests' backend ``loader`` calls, in several versions."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("acme.c")


def make_library(folder: Path, soname: str = "libacme.so.2", version: int = 20100, *flags: str) -> Path:
    """Compile acme.c into ``folder`` and return the folder. Version 20103 is 2.1.3."""
    folder.mkdir(exist_ok=True)
    argv = ["gcc", "-shared", "-fPIC", "-O1", f"-DVERSION={version}", f"-Wl,-soname,{soname}", *flags, str(SOURCE)]
    subprocess.run([*argv, "-o", str(folder / soname), "-lm"], check=True)
    return folder
