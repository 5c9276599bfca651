"""Recorded terminals of the documentation: what the script makes of what a terminal is sent, and what is committed."""

from __future__ import annotations

import importlib
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from markdown_blocks import DOCUMENTS, ROOT

DOCS = ROOT / "docs"
PICTURES = sorted((DOCS / "images").glob("terminal-*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(DOCS)
    return importlib.import_module("record")


def shown(script: Any, text: str, width: int = 10) -> list[str]:
    screen = script.Screen(width)
    screen.feed(text)
    return ["".join(character for character, _ in line) for line in screen.lines()]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one\r\ntwo", ["one", "two"]),
        ("three\rTH", ["THree"]),
        ("abcdefghijkl", ["abcdefghij", "kl"]),
        ("gone\r\x1b[2Kdone\r\n", ["done", ""]),
        ("first\r\nsecond\x1b[1A\r\x1b[2Kagain", ["again", "second"]),
        ("keep me\r\x1b[4C\x1b[K", ["keep"]),
        ("\x1b[?25l\x1b[1mbold\x1b[0m \x1b[38;5;197mred\x1b[39m", ["bold red"]),
    ],
)
def test_a_screen_shows_what_a_terminal_does(script: Any, text: str, lines: list[str]) -> None:
    assert shown(script, text) == [line.rstrip() for line in lines]


@pytest.mark.parametrize("text", ["\x1b[5J", "\x07", "\x1b[4m"])
def test_what_a_screen_does_not_know_is_no_silent_mistake(script: Any, text: str) -> None:
    with pytest.raises(ValueError, match=r"control|SGR"):
        shown(script, text)


def test_a_command_is_recorded_as_it_prints(script: Any, tmp_path: Path) -> None:
    recording = script.Recording()
    script.run("test -t 2 && tput cols; printf 'é<%s>' \"$NAME\"", recording, tmp_path, {"PATH": "/usr/bin:/bin",
               "TERM": "xterm", "NAME": "a&b"})  # fmt: skip
    recording.write(tmp_path / "a.cast", "a title")
    assert script.Recording.read(tmp_path / "a.cast").events[0][1] == recording.events[0][1]
    frames = script.frames(recording, script.Scene(commands=(), title="", speed=1))
    lines = ["".join(character for character, _ in line) for line in frames[-1].lines]
    assert [line for line in lines if "$" not in line][-2:] == [str(script.WIDTH), "é<a&b>"]
    picture = ET.fromstring(script.draw(frames, script.WIDTH, "a title", 1))
    assert "é<a&b>" in [text.text for text in picture.iter(f"{SVG}text")]
    with pytest.raises(SystemExit, match="ended with 3"):
        script.run("exit 3", script.Recording(), tmp_path, {"PATH": "/usr/bin:/bin"})


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_committed_pictures_contain_all_they_show(path: Path) -> None:
    picture = ET.parse(path).getroot()
    tags = {element.tag.removeprefix(SVG) for element in picture.iter()}
    assert tags <= {"svg", "title", "style", "rect", "text", "defs", "g", "use"}
    links = [element.get("href", "") for element in picture.iter(f"{SVG}use")]
    known = {f"#{element.get('id')}" for element in picture.iter(f"{SVG}g") if element.get("id")}
    assert links
    assert set(links) <= known
    style = next(picture.iter(f"{SVG}style")).text or ""
    assert "url(" not in style
    assert "@import" not in style
    assert path.stat().st_size < 200_000
    assert any(f"images/{path.name}" in document.read_text() for document in DOCUMENTS)


def test_a_first_build_with_cutlass_is_shown() -> None:
    picture = ET.parse(DOCS / "images" / "terminal-cutlass.svg").getroot()
    texts = [text.text or "" for text in picture.iter(f"{SVG}text")]
    assert any("compiling CUTLASS kernel 1 of" in text for text in texts)
    assert any(text.startswith("about ") and text.endswith(" left") for text in texts)
    assert sum(text.startswith("done in ") for text in texts) == 2
