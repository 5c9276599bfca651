"""Starts compilers that see what they need and no more: Landlock for files, seccomp for the network.

A restricted thread cannot be freed again, and its children are as restricted as it is: each process is started by a
thread of its own. No process in between, no privileges. Where the kernel has neither, or ``PACKAGER_SANDBOX=off`` is
set, compilers run with the user's rights. Source: landlock(7), seccomp(2), linux/landlock.h.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import struct
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

VARIABLE = "PACKAGER_SANDBOX"
# Where systems keep software; nothing of a user's.
SOFTWARE = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix/store", "/gnu/store",
            "/etc/alternatives", "/etc/ld.so.cache", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu",
            "/dev/urandom", "/dev/zero")  # fmt: skip
_PATH_ARGUMENT = re.compile(r"(?:-[ILB]|--?[a-z][a-z-]*=|@)?(/.+)", re.DOTALL)

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # of all architectures
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
# LANDLOCK_ACCESS_FS_*: execute, write and read files, read folders; make and remove entries of all kinds; then, by the
# version of the interface, refer (2), truncate (3), ioctl of devices (5).
_READ, _WRITE, _FILE = 0b1101, 0b1_1111_1111_0010, 0b0111
_REFER, _TRUNCATE, _IOCTL = 1 << 13, 1 << 14, 1 << 15
_TCP, _SCOPES = 0b11, 0b11  # bind and connect; abstract sockets and signals

# Per architecture: AUDIT_ARCH_*, the numbers of socket(2) and io_uring_setup(2).
_SYSCALLS = {"x86_64": (0xC000003E, 41, 425), "aarch64": (0xC00000B7, 198, 425)}


@dataclass(frozen=True)
class Support:
    """What the kernel offers: the version of Landlock's interface, 0 for none; whether seccomp filters."""

    landlock: int
    seccomp: bool


@dataclass(frozen=True)
class Access:
    """What a process may read and execute, and write as well; files, or folders with all below."""

    read: tuple[str, ...]
    write: tuple[str, ...]


def support() -> Support:
    """Return what the sandbox is made of here; nothing if it is switched off."""
    if os.environ.get(VARIABLE) == "off":
        return Support(0, False)
    version = _libc().syscall(_CREATE_RULESET, None, 0, 1)
    filters = platform.machine() in _SYSCALLS and Path("/proc/sys/kernel/seccomp").is_dir()
    return Support(max(version, 0), filters)


def access(argv: Sequence[str], writable: Iterable[Path]) -> Access:
    """Return what a tool needs: the system's software, its own installation, what its arguments name, its folders.

    ``writable`` are its working folder and that of temporary files; it may also write where ``-o`` says. Beside a file
    that it reads lie the headers that the file includes.
    """
    parts = [part for argument in argv[1:] for part in argument.split(",")]
    named = [match[1] for part in parts if (match := _PATH_ARGUMENT.fullmatch(part))]
    outputs = [Path(name).parent for option, name in pairwise(argv) if option == "-o"]
    write = [str(path) for path in (*writable, *outputs) if path.is_absolute() and path != Path("/")]
    installed = [_within_home(tool.parent, tool.parent.parent) for tool in (Path(argv[0]), Path(argv[0]).resolve())]
    beside = [_within_home(Path(name), Path(name).parent) for name in named if Path(name).is_file()]
    return Access((*SOFTWARE, *installed, *named, *beside), ("/dev/null", *write))


def _within_home(path: Path, folder: Path) -> str:
    """Return ``folder`` which ``path`` is in; ``path`` alone if the folder is a user's home, or has it below."""
    home = Path(os.environ.get("HOME") or "/root")
    return str(path if folder in (home, *home.parents) else folder)


def start(argv: Sequence[str], allowed: Access, *, cwd: Path, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a process with no more than ``allowed``, its output in pipes. Raises OSError."""
    offered = support()
    failures: list[BaseException] = []
    started: list[subprocess.Popen[str]] = []

    def run() -> None:
        try:
            _restrict(offered, allowed)
            started.append(
                subprocess.Popen(
                    argv,
                    cwd=cwd,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                )
            )
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run, name="sandbox")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return started[0]


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _restrict(offered: Support, allowed: Access) -> None:
    """Restrict this thread, and the processes that it will start, for good."""
    libc = _libc()
    if not (offered.landlock or offered.seccomp):
        return
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    if offered.landlock:
        _restrict_files(libc, offered.landlock, allowed)
    if offered.seccomp:
        _restrict_calls(libc)


def _restrict_files(libc: ctypes.CDLL, version: int, allowed: Access) -> None:
    write = _READ | _WRITE | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    handled = write | (_IOCTL if version >= 5 else 0)
    fields = (handled, *((_TCP,) if version >= 4 else ()), *((_SCOPES,) if version >= 6 else ()))
    attributes = struct.pack(f"<{len(fields)}Q", *fields)
    ruleset = _check(libc.syscall(_CREATE_RULESET, attributes, len(attributes), 0))
    try:
        for rights, paths in ((_READ, allowed.read), (write, allowed.write)):
            for path in dict.fromkeys(paths):
                _allow(libc, ruleset, path, rights)
        _check(libc.syscall(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (OSError, ValueError):
        return  # what is not there needs no rule; the tool will say so itself
    try:
        if not Path(path).is_dir():
            rights &= _FILE | _TRUNCATE
        _check(libc.syscall(_ADD_RULE, ruleset, 1, struct.pack("<Qi", rights, place), 0))
    finally:
        os.close(place)


def _restrict_calls(libc: ctypes.CDLL) -> None:
    """Refuse sockets and io_uring, which could make some, also by the numbers of other architectures."""
    architecture, socket, io_uring = _SYSCALLS[platform.machine()]
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000 | 13  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO with EACCES
    program = (
        (load, 0, 0, 4),  # seccomp_data.arch
        (equal, 0, 5, architecture),
        (load, 0, 0, 0),  # seccomp_data.nr
        (at_least, 3, 0, 0x40000000),  # the numbers of x32
        (equal, 2, 0, socket),
        (equal, 1, 0, io_uring),
        (give, 0, 0, allow),
        (give, 0, 0, refuse),
    )
    code = b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
    body = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HP", len(program), ctypes.addressof(body))
    _check(libc.prctl(_PR_SET_SECCOMP, 2, header, 0, 0))


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"the sandbox for compilers cannot be set up: {os.strerror(number)}")
    return result
