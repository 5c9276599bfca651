"""Files that are large, or say so: ``verify`` and ``inspect`` refuse them within 5 s of a processor and 1 GB."""

from __future__ import annotations

import os
import resource
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import packager
from packager.bundle.elf.symbols import SYMBOL
from packager.bundle.manifest import SECTION_NAME
from packager.bundle.section import SECTION_HEADER, encode_section
from tests.artifact.conftest import Build
from tests.artifact.models import ROOT, Model
from tests.artifact.test_attacks import Image

pytestmark = pytest.mark.slow
MEMORY, SECONDS = 1 << 30, 5
MILLION = 1_000_000


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))


def limited(command: str, path: Path) -> int:
    """Run a command of packager within the limits, and return its exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "packager", command, str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60 * SECONDS,
        preexec_fn=_limit,
    )
    assert "Traceback" not in done.stderr, done.stderr[-2000:]
    return done.returncode


def large_section(name: str, size: int) -> Callable[[Image], None]:
    def change(image: Image) -> None:
        section = image.sections[name]
        image.move_section(name, section.offset, section.address, size)

    return change


def zeroed(image: Image) -> None:
    """A section without bytes in the file, of 2^60 bytes."""
    index = [section.name for section in image.table.sections].index(".bss")
    struct.pack_into("<Q", image.data, image.headers_at + 64 * index + 32, 1 << 60)


def mapped(image: Image) -> None:
    header = image.segment(1, image.sections[".bss"].address)
    struct.pack_into("<Q", image.data, header + 40, 1 << 60)


def many_symbols(image: Image, count: int = MILLION) -> None:
    """Symbols with long names, each from another place of one long string."""
    pool = b"\0" + b"a" * 4000 + b"\0"
    table = b"".join(SYMBOL.pack(at % 4000 + 1, 0x12, 0, 1, 0, 0) for at in range(count))
    for name, content in ((".strtab", pool), (".symtab", table)):
        image.move_section(name, image.append(content), 0, len(content))


def many_relocations(image: Image) -> None:
    section = image.sections[".rela.dyn"]
    content = bytes(image.data[section.offset : section.offset + 24]) * 4 * MILLION
    image.move_section(".rela.dyn", image.append(content), section.address, len(content))


def many_versions(image: Image) -> None:
    section = image.sections[".gnu.version_r"]
    content = struct.pack("<HHIII", 1, 0xFFFF, 1, 16, 16) * MILLION
    image.move_section(".gnu.version_r", image.append(content), section.address, len(content))


def many_tags(image: Image) -> None:
    content = struct.pack("<QQ", 1, 1) * 8 * MILLION
    offset = image.append(content)
    image.move_section(".dynamic", offset, image.sections[".dynamic"].address, len(content))
    header = image.segment(2)
    struct.pack_into("<Q", image.data, header + 8, offset)
    struct.pack_into("<QQ", image.data, header + 32, len(content), len(content))


MANIFESTS: dict[str, Callable[[], bytes]] = {
    "lists in lists": lambda: b"[" * (100 * MILLION) + b"]" * (100 * MILLION),
    "lists in a list": lambda: b"[" + b"[]," * (66 * MILLION) + b"[]]",
    "lists that may be": lambda: b"[" + b"[]," * (5 * MILLION) + b"[]]",
    "objects": lambda: b'{"a":[' + b"{}," * (66 * MILLION) + b"{}]}",
    "texts": lambda: b"[" + b'"",' * (66 * MILLION) + b'""]',
    "one text": lambda: b'"' + b"\\u00e9" * (33 * MILLION) + b'"',
    "a number": lambda: b"1" * (200 * MILLION),
}
HOSTILE: dict[str, Callable[[Image], None]] = {
    **{f"{name} of 2^{bits} bytes": large_section(name, 1 << bits)
       for name in (".text", ".symtab", ".strtab", ".dynsym", ".rela.dyn", SECTION_NAME, ".packager.constants")
       for bits in (32, 60)},
    "zeroed memory": zeroed,
    "a mapping": mapped,
    "symbols": many_symbols,
    "symbols that may be": lambda image: many_symbols(image, 260_000),
    "relocations": many_relocations,
    "symbol versions": many_versions,
    "dynamic tags": many_tags,
}  # fmt: skip


@pytest.mark.sampled(4, every_value=False)
@pytest.mark.parametrize("attack", HOSTILE)
def test_a_hostile_size(attack: str, build: Build, mlp: Model, tmp_path: Path) -> None:
    image = Image(build(mlp))
    HOSTILE[attack](image)
    path = tmp_path / "attack.so"
    path.write_bytes(image.data) if SECTION_NAME in attack else image.write(path)
    assert limited("verify", path) in (1, 6)
    assert limited("inspect", path) in (0, 1, 6)


@pytest.mark.sampled(3, every_value=False)
@pytest.mark.parametrize("text", MANIFESTS)
def test_a_hostile_manifest(text: str, build: Build, mlp: Model, tmp_path: Path) -> None:
    """Its own hash is right."""
    image, content = Image(build(mlp)), MANIFESTS[text]()
    offset = image.append(encode_section(content, len(content) + SECTION_HEADER.size))
    image.move_section(SECTION_NAME, offset, image.sections[SECTION_NAME].address, len(content) + SECTION_HEADER.size)
    path = tmp_path / "attack.so"
    path.write_bytes(image.data)
    assert limited("verify", path) == 6
    assert limited("inspect", path) == 6


@pytest.mark.parametrize("gigabytes", [1, 100])
def test_a_sparse_file(gigabytes: int, build: Build, mlp: Model, tmp_path: Path) -> None:
    path = tmp_path / "attack.so"
    path.write_bytes(build(mlp).read_bytes())
    os.truncate(path, gigabytes << 30)
    assert limited("verify", path) in (1, 6)


@pytest.mark.sampled(3, every_value=False)
@pytest.mark.parametrize("field", [8, 16, 56])
@pytest.mark.parametrize("size", [1 << 32, 1 << 60, (1 << 64) - 1])
def test_a_fatbin_with_hostile_sizes(field: int, size: int, digits: Model, tmp_path: Path) -> None:
    """Bytes of all entries, of one, and uncompressed: the code itself is not unpacked."""
    bundle = packager.build(digits.path, tmp_path / "cuda.so", targets=["cuda -arch=sm_80"], dims={"n": (1, 4)})
    image = Image(bundle)
    at = image.sections[".nv_fatbin"].offset
    struct.pack_into("<Q", image.data, at + field if field == 8 else at + 16 + field - 8, size)
    assert limited("verify", image.write(tmp_path / "attack.so")) in (1, 6)


@pytest.mark.parametrize("content", [b"[" * MILLION, b"[" + b"[]," * (30 * MILLION) + b"[]]"], ids=["deep", "wide"])
def test_a_hostile_header_of_the_weights(content: bytes, build: Build, mlp: Model, tmp_path: Path) -> None:
    bundle = build(mlp, weights="external")
    path = tmp_path / bundle.name
    path.write_bytes(bundle.read_bytes())
    own = bundle.with_suffix(".safetensors").read_bytes()
    size = int.from_bytes(own[:8], "little")
    weights = len(content).to_bytes(8, "little") + content + own[8 + size :]
    (tmp_path / bundle.with_suffix(".safetensors").name).write_bytes(weights)
    assert limited("verify", path) in (1, 6)
