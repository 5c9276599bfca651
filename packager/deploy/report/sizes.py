"""Where the bytes of a bundle are: sections, code by symbol, constants."""

from __future__ import annotations

from dataclasses import dataclass

from packager.bundle.elf.tables import SHF_ALLOC, SHF_EXECINSTR
from packager.bundle.isa.levels import clone_symbol
from packager.bundle.manifest import Manifest
from packager.bundle.reader import BundleFile

_NO_BITS = 8
_RUNTIME = "runtime"
_MOST = 1500


@dataclass(frozen=True)
class SectionSize:
    """A section of the file: its bytes, and whether it is mapped into memory and executable."""

    name: str
    bytes: int
    mapped: bool
    code: bool


@dataclass(frozen=True)
class SymbolSize:
    """A function or its tables; ``owner`` is the backend that brought it, or the runtime."""

    name: str
    bytes: int
    section: str
    owner: str


@dataclass(frozen=True)
class ConstantSize:
    """A constant, with the names of the model's constants that it is made of."""

    name: str
    bytes: int
    dtype: str
    shape: tuple[int, ...]
    sources: tuple[str, ...]


@dataclass(frozen=True)
class SizesView:
    """Sizes in bytes; ``symbols`` and ``constants`` have the largest ones, and the ``other`` numbers what is left."""

    file: int
    code: int
    weights: int
    storage: str
    sections: tuple[SectionSize, ...]
    symbols: tuple[SymbolSize, ...]
    other_symbols: int
    constants: tuple[ConstantSize, ...]
    other_constants: int


def make_sizes(bundle: BundleFile) -> SizesView:
    """Return the sizes of a bundle."""
    manifest = bundle.manifest
    sections = [
        SectionSize(name, section.size, bool(section.flags & SHF_ALLOC), bool(section.flags & SHF_EXECINSTR))
        for name, section in bundle.elf.sections.items()
        if section.type not in (0, _NO_BITS) and section.size
    ]
    symbols = _symbols(bundle)
    constants = sorted(manifest.constants, key=lambda item: (-item.bytes, item.name))
    return SizesView(
        file=manifest.sizes.file,
        code=manifest.sizes.code,
        weights=manifest.weights.bytes,
        storage=manifest.weights.storage,
        sections=tuple(sorted(sections, key=lambda item: (-item.bytes, item.name))),
        symbols=tuple(symbols[:_MOST]),
        other_symbols=sum(item.bytes for item in symbols[_MOST:]),
        constants=tuple(
            ConstantSize(item.name, item.bytes, item.dtype, item.shape, item.sources) for item in constants[:_MOST]
        ),
        other_constants=sum(item.bytes for item in constants[_MOST:]),
    )


def _symbols(bundle: BundleFile) -> list[SymbolSize]:
    """Return the symbols of executable sections, the largest first."""
    owners = _owners(bundle.manifest)
    found = []
    for name, symbol in bundle.elf.symbols.items():
        section = bundle.elf.sections.get(bundle.elf.section_of(name) or "")
        if symbol.size and section is not None and section.flags & SHF_EXECINSTR:
            found.append(SymbolSize(name, symbol.size, section.name, owners.get(name, _RUNTIME)))
    return sorted(found, key=lambda item: (-item.bytes, item.name))


def _owners(manifest: Manifest) -> dict[str, str]:
    return {
        clone_symbol(primitive.symbol, level): kind
        for kind, primitive in manifest.primitives()
        for level in ("", *primitive.levels)
    }
