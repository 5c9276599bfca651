"""The archive reader on what ar makes, and on damaged archives."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from packager.bundle.elf import archive
from packager.bundle.elf.window import open_window
from packager.errors import BundleError

LONG = "a_member_whose_name_does_not_fit_into_sixteen_characters.o"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """An archive of three objects: names that are short, long, and there twice."""
    for name, symbol in (("one.o", "first"), (LONG, "second"), ("x/one.o", "third")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        source = path.with_suffix(".c")
        source.write_text(
            f"int {symbol}(void) {{ return 0; }} static int own; int *{symbol}_own(void) {{ return &own; }}"
        )
        subprocess.run(["gcc", "-c", source, "-o", path], check=True)
    path = tmp_path / "made.a"
    subprocess.run(["ar", "qcsD", path, "one.o", LONG, "x/one.o"], cwd=tmp_path, check=True)
    return path


def names(path: Path) -> list[str]:
    with open_window(path) as window:
        return [member.name for member in archive.members(window)]


def test_members(made: Path) -> None:
    assert names(made) == ["one.o", LONG, "one.o"]
    listed = subprocess.run(["ar", "t", made], capture_output=True, text=True, check=True).stdout.split()
    assert names(made) == listed
    with open_window(made) as window:
        for member in archive.members(window):
            assert member.body.read(0, 4, "magic") == b"\x7fELF"
        bodies = [member.body.read(0, member.body.size, "all") for member in archive.members(window)]
    assert bodies == [(made.parent / name).read_bytes() for name in ("one.o", LONG, "x/one.o")]


def test_symbol_index(made: Path) -> None:
    with open_window(made) as window:
        found = archive.symbol_index(window)
    assert found == {"first", "first_own", "second", "second_own", "third", "third_own"}


def test_an_archive_without_an_index(made: Path) -> None:
    subprocess.run(["ar", "qcSD", "bare.a", "one.o"], cwd=made.parent, check=True)
    with open_window(made.parent / "bare.a") as window:
        assert archive.symbol_index(window) == frozenset()


def test_bsd_names(tmp_path: Path) -> None:
    name = b"bsd_member.o\0\0\0\0"
    body = name + b"content!"
    header = (
        b"#1/16".ljust(16) + b"0".ljust(12) + b"0".ljust(6) * 2 + b"644".ljust(8) + str(len(body)).encode().ljust(10)
    )
    path = tmp_path / "bsd.a"
    path.write_bytes(archive.MAGIC + header + b"`\n" + body)
    with open_window(path) as window:
        (member,) = archive.members(window)
        assert member.name == "bsd_member.o"
        assert member.body.read(0, member.body.size, "all") == b"content!"


def test_damage_is_a_bundle_error_or_nothing(made: Path, tmp_path: Path) -> None:
    """Whatever stands in the headers: no other exception, and no member outside the file."""
    content = made.read_bytes()
    path = tmp_path / "damaged.a"
    spots = [at for at in range(8, len(content)) if content[at : at + 2] == b"`\n"]
    survived = 0
    for end in spots:
        for at in range(end - 58, end + 2):
            for value in (0x00, 0x20, 0x2F, 0x39, 0xFF):
                path.write_bytes(content[:at] + bytes([value]) + content[at + 1 :])
                try:
                    assert names(path) is not None
                    with open_window(path) as window:
                        archive.symbol_index(window)
                except BundleError:
                    continue
                survived += 1
    assert 0 < survived < 60 * 5 * len(spots)


@pytest.mark.parametrize("size", [9, 60, 67, 69, 100, 200])
def test_an_archive_that_is_cut_short(made: Path, size: int) -> None:
    made.write_bytes(made.read_bytes()[:size])
    with pytest.raises(BundleError):
        names(made)
