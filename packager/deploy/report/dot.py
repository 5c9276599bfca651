"""Writes the graph of a bundle for Graphviz."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from packager.deploy.report.named_graph import NamedRun, NamedValue

# Of the report's palette, by the order in which backends appear.
_COLORS = ("#c9f0ea", "#dfe3fb", "#e0f0c8", "#ecdcf8", "#fae3c4", "#f8d3df", "#cfe8f7", "#ead9c4")
_PLAIN = "#eceef1"


def dot_text(runs: Sequence[NamedRun]) -> str:
    """Return a digraph with a cluster for each run."""
    kinds = dict.fromkeys(call.backend for run in runs for call in run.calls if call.backend)
    colors = {kind: _COLORS[index % len(_COLORS)] for index, kind in enumerate(kinds)}
    lines = [
        "digraph bundle {",
        '  node [shape=box, style="rounded,filled", fontname="Helvetica", fontsize=11];',
        '  edge [fontname="Helvetica", fontsize=9, color="#8b94a3"];',
    ]
    for number, run in enumerate(runs):
        lines += [f"  subgraph cluster_{number} {{", f"    label={_quoted(run.label)};"]
        lines += [f"    {line}" for line in _run_lines(run, f"r{number}", colors)]
        lines.append("  }")
    return "\n".join([*lines, "}", ""])


def _run_lines(run: NamedRun, prefix: str, colors: dict[str, str]) -> Iterator[str]:
    values = {value.name: value for value in (*run.inputs, *run.values)}
    writers: dict[str, str] = {}
    for number, value in enumerate(run.inputs):
        writers[value.name] = f"{prefix}i{number}"
        yield f"{prefix}i{number} [shape=ellipse, fillcolor={_quoted(_PLAIN)}, label={_quoted(value.name)}];"
    for number, call in enumerate(run.calls):
        node = f"{prefix}c{number}"
        label = f"{call.label}\n{call.backend or 'bundle'}"
        color = colors.get(call.backend, _PLAIN)
        tip = f"{call.symbol}\n{', '.join(call.nodes)}"
        yield f"{node} [fillcolor={_quoted(color)}, label={_quoted(label)}, tooltip={_quoted(tip)}];"
        for name in call.reads:
            if name in writers:
                yield f"{writers[name]} -> {node} [label={_quoted(_shape(values[name]))}];"
        writers |= dict.fromkeys(call.writes, node)
    for number, value in enumerate(run.outputs):
        yield f"{prefix}o{number} [shape=ellipse, fillcolor={_quoted(_PLAIN)}, label={_quoted(value.name)}];"
        yield f"{writers[value.name]} -> {prefix}o{number} [label={_quoted(_shape(value))}];"


def _shape(value: NamedValue) -> str:
    return "scratch" if value.tensor.space == "workspace" else "x".join(map(str, value.tensor.shape)) or "scalar"


def _quoted(text: str) -> str:
    """Return a text as a quoted string, in which Graphviz sees no escapes but those for lines."""
    plain = "".join(char if char.isprintable() or char == "\n" else "?" for char in text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
