"""What a bundle's file holds beside the model: runtime, entrypoint and ELF, read back from the linked file.

    python benchmarks/size.py

Counts as overhead whatever is neither the code of a primitive function (by the sizes of the symbols that the manifest
names), nor constants, nor manifest, nor golden values: also kernels' own tables in .rodata, symbol names and padding,
so it is an upper bound.
"""

from __future__ import annotations

import sys
from pathlib import Path

from elftools.elf.elffile import ELFFile
from measure import Bar, Report, finish, make_parser
from models import MODEL_NAMES, build_bundle

LIMIT_BYTES = 64 * 1024
MODEL_SECTIONS = {".packager.manifest": "manifest", ".packager.constants": "constants", ".packager.golden": "golden"}
TABLES = (".symtab", ".strtab", ".shstrtab", ".comment", ".dynsym", ".dynstr")
COLUMNS = ("kernels", "constants", "manifest", "golden", "code", "data", "tables", "padding")


def main() -> int:
    """Measure and report."""
    parser = make_parser("Size of runtime and entrypoint in a bundle.")
    parser.add_argument("--models", nargs="+", choices=MODEL_NAMES, default=MODEL_NAMES, help="default: all")
    arguments = parser.parse_args()
    figures: dict[str, dict[str, int] | None] = {}
    for name in arguments.models:
        try:
            bundle = build_bundle(name, arguments.workdir)
        except RuntimeError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            figures[name] = None
            continue
        figures[name] = measure_file(bundle.path)
    measured = {name: sizes for name, sizes in figures.items() if sizes is not None}
    report = Report(
        title="Bytes in the file; overhead = code + data + tables + padding",
        header=("model", "file", *COLUMNS, "overhead"),
        rows=[
            (name, *(f"{sizes[column]:,}" for column in ("file", *COLUMNS, "overhead")))
            for name, sizes in measured.items()
        ],
        figures=dict(figures),
        bars=[Bar(f"overhead in {name}", sizes["overhead"], LIMIT_BYTES, "bytes") for name, sizes in measured.items()],
    )
    return finish(report, arguments)


def measure_file(path: Path) -> dict[str, int]:
    """Return the bytes of a shared bundle by ``COLUMNS``, ``file`` and ``overhead``."""
    from packager.deploy.inspect import inspect

    symbols = {primitive.symbol for _, primitive in inspect(path).manifest.primitives()}
    sizes = dict.fromkeys(COLUMNS, 0)
    with path.open("rb") as file:
        elf = ELFFile(file)
        text = 0
        for section in elf.iter_sections():
            if section["sh_type"] == "SHT_NOBITS":
                continue
            if section.name in MODEL_SECTIONS:
                sizes[MODEL_SECTIONS[section.name]] += section["sh_size"]
            elif section.name in TABLES:
                sizes["tables"] += section["sh_size"]
            elif section["sh_flags"] & 4:  # SHF_EXECINSTR
                text += section["sh_size"]
            else:
                sizes["data"] += section["sh_size"]
        for symbol in elf.get_section_by_name(".symtab").iter_symbols():
            if symbol.name in symbols:
                sizes["kernels"] += symbol["st_size"]
        sizes["code"] = text - sizes["kernels"]
    total = path.stat().st_size
    sizes["padding"] = total - sum(sizes.values())  # headers of ELF and its sections included
    return {"file": total, **sizes, "overhead": sum(sizes[part] for part in ("code", "data", "tables", "padding"))}


if __name__ == "__main__":
    sys.exit(main())
