"""The C header of a bundle: the ABI, and names for the model's inputs and outputs. Made from the bundle alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import jinja2

from packager.bundle.manifest import StateSpec, TensorSpec
from packager.bundle.reader import inspect
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


def render_header(bundle: Path, file_name: str, bundle_name: str, entry_symbol: str) -> str:
    """Return the header of a sealed bundle. Raises BundleError."""
    manifest = inspect(bundle).manifest
    if manifest.form == "static":
        prefix = macro(entry_symbol.removesuffix("_bundle_v1"))  # programs link several models, perhaps of one name
        comment = "/* Linked in with the archive. */"
        declaration = f"const packager_bundle_v1_t *{entry_symbol}(void);"
    else:
        prefix = macro(manifest.model.name)
        comment = "/* dlopen this, and look PACKAGER_ENTRY_SYMBOL up with dlsym. */"
        declaration = f"#define {prefix}_BUNDLE {c_string(bundle_name)}"
    return ENVIRONMENT.get_template("header.h.j2").render(
        name=comment_text(manifest.model.name),
        mark=MARK,
        file_name=comment_text(file_name),
        bundle_name=comment_text(bundle_name),
        guard=macro(file_name) + "_",
        abi_header=(folder("runtime_stub") / "include" / "packager.h").read_text(),
        entry_comment=comment,
        entry_declaration=declaration,
        prefix=prefix,
        inputs=_tensors(manifest.inputs),
        outputs=_tensors(manifest.outputs),
        states=_tensors(manifest.states),
        entries=[
            {"macro": macro(entry.name), "inputs": _tensors(entry.inputs), "outputs": _tensors(entry.outputs)}
            for entry in manifest.entries
        ],
    )


def macro(name: str) -> str:
    """Return ``name`` as an upper-case C identifier."""
    text = re.sub(r"\W", "_", name, flags=re.ASCII).upper()
    return text if not text[:1].isdigit() else f"M{text}"


def comment_text(text: str) -> str:
    """Return ``text`` so that it neither ends a C comment nor seems to start one."""
    return text.replace("*/", "* /").replace("/*", "/ *")


def c_string(text: str) -> str:
    """Return a C string literal."""
    escaped = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\?' else f"\\{byte:03o}" for byte in text.encode()
    )
    return f'"{escaped}"'


def _tensors(specs: Sequence[TensorSpec | StateSpec]) -> list[dict[str, str]]:
    names = [macro(spec.name) for spec in specs]
    views = []
    for index, (spec, name) in enumerate(zip(specs, names, strict=True)):
        shape = ", ".join(str(extent) for extent in spec.shape)
        unique = name if names.count(name) == 1 else f"{name}_{index}"  # as of "a.b" and "a_b"
        views.append({"macro": unique, "description": f"{comment_text(spec.name)}, {spec.dtype}[{shape}]"})
    return views
