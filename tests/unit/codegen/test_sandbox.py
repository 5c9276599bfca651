"""The compiler reads what a build needs and nothing of the user's, writes in its work folder, and has no network."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from packager.codegen import sandbox
from packager.codegen.toolchain import run
from packager.errors import ToolchainError

CC = shutil.which("gcc") or "gcc"

pytestmark = pytest.mark.skipif(
    not (sandbox.support().landlock and sandbox.support().seccomp), reason="the kernel has no Landlock or no seccomp"
)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file outside the work folder that any process of this user may read."""
    path = tmp_path / "secret"
    path.write_text("password")
    return path


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("stolen", ["secret", "/etc/passwd", "/proc/self/environ"])
def test_a_hostile_source_reads_nothing(work: Path, secret: Path, stolen: str) -> None:
    """The attack of a constant's name: ``.incbin`` of a file of the build machine."""
    path = secret if stolen == "secret" else stolen
    (work / "a.S").write_text(f'.incbin "{path}"\n')
    subprocess.run([CC, "-c", "a.S", "-o", "stolen.o"], cwd=work, check=True)  # it would work without the sandbox
    with pytest.raises(ToolchainError, match="failed") as caught:
        run([CC, "-c", "a.S", "-o", "a.o"], cwd=work)
    assert "file not found" in caught.value.stderr  # as the assembler puts it
    assert not (work / "a.o").exists()


def test_a_hostile_source_includes_nothing(work: Path, secret: Path) -> None:
    (work / "a.c").write_text(f'#include "{secret}"\n')
    with pytest.raises(ToolchainError, match="failed") as caught:
        run([CC, "-c", "a.c", "-o", "a.o"], cwd=work)
    assert "password" not in caught.value.stderr


def test_what_an_argument_names_is_read(work: Path, tmp_path: Path) -> None:
    headers = tmp_path / "headers"
    headers.mkdir()
    (headers / "a.h").write_text("#define A 3\n")
    (work / "a.c").write_text("#include <a.h>\nint a = A;\n")
    run([CC, f"-I{headers}", "-c", "a.c", "-o", "a.o"], cwd=work)
    run([CC, "-isystem", str(headers), "-c", str(work / "a.c"), "-o", str(work / "b.o")], cwd=work)
    assert (work / "a.o").read_bytes()
    assert (work / "b.o").exists()


def program(work: Path, body: str) -> list[str]:
    """Compile a program that plays the part of a compiler."""
    head = (
        "#include <arpa/inet.h>\n#include <errno.h>\n#include <stdio.h>\n#include <sys/socket.h>\n"
        "#include <sys/syscall.h>\n#include <sys/un.h>\n#include <unistd.h>\n"
    )
    (work / "tool.c").write_text(f"{head}int main(void) {{ {body} }}\n")
    subprocess.run([CC, "-w", "tool.c", "-o", "tool"], cwd=work, check=True)
    return [str(work / "tool")]


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK])
def test_there_is_no_network(work: Path, family: int) -> None:
    body = f'printf("%d", socket({int(family)}, {int(socket.SOCK_DGRAM)}, 0) < 0 ? errno : 0);'
    assert run(program(work, body), cwd=work) == "13"


def test_io_uring_cannot_make_a_socket_either(work: Path) -> None:
    body = 'char p[120] = {0}; printf("%d", syscall(SYS_io_uring_setup, 1, p) < 0 ? errno : 0);'
    assert run(program(work, body), cwd=work) == "13"


def test_nothing_is_written_outside_the_work_folder(work: Path, secret: Path, tmp_path: Path) -> None:
    body = f'printf("%d %d ", !!fopen("{tmp_path}/new", "w"), !!fopen("{secret}", "a"));'
    body += f' printf("%d %d", unlink("{secret}"), !!fopen("inside", "w"));'
    assert run(program(work, body), cwd=work) == "0 0 -1 1"
    assert secret.read_text() == "password"
    assert not (tmp_path / "new").exists()


def test_the_home_of_a_user_is_no_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sandbox.access([str(tmp_path / "bin" / "gcc")], []).read[-1] == str(tmp_path / "bin")
    assert sandbox.access([str(tmp_path / "gcc-14" / "bin" / "gcc")], []).read[-1] == str(tmp_path / "gcc-14")


def test_it_can_be_switched_off(work: Path, secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sandbox.VARIABLE, "off")
    (work / "a.S").write_text(f'.incbin "{secret}"\n')
    run([CC, "-c", "a.S", "-o", "a.o"], cwd=work)
    assert b"password" in (work / "a.o").read_bytes()


def test_this_process_stays_free(secret: Path, work: Path) -> None:
    (work / "a.c").write_text("int a;\n")
    run([CC, "-c", "a.c", "-o", "a.o"], cwd=work)
    assert secret.read_text() == "password"
    assert os.open(secret, os.O_RDWR) > 0
    socket.socket().close()
