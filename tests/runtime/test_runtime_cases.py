"""Cases of the C programs in c/, natively, under sanitizers, and for aarch64 under qemu."""

from __future__ import annotations

import subprocess

import pytest
from runtime_builder import Builder

TENSORS = ["arguments", "kinds", "shapes", "layouts", "memory", "overlaps", "empty", "output_shape", "profile"]
LIFECYCLE = ["table", "options", "allocator", "flaky_allocator", "logging", "two_bundles"]
THREADS = [
    "busy",
    "turns",
    "eight_sessions",
    "pool_sizes",
    "no_workers",
    "resize_while_running",
    "failing_chunk",
    "absent_workers",
    "hook",
    "contention",
    "max_threads",
    "signals",
    "forked_child",
]
CONSTANTS = [
    "table",
    "forms",
    "restoring",
    "equal_contents",
    "refusals",
    "sessions",
    "buffers",
    "flaky_allocator",
    "many",
    "while_running",
    "two_writers",
    "busy",
]

BATCHES = ["lanes", "failing", "dims", "profile", "absent_workers", "hook", "sessions"]

STATES = ["table", "steps", "set", "sessions", "refusals", "profile", "busy", "entries", "entry_names"]


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("case", TENSORS)
def test_tensors(builder: Builder, case: str) -> None:
    builder.run("tensors", case, builder.dynamic)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", LIFECYCLE)
def test_lifecycle(builder: Builder, case: str) -> None:
    builder.run("lifecycle", case, builder.dynamic, builder.static)


def test_selection(builder: Builder) -> None:
    builder.run("lifecycle", "selection", builder.selection)


@pytest.mark.parametrize("case", THREADS)
def test_threads(builder: Builder, case: str) -> None:
    if case == "forked_child" and builder.flavor.name == "thread":
        pytest.skip("the thread sanitizer does not support threads in a forked child")
    if case == "forked_child" and builder.flavor.name == "address":
        # A worker that starts may hold its allocator's lock when main forks: one child of ten waits for it for ever.
        pytest.skip("the address sanitizer of GCC before 14 has no lock of its allocator for forks")
    if case == "forked_child" and builder.flavor.name == "aarch64":
        pytest.skip("qemu-user ignores MADV_WIPEONFORK")
    builder.run("threads", case, builder.dynamic)


@pytest.mark.parametrize("case", CONSTANTS)
def test_constants(builder: Builder, case: str) -> None:
    builder.run("constants", case, builder.constants)


@pytest.mark.parametrize("case", BATCHES)
def test_micro_batches(builder: Builder, case: str) -> None:
    builder.run("batches", case, builder.batches, builder.bundle("batch_dim", "-DMODEL_BATCHES", "-DBATCH_DIM=1"))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", STATES)
def test_states(builder: Builder, case: str) -> None:
    builder.run("states", case, builder.states)


def test_1000_loads_and_unloads(builder: Builder) -> None:
    cycles = 1000 if builder.flavor.plain else 60
    builder.run("lifecycle", "cycles", builder.dynamic, builder.static, str(cycles), str(int(builder.flavor.plain)))


def test_run_allocates_nothing(plain: Builder) -> None:
    plain.run("quiet", "no_allocation", plain.dynamic, plain.static)


def test_run_makes_no_system_call(plain: Builder) -> None:
    plain.run("quiet", "no_system_call", plain.dynamic, plain.static, "")
    control = subprocess.run(
        [plain.program("quiet"), "no_system_call", plain.dynamic, plain.static, "control"], check=False
    )
    assert control.returncode == -31, "the filter does not stop a process that makes a system call"  # SIGSYS


def test_overhead_of_a_run(plain: Builder) -> None:
    plain.run("quiet", "overhead", plain.dynamic, plain.static, "300")
