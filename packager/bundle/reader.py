"""Reads a bundle's manifest and ELF facts without executing it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packager.bundle.elf.file import ElfImage, image
from packager.bundle.elf.tables import SHF_COMPRESSED, Section, SectionTable, read_sections
from packager.bundle.elf.window import open_window
from packager.bundle.invariants import parse_manifest
from packager.bundle.manifest import SECTION_NAME, Manifest
from packager.bundle.section import LARGEST_TEXT, SECTION_HEADER, content_sha256, decode_section
from packager.errors import BundleError, UsageError

_HINT = "a bundle is what `packager build` makes: NAME.so or libNAME.a"


@dataclass(frozen=True)
class BundleFile:
    """A bundle on disk: its manifest, the manifest section, and its ELF facts."""

    path: Path
    manifest: Manifest
    section: Section
    elf: ElfImage


def read_bundle(path: str | Path) -> BundleFile:
    """Read a bundle, shared or static. Checks the manifest's hash, not the hash of the whole file.

    Raises BundleError if it is not a bundle, is damaged or has a newer format; UsageError if it cannot be opened.
    """
    path = Path(path)
    with _named(path), open_window(path) as window:
        table = read_sections(window)
        text, section = _manifest_text(table)
        return BundleFile(path, parse_manifest(text), section, image(table, window.size))


def read_manifest(path: str | Path) -> tuple[Manifest, bytes]:
    """Read only the manifest and return it with its JSON text. Raises like read_bundle.

    Takes constant time, regardless of the bundle's size.
    """
    path = Path(path)
    with _named(path), open_window(path) as window:
        text, _ = _manifest_text(read_sections(window))
        return parse_manifest(text), text


def read_section(bundle: BundleFile, name: str) -> bytes:
    """Return the bytes of a section of the bundle. Raises BundleError if it has no such section."""
    section = bundle.elf.sections.get(name)
    with _named(bundle.path), open_window(bundle.path) as window:
        if section is None:
            raise BundleError(f"there is no section {name}")
        return window.read(section.offset, section.size, f"section {name}")


def check_content(bundle: BundleFile) -> None:
    """Hash the whole file, if it has the sealed size. Raises BundleError if the hash is not the sealed one."""
    hint = "copy the bundle again, or rebuild it; do not strip or edit a bundle"
    if bundle.elf.file_size != bundle.manifest.sizes.file:
        raise BundleError(
            f"{bundle.path}: the file is damaged: it has {bundle.elf.file_size} bytes, and was sealed with"
            f" {bundle.manifest.sizes.file}",
            hint=hint,
        )
    actual = content_sha256(bundle.path, bundle.section.offset, bundle.section.size)
    if actual != bundle.manifest.content_sha256:
        raise BundleError(
            f"{bundle.path}: the file is damaged: its SHA-256 is not the one it was sealed with",
            hint=hint,
            detail=f"sealed with {bundle.manifest.content_sha256}\nfound       {actual}",
        )


def inspect(path: str | Path) -> BundleFile:
    """Read a bundle and check every byte against the sealed hashes. Raises like read_bundle."""
    bundle = read_bundle(path)
    check_content(bundle)
    return bundle


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Prefix the message of a BundleError with the path, and say what a bundle is where a file is none at all."""
    try:
        yield
    except UsageError as error:
        raise UsageError(error.message, hint=error.hint or _HINT) from None
    except BundleError as error:
        message = error.message if str(path) in error.message else f"{path}: {error.message}"
        raise BundleError(message, hint=error.hint, detail=error.detail) from None


def _manifest_text(table: SectionTable) -> tuple[bytes, Section]:
    section = table.by_name().get(SECTION_NAME)
    if section is None:
        raise BundleError(
            f"not a packager bundle: an ELF file without a section {SECTION_NAME}",
            hint=_HINT,
        )
    if section.type != 1 or section.flags & SHF_COMPRESSED:
        raise BundleError(f"the section {SECTION_NAME} is compressed or has no bytes in the file")
    if section.size > SECTION_HEADER.size + LARGEST_TEXT:
        raise BundleError(f"the manifest has {section.size} bytes, more than {LARGEST_TEXT}")
    return decode_section(table.content(section)), section
