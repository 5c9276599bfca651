"""The second wall between a model's names and C: with other names, the rendered source must be the same code.

The first wall escapes names one by one (``codegen.escape``). Here a source is rendered once more from a plan with plain
names in their place, and both must have the same tokens but for the contents of strings and comments. That is what
"names are data" means: a count of declarations would miss an expression in place of another, and would have to know
each template.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any, TypeVar

from packager.bundle.manifest import Dim, Entry, Model, RunTimeExtent, StateSpec, TensorSpec
from packager.codegen.c_tokens import first_difference
from packager.ir.call_plan import EntryPlan
from packager.ir.constants import ConstantSlot, ConstantView
from packager.ir.link_plan import ExternalWeights
from packager.ir.primitives import PrimitiveFunction
from packager.ir.shapes import Condition

T = TypeVar("T")

_NAMES: dict[type, tuple[str, ...]] = {
    Model: ("name",),
    Entry: ("name", "states"),
    EntryPlan: ("name", "states"),
    TensorSpec: ("name",),
    StateSpec: ("name", "output", "initial"),
    ConstantSlot: ("name", "sources"),
    ConstantView: ("source",),
    Condition: ("node",),
    RunTimeExtent: ("node",),
    ExternalWeights: ("file_name",),
}
# These stand in code, as they are.
_IDENTIFIERS: dict[type, str] = {Dim: "name", RunTimeExtent: "name", PrimitiveFunction: "symbol"}
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_names_are_data(source: str, values: T, render: Callable[[T], str], *, macros: bool = False) -> str:
    """Return ``source``, which was rendered from ``values``, if with other names it would be the same code.

    Raises ValueError if it would not: a fault of packager, whatever the model holds. With ``macros``, names of macros
    may differ.
    """
    difference = first_difference(source, render(renamed(values, _plain())), macros=macros)
    if difference:
        raise ValueError(f"a name in the model changes rendered code: {difference}")
    return source


def _plain() -> Callable[[str], str]:
    """Return a function that gives plain names: equal ones for equal names, others for others."""
    names: dict[str, str] = {}
    return lambda old: names.setdefault(old, f"name_{len(names)}")


def renamed(values: T, name: Callable[[str], str]) -> T:
    """Return a copy of dataclasses in which each name of the model's is what ``name`` gives for it.

    Raises ValueError if an identifier is none.
    """
    copied: T = _Renaming(name).copy(values)
    return copied


class _Renaming:
    def __init__(self, name: Callable[[str], str]) -> None:
        self.name = name

    def copy(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self.copy(item) for item in value)
        if not dataclasses.is_dataclass(value) or isinstance(value, type):
            return value
        kind = type(value)
        for identified, field_name in _IDENTIFIERS.items():
            if isinstance(value, identified) and not _IDENTIFIER.fullmatch(text := getattr(value, field_name)):
                raise ValueError(f"not an identifier of C: {text[:80]!r}")
        renamed = _NAMES.get(kind, ())
        changes = {}
        for field in dataclasses.fields(value):
            old = getattr(value, field.name)
            new = self._renamed(old) if field.name in renamed else self.copy(old)
            if new is not old:
                changes[field.name] = new
        return dataclasses.replace(value, **changes) if changes else value

    def _renamed(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self._renamed(item) for item in value)
        return value if value is None else self.name(value)
