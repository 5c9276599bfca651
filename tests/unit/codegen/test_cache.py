from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packager.bundle.hashing import digest, digest_of_folder
from packager.bundle.staging import temporary_folder
from packager.codegen.cache import Cache, limit_of
from packager.errors import UsageError

CONTENTS = {"a": b"first", "b": b"second"}


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two files to keep."""
    folder = tmp_path / "files"
    folder.mkdir()
    for name, content in CONTENTS.items():
        (folder / name).write_bytes(content)
    return sorted(folder.iterdir())


def fetched(cache: Cache, kind: str, key: str) -> dict[str, bytes] | None:
    """Return the contents of an entry; a miss must leave nothing behind."""
    with tempfile.TemporaryDirectory() as name:
        found = cache.fetch(kind, key, Path(name))
        contents = {path.name: path.read_bytes() for path in Path(name).iterdir()}
    assert found or not contents
    return contents if found else None


def test_an_entry_is_found_again(tmp_path: Path, files: list[Path]) -> None:
    cache = Cache(tmp_path / "deep" / "cache")
    assert fetched(cache, "bundle", "00ff") is None
    cache.add("bundle", "00ff", files)
    assert fetched(cache, "bundle", "00ff") == CONTENTS
    assert fetched(cache, "object", "00ff") is None


def test_the_first_of_two_equal_entries_stays(tmp_path: Path, files: list[Path]) -> None:
    cache = Cache(tmp_path / "cache")
    cache.add("bundle", "00ff", files)
    first = cache.folder / "bundle" / "00ff" / "a"
    inode = first.stat().st_ino
    cache.add("bundle", "00ff", files)
    assert first.stat().st_ino == inode
    assert [path.name for path in (cache.folder / "bundle").iterdir()] == ["00ff"]


def test_an_entry_that_cannot_be_made_leaves_nothing(tmp_path: Path, files: list[Path]) -> None:
    cache = Cache(tmp_path / "cache")
    cache.add("bundle", "00ff", [*files, tmp_path / "absent"])
    assert list((cache.folder / "bundle").iterdir()) == []
    assert fetched(cache, "bundle", "00ff") is None


def test_an_interrupted_entry_leaves_nothing(tmp_path: Path, files: list[Path]) -> None:
    def interrupted() -> Iterator[Path]:
        yield files[0]
        raise KeyboardInterrupt

    cache = Cache(tmp_path / "cache")
    with pytest.raises(KeyboardInterrupt):
        cache.add("bundle", "00ff", interrupted())
    assert list((cache.folder / "bundle").iterdir()) == []


@pytest.mark.parametrize("damage", ["truncated", "changed", "missing", "no hashes", "odd hashes", "list", "empty"])
def test_a_damaged_entry_is_dropped_and_can_be_made_again(tmp_path: Path, files: list[Path], damage: str) -> None:
    cache = Cache(tmp_path / "cache")
    cache.add("bundle", "00ff", files)
    entry = cache.folder / "bundle" / "00ff"
    hashes = next(path for path in entry.iterdir() if path.name not in "ab")
    match damage:
        case "truncated":
            os.truncate(entry / "a", 2)
        case "changed":
            (entry / "a").write_bytes(b"First")
        case "missing":
            (entry / "b").unlink()
        case "no hashes":
            hashes.unlink()
        case "odd hashes":
            hashes.write_text("[")
        case "list":
            hashes.write_text("[1]")
        case "empty":
            for path in entry.iterdir():
                path.unlink()
    assert fetched(cache, "bundle", "00ff") is None
    assert not entry.exists()
    cache.add("bundle", "00ff", files)
    assert fetched(cache, "bundle", "00ff") == CONTENTS


def test_a_disabled_cache_neither_looks_nor_writes(tmp_path: Path, files: list[Path]) -> None:
    folder = tmp_path / "cache"
    Cache(folder).add("bundle", "00ff", files)
    disabled = Cache(folder, enabled=False)
    assert fetched(disabled, "bundle", "00ff") is None
    disabled.add("bundle", "aa", files)
    assert not (folder / "bundle" / "aa").exists()


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, files: list[Path]) -> None:
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file" / "cache")
    cache.add("bundle", "00ff", files)
    assert fetched(cache, "bundle", "00ff") is None
    assert cache.usage().entries == {}
    assert cache.clear() == 0


def test_usage_and_clear(tmp_path: Path, files: list[Path]) -> None:
    cache = Cache(tmp_path / "cache")
    for key in ("00", "01"):
        cache.add("bundle", key, files)
    cache.add("object", "02", files)
    usage = cache.usage()
    assert usage.entries == {"bundle": 2, "object": 1}
    assert usage.nbytes["bundle"] >= 2 * len(b"firstsecond")
    assert cache.clear() == 3
    assert cache.usage().entries == {}
    assert fetched(cache, "bundle", "00") is None


def test_clear_removes_what_a_killed_build_left_and_nothing_that_is_being_made(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    (tmp_path / "bundle" / "packager-entry-abcd1234.packager-tmp").mkdir(parents=True)
    (tmp_path / "bundle" / "packager-entry-of-mine").mkdir()
    with temporary_folder("entry", tmp_path / "bundle") as fresh:
        (tmp_path / "bundle" / "packager-entry-abcd1234.packager-tmp").mkdir(exist_ok=True)
        assert cache.clear() == 0
        assert set((tmp_path / "bundle").iterdir()) == {fresh, tmp_path / "bundle" / "packager-entry-of-mine"}


def test_what_was_used_longest_ago_makes_room(tmp_path: Path, files: list[Path]) -> None:
    whole = Cache(tmp_path / "cache")
    for age, key in enumerate(("00", "01", "02", "03")):
        whole.add("object", key, files)
        entry = next(whole.folder.glob(f"*/{key}"))
        os.utime(entry, (1000 + age, 1000 + age))
    assert fetched(whole, "object", "00") == CONTENTS  # used just now
    size = sum(whole.usage().nbytes.values()) // 4
    assert whole.trim() == 0
    cache = Cache(whole.folder, limit=2 * size)
    assert Cache(whole.folder, enabled=False, limit=0).trim() == 0
    assert cache.trim() == 2
    kept = [key for key in ("00", "01", "02", "03") if any(cache.folder.glob(f"*/{key}"))]
    assert kept == ["00", "03"]
    assert cache.trim() == 0
    assert Cache(whole.folder, limit=size - 1).trim() == 2


def test_bundles_make_room_before_what_they_are_made_from(tmp_path: Path, files: list[Path]) -> None:
    """Ten builds of a large model removed all kernels."""
    whole = Cache(tmp_path / "cache")
    for age, (kind, key) in enumerate((("object", "00"), ("bundle", "01"), ("object", "02"), ("bundle", "03"))):
        whole.add(kind, key, files)
        os.utime(whole.folder / kind / key, (1000 + age, 1000 + age))
    size = sum(whole.usage().nbytes.values()) // 4
    assert Cache(whole.folder, limit=3 * size).trim() == 1
    assert {path.name for path in whole.folder.glob("*/0*")} == {"00", "02", "03"}
    assert Cache(whole.folder, limit=size).trim() == 2
    assert [path.name for path in whole.folder.glob("*/0*")] == ["02"]


@pytest.mark.parametrize(
    ("text", "wanted"), [("", 10 << 30), ("0", None), ("77", 77), ("500M", 500 << 20), ("2g", 2 << 30), ("1T", 1 << 40)]
)
def test_the_limit_of_the_environment(text: str, wanted: int | None) -> None:
    assert limit_of({"PACKAGER_CACHE_LIMIT": text}) == wanted
    assert limit_of({}) == 10 << 30


@pytest.mark.parametrize("text", ["much", "-1", "1.5G", "G", "10GB", " ", "٣"])
def test_a_limit_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"PACKAGER_CACHE_LIMIT is .*, not a number of bytes"):
        limit_of({"PACKAGER_CACHE_LIMIT": text})


def test_others_have_no_access_to_the_folder(tmp_path: Path, files: list[Path]) -> None:
    cache = Cache(tmp_path / "cache")
    cache.folder.mkdir(mode=0o777)
    cache.folder.chmod(0o777)
    cache.add("bundle", "00", files)
    assert cache.folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_another_user_is_refused(tmp_path: Path, files: list[Path]) -> None:
    cache = Cache(tmp_path / "cache")
    cache.add("bundle", "00", files)
    os.chown(cache.folder, 12345, 12345)
    with pytest.raises(UsageError, match="belongs to another user"):
        fetched(cache, "bundle", "00")


def _fetch_or_add(folder: Path, place: Path, barrier: Any, results: Any) -> None:
    place.mkdir()
    made = place / "made"
    made.mkdir()
    for index in range(50):
        (made / f"{index}").write_bytes(bytes([index]) * 100_000)
    cache = Cache(folder)
    barrier.wait()
    for _ in range(20):
        fetched_into = place / "fetched"
        fetched_into.mkdir()
        if cache.fetch("bundle", "00", fetched_into):
            results.put(sum(path.stat().st_size for path in fetched_into.iterdir()))
        else:
            results.put(0)
            cache.add("bundle", "00", sorted(made.iterdir()))
        shutil.rmtree(fetched_into)
        if int(place.name) % 3 == 0:
            cache.clear()


@pytest.mark.slow
def test_concurrent_processes_see_whole_entries_or_none(tmp_path: Path) -> None:
    """Six processes use one entry, and two of them clear the cache all the time."""
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(6), context.Queue()
    processes = [
        context.Process(target=_fetch_or_add, args=(tmp_path / "cache", tmp_path / str(i), barrier, results))
        for i in range(6)
    ]
    for process in processes:
        process.start()
    sizes = [results.get(timeout=60) for _ in range(6 * 20)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 6
    assert set(sizes) <= {0, 50 * 100_000}
    assert 50 * 100_000 in sizes


def test_the_folder_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Cache.of_user().folder == tmp_path / "packager"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert Cache.of_user().folder == tmp_path / "home" / ".cache" / "packager"
    assert not Cache.of_user(enabled=False).enabled


def test_digests_tell_names_and_contents_apart(tmp_path: Path) -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})
    seen = set()
    for name, content in (("x.c", "1"), ("y.c", "1"), ("x.c", "2")):
        folder = tmp_path / f"{name}{content}"
        folder.mkdir()
        (folder / name).write_text(content)
        (folder / "other.txt").write_text(name + content)
        seen.add(digest_of_folder(folder, "*.c"))
    assert len(seen) == 3
