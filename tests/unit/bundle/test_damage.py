"""Damaged and foreign files: always a BundleError (or a finding), never accepted, never another exception."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sealing import CAPACITY, build_bundle, compile_bundle, write_section

from packager.bundle.elf.file import read_elf
from packager.bundle.reader import inspect, read_bundle
from packager.bundle.section import encode_section
from packager.deploy.load.loader import load
from packager.deploy.verify.machine import Machine
from packager.deploy.verify.policy import read_policy
from packager.deploy.verify.verifier import verify
from packager.errors import BundleError, UsageError

POLICY = read_policy("default")


def accepted(path: Path, machine: Machine) -> bool:
    """Say whether either reader accepts a file; any exception but BundleError gets through and fails the test."""
    results = []
    for read in (inspect, lambda path: verify(path, policy=POLICY, machine=machine)):
        try:
            read(path)
            results.append(True)
        except BundleError:
            results.append(False)
    assert results[0] == results[1]
    return results[0]


@pytest.mark.parametrize(
    "step",
    [97, pytest.param(7, marks=pytest.mark.slow), pytest.param(1, marks=[pytest.mark.slow, pytest.mark.thorough])],
)
@pytest.mark.parametrize("form", ["good", "archive"])
def test_one_flip_in_a_byte(
    form: str, step: int, request: pytest.FixtureRequest, tmp_path: Path, anywhere: Machine
) -> None:
    """Every byte, or every so many."""
    content = request.getfixturevalue(form).read_bytes()
    path = tmp_path / "flipped"
    path.write_bytes(content)
    assert accepted(path, anywhere)
    with path.open("r+b", buffering=0) as stream:
        for offset in range(0, len(content), step):
            byte = content[offset]
            os.pwrite(stream.fileno(), bytes([byte ^ 1 << offset % 8]), offset)
            assert not accepted(path, anywhere), f"flip in byte {offset} was not noticed"
            os.pwrite(stream.fileno(), bytes([byte]), offset)
    assert accepted(path, anywhere)


def test_every_truncation(good: Path, tmp_path: Path, anywhere: Machine) -> None:
    content = good.read_bytes()
    path = tmp_path / "short.so"
    for size in [*range(200), *range(200, len(content), 97), len(content) - 1]:
        path.write_bytes(content[:size])
        assert not accepted(path, anywhere), size
    path.write_bytes(content + b"\0")
    assert not accepted(path, anywhere)


@pytest.mark.slow
def test_header_tables_with_random_content(good: Path, tmp_path: Path) -> None:
    """Not caught by a hash: read_elf itself must survive whatever the headers and tables say."""
    content = good.read_bytes()
    image = read_elf(good)
    tables = [image.sections[name] for name in (".dynsym", ".dynamic", ".gnu.version_r", ".symtab", ".dynstr")]
    spots = [*range(64), *range(64, 64 + 56 * 9), *range(len(content) - 64 * len(image.sections), len(content))]
    spots += [offset for table in tables for offset in range(table.offset, table.offset + table.size)]
    generator = random.Random(0)
    path = tmp_path / "fuzzed.so"
    survived = 0
    for _ in range(4000):
        damaged = bytearray(content)
        for _ in range(generator.choice((1, 1, 2, 8))):
            spot = generator.choice(spots)
            value = generator.choice((0, 1, 0x7F, 0x80, 0xFF, generator.randrange(256)))
            damaged[spot : spot + generator.choice((1, 1, 4, 8))] = bytes([value])
            del damaged[len(content) :]
        path.write_bytes(damaged)
        try:
            read_elf(path)
        except BundleError:
            continue
        survived += 1
    assert 0 < survived < 4000


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_bytes(b""), "not an ELF file"),
        (lambda path: path.write_text("hello"), "not an ELF file"),
        (lambda path: path.mkdir(), "is a folder"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.write_bytes(b"\x7fELF"), "not an ELF file"),
        (lambda path: path.write_bytes(b"\x7fELF\x01\x01\x01" + bytes(100)), "not a 64-bit little-endian"),
        (lambda path: path.symlink_to("/bin/ls"), "not a packager bundle"),
        (lambda path: path.write_bytes(b"!<arch>\n" + b"x" * 60), "damaged archive"),
        (compile_bundle, "never sealed"),
    ],
)
def test_foreign_files(make: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "thing.so"
    make(path)
    for reader in (read_bundle, verify, load):
        with pytest.raises(BundleError, match=message) as caught:
            reader(path)
        assert str(path) in caught.value.message
        assert caught.value.exit_code == 6


def test_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    for reader in (read_bundle, verify, load):
        with pytest.raises(UsageError, match=r"cannot read .*No such file"):
            reader(tmp_path / "absent.so")
    with pytest.raises(UsageError, match="cannot read"):
        read_bundle("nul\0byte")


@pytest.mark.parametrize(("key", "what"), [("schema_version", "manifest schema"), ("abi_version", "ABI")])
def test_newer_versions_are_refused_by_name(key: str, what: str, tmp_path: Path) -> None:
    path = build_bundle(tmp_path / "new.so")
    value = json.loads(read_bundle(path).manifest.to_json()) | {key: 2, "new_key": 1}
    write_section(path, encode_section(json.dumps(value).encode(), CAPACITY + 64))
    for reader in (read_bundle, verify, load):
        with pytest.raises(BundleError, match=f"{what} version 2; this packager reads version 1"):
            reader(path)


def test_two_manifest_sections(good: Path, tmp_path: Path) -> None:
    """A second section of that name could be what another reader takes."""
    content = bytearray(good.read_bytes())
    image = read_elf(good)
    headers = len(content) - 64 * (content[60] + 256 * content[61])
    wanted = image.sections[".packager.manifest"].offset
    entries = [headers + 64 * index for index in range(content[60])]
    source = next(at for at in entries if int.from_bytes(content[at + 24 : at + 32], "little") == wanted)
    target = next(
        at
        for at in entries
        if int.from_bytes(content[at + 24 : at + 32], "little") == image.sections[".comment"].offset
    )
    content[target : target + 4] = content[source : source + 4]
    path = tmp_path / "two.so"
    path.write_bytes(content)
    with pytest.raises(BundleError, match=r"two sections \.packager\.manifest"):
        read_bundle(path)
