"""Shared caches: folders, HTTP servers and fsspec's, sound and otherwise."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from store_servers import served

from packager.codegen.cache import Cache
from packager.codegen.shared_cache import SharedCache, place_of
from packager.codegen.shared_entry import INDEX, SIGNATURE
from packager.codegen.store_statistics import add_statistics, read_statistics
from packager.codegen.stores import open_store
from packager.errors import UsageError
from packager.progress import Event, received

KEY, OTHER = "00ff" * 16, "11ee" * 16
CONTENTS = {"a.o": b"first" * 1000, "b.o": b"second" * 1000}


class Machine:
    """A local cache of its own, and a shared one behind it."""

    def __init__(self, folder: Path, url: str, timeout: float = 30.0, *, fill: bool = False) -> None:
        self.shared = SharedCache(open_store(url), timeout=timeout, fill=fill)
        self.cache = Cache(folder, shared=(self.shared,))
        self.warnings: list[str] = []
        self._into = folder.parent / f"{folder.name}-fetched"

    def fetch(self, key: str = KEY) -> dict[str, bytes] | None:
        """Return the contents of an entry; a miss must leave nothing behind."""
        self._into.mkdir()
        with received(self._receive):
            found = self.cache.fetch("object", key, self._into)
        contents = {path.name: path.read_bytes() for path in self._into.iterdir()}
        shutil.rmtree(self._into)
        assert found or not contents
        return contents if found else None

    def add(self, key: str = KEY) -> None:
        """Store the contents as an entry."""
        self._into.mkdir()
        for name, content in CONTENTS.items():
            (self._into / name).write_bytes(content)
        with received(self._receive):
            self.cache.add("object", key, sorted(self._into.iterdir()))
        shutil.rmtree(self._into)

    def _receive(self, event: Event) -> None:
        assert event.warning
        self.warnings.append(event.text)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A folder that has one entry."""
    folder = tmp_path / "store"
    Machine(tmp_path / "first", str(folder)).add()
    assert [path.name for path in folder.rglob("*") if path.is_file()] == [f"{KEY}.tar"]
    return folder


@pytest.mark.parametrize("form", ["folder", "file", "http", "memory"])
def test_another_machine_finds_what_one_has_made(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "store"
    with served(folder, writable=True) as address:
        urls = {"folder": str(folder), "file": folder.as_uri(), "http": f"{address}/deep", "memory": "memory://cache"}
        first, second = Machine(tmp_path / "one", urls[form]), Machine(tmp_path / "two", urls[form])
        assert first.fetch() is None
        first.add()
        assert second.fetch() == CONTENTS
        assert second.fetch(OTHER) is None
    counts = second.shared.counts
    assert (counts.hits, counts.misses, counts.errors) == (1, 1, 0)
    assert counts.bytes_read == first.shared.counts.bytes_written > sum(map(len, CONTENTS.values()))
    assert second.fetch() == CONTENTS
    assert second.shared.counts.hits == 1, "the local cache has it now"
    assert not first.warnings + second.warnings


def test_what_only_the_local_cache_has_is_stored_where_a_store_is_filled(tmp_path: Path) -> None:
    local = Machine(tmp_path / "one", str(tmp_path / "elsewhere"))
    local.add()
    shutil.rmtree(tmp_path / "elsewhere")
    assert Machine(tmp_path / "one", str(tmp_path / "store")).fetch() == CONTENTS
    assert not (tmp_path / "store").exists()
    assert Machine(tmp_path / "one", str(tmp_path / "store"), fill=True).fetch() == CONTENTS
    assert Machine(tmp_path / "two", str(tmp_path / "store")).fetch() == CONTENTS


def test_a_store_that_is_only_read_serves_and_says_nothing(tmp_path: Path, store: Path) -> None:
    with served(store) as address:
        machine = Machine(tmp_path / "two", address)
        assert machine.fetch() == CONTENTS
        machine.add(OTHER)
    assert not machine.warnings
    assert machine.shared.counts.added == 0
    assert not (store / place_of("object", OTHER)).exists()


def rewritten(content: bytes, change: Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]) -> bytes:
    """Return an archive whose members were changed."""
    members = []
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            stream = archive.extractfile(member)
            assert stream is not None
            members.append((member, stream.read()))
    change(members)
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return output.getvalue()


