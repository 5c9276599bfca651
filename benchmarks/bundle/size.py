"""What a bundle's file holds beside the model: runtime, entrypoint and ELF, read back from the linked file.

    python -m benchmarks.bundle.size

Counts as overhead whatever is neither a backend's code and tables, as far as they are linked (the objects that stand
in the build's work folder), nor constants, nor manifest, nor golden values: also symbol names and padding.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile

from benchmarks.cpu.engines import build
from benchmarks.cpu.models import MODELS, make
from benchmarks.harness.measure import Report, Threshold, finish, make_parser
from benchmarks.harness.turns import EngineError

LIMIT = 64 * 1024
MEASURED = ("relu", "digits", "squeezenet", "resnet50", "minilm")
MODEL_SECTIONS = {".packager.manifest": "manifest", ".packager.constants": "constants", ".packager.golden": "golden"}
TABLES = (".symtab", ".strtab", ".shstrtab", ".comment", ".dynsym", ".dynstr")
COLUMNS = ("kernels", "constants", "manifest", "golden", "code", "data", "tables", "padding")


def main() -> int:
    """Measure and report."""
    parser = make_parser("size", "Size of runtime and entrypoint in a bundle.")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MEASURED, metavar="MODEL")
    arguments = parser.parse_args()
    figures: dict[str, dict[str, int]] = {}
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder) / "work"
            try:
                model = make(name, 1, arguments.workdir / "models")
                bundle = build(model, arguments.workdir, "--keep-workdir", work)
            except EngineError as error:
                print(f"{name} is left out: {error}", file=sys.stderr)
                continue
            figures[name] = measure_file(bundle, sorted(work.glob("prepared-*.o")))
    report = Report(
        title="Bytes in the file; overhead = code + data + tables + padding",
        header=("model", "file", *COLUMNS, "overhead"),
        rows=[
            (name, *(f"{sizes[column]:,}" for column in ("file", *COLUMNS, "overhead")))
            for name, sizes in figures.items()
        ],
        figures=figures,
        thresholds=[Threshold(f"overhead in {n}", each["overhead"], LIMIT, "bytes") for n, each in figures.items()],
    )
    return finish(report, arguments)


def measure_file(path: Path, backends: Sequence[Path]) -> dict[str, int]:
    """Return the bytes of a shared bundle by ``COLUMNS``, ``file`` and ``overhead``.

    ``backends`` are the objects that hold what the backends gave.
    """
    sizes = dict.fromkeys(COLUMNS, 0)
    for name, size, flags in sections(path):
        if name in MODEL_SECTIONS:
            sizes[MODEL_SECTIONS[name]] += size
        elif name in TABLES:
            sizes["tables"] += size
        else:
            sizes["code" if flags & SH_FLAGS.SHF_EXECINSTR else "data"] += size
    for backend in backends:
        for _, size, flags in sections(backend):
            if flags & SH_FLAGS.SHF_ALLOC:
                sizes["kernels"] += size
                sizes["code" if flags & SH_FLAGS.SHF_EXECINSTR else "data"] -= size
    total = path.stat().st_size
    sizes["padding"] = total - sum(sizes.values())  # headers of ELF and its sections included
    return {"file": total, **sizes, "overhead": sum(sizes[part] for part in ("code", "data", "tables", "padding"))}


def sections(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yield name, bytes in the file and flags of each section."""
    with path.open("rb") as file:
        for section in ELFFile(file).iter_sections():
            if section["sh_type"] != "SHT_NOBITS":
                yield section.name, section["sh_size"], section["sh_flags"]


if __name__ == "__main__":
    sys.exit(main())
