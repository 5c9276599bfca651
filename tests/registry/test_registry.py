"""Bundles in a real registry: pushed, pulled, verified; interrupted and resumed; tampered with and refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from registries import Line, running_registry

import packager
from packager.bundle.hashing import sha256_of_file
from packager.deploy.registry import client as client_module
from packager.deploy.registry.artifact import digest_of, read_manifest
from packager.deploy.registry.client import Client, RegistryError
from packager.deploy.registry.pull import pull
from packager.deploy.registry.push import push
from packager.deploy.registry.reference import parse_reference
from packager.deploy.trust.sign import sign
from packager.deploy.verify.verifier import verify
from packager.errors import BundleError, UsageError

DIGITS_FILE = Path(__file__).parents[2] / "samples" / "digits" / "digits.onnx"

LARGE = 40 << 20


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the registry's data."""
    return tmp_path_factory.mktemp("registry") / "data"


@pytest.fixture(scope="module")
def port(storage: Path) -> Iterator[int]:
    """The registry's port."""
    pytest.importorskip("oras")
    with running_registry(storage) as port:
        yield port


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try once."""
    monkeypatch.setattr(client_module, "ATTEMPTS", 1)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed bundle with external weights, its keys beside it. Not to be written to."""
    folder = tmp_path_factory.mktemp("built")
    for name in ("mine", "stranger"):
        make = ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", folder / f"{name}.pem"]
        subprocess.run(make, check=True, capture_output=True)
        public = ["openssl", "ec", "-in", folder / f"{name}.pem", "-pubout", "-out", folder / f"{name}.pub"]
        subprocess.run(public, check=True, capture_output=True)
    bundle = packager.build(
        DIGITS_FILE, folder / "digits.so", targets=["llvm"], dims={"n": (1, 4)}, weights="external", golden=0
    )
    sign(bundle, key=folder / "mine.pem")
    return bundle


def test_a_bundle_comes_back_with_all_that_belongs_to_it(built: Path, port: int, tmp_path: Path) -> None:
    record = tmp_path / "tuned.json"
    record.write_text("{}")
    stored = push(built, f"oci://127.0.0.1:{port}/team/digits:1.0", attach=[record])
    assert push(built, f"oci://127.0.0.1:{port}/team/digits:1.0", attach=[record]) == stored
    for name in (f"oci://127.0.0.1:{port}/team/digits:1.0", stored):
        pulled = pull(name, tmp_path / "in", trust=built.with_name("mine.pub"))
        assert pulled == tmp_path / "in" / "digits.so"
    assert sorted(path.name for path in (tmp_path / "in").iterdir()) == [
        *("digits.safetensors", "digits.so", "digits.so.provenance.json", "digits.so.sig", "tuned.json")
    ]
    for name in ("digits.so", "digits.safetensors", "digits.so.sig"):
        assert (tmp_path / "in" / name).read_bytes() == built.with_name(name).read_bytes()
    assert verify(pulled, run=True, trust=built.with_name("mine.pub")).ok
    statement = json.loads((tmp_path / "in" / "digits.so.provenance.json").read_text())
    assert statement["subject"][0]["digest"]["sha256"] == sha256_of_file(built)


