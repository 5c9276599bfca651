"""Attacks on a bundle by who can make its hashes anew: none gets past ``packager verify``.

Each begins with a bundle that verifies, and ends with exit code 1 or 6. Of two is shown that they would work: loaded
unverified, such a bundle computes something else, or runs another's code.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import packager
from packager.bundle.elf.tables import read_sections
from packager.bundle.elf.window import open_window
from packager.bundle.manifest import CONSTANTS_SECTION, SECTION_NAME
from packager.bundle.section import SECTION_HEADER, content_sha256, encode_section
from tests.artifact.models import ROOT
from tests.artifact.mutants import resealed

pytestmark = pytest.mark.slow
PT_LOAD, PT_DYNAMIC, PT_GNU_RELRO = 1, 2, 0x6474E552
READ, WRITE, EXECUTE = 4, 2, 1
DT_NEEDED, DT_STRTAB, DT_STRSZ, DT_RPATH, DT_TEXTREL, DT_RUNPATH, DT_FLAGS = 1, 5, 10, 15, 22, 29, 30
R_RELATIVE, R_IRELATIVE = 8, 37
STT_GNU_IFUNC = 10
AVX512 = bytes.fromhex("62f17c4858c1 c3")  # vaddps zmm0, zmm0, zmm1; ret
Rows = np.ones((2, 6), np.float32)


class Image:
    """A bundle that is being attacked; offsets are those of the file."""

    def __init__(self, bundle: Path) -> None:
        self.data = bytearray(bundle.read_bytes())
        with open_window(bundle) as window:
            self.table = read_sections(window)
        self.sections = self.table.by_name()
        self.headers_at = struct.unpack_from("<Q", self.data, 40)[0]

    def segment(self, type_: int, holding: int | None = None) -> int:
        """Return where the program header of a type is, whose memory holds an address."""
        for index, (kind, _, _, address, _, _, size, _) in enumerate(self.table.segments):
            if kind == type_ and (holding is None or address <= holding < address + size):
                return 64 + 56 * index
        raise LookupError(type_)

    def append(self, blob: bytes) -> int:
        """Append bytes at a page of their own; return their offset."""
        self.data += bytes(-len(self.data) % 0x1000)
        self.data += blob
        return len(self.data) - len(blob)

    def load(self, header: int, offset: int, address: int, size: int, flags: int) -> None:
        """Make a program header one that maps bytes of the file."""
        struct.pack_into("<IIQQQQQQ", self.data, header, PT_LOAD, flags, offset, address, address, size, size, 0x1000)

    def move_section(self, name: str, offset: int, address: int, size: int) -> None:
        index = [section.name for section in self.table.sections].index(name)
        struct.pack_into("<QQQ", self.data, self.headers_at + 64 * index + 16, address, offset, size)

    def relocation(self, type_: int) -> int:
        """Return where the first relocation of a type is."""
        table = self.sections[".rela.dyn"]
        for at in range(table.offset, table.offset + table.size, 24):
            if struct.unpack_from("<I", self.data, at + 8)[0] == type_:
                return at
        raise LookupError(type_)

    def tags(self) -> list[tuple[int, int]]:
        dynamic = self.sections[".dynamic"]
        found = struct.iter_unpack("<QQ", self.data[dynamic.offset : dynamic.offset + dynamic.size])
        return [(tag, value) for tag, value in found if tag]

    def write(self, path: Path, change: Callable[[dict[str, Any]], None] | None = None) -> Path:
        """Write the file with all hashes, and sizes, made anew."""

        def described(manifest: dict[str, Any]) -> None:
            manifest["sizes"]["file"] = len(self.data)
            if change:
                change(manifest)

        path.write_bytes(resealed(self.data, self.sections[SECTION_NAME], described))
        return path


def exit_code(bundle: Path, *options: str) -> int:
    argv = [sys.executable, "-m", "packager", "verify", str(bundle), *options]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode


def refused(bundle: Path, *options: str) -> bool:
    return exit_code(bundle, *options) in (1, 6)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A matrix product for any x86-64: its code has no AVX."""
    folder = tmp_path_factory.mktemp("bundle")
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2,6] x) => (float[2,4] y) { y = MatMul(x, w) }'
    )
    weights = np.ones((6, 4), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, folder / "model.onnx")
    return packager.build(folder / "model.onnx", folder / "model.so", targets=["llvm -mcpu=x86-64"])


@pytest.fixture
def image(bundle: Path) -> Image:
    return Image(bundle)


def test_the_bundle_verifies_before(bundle: Path, image: Image, tmp_path: Path) -> None:
    assert exit_code(bundle) == 0
    assert exit_code(image.write(tmp_path / "same.so")) == 0


