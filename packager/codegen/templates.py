"""The jinja2 environment that renders ``templates/``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jinja2

from packager.codegen.escape import CText, checked
from packager.resources import folder

MARK = "compiled by packager"

_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(folder("templates")),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    autoescape=False,  # C, not HTML: ``checked`` is the second wall behind ``c_text``'s functions
    finalize=checked,
)


def render(template: str, values: Mapping[str, Any] | None = None, /, **others: Any) -> CText:
    """Render a template of ``templates/``. Raises ValueError for a value that ``c_text`` should have escaped."""
    return CText(_ENVIRONMENT.get_template(template).render(values or {}, **others))
