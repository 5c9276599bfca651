"""A process that has imported TVM, and forks itself for each command that it is asked for.

A command's own process imports TVM first, which takes longer than most commands of these tests.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packager.cli import hide_torch
from packager.cli.main import main

STAGES = (
    *("pipeline.build", "pipeline.explain", "pipeline.export", "pipeline.place", "lower.lowering", "plan.planner"),
    *("transforms.prepare", "placement.preparation", "link.linker", "frontends.onnx.importer", "backends.llvm.codegen"),
    *("backends.ccompiler.module",),
)


def _run(arguments: Sequence[str], cwd: str, env: dict[str, str], outputs: Sequence[str]) -> None:
    """Be the command, in this process: never returns."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, path in enumerate(outputs, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv[1:] = arguments
    main()


def serve() -> None:
    """Run a command for each line of stdin, and print its exit code."""
    hide_torch.install()
    for name in STAGES:
        importlib.import_module(f"packager.{name}")
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        process = os.fork()
        if not process:
            _run(**request)
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))  # its modules have names of all kinds
    serve()
