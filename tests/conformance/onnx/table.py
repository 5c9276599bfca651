"""The committed verdicts, and the document that is made of them: per operator what is right and what is refused."""

from __future__ import annotations

import collections
import json
import pickle
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import onnx

from tests.conformance.onnx.cases import Case
from tests.conformance.onnx.compare import difference
from tests.conformance.onnx.judge import RUN_SECONDS, Verdict
from tests.conformance.server import Server

VERDICTS = Path(__file__).with_name("verdicts.json")
DOCUMENT = Path(__file__).parents[3] / "docs" / "onnx-operators.md"
SHOWN_REASONS = 2
SHOWN_CHARACTERS = 110

HEAD = """# ONNX operators

What becomes of the {total:,} cases that onnx {version} has for its operators, and of the {carried} small models that it
carries, built for the default Targets, loaded in a process without TVM and run. `python -m tests.conformance.onnx
--table` writes this page. *Right* is within onnx's own tolerances. In
*frozen* of them inputs that say how the operator works were made constants, as real models have them (`packager build
--freeze`). Nothing is wrong: what cannot be computed right is refused when the model is built. The last column is what
onnxruntime {onnxruntime} gets right of the same cases. [ONNX models](onnx.md) says what must be known at build time.

| | cases | right | frozen | refused | onnxruntime right |
| --- | ---: | ---: | ---: | ---: | ---: |
{summary}

| operator | operator sets | cases | right | frozen | refused, why | onnxruntime right |
| --- | --- | ---: | ---: | ---: | --- | ---: |
{rows}
"""


def judge_onnxruntime(cases: Iterable[Case]) -> dict[str, bool]:
    """Return for each case whether onnxruntime computes it right."""
    server = Server("tests.conformance.onnx.reference", RUN_SECONDS)
    right = {}
    for case in cases:
        with tempfile.TemporaryDirectory() as temporary:
            case.save(Path(temporary))
            answer = server.ask({"folder": temporary})
            made = Path(temporary) / "expected.pickle"
            right[case.name] = answer["status"] == "ran" and not _differs(case, made)
    server.close()
    return right


def _differs(case: Case, made: Path) -> bool:
    try:
        return bool(difference(case, pickle.loads(made.read_bytes())))
    except (AttributeError, TypeError, ValueError):  # strings, sequences: nothing that packager is compared with
        return True


def write(cases: Sequence[Case], verdicts: Mapping[str, Verdict], onnxruntime_right: Mapping[str, bool]) -> None:
    """Write both files."""
    record = {
        "onnx": onnx.__version__,
        "verdicts": {case.name: verdicts[case.name].status for case in cases},
        "frozen": [case.name for case in cases if _is_frozen(verdicts[case.name])],
        "reasons": {c.name: verdicts[c.name].message for c in cases if verdicts[c.name].status != "right"},
        "onnxruntime": [case.name for case in cases if onnxruntime_right[case.name]],
    }
    VERDICTS.write_text(json.dumps(record, indent=0, sort_keys=True) + "\n")
    DOCUMENT.write_text(render(cases, verdicts, onnxruntime_right))


def render(cases: Sequence[Case], verdicts: Mapping[str, Verdict], onnxruntime_right: Mapping[str, bool]) -> str:
    """Return the document."""
    import onnxruntime

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
        summary="\n".join(
            f"| {name} | {' | '.join(map(str, _counts(some, verdicts, onnxruntime_right)))} |" for name, some in parts
        ),
        rows="\n".join(
            _row(name, by_operator[name], verdicts, onnxruntime_right) for name in sorted(by_operator, key=str.lower)
        ),
    )


def _counts(
    cases: Sequence[Case], verdicts: Mapping[str, Verdict], onnxruntime_right: Mapping[str, bool]
) -> tuple[int, ...]:
    mine = [verdicts[case.name] for case in cases]
    right = sum(verdict.status == "right" for verdict in mine)
    return (len(cases), right, sum(map(_is_frozen, mine)), len(cases) - right, _sum(cases, onnxruntime_right))


def _row(
    name: str, cases: Sequence[Case], verdicts: Mapping[str, Verdict], onnxruntime_right: Mapping[str, bool]
) -> str:
    total, right, frozen, refused, theirs = _counts(cases, verdicts, onnxruntime_right)
    opsets = sorted({case.opset for case in cases})
    shown = str(opsets[0]) if len(opsets) == 1 else f"{opsets[0]} to {opsets[-1]}"
    why = f"{refused}: {_reasons(cases, verdicts)}" if refused else "0"
    return f"| {name} | {shown} | {total} | {right} | {frozen} | {why} | {theirs} |"


def _reasons(cases: Sequence[Case], verdicts: Mapping[str, Verdict]) -> str:
    """Return the most frequent messages, without the names of nodes and values."""
    messages = [re.sub(r"'[^']*'", "…", verdicts[c.name].message) for c in cases if verdicts[c.name].status != "right"]
    common = [message for message, _ in collections.Counter(messages).most_common(SHOWN_REASONS)]
    cut = [text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…" for text in common]
    return "; ".join(cut).replace("|", "\\|").replace("\n", " ")


def _is_frozen(verdict: Verdict) -> bool:
    return verdict.status == "right" and bool(verdict.frozen)


def _sum(cases: Iterable[Case], right: Mapping[str, bool]) -> int:
    return sum(right[case.name] for case in cases)
