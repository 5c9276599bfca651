"""Containers of a program's inputs and outputs whose types the program's author registered with torch.

An exported program names the types of its nested inputs and outputs: caches and outputs of transformers, dataclasses,
named tuples. torch reads a program only where each is registered, as it is in the process that wrote it. Here the order
of their tensors is all that counts, and the file has that: unknown types are read as plain containers.

The inputs that a program was exported with are in its file too, pickled. Where they are more than tensors in plain
containers they are left out, and nothing is imported or called for them.
"""

from __future__ import annotations

import collections
import contextlib
import io
import json
import pickle
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch._export.serde import serialize
from torch.utils import _pytree as pytree


@contextlib.contextmanager
def unknown_containers(path: Path) -> Iterator[None]:
    """Let torch read, while the context is entered, the types of containers in a ``.pt2`` file that it does not know.

    A file that cannot be read is left to torch, which says what is wrong with it.
    """
    made = []
    for name, fields in _types(path).items():
        if name in pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE:
            continue
        if fields is None:
            made.append(_container(name))
        else:
            made.append(_named_tuple(name, fields))
    theirs, serialize.deserialize_torch_artifact = serialize.deserialize_torch_artifact, _plain
    try:
        yield
    finally:
        serialize.deserialize_torch_artifact = theirs
        for kind in made:
            pytree._deregister_pytree_node(kind)


def _plain(pickled: Any) -> Any:
    """Read what is pickled in a file as tensors and plain containers; nothing if it has more."""
    if not isinstance(pickled, bytes):
        return pickled
    try:
        return torch.load(io.BytesIO(pickled), weights_only=True) if pickled else {}
    except (pickle.UnpicklingError, RuntimeError, EOFError):
        return {}


def _container(name: str) -> type:
    """Register a type whose flat form is a list of children, and a context as the file has it."""
    kind = type("Container", (), {})

    def flatten(container: Any) -> tuple[list[Any], Any]:
        return list(container.children), container.context

    def unflatten(children: Iterable[Any], context: Any) -> Any:
        container = kind()
        container.children, container.context = list(children), context
        return container

    def flatten_with_keys(container: Any) -> tuple[list[tuple[Any, Any]], Any]:
        return [(pytree.SequenceKey(n), child) for n, child in enumerate(container.children)], container.context

    pytree.register_pytree_node(
        kind,
        flatten,
        unflatten,
        serialized_type_name=name,
        to_dumpable_context=lambda context: context,
        from_dumpable_context=lambda context: context,
        flatten_with_keys_fn=flatten_with_keys,
    )
    return kind


def _named_tuple(name: str, fields: int) -> type:
    """Register a named tuple, whose type is the context of a node of its own."""
    kind = collections.namedtuple("Fields", [f"field{n}" for n in range(fields)])  # type: ignore[misc]
    pytree._register_namedtuple(kind, serialized_type_name=name)
    return kind


def _types(path: Path) -> dict[str, int | None]:
    """Return the names of all types of containers in a file; of named tuples the number of their fields."""
    found: dict[str, int | None] = {}
    pending: list[Any] = []
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                if member.endswith(".json") and ("/models/" in f"/{member}" or "serialized_exported_program" in member):
                    calls = json.loads(archive.read(member))["graph_module"]["module_call_graph"]
                    signatures = [call["signature"] for call in calls if call["signature"]]
                    texts = [signature[key] for signature in signatures for key in ("in_spec", "out_spec")]
                    pending.extend(json.loads(text)[1] for text in texts if text)
        while pending:
            node = pending.pop()
            if node["type"] == "collections.namedtuple":
                found[node["context"]] = len(node["children_spec"])
            elif node["type"] is not None:
                found.setdefault(node["type"], None)
            pending.extend(node["children_spec"])
    except (OSError, zipfile.BadZipFile, ValueError, KeyError, TypeError, IndexError):
        return {}
    return found
