"""The documentation agrees with the code and with itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from markdown_blocks import DOCUMENTS, ROOT, blocks, prose

from packager.cli.main import app
from packager.cli.reference import reference
from packager.errors import EXIT_CODES

README = (ROOT / "README.md").read_text()
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
ADRS = sorted((ROOT / "docs" / "adr").glob("0*.md"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_exit_codes_of_the_readme_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", README, flags=re.MULTILINE)
    assert {int(code): meaning for code, meaning in rows} == EXIT_CODES
    assert len(rows) == len(EXIT_CODES)


def test_the_reference_is_that_of_the_commands() -> None:
    hint = "write it again: python -m packager.cli.reference > docs/cli.md"
    assert (ROOT / "docs" / "cli.md").read_text() == reference(), hint


def test_commands_of_the_readme_are_those_of_the_code() -> None:
    listed = re.findall(r"^\| `packager (\w+)", README, flags=re.MULTILINE)
    assert sorted(listed) == sorted(command.callback.__name__ for command in app.registered_commands)


def anchors(document: Path) -> set[str]:
    """Return the anchors that a renderer makes of the headings."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", document.read_text(), flags=re.M | re.S), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_links_lead_somewhere(document: Path) -> None:
    for link in LINK.findall(prose(document)):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), f"{relative(document)}: {link} does not exist"
        assert target.is_relative_to(ROOT), f"{relative(document)}: {link} leaves the project"
        assert not anchor or anchor in anchors(target), f"{relative(document)}: {link} has no such heading"


def test_every_document_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        document = waiting.pop()
        if document in reached or document.suffix != ".md":
            continue
        reached.add(document)
        links = [link.partition("#")[0] for link in LINK.findall(prose(document)) if not link.startswith("https://")]
        for path in ((document.parent / link).resolve() for link in links if link):
            waiting.append(path / "README.md" if path.is_dir() else path)
    assert not [relative(path) for path in set(DOCUMENTS) - reached if (path.parent / path.name).exists()]


@pytest.mark.parametrize(
    "path",
    [*DOCUMENTS, *(ROOT / name for name in ("Makefile", ".ci/run", ".pre-commit-config.yaml", "pyproject.toml"))],
    ids=relative,
)
def test_no_paths_of_one_machine(path: Path) -> None:
    found = re.findall(r"(?<![\w.])/(?:work|root|home|opt|mnt|tmp)\b\S*", path.read_text())
    assert not found, f"{relative(path)} names {found}"


def test_every_file_that_the_pipeline_names_exists() -> None:
    """The map of the code goes stale when a module moves."""
    text = (ROOT / "docs" / "pipeline.md").read_text()
    names = set(re.findall(r"(?<![\w/.])((?:\w+/)*\w+\.py)\b", re.sub(r"`\d-\w+\.py`", "", text)))
    known = {path.relative_to(ROOT / "packager").as_posix() for path in (ROOT / "packager").rglob("*.py")}
    missing = sorted(name for name in names if not any(k == name or k.endswith(f"/{name}") for k in known))
    assert not missing
    assert len(names) > 20


def test_the_pipeline_names_every_folder() -> None:
    text = (ROOT / "docs" / "pipeline.md").read_text()
    folders = {path.parent for path in (ROOT / "packager").rglob("*.py")} - {ROOT / "packager"}
    assert not sorted(folder.name for folder in folders if f"{folder.name}/" not in text)


@pytest.mark.parametrize("path", ADRS, ids=lambda path: path.stem)
def test_decisions_have_the_same_form(path: Path) -> None:
    number = path.name[:4]
    text = path.read_text()
    assert text.startswith(f"# {number}: ")
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE) == ["Context", "Decision", "Consequences"]
    assert f"[{number}]({path.name})" in (path.parent / "README.md").read_text()


def test_decisions_are_numbered_without_gaps() -> None:
    assert [int(path.name[:4]) for path in ADRS] == list(range(1, len(ADRS) + 1))


def test_json_in_the_documents_is_json() -> None:
    import json

    found = [block for document in DOCUMENTS for block in blocks(document) if block.language == "json"]
    assert found
    for block in found:
        json.loads(block.text)
