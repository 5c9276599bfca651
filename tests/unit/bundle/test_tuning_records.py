"""Files of tuning records: placements beside the records of candidates, and what is wrong with a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packager.bundle.tuning_records import (
    MeasuredPlacement,
    Record,
    Timing,
    chosen_alternatives,
    find_placement,
    make_records,
    measured_on,
    read_records,
)
from packager.errors import UsageError

MODEL = "ab" * 32
CONV, DENSE = "conv2d+relu 1x8x8x4 4f1c", "dense 8x16x16 99aa"
PLACEMENT = MeasuredPlacement(
    MODEL,
    "llvm 1 ccompiler 2",
    "a CPU",
    2,
    {DENSE: "llvm(dense)", CONV: "ccompiler(conv2d+relu)"},
    10.5,
    {"llvm": 12.0},
)
RECORD = Record("gemm", "cutlass 1", "a GPU", (Timing("a", 0.0, 0.1),))
PROBLEMS = {CONV: ["ccompiler(conv2d+relu)", "llvm(conv2d+relu)"], DENSE: ["llvm(dense)"]}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "records.json"
    path.write_bytes(make_records([RECORD], [PLACEMENT]).to_json())
    return path


def edit(file: Path, change: Callable[[Any], object]) -> None:
    value = json.loads(file.read_text())
    change(value)
    file.write_text(json.dumps(value))


def test_what_is_written_is_read(file: Path) -> None:
    found = read_records([file])
    assert found == make_records([RECORD], [PLACEMENT])
    placement = find_placement(found, MODEL, "llvm 1 ccompiler 2")
    assert placement == PLACEMENT
    assert chosen_alternatives(placement, PROBLEMS) == PLACEMENT.choices


def test_the_text_can_be_read_and_compared(file: Path) -> None:
    """A line for each choice, sorted, so that a diff shows what has changed."""
    lines = [line.strip() for line in file.read_text().splitlines()]
    choices = [line for line in lines if line.startswith((f'"{CONV}"', f'"{DENSE}"'))]
    assert choices == [f'"{CONV}": "ccompiler(conv2d+relu)",', f'"{DENSE}": "llvm(dense)"']
    assert make_records([RECORD], [PLACEMENT, replace(PLACEMENT, us=9.0)]).placements == (replace(PLACEMENT, us=9.0),)


def test_files_without_placements_are_as_they_were(tmp_path: Path) -> None:
    old = make_records([RECORD])
    assert list(json.loads(old.to_json())) == ["schema_version", "records"]
    (tmp_path / "old.json").write_bytes(old.to_json())
    assert read_records([tmp_path / "old.json"]) == old
    with pytest.raises(UsageError, match=r"the records hold no placement$") as refused:
        find_placement(old, MODEL, "r")
    assert refused.value.hint == (
        "build the model with --place trial, and measure it: packager tune TRIAL.so -o RECORDS.json"
    )


def test_files_are_merged(file: Path, tmp_path: Path) -> None:
    other = replace(PLACEMENT, device="another CPU")
    (tmp_path / "other.json").write_bytes(make_records([], [other, replace(PLACEMENT, us=1.0)]).to_json())
    assert read_records([file, tmp_path / "other.json"]).placements == (replace(PLACEMENT, us=1.0), other)


@pytest.mark.parametrize(
    ("model", "revision", "message", "hint"),
    [
        (
            "cd" * 32,
            PLACEMENT.revision,
            "no placement of this model: .* cdcdcdcdcdcd, theirs abababababab",
            "other regions",
        ),
        (MODEL, "llvm 2", "for other code than this build's", "--place trial"),
    ],
)
def test_a_placement_that_does_not_fit(file: Path, model: str, revision: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        find_placement(read_records([file]), model, revision)
    assert hint in (refused.value.hint or "")


def test_a_stale_placement_names_both_revisions() -> None:
    with pytest.raises(UsageError) as refused:
        find_placement(make_records([], [PLACEMENT]), MODEL, "llvm 2")
    assert refused.value.detail == "measured: llvm 1 ccompiler 2\nthis build: llvm 2"


def test_several_devices_and_numbers_of_threads() -> None:
    one, four = replace(PLACEMENT, threads=1), replace(PLACEMENT, threads=4)
    other = replace(PLACEMENT, device="Another CPU")
    records = make_records([], [one, four, other])
    with pytest.raises(UsageError, match=r"several .*: Another CPU with 2 threads, a CPU with 1 th") as refused:
        find_placement(records, MODEL, PLACEMENT.revision)
    assert "--place-device" in (refused.value.hint or "")
    assert measured_on(records, None, 4).placements == (four,)
    assert measured_on(records, "a CPU", 1).placements == (one,)  # its whole name, which the other contains
    assert measured_on(records, "another", None).placements == (other,)
    assert measured_on(records, None, None) == records
    with pytest.raises(UsageError, match="no placement for GPU with 3 threads: they are for Another CPU with"):
        measured_on(records, "GPU", 3)


@pytest.mark.parametrize(
    ("choices", "message", "hint"),
    [
        (
            {CONV: "ccompiler(conv2d)", DENSE: "llvm(dense)"},
            "unknown alternative of conv2d",
            "did you mean 'ccompiler(conv2d+relu)'",
        ),
        ({**PLACEMENT.choices, "pool 3": "llvm(pool)"}, "unknown problem: 'pool 3'", "valid problems"),
        ({CONV: "llvm(conv2d+relu)"}, "lacks the problem dense 8x16x16 99aa", "--place trial"),
    ],
)
def test_choices_that_were_edited(choices: dict[str, str], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        chosen_alternatives(replace(PLACEMENT, choices=choices), PROBLEMS)
    assert message in refused.value.message
    assert hint in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value: value["placements"][0].pop("choices"), r"\$.placements\[0\]: lacks the key 'choices'"),
        (lambda value: value["placements"][0].update(choices={}), r"\$.placements\[0\].choices: is empty"),
        (
            lambda value: value["placements"][0].update(choises={}),
            r"unknown key 'choises' \(did you mean 'choices'\?\)",
        ),
        (lambda value: value["placements"][0].update(threads="2"), r"\$.placements\[0\].threads: expected integer"),
        (lambda value: value["placements"][0].update(us=-1), r"\$.placements\[0\].us: must be at least 0"),
        (lambda value: value["placements"][0].update(model="ab"), r"\$.placements\[0\].model: must be 64 lower-case"),
        (
            lambda value: value["placements"][0]["plans"].update(llvm=None),
            r"\$.placements\[0\].plans.llvm: expected number",
        ),
        (lambda value: value.update(placements=None), r"\$.placements: expected array"),
    ],
)
def test_what_is_no_placement(file: Path, change: Callable[[Any], object], message: str) -> None:
    edit(file, change)
    with pytest.raises(UsageError, match=message) as refused:
        read_records([file])
    assert str(file) in refused.value.message
    assert refused.value.hint == "`packager tune` writes them"


def test_truncated_files(file: Path) -> None:
    content = file.read_bytes()
    for size in range(0, len(content) - 2, 17):
        file.write_bytes(content[:size])
        with pytest.raises(UsageError, match=r"is not a tuning records file: .*not valid JSON"):
            read_records([file])