def test_an_interrupted_push_and_pull_go_on(built: Path, port: int, tmp_path: Path) -> None:
    large = tmp_path / "large.bin"
    large.write_bytes(np.random.default_rng(0).bytes(LARGE))
    line = Line(port)
    name = f"oci://127.0.0.1:{line.port}/team/large:1"
    line.restart(limit=LARGE * 3 // 4)
    with pytest.raises(RegistryError, match="does not answer"):
        push(built, name, attach=[large], piece_bytes=1 << 22)
    line.restart()
    push(built, name, attach=[large], piece_bytes=1 << 22)
    assert line.sent < LARGE // 2, "the first pieces were not sent again"
    line.restart(limit=LARGE * 3 // 4)
    with pytest.raises(RegistryError, match="does not answer"):
        pull(name, tmp_path / "in")
    assert not (tmp_path / "in" / "digits.so").exists()
    line.restart()
    pulled = pull(name, tmp_path / "in")
    assert line.got < LARGE // 2
    assert (tmp_path / "in" / "large.bin").read_bytes() == large.read_bytes()
    assert verify(pulled).ok
    assert not [path for path in (tmp_path / "in").iterdir() if path.name.startswith(".")]
    line.close()


def blob_file(storage: Path, digest: str) -> Path:
    """Return the registry's file of a blob."""
    value = digest.removeprefix("sha256:")
    return storage / "docker" / "registry" / "v2" / "blobs" / "sha256" / value[:2] / value / "data"


@pytest.mark.parametrize("role", ["bundle", "weights", "signature", "provenance"])
def test_a_blob_that_was_changed_in_the_registry_is_refused(
    built: Path, port: int, storage: Path, tmp_path: Path, role: str
) -> None:
    name = f"oci://127.0.0.1:{port}/team/changed-{role}:1"
    push(built, name)
    blob = next(file for file in read_manifest(Client(parse_reference(name)).manifest(), name) if file.role == role)
    file = blob_file(storage, blob.blobs[0].digest)
    intact = file.read_bytes()
    try:
        file.write_bytes(bytes([intact[0] ^ 1]) + intact[1:])
        with pytest.raises(BundleError, match="is not what its manifest names"):
            pull(name, tmp_path / "in")
        assert not [path for path in (tmp_path / "in").iterdir() if not path.name.startswith(".")]
    finally:
        file.write_bytes(intact)
    pull(name, tmp_path / "in")


def test_another_bundle_under_the_same_tag_is_refused_by_digest_and_by_trust(
    built: Path, port: int, storage: Path, tmp_path: Path
) -> None:
    name = f"oci://127.0.0.1:{port}/team/swapped:1"
    stored = push(built, name)
    evil = tmp_path / "evil" / "digits.so"
    evil.parent.mkdir()
    packager.build(DIGITS_FILE, evil, targets=["llvm"], dims={"n": (1, 2)}, weights="external")
    for key, reason in (("", "is not signed"), ("stranger.pem", "no one whom")):
        if key:
            sign(evil, key=built.with_name(key))
        push(evil, name)
        with pytest.raises(BundleError, match=reason):
            pull(name, tmp_path / "in", trust=built.with_name("mine.pub"))
    shutil.copyfile(built.with_name("digits.so.sig"), evil.with_name("digits.so.sig"))
    push(evil, name)
    with pytest.raises(BundleError, match="is not the file that was signed"):
        pull(name, tmp_path / "in", trust=built.with_name("mine.pub"))
    assert pull(stored, tmp_path / "in").read_bytes() == built.read_bytes(), "the digest names the first one"
    manifest = blob_file(storage, parse_reference(stored).digest)
    manifest.write_bytes(manifest.read_bytes().replace(b"digits.so.sig", b"digits.so.gis"))
    with pytest.raises((BundleError, RegistryError)):
        pull(stored, tmp_path / "again")


def test_files_of_others_are_not_replaced(built: Path, port: int, tmp_path: Path) -> None:
    name = f"oci://127.0.0.1:{port}/team/digits:1.0"
    push(built, name)
    (tmp_path / "digits.so").write_text("mine")
    with pytest.raises(UsageError, match="exists and is another file"):
        pull(name, tmp_path)
    assert (tmp_path / "digits.so").read_text() == "mine"
    assert pull(name, tmp_path, force=True).read_bytes() == built.read_bytes()


def test_what_is_not_there_or_cannot_be_meant(built: Path, port: int, tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="there is no oci://"):
        pull(f"oci://127.0.0.1:{port}/team/absent:1", tmp_path)
    with pytest.raises(RegistryError, match=r"^127\.0\.0\.1:1 does not answer: Connection refused$"):
        pull("oci://127.0.0.1:1/team/absent:1", tmp_path)
    with pytest.raises(RegistryError, match=r"^absent\.invalid does not answer: [^(]*$"):
        pull("oci://absent.invalid/team/absent:1", tmp_path)
    with pytest.raises(UsageError, match="a digest is what push returns"):
        push(built, f"oci://127.0.0.1:{port}/x@sha256:{'0' * 64}")
    without = tmp_path / "digits.so"
    shutil.copyfile(built, without)
    with pytest.raises(BundleError, match="weights"):
        push(without, f"oci://127.0.0.1:{port}/x")


@pytest.mark.parametrize(
    "text",
    ["digits.so", "oci://host", "oci://host/Upper", "oci://host/x:", "oci://host/../x", "oci://u:p@host/x", "oci:///x"],
)
def test_references_that_name_nothing(text: str) -> None:
    with pytest.raises(UsageError, match="does not name an artifact"):
        parse_reference(text)


def test_references() -> None:
    found = parse_reference("oci://registry.example.com:5000/team/model:1.0")
    assert (found.host, found.name, found.version, found.is_local) == (
        *("registry.example.com:5000", "team/model", "1.0", False),
    )
    assert parse_reference("oci://localhost:5000/x").is_local
    by_digest = f"oci://host/x@sha256:{'a' * 64}"
    assert (
        str(parse_reference(by_digest))
        == by_digest
        == dataclasses.replace(parse_reference(by_digest)).at(f"sha256:{'a' * 64}")
    )


def manifest_with(**changed: object) -> bytes:
    layer = {
        "mediaType": "application/vnd.packager.bundle.v1",
        "digest": f"sha256:{'0' * 64}",
        "size": 1,
        "annotations": {"org.opencontainers.image.title": "x.so"},
    }
    config = {"mediaType": "application/vnd.packager.bundle.config.v1+json"}
    return json.dumps({"config": config, "layers": [layer | changed]}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"[",
        b"[]",
        b"{}",
        b'{"config": {"mediaType": "application/vnd.oci.empty.v1+json"}, "layers": []}',
        manifest_with(size=-1),
        manifest_with(size=True),
        manifest_with(digest="sha512:0"),
        manifest_with(digest=f"sha256:{'0' * 63}/"),
        manifest_with(mediaType="text/plain"),
        *(
            manifest_with(annotations={"org.opencontainers.image.title": name})
            for name in ("../x.so", "/x.so", "..", ".bashrc", "", "x\0", "a\nb", 7)
        ),
    ],
)
def test_hostile_manifests_are_refused(content: bytes) -> None:
    with pytest.raises(BundleError):
        read_manifest(content, "oci://host/x")
    assert digest_of(content).startswith("sha256:")
