"""A report in a real browser: it shows what it has, answers to mouse and keyboard, and asks the network for nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, find_browser
from typer.testing import CliRunner

import packager
from packager.cli.main import app

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_browser() is None, reason="no Chromium on PATH: apt install chromium"),
]
DIGITS = Path(__file__).parents[2] / "samples" / "digits" / "digits.onnx"
ATTACK = '<img src=x onerror="document.title=1">'
TRANSFORM = "document.querySelector('.world').getAttribute('transform')"


def write_report(*arguments: object) -> None:
    result = CliRunner().invoke(app, ["report", *map(str, arguments)])
    assert result.exit_code == 0, (result.output, result.exception)


def attacked(path: Path) -> Path:
    """Put markup into the texts of a page's data, where a bundle's names are; they must stay texts."""
    text = path.read_text()
    data = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert data
    value = json.loads(data[1])
    for node in value["bundles"][0]["runs"][0]["flow"]["nodes"]:
        node["label"], node["nodes"] = ATTACK, [ATTACK]
    for function in value["bundles"][0]["functions"]:
        function["label"], function["composite"] = ATTACK, ATTACK
    value["bundles"][0]["tables"][0]["rows"].append([ATTACK, ATTACK])
    hostile = path.with_name("hostile.html")
    hostile.write_text(text.replace(data[1], json.dumps(value).replace("<", "\\u003c")))
    return hostile


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with reports of a bundle that the tests of samples build, too: the cache has it."""
    folder = tmp_path_factory.mktemp("pages")
    packager.build(DIGITS, folder / "digits.so", dims={"n": 4})
    write_report(folder / "digits.so", "--run", "-o", folder / "digits.html")
    write_report(folder / "digits.so", folder / "digits.so", "-o", folder / "two.html")
    attacked(folder / "digits.html")
    return folder


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    assert program is not None
    browser = Browser(program, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    chromium.problems.clear()
    yield chromium
    assert not chromium.problems


def tabs(browser: Browser) -> list[str]:
    found: list[str] = browser.evaluate("[...document.querySelectorAll('[role=tab]')].map((tab) => tab.id.slice(4))")
    return found


@pytest.mark.parametrize("page", ["digits.html", "two.html", "hostile.html"])
def test_every_tab_shows_something(browser: Browser, pages: Path, page: str) -> None:
    browser.open(pages / page)
    assert len(tabs(browser)) >= 6
    for tab in tabs(browser):
        browser.click(f"#tab-{tab}")
        browser.settle()
        assert browser.evaluate(f"document.getElementById('tab-{tab}').getAttribute('aria-selected')") == "true"
        assert len(browser.evaluate("document.querySelector('main').textContent")) > 50
        for width in (420, 1360):  # nothing is wider than the window
            browser.resize(width)
            assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate("document.images.length") == 0


def test_search(browser: Browser, pages: Path) -> None:
    browser.open(pages / "digits.html", "#overview")
    browser.key("/", "/")
    assert tabs(browser)[1] == "graph"
    browser.settle()
    browser.type("max_pool")
    browser.settle()
    assert browser.evaluate("document.querySelectorAll('.node.found').length") == 2
    assert browser.evaluate("document.querySelector('.graph [role=status]').textContent") == "1 of 2"
    browser.key("Enter")
    browser.settle()
    assert browser.evaluate("document.querySelector('.details.shown h2').textContent") == "max_pool2d"
    assert browser.evaluate("document.querySelectorAll('.node.selected').length") == 1
    browser.key("Escape")
    browser.settle()
    assert browser.evaluate("document.querySelectorAll('.node.found').length") == 0


def test_zoom_and_pan(browser: Browser, pages: Path) -> None:
    browser.open(pages / "digits.html", "#graph")
    browser.wait("document.querySelectorAll('.node').length > 5")
    start = browser.evaluate(TRANSFORM)
    browser.mouse("mouseWheel", 680, 500, deltaX=0, deltaY=-120, modifiers=2)  # with Ctrl
    browser.wait(f"{TRANSFORM} !== {json.dumps(start)}")
    closer = browser.evaluate(TRANSFORM)
    assert float(re.findall(r"scale\((.*)\)", closer)[0]) > float(re.findall(r"scale\((.*)\)", start)[0])
    browser.drag((1000, 400), (1050, 430))
    browser.wait(f"{TRANSFORM} !== {json.dumps(closer)}")
    moved = browser.evaluate(TRANSFORM)
    before, after = ([float(n) for n in re.findall(r"[-\d.]+", text)] for text in (closer, moved))
    assert [round(after[0] - before[0]), round(after[1] - before[1]), after[2]] == [50, 30, before[2]]
    browser.evaluate("document.querySelector('.canvas').focus()")
    browser.key("0", "0")
    browser.settle()
    nodes = browser.evaluate(
        "[...document.querySelectorAll('.node')].every((node) => { const box = node.getBoundingClientRect();"
        " const frame = document.querySelector('.frame').getBoundingClientRect();"
        " return box.top >= frame.top && box.bottom <= frame.bottom; })"
    )
    assert nodes


def test_nodes_and_functions_open(browser: Browser, pages: Path) -> None:
    browser.open(pages / "digits.html", "#graph")
    browser.wait("document.querySelectorAll('.node').length > 5")
    browser.evaluate("document.querySelector('[data-node=\"0\"]').focus()")
    browser.key("ArrowDown")  # along the edge
    browser.key("Enter")
    browser.settle()
    shown = "document.querySelector('.details.shown').textContent"
    assert "conv2d + add + relu" in browser.evaluate(shown)
    assert "conv1.weight" in browser.evaluate(shown)
    browser.key("Escape")
    browser.settle()
    assert browser.evaluate("document.querySelector('.details.shown')") is None
    assert browser.evaluate("document.activeElement.dataset.node") == "1"
    browser.click("#tab-functions")
    browser.click("tbody tr button")
    browser.settle()
    assert "GFLOP/s" in browser.evaluate(shown)
    browser.click(".details button:not(.icon)")  # show in graph
    browser.wait("document.querySelectorAll('.node.selected').length === 1")


def test_tables_sort_and_filter(browser: Browser, pages: Path) -> None:
    browser.open(pages / "digits.html", "#functions")
    count = "document.querySelectorAll('table.sorted tbody tr').length"
    whole = browser.evaluate(count)
    browser.click("main input[type=search]")
    browser.type("pool")
    browser.settle()
    assert 0 < browser.evaluate(count) < whole
    head = "document.querySelector('table.sorted th')"
    browser.evaluate(f"{head}.firstChild.click()")
    assert browser.evaluate(f"{head}.getAttribute('aria-sort')") == "ascending"


def test_the_keyboard_reaches_the_tabs(browser: Browser, pages: Path) -> None:
    browser.open(pages / "digits.html", "#overview")
    browser.evaluate("document.getElementById('tab-overview').focus()")
    browser.key("ArrowRight")
    assert browser.evaluate("document.activeElement.id") == "tab-graph"
    browser.evaluate("document.querySelector('.tools button').click()")
    assert browser.evaluate("document.documentElement.dataset.theme") == "light"
