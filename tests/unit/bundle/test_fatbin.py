"""The reader of fatbins: what nvcc writes, and what nobody should."""

from __future__ import annotations

import importlib.metadata
import random
import re
import struct
import subprocess
import time
from pathlib import Path

import pytest
from gpu_code import KERNEL, compile_kernel

from packager.bundle.elf.tables import SHF_COMPRESSED, Section
from packager.bundle.elf.window import open_window
from packager.bundle.gpu.fatbin import FATBIN_SECTION, Fatbin, fatbins_of, read_fatbins
from packager.errors import BundleError

VERSIONS = ("75", "80", "86", "89", "90", "90a", "100", "100a", "120")
LARGE = "".join(KERNEL.replace(" k(", f" k{i}(").replace("2.0f", f"sinf(x[{i}]) * {i}.0f") for i in range(8))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fatbin with machine code and PTX for many architectures."""
    folder = tmp_path_factory.mktemp("many")
    return compile_kernel(folder, [f"sm_{v}" for v in VERSIONS], [f"compute_{v}" for v in VERSIONS])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_kernel(tmp_path_factory.mktemp("small"), ["sm_80", "sm_90a"], ["compute_80"])


def read(path: Path) -> tuple[Fatbin, ...]:
    with open_window(path) as window:
        return read_fatbins(window)


def read_bytes(content: bytes, path: Path) -> tuple[Fatbin, ...]:
    path.write_bytes(content)
    return read(path)


def cuobjdump(option: str, path: Path) -> set[str]:
    """Ask NVIDIA's own reader; it is a package of the tests."""
    files = importlib.metadata.files("nvidia-cuda-cuobjdump") or []
    (tool,) = [str(file.locate()) for file in files if file.name == "cuobjdump"]
    listed = subprocess.run([tool, option, str(path)], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"\.(sm_[0-9]+[af]?)\.(?:cubin|ptx)", listed))


@pytest.mark.slow
def test_many_architectures_as_cuobjdump_lists_them(many: Path) -> None:
    assert read(many) == (
        Fatbin(tuple(f"sm_{version}" for version in VERSIONS), tuple(f"compute_{version}" for version in VERSIONS)),
    )
    assert cuobjdump("--list-elf", many) == {f"sm_{version}" for version in VERSIONS}
    assert cuobjdump("--list-ptx", many) == {f"sm_{version}" for version in VERSIONS}


@pytest.mark.slow
def test_families(tmp_path: Path) -> None:
    """cuobjdump lists the machine code without the suffix, the PTX with it."""
    path = compile_kernel(tmp_path, ["sm_100f", "sm_120f"], ["compute_100f"])
    assert read(path) == (Fatbin(("sm_100f", "sm_120f"), ("compute_100f",)),)
    assert cuobjdump("--list-ptx", path) == {"sm_100f"}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["none", "speed", "balance", "size"])
def test_compressed_code(mode: str, tmp_path: Path) -> None:
    path = compile_kernel(tmp_path, ["sm_90a"], ["compute_80"], flags=[f"--compress-mode={mode}"], code=LARGE)
    assert read(path) == (Fatbin(("sm_90a",), ("compute_80",)),)


@pytest.mark.slow
def test_several_with_zeros_between(small: Path, many: Path, tmp_path: Path) -> None:
    one, two = small.read_bytes(), many.read_bytes()
    (first,), (second,) = read(small), read(many)
    path = tmp_path / "several"
    assert read_bytes(b"", path) == ()
    assert read_bytes(one + two, path) == (first, second)
    assert read_bytes(bytes(24) + one + bytes(40) + two + bytes(8) + one + bytes(56), path) == (first, second, first)
    with pytest.raises(BundleError, match="more than 4096 zeros"):
        read_bytes(one + bytes(5000) + two, path)


@pytest.mark.slow
def test_every_truncation(small: Path, tmp_path: Path) -> None:
    content = small.read_bytes()
    for size in [*range(1, 200), *range(200, len(content), 31), len(content) - 1]:
        with pytest.raises(BundleError):
            read_bytes(content[:size], tmp_path / "short")


