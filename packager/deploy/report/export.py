"""``packager inspect --graph``: the graph of a bundle in the format that the file's name asks for."""

from __future__ import annotations

import json
from pathlib import Path

from packager.bundle.graph.section import read_call_graph
from packager.bundle.reader import BundleFile
from packager.deploy.report.dot import dot_text
from packager.deploy.report.named_graph import named_runs
from packager.deploy.report.onnx_graph import onnx_bytes
from packager.errors import UsageError


def graph_file(bundle: BundleFile, path: Path) -> bytes:
    """Return the content of ``path``: .json, .dot or .gv, or .onnx. Raises UsageError, BundleError."""
    suffix = path.suffix.lower()
    if suffix not in (".json", ".dot", ".gv", ".onnx"):
        raise UsageError(
            f"--graph {path}: no format has this name", hint="end it in .dot (Graphviz), .onnx (Netron) or .json"
        )
    if suffix == ".onnx" and path.exists():
        raise UsageError(f"--graph {path} exists, and may be a model: it stays as it is", hint="give another name")
    graph = read_call_graph(bundle)
    if graph is None:
        raise UsageError(f"{bundle.path} does not say what its calls are", hint="build it again with this packager")
    if suffix == ".json":
        return (json.dumps(json.loads(graph.to_json()), indent=1) + "\n").encode()
    runs = named_runs(bundle.manifest, graph)
    if suffix == ".onnx":
        return onnx_bytes(bundle, runs, beside=path.resolve().parent == bundle.path.resolve().parent)
    return dot_text(runs).encode()
