"""The ELF reader against pyelftools, an independent implementation, on the system's libraries and our own."""

from __future__ import annotations

from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import SymbolTableSection
from sealing import HARDENED, compile_bundle

from packager.bundle.elf.file import read_elf
from packager.bundle.elf.symbols import version_key
from packager.errors import BundleError

SYSTEM = [
    *("/bin/sh", "/bin/ls"),
    *sorted(
        str(path)
        for folder in Path("/usr/lib").glob("*-linux-gnu")
        for path in (folder / "libc.so.6", folder / "libm.so.6", folder / "libstdc++.so.6", folder / "libz.so.1")
        if path.exists()
    ),
]


def check_against_pyelftools(path: Path) -> None:
    ours = read_elf(path)
    with path.open("rb") as stream:
        elf = ELFFile(stream)
        assert [(s.name, s["sh_offset"], s["sh_size"], s["sh_addr"], s["sh_flags"]) for s in unique(elf)] == [
            (s.name, s.offset, s.size, s.address, s.flags) for s in ours.sections.values()
        ]
        dynamic = next((s for s in elf.iter_sections() if isinstance(s, DynamicSection)), None)
        assert dynamic
        tags = list(dynamic.iter_tags())
        assert ours.needed == tuple(tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED")
        symbols = elf.get_section_by_name(".dynsym")
        assert isinstance(symbols, SymbolTableSection)
        named = [s for s in symbols.iter_symbols() if s.name]
        assert set(ours.undefined) == {s.name for s in named if s["st_shndx"] == "SHN_UNDEF"}
        assert set(ours.exports) == {
            s.name for s in named
            if s["st_shndx"] != "SHN_UNDEF" and s["st_info"]["bind"] != "STB_LOCAL"
            and s["st_other"]["visibility"] in ("STV_DEFAULT", "STV_PROTECTED")
        }  # fmt: skip
        versions = {
            aux.name
            for section in elf.iter_sections() if isinstance(section, GNUVerNeedSection)
            for _, auxiliaries in section.iter_versions() for aux in auxiliaries
        }  # fmt: skip
        plain = [name[6:] for name in versions if name[:6] == "GLIBC_" and name[6].isdigit()]
        if "GLIBC_ABI_DT_RELR" in versions:
            plain.append("2.36")
        libraries = {
            needed.name
            for section in elf.iter_sections() if isinstance(section, GNUVerNeedSection)
            for needed, _ in section.iter_versions()
        }  # fmt: skip
        assert set(ours.version_libraries) == libraries
        assert ours.soname == next((tag.soname for tag in tags if tag.entry.d_tag == "DT_SONAME"), None)
        indexes = elf.get_section_by_name(".gnu.version")
        unversioned = {
            symbol.name
            for symbol, version in zip(symbols.iter_symbols(), indexes.iter_symbols(), strict=True)
            if symbol.name and symbol["st_shndx"] == "SHN_UNDEF" and str(version["ndx"]).startswith("VER_NDX_")
        }
        assert set(ours.unversioned) == unversioned
        assert (ours.init_entries > 0) == any(
            tag.entry.d_tag in ("DT_INIT", "DT_INIT_ARRAY", "DT_PREINIT_ARRAY") for tag in tags
        )
        assert ours.glibc == max(plain, key=version_key, default=None)
        assert ("GLIBC_PRIVATE" in ours.glibc_private) == ("GLIBC_PRIVATE" in versions)


def unique(elf: ELFFile) -> list[object]:
    found: dict[str, object] = {}
    for section in elf.iter_sections():
        found.setdefault(section.name, section)
    return list(found.values())


@pytest.mark.parametrize("path", SYSTEM)
def test_system_libraries(path: str) -> None:
    check_against_pyelftools(Path(path))


def test_own_bundle(good: Path) -> None:
    check_against_pyelftools(good)
    image = read_elf(good)
    assert (image.type, image.relro, image.exec_stack, image.has_textrel) == ("shared", "full", False, False)
    assert (image.rpath, image.runpath, image.writable_code) == (None, None, False)
    assert image.exports == ("packager_bundle_v1",)
    assert image.symbols["pk_scale"].size > 0
    assert (image.init_entries, image.fini_entries) == (0, 0)
    assert image.functions >= {"pk_scale", "packager_bundle_v1"}
    assert "table" not in image.functions
    assert image.unversioned == ()
    assert "libc.so.6" in image.version_libraries
    text = image.sections[".text"]
    assert text.address <= image.symbols["pk_scale"].value < text.address + text.size
    assert text.size < image.code_bytes < image.file_size


def test_archive(archive: Path) -> None:
    image = read_elf(archive)
    assert image.type == "relocatable"
    assert image.exports == ("scale_bundle_v1",)
    assert "calloc" in image.undefined
    section = image.sections[".packager.manifest"]
    assert archive.read_bytes()[section.offset : section.offset + 8] == b"PKGRMAN1"


@pytest.mark.parametrize(
    ("flags", "fact", "expected"),
    [
        (("-Wl,-z,execstack",), "exec_stack", True),
        (("-Wl,-rpath,/opt/x,--enable-new-dtags",), "runpath", "/opt/x"),
        (("-Wl,-rpath,/opt/x,--disable-new-dtags",), "rpath", "/opt/x"),
        (("-Wl,-z,lazy",), "relro", "partial"),
        (("-Wl,-z,norelro",), "relro", "none"),
        (("-Wl,--auxiliary,libfilter.so",), "other_libraries", ("libfilter.so",)),
        (("-Wl,--no-as-needed", "-lm"), "needed", None),
    ],
)
def test_link_flags(tmp_path: Path, flags: tuple[str, ...], fact: str, expected: object) -> None:
    path = tmp_path / "x.so"
    compile_bundle(path, link=(*HARDENED, *flags))
    actual = getattr(read_elf(path), fact)
    assert "libm.so.6" in actual if fact == "needed" else actual == expected


def test_archive_with_several_members(archive: Path, tmp_path: Path) -> None:
    content = archive.read_bytes()
    start = content.index(b"`\n", content.index(b"`\n") + 2) - 58  # the second header: the object
    two = tmp_path / "two.a"
    two.write_bytes(content + b"\n" * (len(content) % 2) + content[start:])
    with pytest.raises(BundleError, match="several members"):
        read_elf(two)
    empty = tmp_path / "empty.a"
    empty.write_bytes(b"!<arch>\n")
    with pytest.raises(BundleError, match="no member"):
        read_elf(empty)
