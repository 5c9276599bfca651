"""The documentation as pages: each document is one, links lead to files or below an address, a search finds all."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from markdown_blocks import DOCUMENTS, ROOT

DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCUMENTS if path.is_relative_to(DOCS))
SOURCE = "https://example.org/files"


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_site", DOCS / "site.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_nav(hook: ModuleType) -> None:
    nav = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    listed = re.findall(r"(\S+\.md)$", nav, flags=re.MULTILINE)
    config = {"docs_dir": str(DOCS), "nav": [{"Home": "README.md"}, {"Decisions": ["adr/README.md"]}]}
    decisions = hook.on_config(config)["nav"][1]["Decisions"][1:]
    assert sorted([*listed, *decisions]) == PAGES


@pytest.mark.parametrize(
    ("page", "link", "path"),
    [
        ("abi.md", "../samples/README.md", "samples/README.md"),
        ("adr/README.md", "../../CONTRIBUTING.md#tests", "CONTRIBUTING.md#tests"),
        ("adr/README.md", "../abi.md", None),
        ("abi.md", "cuda.md", None),
    ],
)
def test_links_that_leave_the_folder_lead_below_an_address(
    hook: ModuleType, page: str, link: str, path: str | None
) -> None:
    text = f"see [this]({link})"
    assert hook.outside(text, page, SOURCE + "/") == (f"see [this]({SOURCE}/{path})" if path else text)
    assert hook.outside(text, page, "") == ("see this" if path else text)


@pytest.mark.slow
def test_a_word_of_every_page_is_found(tmp_path: Path) -> None:
    """As ``make site`` makes it, strictly, from the lock alone."""
    for name in ("docs", "mkdocs.yml", "requirements-docs.lock", "Makefile"):
        (tmp_path / name).symlink_to(ROOT / name)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    make = ["make", "-s", "site", f"PYTHON={sys.executable}"]
    environment["PACKAGER_SOURCE_URL"] = SOURCE
    done = subprocess.run(make, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    site = tmp_path / "build" / "site"
    found: dict[str, str] = {}
    for entry in json.loads((site / "search" / "search_index.json").read_text())["docs"]:
        page = entry["location"].partition("#")[0]
        found[page] = found.get(page, "") + " " + entry["title"] + " " + entry["text"]
    for page in PAGES:
        address = page.replace("README.md", "index.md").removesuffix(".md") + ".html"
        words = re.findall(r"[a-z]{9,}", (DOCS / page).read_text().partition("\n")[2])
        assert any(word in found[address] for word in words), page
        html = (site / address).read_text()
        assert not re.search(r'(?:href|src)="(?:\.\./)*(?:packager|samples|tests|examples|benchmarks)/', html), page
        assert not re.search(r'<(?:script|link)[^>]*(?:src|href)="https?:', html.replace(SOURCE, "")), page
