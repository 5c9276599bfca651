"""The command line: parse, call the API, print. Nothing else."""

from __future__ import annotations

import signal
import sys
import traceback
from typing import Any

import typer
from click import exceptions as click_exceptions

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
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(_run())


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _run() -> int:
    try:
        result = app(standalone_mode=False)
    except PackagerError as error:
        print(error.render(), file=sys.stderr)
        return error.exit_code
    except click_exceptions.ClickException as error:
        error.show(sys.stderr)
        return 2
    except (KeyboardInterrupt, click_exceptions.Abort):
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 1
    except Exception:
        traceback.print_exc()
        print("\nerror: this is a bug in packager; please report it with the text above", file=sys.stderr)
        return 70
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    main()