def other_constants(image: Image) -> None:
    """Map constants that are not in the section whose hashes the manifest has."""
    section = image.sections[CONSTANTS_SECTION]
    offset = image.append(np.full(section.size // 4, 7, np.float32).tobytes())
    image.load(image.segment(PT_LOAD, section.address), offset, section.address, section.size, READ)


def test_other_constants_by_program_headers(bundle: Path, image: Image, tmp_path: Path) -> None:
    other_constants(image)
    path = image.write(tmp_path / "attack.so")
    with packager.load(bundle) as own, packager.load(path) as attacked:
        assert own.run([Rows])["y"][0, 0] == 6
        assert attacked.run([Rows])["y"][0, 0] == 42
    assert refused(path)


def test_other_constants_with_a_section_that_is_not_mapped(image: Image, tmp_path: Path) -> None:
    """The section stays where the manifest's hash is right, and no program header maps it."""
    other_constants(image)
    section = image.sections[CONSTANTS_SECTION]
    image.move_section(CONSTANTS_SECTION, section.offset, 0, section.size)
    assert refused(image.write(tmp_path / "attack.so"))


@pytest.mark.parametrize("headers_moved", [False, True])
@pytest.mark.parametrize("path_tag", [DT_RUNPATH, DT_RPATH])
@pytest.mark.parametrize("declared", [False, True])
def test_another_library_by_a_moved_dynamic_table(
    image: Image, tmp_path: Path, headers_moved: bool, path_tag: int, declared: bool
) -> None:
    """Its constructor runs when the bundle is loaded; the manifest may name it."""
    source = tmp_path / "evil.c"
    source.write_text('#include <stdio.h>\n__attribute__((constructor)) static void run(void) { puts("owned"); }\n')
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", tmp_path / "libevil.so"], check=True)
    strings = image.sections[".dynstr"]
    names = bytes(image.data[strings.offset : strings.offset + strings.size])
    added = names + b"libevil.so\0" + str(tmp_path).encode() + b"\0"
    offset = image.append(added + bytes(-len(added) % 16))
    address = 0x1000000
    moved = [(tag, {DT_STRTAB: address, DT_STRSZ: len(added)}.get(tag, value)) for tag, value in image.tags()]
    moved = [(DT_NEEDED, len(names)), (path_tag, len(names) + 11), *moved, (0, 0)]
    dynamic = b"".join(struct.pack("<QQ", *tag) for tag in moved)
    at = len(image.data) - offset
    image.data += dynamic
    image.load(image.segment(PT_GNU_RELRO), offset, address, at + len(dynamic), READ | WRITE)
    struct.pack_into("<IIQQQQQQ", image.data, image.segment(PT_DYNAMIC), PT_DYNAMIC, READ | WRITE, offset + at,
                     address + at, address + at, len(dynamic), len(dynamic), 8)  # fmt: skip
    if headers_moved:
        image.move_section(".dynamic", offset + at, address + at, len(dynamic))
        image.move_section(".dynstr", offset, address, len(added))

    def declare(manifest: dict[str, Any]) -> None:
        if declared:
            manifest["requirements"]["needed"].insert(0, "libevil.so")

    path = image.write(tmp_path / "attack.so", declare)
    code = f"import ctypes; ctypes.CDLL({str(path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "owned\n", done.stderr
    assert refused(path)


def hidden_by_a_segment(image: Image) -> None:
    offset = image.append(AVX512)
    image.load(image.segment(PT_GNU_RELRO), offset, 0x1000000, len(AVX512), READ | EXECUTE)


def hidden_behind_the_code(image: Image) -> None:
    text = image.sections[".text"]
    end = text.offset + text.size
    assert not any(image.data[end : end + 16])
    image.data[end : end + len(AVX512)] = AVX512
    header = image.segment(PT_LOAD, text.address)
    for at in (32, 40):  # the segment ends behind it
        struct.pack_into("<Q", image.data, header + at, -(-(end + 16 - 0x1000) // 0x1000) * 0x1000)


def hidden_in_data(image: Image) -> None:
    """Make the constants executable, and some of them code."""
    section = image.sections[CONSTANTS_SECTION]
    struct.pack_into("<I", image.data, image.segment(PT_LOAD, section.address) + 4, READ | EXECUTE)


def not_marked_as_code(image: Image) -> None:
    """The section header of the code says that it is data, which is not disassembled."""
    index = [section.name for section in image.table.sections].index(".text")
    image.data[image.sections[".text"].offset : image.sections[".text"].offset + len(AVX512)] = AVX512
    struct.pack_into("<Q", image.data, image.headers_at + 64 * index + 8, 2)


def in_the_code(image: Image) -> None:
    at = image.sections[".text"].offset
    image.data[at : at + len(AVX512)] = AVX512


@pytest.mark.parametrize(
    "hide", [hidden_by_a_segment, hidden_behind_the_code, hidden_in_data, not_marked_as_code, in_the_code]
)
def test_code_that_the_policy_does_not_see(hide: Callable[[Image], None], image: Image, tmp_path: Path) -> None:
    policy = tmp_path / "v1.toml"
    policy.write_text('schema_version = 1\nname = "v1"\ndescription = "any x86-64"\ncpu_level = "x86-64-v1"\n')
    assert exit_code(image.write(tmp_path / "before.so"), "--policy", str(policy)) == 0
    hide(image)
    assert refused(image.write(tmp_path / "attack.so"), "--policy", str(policy))


def text_relocation_tag(image: Image) -> None:
    dynamic = image.sections[".dynamic"]
    end = dynamic.offset + 16 * len(image.tags())
    struct.pack_into("<QQQQ", image.data, end, DT_TEXTREL, 0, 0, 0)


def text_relocation_flag(image: Image) -> None:
    dynamic = image.sections[".dynamic"]
    index = [tag for tag, _ in image.tags()].index(DT_FLAGS)
    struct.pack_into("<Q", image.data, dynamic.offset + 16 * index + 8, 8 | 4)


def relocated(name: str) -> Callable[[Image], None]:
    def relocate(image: Image) -> None:
        struct.pack_into("<Q", image.data, image.relocation(R_RELATIVE), image.sections[name].address)

    return relocate


def irelative(image: Image) -> None:
    struct.pack_into("<I", image.data, image.relocation(R_RELATIVE) + 8, R_IRELATIVE)


def ifunc(table: str) -> Callable[[Image], None]:
    def change(image: Image) -> None:
        section = image.sections[table]
        for at in range(section.offset, section.offset + section.size, 24):
            if image.data[at + 4] & 15 == 2 and any(image.data[at + 6 : at + 8]):  # a defined function
                image.data[at + 4] = image.data[at + 4] & 0xF0 | STT_GNU_IFUNC

    return change


@pytest.mark.parametrize(
    "relocate",
    [
        *(text_relocation_tag, text_relocation_flag, irelative),
        *(
            pytest.param(relocated(name), id=f"of {name}")
            for name in (".text", ".rodata", CONSTANTS_SECTION, ".dynamic")
        ),
        *(pytest.param(ifunc(name), id=f"ifuncs in {name}") for name in (".dynsym", ".symtab")),
    ],
)
def test_relocations_that_change_code_or_run_some(
    relocate: Callable[[Image], None], image: Image, tmp_path: Path
) -> None:
    relocate(image)
    assert refused(image.write(tmp_path / "attack.so"))


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_lone_surrogate_is_no_crash(command: str, image: Image, tmp_path: Path) -> None:
    section = image.sections[SECTION_NAME]
    path = image.write(tmp_path / "attack.so")
    text = bytes(image.data[section.offset + SECTION_HEADER.size : section.offset + section.size])
    manifest = json.loads(text) | {"content_sha256": content_sha256(path, section.offset, section.size)}
    manifest["model"]["name"] = "a\ud800b"
    with path.open("r+b") as file:
        file.seek(section.offset)
        file.write(encode_section(json.dumps(manifest).encode(), section.size))
    argv = [sys.executable, "-m", "packager", command, str(path)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 6
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("machine", [0, 3, 0x1234, 0xFFFF])
def test_an_unknown_machine(machine: int, image: Image, tmp_path: Path) -> None:
    struct.pack_into("<H", image.data, 18, machine)
    path = image.write(tmp_path / "attack.so")
    assert exit_code(path) == 6


@pytest.fixture(scope="module")
def sized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows of an input [n, 6] that a mask chooses: an output with a run-time extent."""
    folder = tmp_path_factory.mktemp("sized")
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[n,6] x, bool[n] p) => (float[k,6] y) '
        "{ y = Compress<axis=0>(x, p) }"
    )
    onnx.save(model, folder / "model.onnx")
    return packager.build(folder / "model.onnx", folder / "model.so", dims={"n": (1, 4)}, targets=["llvm"])


def without_extents(manifest: dict[str, Any]) -> None:
    manifest["extents"] = []
    manifest["outputs"][0]["shape"][0] = 4


def another_name(manifest: dict[str, Any]) -> None:
    manifest["extents"][0]["name"] = manifest["outputs"][0]["shape"][0] = "other_0"


def another_bound(manifest: dict[str, Any]) -> None:
    manifest["extents"][0]["bound"] = "n + 1"


def a_bound_of_nothing(manifest: dict[str, Any]) -> None:
    manifest["extents"][0]["bound"] = "n // (n - 1)"


def another_maximum(manifest: dict[str, Any]) -> None:
    manifest["dims"][0]["max"] = 8


CHANGES = [without_extents, another_name, another_bound, a_bound_of_nothing, another_maximum]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: str(change.__name__))
def test_extents_and_bounds_that_the_code_does_not_have(
    change: Callable[[dict[str, Any]], None], sized: Path, tmp_path: Path
) -> None:
    image = Image(sized)
    assert exit_code(image.write(tmp_path / "same.so")) == 0
    assert refused(image.write(tmp_path / "model.so", change))
