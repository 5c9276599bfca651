from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from packager.codegen.toolchain import find_toolchain, run
from packager.errors import ToolchainError

HERE = platform.machine()


@pytest.fixture
def fake_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is all of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def tool(path: Path, script: str) -> None:
    """Write an executable shell script."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize("missing", ["gcc", "ld", "ar", "objcopy"])
def test_a_missing_tool_is_named_with_its_package(fake_path: Path, missing: str) -> None:
    for name in {"gcc", "ld", "ar", "objcopy"} - {missing}:
        tool(fake_path / name, "echo one")
    with pytest.raises(ToolchainError) as caught:
        find_toolchain(HERE)
    assert f"{missing} is not on PATH" in caught.value.message
    assert "apt-get install gcc" in (caught.value.hint or "")
    assert caught.value.exit_code == 4


def test_a_cross_compiler_is_named_with_its_package(fake_path: Path) -> None:
    other = "aarch64" if HERE == "x86_64" else "x86_64"
    with pytest.raises(ToolchainError) as caught:
        find_toolchain(other)
    assert f"no C compiler for {other}: {other}-linux-gnu-gcc is not on PATH" in caught.value.message
    assert f"gcc-{other.replace('_', '-')}-linux-gnu" in (caught.value.hint or "")
    assert not any(fake_path.iterdir())


def test_versions_are_the_first_lines(fake_path: Path) -> None:
    for name in ("gcc", "ld", "ar", "objcopy"):
        tool(fake_path / name, f'echo "{name} 1.2"; echo more')
    assert dict(find_toolchain(HERE).versions) == {"cc": "gcc 1.2", "ld": "ld 1.2"}


def test_a_compiler_that_is_replaced_is_asked_again(fake_path: Path) -> None:
    for name in ("gcc", "ld", "ar", "objcopy"):
        tool(fake_path / name, f'echo "{name} 1"')
    assert find_toolchain(HERE).versions["cc"] == "gcc 1"
    tool(fake_path / "gcc", 'echo "gcc 22"')
    assert find_toolchain(HERE).versions["cc"] == "gcc 22"


def test_a_compiler_that_says_nothing_is_an_error(fake_path: Path) -> None:
    for name in ("gcc", "ld", "ar", "objcopy"):
        tool(fake_path / name, "exit 0")
    with pytest.raises(ToolchainError, match="says no version"):
        find_toolchain(HERE)


def test_a_failing_tool_keeps_its_command_and_its_words(tmp_path: Path) -> None:
    tool(tmp_path / "cc", "echo lost >&2; exit 3")
    with pytest.raises(ToolchainError) as caught:
        run([str(tmp_path / "cc"), "-c", "x.c"], cwd=tmp_path)
    assert caught.value.message == "cc failed with exit code 3"
    assert caught.value.argv == (str(tmp_path / "cc"), "-c", "x.c")
    assert caught.value.stderr == "lost\n"
    assert "  lost" in caught.value.render().splitlines()


def test_a_killed_tool_is_told_by_its_signal(tmp_path: Path) -> None:
    tool(tmp_path / "cc", "kill -9 $$")
    with pytest.raises(ToolchainError, match="cc was killed by signal 9"):
        run([str(tmp_path / "cc")], cwd=tmp_path)


def test_a_full_disk_gets_a_hint(tmp_path: Path) -> None:
    tool(tmp_path / "cc", 'echo "x.o: No space left on device" >&2; exit 1')
    with pytest.raises(ToolchainError) as caught:
        run([str(tmp_path / "cc")], cwd=tmp_path)
    assert caught.value.hint == "free some disk space"


def test_a_file_that_cannot_be_executed(tmp_path: Path) -> None:
    (tmp_path / "cc").write_bytes(b"\x00\x01")
    (tmp_path / "cc").chmod(0o755)
    with pytest.raises(ToolchainError, match="cannot be run"):
        run([str(tmp_path / "cc")], cwd=tmp_path)


def test_tools_see_no_variable_that_changes_what_they_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "SOURCE_DATE_EPOCH",
        "CPATH",
        "C_INCLUDE_PATH",
        "LIBRARY_PATH",
        "GCC_EXEC_PREFIX",
        "LANG",
        "LD_PRELOAD",
    ):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    tool(tmp_path / "cc", "env")
    seen = dict(line.split("=", 1) for line in run([str(tmp_path / "cc")], cwd=tmp_path).splitlines())
    assert set(seen) <= {"PATH", "HOME", "TMPDIR", "LC_ALL", "PWD", "SHLVL", "_", "OLDPWD"}
    assert seen["LC_ALL"] == "C"
    assert seen["PATH"] == os.environ["PATH"]
