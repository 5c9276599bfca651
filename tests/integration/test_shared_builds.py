"""Builds of several machines on one shared cache: the first makes, the others take, whoever they trust."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Cli

import packager
from packager.errors import UsageError

Build = Callable[..., list[str]]


@pytest.fixture
def build(models: Path, tmp_path: Path) -> Build:
    """Build mlp.onnx as a machine of this name, with a home of its own; return what was reported."""

    def run(machine: str, environment: dict[str, object] | None = None, **options: object) -> list[str]:
        events: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", str(tmp_path / machine))
            for name, value in (environment or {}).items():
                patch.setenv(name, str(value))
            packager.build(
                models / "mlp.onnx",
                tmp_path / f"{machine}.so",
                targets=["llvm"],
                progress=lambda event: events.append(str(event)),
                **options,
            )
        return events

    return run


def warnings(events: list[str]) -> list[str]:
    """Return the warnings among events."""
    return [event for event in events if event.startswith("warning:")]


def test_a_bundle_of_another_machine_is_taken(build: Build, cli: Cli, tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert "found in the cache" not in build("one", shared_cache=store)
    assert build("two", {"PACKAGER_CACHE": store}) == ["found in the cache"]
    assert (tmp_path / "one.so").read_bytes() == (tmp_path / "two.so").read_bytes()
    shown = json.loads(cli("cache", "--json", env={"XDG_CACHE_HOME": str(tmp_path / "two")}).stdout)
    counts = shown["stores"][str(store)]
    assert (counts["hits"], counts["misses"], counts["added"], counts["errors"]) == (1, 0, 0, 0)
    assert f"{store}: 1 hits" in cli("cache", env={"XDG_CACHE_HOME": str(tmp_path / "two")}).stdout


def test_a_damaged_bundle_is_built_again(build: Build, tmp_path: Path) -> None:
    store = tmp_path / "store"
    build("one", shared_cache=[store])
    (entry,) = (store / "bundle").rglob("*.tar")
    content = bytearray(entry.read_bytes())
    content[len(content) // 2] ^= 1
    entry.write_bytes(content)
    assert len(warnings(build("two", shared_cache=[store]))) == 1
    assert (tmp_path / "one.so").read_bytes() == (tmp_path / "two.so").read_bytes()
    assert entry.read_bytes() != content, "it was replaced"


@pytest.mark.slow
def test_entries_of_those_who_are_trusted_alone(build: Build, tmp_path: Path) -> None:
    for name in ("mine", "stranger"):
        key = tmp_path / f"{name}.pem"
        make = ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key]
        subprocess.run(make, check=True, capture_output=True)
        public = ["openssl", "ec", "-in", key, "-pubout", "-out", key.with_suffix(".pub")]
        subprocess.run(public, check=True, capture_output=True)
    trust = {"PACKAGER_CACHE_TRUST": tmp_path / "mine.pub"}
    for key, reason in {"stranger.pem": "untrusted", "": "not signed", "mine.pem": ""}.items():
        store = tmp_path / f"store-{key}"
        build(f"maker{key}", {"PACKAGER_CACHE_KEY": tmp_path / key} if key else {}, shared_cache=store)
        events = build(f"taker{key}", trust, shared_cache=store)
        assert ("found in the cache" in events) == (not reason)
        assert len(warnings(events)) == bool(reason)
        assert all(reason in warning for warning in warnings(events))


def test_what_cannot_be_meant_is_refused(build: Build, cli: Cli, models: Path, tmp_path: Path) -> None:
    done = cli("build", models / "mlp.onnx", "--cache", tmp_path, "--no-cache")
    assert (done.returncode, "exclude each other" in done.stderr) == (2, True)
    with pytest.raises(UsageError, match="cannot use the cache odd://x"):
        build("one", shared_cache="odd://x")
    for name, value, message in (
        ("PACKAGER_CACHE_TIMEOUT", "soon", "not a number of seconds"),
        ("PACKAGER_CACHE_TRUST", tmp_path / "no", "cannot use .* to say who is trusted"),
        ("PACKAGER_CACHE_KEY", tmp_path / "no", "there is no key"),
    ):
        with pytest.raises(UsageError, match=message):
            build("one", {name: value}, shared_cache=tmp_path)
