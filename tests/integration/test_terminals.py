"""What is shown on terminals of all sorts: narrow ones, without colors or control sequences; and help that fits."""

from __future__ import annotations

import os
import pty
import re
import struct
import sys
import termios
from fcntl import ioctl
from pathlib import Path

import pytest
from command_line import Cli, command, environment

from packager.cli.progress import _left

# Steps of a stage, as a build counts them, each long enough to be drawn.
STAGES = """
import time
from packager.cli.progress import shown_progress
from packager.progress import counted, received, report
with shown_progress() as receiver, received(receiver):
    report("importing the model")
    with counted("compiling CUTLASS kernel", 3, earlier=15.0) as steps:
        for _ in range(3):
            with steps.step():
                time.sleep(0.3)
"""
CONTROL = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")


def on_terminal(argv: list[str], folder: Path, width: int = 80, **variables: str | None) -> str:
    """Run a command on a terminal so many columns wide; return all that it is sent."""
    process, terminal = pty.fork()
    if process == 0:
        ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 30, width, 0, 0))
        plain: dict[str, str | None] = {"TERM": "xterm", "COLUMNS": None, "LINES": None}  # which pytest-xdist sets
        os.execve(argv[0], argv, environment(plain | variables, folder / "tmp"))
    sent = b""
    while True:
        try:
            sent += os.read(terminal, 1 << 16)
        except OSError:  # Linux: the last one has closed it
            break
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0, sent.decode()
    return sent.decode()


@pytest.mark.parametrize("width", [100, 80, 60, 40])
def test_progress_fits_into_the_width(tmp_path: Path, width: int) -> None:
    sent = on_terminal([sys.executable, "-c", STAGES], tmp_path, width)
    drawn = [CONTROL.sub("", line) for line in re.split(r"[\r\n]+", sent)]
    kernels = [line for line in drawn if "CUTLASS kernel" in line]
    assert kernels
    assert all(len(line) <= width for line in drawn)
    if width >= 60:
        assert any("compiling CUTLASS kernel 2 of 3" in line and line.rstrip().endswith(" left") for line in kernels)
    assert drawn[-2].startswith("done in ")


def test_progress_where_no_line_can_be_drawn_again(tmp_path: Path) -> None:
    sent = on_terminal([sys.executable, "-c", STAGES], tmp_path, TERM="dumb")
    assert "\x1b" not in sent
    assert re.match(r"\[ *\d+\.\d s\] importing the model\r\n\[ *\d+\.\d s\] compiling CUTLASS kernel 1 of 3", sent)


def test_progress_and_tables_without_colors(tmp_path: Path) -> None:
    for argv in ([sys.executable, "-c", STAGES], command("targets")):
        sent = on_terminal(argv, tmp_path, NO_COLOR="1")
        assert not re.search(r"\x1b\[(?:\d+;)*(?:3[0-9]|4[0-9]|9[0-7])", sent)


def test_an_estimate_that_was_wrong_says_so() -> None:
    import time

    assert _left(None) == ""
    assert _left(time.monotonic() + 30.2) == "about 30 s left"
    assert _left(time.monotonic() - 1) == "about 1 s left"
    assert _left(time.monotonic() - 10) == "takes longer than it did before"


@pytest.mark.slow
def test_commands_that_may_take_long_say_what_they_do(models: Path, tmp_path: Path) -> None:
    assert "importing the model" in on_terminal(command("explain", models / "mlp.onnx"), tmp_path)
    quiet = on_terminal(command("build", models / "mlp.onnx", "--dry-run", "-q"), tmp_path)
    assert "importing the model" not in quiet
    assert "\x1b" not in quiet


def test_what_a_command_does_is_said_in_one_line(cli: Cli) -> None:
    listed = cli("-h", env={"COLUMNS": "80"}).stdout.partition("Commands:\n")[2].splitlines()
    assert len(listed) > 20
    assert not [line for line in listed if line.endswith("...") or not line.startswith("  ") or line[2] == " "]