@pytest.mark.slow
def test_flipped_bits_and_random_bytes(small: Path, tmp_path: Path) -> None:
    """Nothing but a BundleError, and nothing that is not an architecture's name."""
    content = small.read_bytes()
    generator = random.Random(0)
    headers = [offset + start for start in entries(content) for offset in range(64)]
    names = re.compile(r"(sm|compute)_[0-9]{2,3}[af]?")
    survived = 0
    for round_ in range(3000):
        damaged = bytearray(content)
        for _ in range(1 + round_ % 3):
            spot = generator.choice([*range(16), *headers])
            damaged[spot] = damaged[spot] ^ 1 << generator.randrange(8) if round_ % 2 else generator.randrange(256)
        try:
            found = read_bytes(bytes(damaged), tmp_path / "damaged")
        except BundleError:
            continue
        survived += 1
        assert all(names.fullmatch(name) for fatbin in found for name in (*fatbin.archs, *fatbin.ptx))
    assert 0 < survived < 3000


def entries(content: bytes) -> list[int]:
    """Return where the entries of a fatbin start."""
    found, offset = [], 16
    while offset < len(content):
        found.append(offset)
        header_size, size = struct.unpack_from("<IQ", content, offset + 4)
        offset += header_size + size
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("offset", "layout", "value", "message"),
    [
        (0, "<I", 0x12345678, "none at byte 0"),
        (4, "<H", 2, "version 2"),
        (6, "<H", 8, "header of 8 bytes"),
        (8, "<Q", 2**63, "is outside"),
        (16, "<H", 8, "unknown kind 8"),
        (18, "<H", 0x102, "version 0x102"),
        (20, "<I", 0, "header of 0 bytes"),
        (24, "<Q", 2**64 - 1, "is outside"),
        (32, "<I", 2**31, "compressed code"),
        (44, "<I", 9, "architecture 9 with"),
        (44, "<I", 1000, "architecture 1000 with"),
        (56, "<Q", 0x300011, "with flags 0x300011"),
        (56, "<Q", 0x10, "with flags 0x10"),
    ],
)
def test_each_field(offset: int, layout: str, value: int, message: str, small: Path, tmp_path: Path) -> None:
    damaged = bytearray(small.read_bytes())
    struct.pack_into(layout, damaged, offset, value)
    with pytest.raises(BundleError, match=message):
        read_bytes(bytes(damaged), tmp_path / "damaged")


def test_machine_code_is_an_elf_file(small: Path, tmp_path: Path) -> None:
    content = small.read_bytes()
    assert content.count(b"\x7fELF") == 2
    with pytest.raises(BundleError, match="its code for sm_80 is not an ELF file"):
        read_bytes(content.replace(b"\x7fELF", b"\x7fELD"), tmp_path / "damaged")


@pytest.mark.parametrize(
    "content",
    [
        struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 0) * 1_000_000,
        struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 64 * 300_000)
        + struct.pack("<HHIQIIHHIIIQQQ", 1, 0x101, 64, 0, 0, 0, 0, 9, 80, 0, 0, 0x11, 0, 0) * 300_000,
    ],
    ids=["fatbins", "entries"],
)
def test_time_is_bounded(content: bytes, tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(BundleError, match="more than 65536 entries"):
        read_bytes(content, tmp_path / "endless")
    assert time.monotonic() - start < 5


def test_sections(small: Path) -> None:
    size = small.stat().st_size
    assert fatbins_of(small, None) == ()
    assert fatbins_of(small, Section(FATBIN_SECTION, 1, 2, 0, 0, size)) == read(small)
    for section in (
        Section(FATBIN_SECTION, 8, 2, 0, 0, size),
        Section(FATBIN_SECTION, 1, 2 | SHF_COMPRESSED, 0, 0, size),
        Section(FATBIN_SECTION, 1, 2, 0, 16, size),
    ):
        with pytest.raises(BundleError):
            fatbins_of(small, section)
