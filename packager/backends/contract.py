"""Whether an object is a backend: what the interface asks for, checked before anything of it is used."""

from __future__ import annotations

import inspect
from typing import Any

from packager.backends.attributes import attributes_of
from packager.backends.base import Backend, CodeGenerator, PartitionBackend, PartitionOptions

DEVICES = ("cpu", "cuda")
# What everyone else reads from the base Target of the CPU.
CPU_ATTRIBUTES = {"mtriple": ("str",), "mcpu": ("list of str", "str")}


def violation(backend: Any, kind: str) -> str | None:
    """Return in which way an object is not a backend of this kind, or None. Its API version is another matter."""
    if missing := _missing(backend, Backend):
        return f"it has no {missing}"
    if backend.kind != kind:
        return f"its kind is {backend.kind!r}, and its entry point is named {kind!r}"
    if backend.device not in DEVICES:
        return f"its device is {backend.device!r}, expected one of {', '.join(DEVICES)}"
    if not isinstance(backend.summary, str) or not backend.summary.strip():
        return "its summary is not a line of text"
    generates, compiles = hasattr(backend, "generate"), hasattr(backend, "compile")
    if generates == compiles:
        return f"it has {'both' if generates else 'neither'} of 'generate' and 'compile', expected one of them"
    if missing := _missing(backend, CodeGenerator if generates else PartitionBackend):
        return f"it has no {missing}"
    return _bad_options(backend, compiles=compiles)


def _missing(backend: Any, protocol: type[Any]) -> str:
    declared = [base for base in protocol.__mro__ if getattr(base, "_is_protocol", False)]
    names = [name for base in reversed(declared) for name in (*inspect.get_annotations(base), *vars(base))]
    lacking = {name: None for name in names if not name.startswith("_") and not hasattr(backend, name)}
    return ", ".join(map(repr, lacking))


def _bad_options(backend: Any, *, compiles: bool) -> str | None:
    try:
        declared = attributes_of(backend.options)
    except (TypeError, NameError) as error:  # NameError: of an annotation that cannot be resolved
        return f"its options cannot be used: {error}"
    if compiles and not issubclass(backend.options, PartitionOptions):
        return "its options do not derive from PartitionOptions"
    if not compiles and backend.device == "cpu":
        for name, types in CPU_ATTRIBUTES.items():
            if name not in declared or declared[name].type not in types:
                return f"its options have no attribute {name!r} of type {' or '.join(types)}"
    return None