def index_naming(name: str) -> Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]:
    """Return a change: the first file, and its name in the index, are another one."""

    def change(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        index = json.loads(members[0][1])
        index["files"][name] = index["files"].pop("a.o")
        members[0] = (members[0][0], json.dumps(index).encode())
        members[1][0].name = name

    return change


def with_link(members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    """Put a symbolic link before the files."""
    link = tarfile.TarInfo("a.o")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    members.insert(1, (link, b""))


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "changed": lambda content: content.replace(b"firstfirst", b"firstFirst", 1),
    "truncated": lambda content: content[: len(content) // 2],
    "empty": lambda content: content[:0],
    "web page": lambda content: content[:0] + b"<html>sign in to the hotel's network</html>",
    "file missing": lambda content: rewritten(content, lambda members: members.pop()),
    "file twice": lambda content: rewritten(content, lambda members: members.append(members[-1])),
    "foreign file": lambda content: rewritten(
        content, lambda members: members.append((tarfile.TarInfo("evil.o"), b"evil"))
    ),
    "path": lambda content: rewritten(content, index_naming("../evil.o")),
    "absolute path": lambda content: rewritten(content, index_naming("/tmp/packager-evil.o")),
    "link": lambda content: rewritten(content, with_link),
    "index is a list": lambda content: rewritten(
        content, lambda members: members.__setitem__(0, (members[0][0], b"[]"))
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_not_used_and_is_replaced(tmp_path: Path, store: Path, damage: str) -> None:
    path = store / place_of("object", KEY)
    intact = path.read_bytes()
    path.write_bytes(DAMAGES[damage](intact))
    assert path.read_bytes() != intact
    machine = Machine(tmp_path / "two", str(store))
    assert machine.fetch() is None
    assert len(machine.warnings) == 1
    assert machine.shared.counts.errors == 1
    assert not (tmp_path / "evil.o").exists()
    assert not Path("/tmp/packager-evil.o").exists()
    machine.add()
    assert path.read_bytes() == intact
    assert Machine(tmp_path / "three", str(store)).fetch() == CONTENTS


def test_an_entry_in_the_place_of_another_is_not_used(tmp_path: Path, store: Path) -> None:
    place = store / place_of("object", OTHER)
    place.parent.mkdir(parents=True)
    shutil.copyfile(store / place_of("object", KEY), place)
    machine = Machine(tmp_path / "two", str(store))
    assert machine.fetch(OTHER) is None
    (warning,) = machine.warnings
    assert "another entry's" in warning
    assert machine.fetch() == CONTENTS, "the others are still good"


def test_a_server_that_is_not_there_costs_one_warning(tmp_path: Path) -> None:
    with served(tmp_path) as address:
        pass
    machine = Machine(tmp_path / "two", address)
    assert machine.fetch() is None
    assert machine.fetch(OTHER) is None
    machine.add()
    assert len(machine.warnings) == 1
    assert machine.fetch() == CONTENTS, "from the local cache"


@pytest.fixture
def stuck() -> Iterator[Callable[[BaseHTTPRequestHandler], bool]]:
    """A reply that begins and does not come until the test is over."""
    over = threading.Event()

    def reply(request: BaseHTTPRequestHandler) -> bool:
        request.send_response(200)
        request.send_header("Content-Length", "1000000")
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(b"x" * 1000)
            request.wfile.flush()
            over.wait(30)
        return True

    yield reply
    over.set()


def test_a_server_that_is_stuck_costs_one_timeout(
    tmp_path: Path, stuck: Callable[[BaseHTTPRequestHandler], bool]
) -> None:
    with served(tmp_path, instead=stuck) as address:
        machine = Machine(tmp_path / "two", address, timeout=0.5)
        assert machine.fetch() is None
        assert machine.fetch(OTHER) is None
        machine.add()
        (warning,) = machine.warnings
        assert "no answer within 0.5 s" in warning
        assert machine.shared.counts.errors == 1


@pytest.mark.parametrize("status", [403, 500])
def test_a_server_that_fails_costs_one_warning(tmp_path: Path, status: int) -> None:
    def reply(request: BaseHTTPRequestHandler) -> bool:
        request.send_error(status)
        return True

    with served(tmp_path, instead=reply) as address:
        machine = Machine(tmp_path / "two", address)
        assert machine.fetch() is None
        machine.add()
    assert len(machine.warnings) == 1


def test_counts_of_builds_are_added_by_store(tmp_path: Path, store: Path) -> None:
    for _ in range(2):
        machine = Machine(tmp_path / "two", str(store))
        machine.fetch(OTHER)
        machine.fetch()
        add_statistics(machine.cache)
    counts = read_statistics(machine.cache)[str(store)]
    assert (counts.hits, counts.misses, counts.errors) == (1, 2, 0)
    assert counts.bytes_read > 0
    (tmp_path / "two" / "stores.json").write_text("[")
    assert read_statistics(machine.cache) == {}


def test_stores_have_names_without_passwords_and_reasons_to_be_refused() -> None:
    assert open_store("http://me:secret@127.0.0.1:1/x?token=secret").name == "http://127.0.0.1:1/x"
    assert open_store("folder").name == str(Path("folder").absolute())
    with pytest.raises(UsageError, match="cannot use the cache nothing://x"):
        open_store("nothing://x")
    with pytest.raises(UsageError, match="names a machine"):
        open_store("file://host/x")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_read(tmp_path: Path, store: Path) -> None:
    for path in (store, *store.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    machine = Machine(tmp_path / "two", str(store))
    assert machine.fetch() == CONTENTS
    machine.add(OTHER)
    assert not machine.warnings


def test_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs", reason="packager[remote] is not installed")
    server = pytest.importorskip("moto.server", reason="moto[s3,server] is not installed: many packages for one test")
    import s3fs

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    running = server.ThreadedMotoServer(port=0)
    running.start()
    try:
        host, port = running.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        assert host
        s3fs.S3FileSystem(skip_instance_cache=True).mkdir("bucket")
        first, second = (Machine(tmp_path / name, "s3://bucket/deep") for name in ("one", "two"))
        assert first.fetch() is None
        first.add()
        assert second.fetch() == CONTENTS
        assert not first.warnings + second.warnings
        s3fs.S3FileSystem().pipe(f"bucket/deep/{place_of('object', KEY)}", b"damaged")
        assert Machine(tmp_path / "three", "s3://bucket/deep").fetch() is None
    finally:
        running.stop()


def test_the_members_of_an_entry(store: Path) -> None:
    with tarfile.open(store / place_of("object", KEY)) as archive:
        assert archive.getnames() == [INDEX, *CONTENTS]
        assert SIGNATURE not in archive.getnames()
