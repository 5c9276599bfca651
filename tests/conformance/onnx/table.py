"""The committed verdicts, and the document that is made of them: per operator what is right and what is refused.

``python -m tests.conformance.onnx.table`` makes the document anew of the committed verdicts.
"""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from tests.conformance.onnx.cases import Case, all_cases
from tests.conformance.onnx.judge import Verdict
from tests.conformance.onnx.others import TVM_RIGHT

VERDICTS = Path(__file__).with_name("verdicts.json")
CUDA_VERDICTS = Path(__file__).with_name("verdicts_cuda.json")
DOCUMENT = Path(__file__).parents[3] / "docs" / "onnx-operators.md"
SHOWN_REASONS = 2
SHOWN_CHARACTERS = 110

HEAD = """# ONNX operators

What becomes of the {total:,} cases that onnx {version} has for its operators, and of the {carried} small models that it
carries, built for the default Targets, loaded in a process without TVM and run. `python -m tests.conformance.onnx
--table` writes this page. *Right* is within onnx's own tolerances; of what
draws random numbers shapes and element types are compared. In *frozen* of them inputs that say how the operator works
were made constants, as real models have them (`packager build --freeze`). Nothing is wrong: what cannot be computed
right is refused when the model is built.
[ONNX models](onnx.md) says what must be known at build time.

*On CUDA* is what of that is right, too, built with `-t "{target}"` and run on an {gpu}, three times each: kernel by
kernel, as a CUDA graph is captured, and as it is replayed. `python -m tests.conformance.onnx.gpu` builds these cases on
a machine without a GPU and runs them on another. The last columns are what others get right of the same cases:
TVM {tvm}, that is its own importer, its compiler for the CPU and its virtual machine (inputs frozen where that helps),
and onnxruntime {onnxruntime}.

| | cases | right | frozen | refused | on CUDA | TVM | onnxruntime |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
{summary}

| operator | operator sets | cases | right | frozen | refused, why | on CUDA | TVM | onnxruntime |
| --- | --- | ---: | ---: | ---: | --- | ---: | ---: | ---: |
{rows}
"""


@dataclass(frozen=True)
class Verdicts:
    """All verdicts on the cases: ``others`` are the names of those that are right elsewhere, column by column."""

    here: Mapping[str, Verdict]
    others: tuple[Collection[str], ...]


def write(cases: Sequence[Case], verdicts: Mapping[str, Verdict], onnxruntime_right: Mapping[str, bool]) -> None:
    """Write the verdicts on the CPU, and the document."""
    record = {
        "onnx": onnx.__version__,
        "verdicts": {case.name: verdicts[case.name].status for case in cases},
        "frozen": [case.name for case in cases if _is_frozen(verdicts[case.name])],
        "reasons": {c.name: verdicts[c.name].message for c in cases if verdicts[c.name].status != "right"},
        "onnxruntime": [case.name for case in cases if onnxruntime_right[case.name]],
    }
    VERDICTS.write_text(json.dumps(record, indent=0, sort_keys=True) + "\n")
    DOCUMENT.write_text(render(cases))


def write_cuda(results: Sequence[Mapping[str, Any]], target: str) -> None:
    """Write the verdicts on CUDA: what ``gpu run`` has written, later results in place of earlier ones."""
    outcomes = {name: outcome for result in results for name, outcome in result["cases"].items()}
    cuda = results[-1]["machine"]["cuda"]
    record = {
        "target": target,
        "gpu": cuda["devices"][0]["name"],
        "driver": cuda["driver_version"],
        "verdicts": {name: outcome["status"] for name, outcome in outcomes.items()},
        "reasons": {name: outcome["message"] for name, outcome in outcomes.items() if outcome["status"] != "right"},
    }
    CUDA_VERDICTS.write_text(json.dumps(record, indent=0, sort_keys=True) + "\n")


def render(cases: Sequence[Case]) -> str:
    """Return the document that the committed verdicts make."""
    import onnxruntime

    record, cuda, tvm = (json.loads(path.read_text()) for path in (VERDICTS, CUDA_VERDICTS, TVM_RIGHT))
    frozen = set(record["frozen"])
    verdicts = Verdicts(
        {
            name: Verdict(name, status, record["reasons"].get(name, ""), ("frozen",) if name in frozen else ())
            for name, status in record["verdicts"].items()
        },
        (
            {name for name, status in cuda["verdicts"].items() if status == "right"},
            set(tvm["right"]),
            set(record["onnxruntime"]),
        ),
    )
    generated = [case for case in cases if case.kind == "node"]
    carried = [case for case in cases if case.kind != "node"]
    by_operator: dict[str, list[Case]] = collections.defaultdict(list)
    for case in generated:
        by_operator[case.operator].append(case)
    parts = (("operators", generated), ("carried models", carried))
    return HEAD.format(
        total=len(generated),
        carried=len(carried),
        version=onnx.__version__,
        onnxruntime=onnxruntime.__version__,
        tvm=tvm["tvm"],
        target=cuda["target"],
        gpu=cuda["gpu"],
        summary="\n".join(
            f"| {name} | {' | '.join(map(str, (*_counts(some, verdicts), *_elsewhere(some, verdicts))))} |"
            for name, some in parts
        ),
        rows="\n".join(_row(name, by_operator[name], verdicts) for name in sorted(by_operator, key=str.lower)),
    )


def _counts(cases: Sequence[Case], verdicts: Verdicts) -> tuple[int, ...]:
    mine = [verdicts.here[case.name] for case in cases]
    right = sum(verdict.status == "right" for verdict in mine)
    return (len(cases), right, sum(map(_is_frozen, mine)), len(cases) - right)


def _elsewhere(cases: Sequence[Case], verdicts: Verdicts) -> tuple[int, ...]:
    return tuple(sum(case.name in right for case in cases) for right in verdicts.others)


def _row(name: str, cases: Sequence[Case], verdicts: Verdicts) -> str:
    total, right, frozen, refused = _counts(cases, verdicts)
    opsets = sorted({case.opset for case in cases})
    shown = str(opsets[0]) if len(opsets) == 1 else f"{opsets[0]} to {opsets[-1]}"
    why = f"{refused}: {_reasons(cases, verdicts.here)}" if refused else "0"
    return " | ".join([f"| {name}", shown, *map(str, (total, right, frozen, why, *_elsewhere(cases, verdicts)))]) + " |"


def _reasons(cases: Sequence[Case], verdicts: Mapping[str, Verdict]) -> str:
    """Return the most frequent messages, without the names of nodes and values."""
    messages = [re.sub(r"'[^']*'", "…", verdicts[c.name].message) for c in cases if verdicts[c.name].status != "right"]
    common = [message for message, _ in collections.Counter(messages).most_common(SHOWN_REASONS)]
    cut = [text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…" for text in common]
    return "; ".join(cut).replace("|", "\\|").replace("\n", " ")


def _is_frozen(verdict: Verdict) -> bool:
    return verdict.status == "right" and bool(verdict.frozen)


if __name__ == "__main__":
    DOCUMENT.write_text(render(all_cases()))
