"""The documents of the project, and what can be run in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(path for folder in ("docs", "samples", "examples") for path in (ROOT / folder).rglob("*.md")),
    ],
    key=lambda path: path.relative_to(ROOT).as_posix(),
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and where its first line stands.

    ``source`` is the file that the block quotes, named after the language, ``gpu`` if it is run on a machine with one,
    or empty.
    """

    document: Path
    line: int
    language: str
    source: str
    text: str

    @property
    def needs_gpu(self) -> bool:
        """Whether it is for a machine with a GPU."""
        return self.source == "gpu"

    @property
    def place(self) -> str:
        """The place for messages: ``docs/abi.md:12``."""
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def blocks(document: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a document in order."""
    fence: tuple[int, str, str] | None = None
    lines: list[str] = []
    for number, line in enumerate(document.read_text().splitlines(), 1):
        if not line.startswith("```"):
            lines.append(line)
        elif fence is None:
            language, _, source = line.removeprefix("```").strip().partition(" ")
            fence, lines = (number + 1, language, source), []
        else:
            yield Block(document, *fence, "\n".join(lines))
            fence = None
    assert fence is None, f"{document}: a fence stays open"


def prose(document: Path) -> str:
    """Return the text of a document without fenced blocks and inline code."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)
