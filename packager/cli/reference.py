"""Writes the reference of the command line, docs/cli.md: ``python -m packager.cli.reference > docs/cli.md``."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import typer
from typer.core import TyperGroup

from packager.cli.main import HELP, app

HEAD = """# The command line

Written by `python -m packager.cli.reference` from the commands themselves; `packager COMMAND -h` prints the same.
"""
_TYPE = re.compile(r" <.*>$")  # of an argument, as in "MODEL <list[Path]>"


def reference() -> str:
    """Return the reference of all commands in Markdown."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    commands = {"packager": group} | {f"packager {name}": command for name, command in group.commands.items()}
    return "\n".join([HEAD, *(_section(name, command) for name, command in commands.items())])


def _section(name: str, command: Any) -> str:
    """Return the usage of a command, what it does, and a table of its arguments and options."""
    context = command.context_class(command, info_name=name, **HELP)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    records = (parameter.get_help_record(context) for parameter in command.get_params(context))
    rows = [f"| `{_cell(_TYPE.sub('', spelled))}` | {_cell(meaning)} |" for spelled, meaning in filter(None, records)]
    text = textwrap.fill(" ".join(command.help.split()), 120)
    return "\n".join([f"## {name}", f"`{usage}`", "", text, "", "| option | meaning |", "|---|---|", *rows, ""])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(reference(), end="")
