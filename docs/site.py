"""What mkdocs calls while it builds the site: the decisions in the nav, links to files that are not pages, and blocks
that quote a file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

# A link, as Markdown writes it: its text and its address. Pictures begin with "!".
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((\.\./[^)\s]+)\)")
# The first line of a block that quotes a file, which is named after the language.
QUOTE = re.compile(r"^```(\w+) +(\S+)$", re.MULTILINE)


def outside(markdown: str, page: str, source: str) -> str:
    """Let links that leave docs/ lead below ``source``, an address; without one their text alone is kept.

    ``page`` is the path of the page in docs/.
    """

    def replaced(match: re.Match[str]) -> str:
        text, target = match.groups()
        path = os.path.normpath(f"docs/{Path(page).parent}/{target}")
        if path.startswith("docs/"):
            return match.group()
        return f"[{text}]({source.rstrip('/')}/{path})" if source else text

    return LINK.sub(replaced, markdown)


def on_config(config: Any) -> Any:
    """List the decisions in their order, each under the title that it has."""
    folder = Path(config["docs_dir"])
    (decisions,) = [entry["Decisions"] for entry in config["nav"] if "Decisions" in entry]
    decisions += [path.relative_to(folder).as_posix() for path in sorted(folder.glob("adr/0*.md"))]
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Rewrite a page: its links, and the files that its blocks quote as their titles."""
    return outside(QUOTE.sub(r'```\1 title="\2"', markdown), page.file.src_uri, config["extra"]["source"])
