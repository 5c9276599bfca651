"""Renders the C header of a sealed bundle: the ABI, and names of the model's inputs and outputs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from packager.bundle.manifest import Manifest, StateSpec, TensorSpec
from packager.bundle.reader import inspect
from packager.codegen.escape import CText, c_string, comment_text, joined, macro
from packager.codegen.templates import MARK, render
from packager.link.plain_names import check_names_are_data
from packager.resources import folder


def render_header(bundle: Path, file_name: str, bundle_name: str, entry_symbol: str) -> str:
    """Return the header of a sealed bundle. Raises BundleError; ValueError if a name of the model would change it."""
    manifest = inspect(bundle).manifest

    def render_as(manifest: Manifest) -> str:
        return _render(manifest, file_name, bundle_name, entry_symbol)

    return check_names_are_data(render_as(manifest), manifest, render_as, macros=True)


def _render(manifest: Manifest, file_name: str, bundle_name: str, entry_symbol: str) -> str:
    if manifest.form == "static":
        prefix = macro(entry_symbol.removesuffix("_bundle_v1"))  # programs may link several models with the same name
        comment = "/* Linked in with the archive. */"
        declaration = f"const packager_bundle_v1_t *{entry_symbol}(void);"
    else:
        prefix = macro(manifest.model.name)
        comment = "/* dlopen this, and look PACKAGER_ENTRY_SYMBOL up with dlsym. */"
        declaration = f"#define {prefix}_BUNDLE {c_string(bundle_name)}"
    return render(
        "entrypoint/header.h.j2",
        name=comment_text(manifest.model.name),
        mark=MARK,
        file_name=comment_text(file_name),
        bundle_name=comment_text(bundle_name),
        guard=macro(file_name) + "_",
        abi_header=CText((folder("runtime_stub") / "include" / "packager.h").read_text()),
        entry_comment=CText(comment),
        entry_declaration=CText(declaration),
        prefix=prefix,
        inputs=_tensors(manifest.inputs),
        outputs=_tensors(manifest.outputs),
        states=_tensors(manifest.states),
        entries=[
            {"macro": macro(entry.name), "inputs": _tensors(entry.inputs), "outputs": _tensors(entry.outputs)}
            for entry in manifest.entries
        ],
    )


def _tensors(specs: Sequence[TensorSpec | StateSpec]) -> list[dict[str, str]]:
    names: list[str] = [macro(spec.name) for spec in specs]
    taken = set(names)
    views = []
    for index, (spec, name) in enumerate(zip(specs, names, strict=True)):
        unique: str = name
        if names.count(name) > 1:  # "a.b" and "a_b"
            unique = next(text for n in itertools.count(index) if (text := f"{name}_{n}") not in taken)
            taken.add(unique)
        description = CText(f"{comment_text(spec.name)}, {spec.dtype}[{joined(spec.shape)}]")
        views.append({"macro": unique, "description": description})
    return views
