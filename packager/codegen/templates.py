"""The jinja2 environment that renders ``templates/``."""

from __future__ import annotations

from typing import Any

import jinja2

from packager.resources import folder

MARK = "compiled by packager"

ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(folder("templates")),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    autoescape=False,  # C, not HTML
)


def render(template: str, **values: Any) -> str:
    """Render a template of ``templates/``."""
    return ENVIRONMENT.get_template(template).render(values)
