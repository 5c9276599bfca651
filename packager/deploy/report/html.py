"""Writes a page as one HTML file, which loads nothing and needs no network.

Everything that comes from a bundle is data: a JSON text that the scripts of ``templates/report`` show as text. A policy
in the page allows these scripts, by their hash, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from dataclasses import asdict
from string import Template

from packager.deploy.report.page import Page
from packager.resources import folder

SCRIPTS = ("elements.js", "tables.js", "graph.js", "memory.js", "sizes.js", "timeline.js", "details.js", "main.js")
_DIGITS = 7  # significant ones of measured times


def render_page(page: Page) -> bytes:
    """Return the HTML text. Equal pages give equal bytes."""
    templates = folder("templates") / "report"
    style = (templates / "style.css").read_text()
    # One function's scope: names of the scripts are no names of the page.
    scripts = "\n".join((templates / name).read_text() for name in SCRIPTS)
    script = f'"use strict";\n(() => {{\n{scripts}\n}})();\n'
    return (
        Template((templates / "page.html").read_text())
        .substitute(
            title=html.escape(page.title),
            style_hash=_hash(style),
            script_hash=_hash(script),
            style=style,
            data=data_text(page),
            script=script,
        )
        .encode(errors="replace")  # the title: a file's name may have bytes that are no UTF-8
    )


def data_text(page: Page) -> str:
    """Return the page as JSON that cannot end the element it stands in."""
    text = json.dumps(_rounded(asdict(page)), separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _rounded(value: object) -> object:
    """Round measured numbers; tuples become lists."""
    match value:
        case float():
            return float(f"{value:.{_DIGITS}g}")
        case dict():
            return {key: _rounded(item) for key, item in value.items()}
        case tuple() | list():
            return [_rounded(item) for item in value]
    return value


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
