"""Where the command line prints: a full disk, a reader that has gone, no stdout at all; and bundles that are none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from command_line import Cli, command, environment

COMMANDS = [("targets",), ("targets", "--json"), ("--version",), ("--help",)]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_full_disk_is_an_error_with_a_hint(arguments: tuple[str, ...], tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command(*arguments),
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment({}, tmp_path),
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot write: No space left on device\n")
    assert "hint: the disk that the output goes to is full" in done.stderr


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_reader_that_has_gone_is_no_error_that_is_printed(arguments: tuple[str, ...], tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment({}, tmp_path), text=True
    )
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() in (0, 1)


@pytest.mark.parametrize("name", ["verify", "inspect", "bench"])
def test_a_bundle_that_is_none(cli: Cli, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.so").mkdir()
    for path, code, message, hint in (
        ("absent.so", 2, "No such file or directory", "a bundle is what `packager build` makes"),
        ("folder.so", 6, "is a folder, not a bundle", "name a file in it"),
    ):
        done = cli(name, tmp_path / path)
        assert done.returncode == code
        assert message in done.stderr
        assert f"hint: {hint}" in done.stderr


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_without_a_stdout_nothing_is_printed(arguments: tuple[str, ...], tmp_path: Path) -> None:
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *command(*arguments)]
    done = subprocess.run(closed, stderr=subprocess.PIPE, env=environment({}, tmp_path), text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
