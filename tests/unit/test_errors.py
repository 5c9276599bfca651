from __future__ import annotations

import pickle
from pathlib import Path

from packager import errors
from packager.errors import (
    EXIT_CODES,
    PackagerError,
    RunError,
    ToolchainError,
    UnboundedDimsError,
    UnsupportedOperatorsError,
    UsageError,
)


def test_message_detail_and_hint_stand_apart() -> None:
    error = UsageError("--dim n is given twice", detail="once here\nonce there\n", hint="give it once")
    assert error.render() == "error: --dim n is given twice\n  once here\n  once there\n\nhint: give it once"
    assert UsageError("no").render() == "error: no"
    assert str(error) == "--dim n is given twice"


def test_unsupported_operators_are_sorted_and_long_lists_are_cut() -> None:
    error = UnsupportedOperatorsError({"Zed": ["z"], "Abc": [f"n{i}" for i in range(7)]})
    assert error.exit_code == 3
    assert error.render().splitlines()[:3] == [
        "error: 2 operators are not supported",
        "  Abc: n0, n1, n2, n3, n4 and 2 more",
        "  Zed: z",
    ]
    assert error.operators == {"Zed": ("z",), "Abc": tuple(f"n{i}" for i in range(7))}
    assert UnsupportedOperatorsError({"Zed": ["z"]}).message == "1 operator is not supported"


def test_a_failed_tool_tells_its_command_and_the_start_of_what_it_said() -> None:
    stderr = "\n".join(f"line {i}" for i in range(100))
    error = ToolchainError("gcc failed", argv=["gcc", "-c", "x.c"], stderr=stderr, workdir=Path("w"))
    lines = error.render().splitlines()
    assert lines[:3] == ["error: gcc failed", "  command: gcc -c x.c", "  line 0"]
    assert lines[-1] == "  work folder: w"
    assert len(lines) < 50
    assert error.stderr == stderr


def test_every_error_has_a_documented_exit_code() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, PackagerError)]
    assert len(classes) >= 8
    for kind in classes:
        assert kind.exit_code in EXIT_CODES
    assert RunError("x", status=-3, name="PACKAGER_ERROR_SHAPE").status == -3


def test_errors_are_handed_on_by_processes() -> None:
    sent = (
        RunError("x", status=-3, name="PACKAGER_ERROR_SHAPE", hint="y"),
        UnsupportedOperatorsError({"Zed": ["z"]}),
        UnboundedDimsError({"n": "x[0]"}),
        ToolchainError("gcc failed", argv=["gcc"], stderr="no"),
    )
    for error in sent:
        arrived = pickle.loads(pickle.dumps(error))
        assert type(arrived) is type(error)
        assert (arrived.render(), vars(arrived)) == (error.render(), vars(error))
