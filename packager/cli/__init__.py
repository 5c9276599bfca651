"""The command line: parse, call the API, print. Nothing else."""

from __future__ import annotations

import signal
import sys
import traceback
from typing import Any

import typer

from packager.cli import build_commands, deploy_commands
from packager.errors import PackagerError

app = typer.Typer(
    name="packager",
    help="The AOT linker for neural networks: a model and a list of Targets in, one self-contained library out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
build_commands.register(app)
deploy_commands.register(app)


def main() -> None:
    """Run the command line and exit with a documented code (``packager.errors.EXIT_CODES``)."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _interrupt)
    sys.exit(_run())


def _interrupt(*_: Any) -> None:
    """Stop, once: a second signal must not interrupt the removal of temporary files."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _run() -> int:
    try:
        app(prog_name="packager")  # typer reports wrong usage itself, and exits with 2
    except SystemExit as stop:
        if stop.code == 130:
            print("interrupted", file=sys.stderr)
        return stop.code if isinstance(stop.code, int) else 0
    except PackagerError as error:
        print(error.render(), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 1
    except Exception:
        traceback.print_exc()
        print("\nerror: this is a bug in packager; please report it with the text above", file=sys.stderr)
        return 70
    return 0


if __name__ == "__main__":
    main()
