"""The command line: parse, call the API, print. Nothing else."""

from __future__ import annotations

import errno
import gc
import os
import sys
import traceback
import warnings
from typing import Annotated, TextIO

import typer

from packager.cli import (
    build,
    deploy,
    export,
    finalize,
    hide_torch,
    interruption,
    kernels,
    matrix,
    registry,
    release,
    report,
)
from packager.errors import PackagerError, PackagerWarning, UsageError
from packager.version import __version__

# TVM alone makes some hundred thousand objects that stay: looking at them after each 700 new ones is 7 % of a build.
OBJECTS_BETWEEN_COLLECTIONS = 20_000
_python_shows = warnings.showwarning
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_HINT = "the disk that the output goes to is full: free some space, or write elsewhere"


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"packager {__version__}")
        raise typer.Exit


HELP = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(
    name="packager",
    no_args_is_help=True,
    context_settings=HELP,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _options(  # typer takes the program's own options from a function
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """The AOT linker for neural networks: a model and a list of Targets in, one self-contained library out."""


for group in (build, matrix, export, kernels, release, registry, deploy, finalize, report):
    for command in group.COMMANDS:
        app.command()(command)


def main() -> None:
    """Run the command line and exit with a documented code (``packager.errors.EXIT_CODES``)."""
    interruption.install()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS, 20)
    hide_torch.install()
    warnings.showwarning = _show_warning
    if sys.stdout is None:  # closed before packager began
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123
    code = _printed(_run())
    # CPython remembers a KeyboardInterrupt that passed through an exec() of text (dataclasses use it) and, however it
    # was handled, would end the process by SIGINT instead of this code. Another exec() of text makes it forget.
    exec("")
    sys.exit(code)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print packager's warnings like the command line's other messages, and others as Python does."""
    if issubclass(category, PackagerWarning):
        print(f"warning: {message}", file=sys.stderr)
    else:
        _python_shows(message, category, filename, lineno, file, line)


def _run() -> int:
    try:
        app(prog_name="packager")  # typer reports wrong usage itself, and exits with 2
    except SystemExit as stop:
        if stop.code == 130:
            return _interrupted()
        return stop.code if isinstance(stop.code, int) else 0
    except KeyboardInterrupt:
        return _interrupted()
    except PackagerError as error:
        if interruption.arrived():
            return _interrupted()
        print(error.render(), file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        return 1
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return _not_written(error)
        if interruption.arrived():
            return _interrupted()
        traceback.print_exc()
        print("\nerror: this is a bug in packager; please report it with the text above", file=sys.stderr)
        return 70
    return 0


def _printed(code: int) -> int:
    """Write what stdout still buffers, where Python would fail at its end with a code of its own."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes once more
        return _not_written(error) if error.errno in _NO_ROOM else (code or 1)
    return code


def _not_written(error: OSError) -> int:
    print(UsageError(f"cannot write: {error.strerror}", hint=_HINT).render(), file=sys.stderr)
    return UsageError.exit_code


def _interrupted() -> int:
    print("interrupted", file=sys.stderr)
    return 130


if __name__ == "__main__":
    main()
