"""Sessions open libraries: natively, under sanitizers, and for aarch64 under qemu."""

from __future__ import annotations

from pathlib import Path

import pytest
from runtime_builder import Builder

ABSENT = "libpktest.so.2 or libpktest.so.1 of version 2.1 or newer, which the model calls, was not found"


def test_a_session_does_without(builder: Builder) -> None:
    builder.run("libraries", "missing", builder.calling_library(), ABSENT)


def test_a_library_is_opened_once_for_a_process(builder: Builder, tmp_path: Path) -> None:
    bundle = builder.calling_library()
    builder.run("libraries", "found", bundle, f":/nowhere:{builder.library(tmp_path / 'a')}", "7", "")
    newer = builder.library(tmp_path / "b", "libpktest.so.1", version=30000, value=5)
    builder.run("libraries", "found", bundle, f"{newer}:{tmp_path / 'a'}", "5", "version 2.1.3 of libpktest.so.2")


@pytest.mark.parametrize(("version", "said"), [(20099, "is version 2.0.99"), (10000, "is version 1.0.0")])
def test_an_old_library_is_not_used(version: int, said: str, builder: Builder, tmp_path: Path) -> None:
    folder = builder.library(tmp_path / "a", version=version)
    environment = {"LD_LIBRARY_PATH": str(folder)}
    builder.run("libraries", "missing", builder.calling_library(), said, environment=environment)


def test_eight_threads_create_sessions_at_once(builder: Builder, tmp_path: Path) -> None:
    builder.run("libraries", "threads", builder.calling_library(), builder.library(tmp_path / "a"))


def test_a_backend_with_another_number_of_functions_is_named(builder: Builder, tmp_path: Path) -> None:
    bundle = builder.bundle("room", "-DMODEL_STATIC", "-DSELECTION=0,1", "-DLIBRARY=1")
    builder.library(tmp_path / "a")
    builder.run("libraries", "missing", bundle, "the code has room for 1 functions, and 2 are declared")
