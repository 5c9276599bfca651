from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from packager.bundle import manifest as m
from packager.bundle import section as manifest_section
from packager.bundle.invariants import parse_manifest
from packager.bundle.reader import read_bundle
from packager.deploy.verify.policy import policy_schema
from packager.errors import BundleError


@pytest.fixture
def value(good: Path) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(read_bundle(good).manifest.to_json())
    return parsed


def reread(value: Any) -> m.Manifest:
    return parse_manifest(json.dumps(value).encode())


def test_round_trip_is_canonical(good: Path) -> None:
    manifest = read_bundle(good).manifest
    text = manifest.to_json()
    assert parse_manifest(text) == manifest
    assert parse_manifest(text + b"   ").to_json() == text
    assert text.isascii()
    assert b": " not in text
    assert list(json.loads(text)) == sorted(json.loads(text))


OPTIONAL = {"provenance", "extents", "parts", "placement"}  # bundles of before them have none


def test_schema_describes_real_manifests(value: dict[str, Any]) -> None:
    schema = m.manifest_schema()
    validator = jsonschema.Draft202012Validator(schema)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator.validate(value)
    for key in value.keys() - OPTIONAL:
        assert not validator.is_valid({name: item for name, item in value.items() if name != key})
    assert not validator.is_valid(value | {"surplus": 1})
    assert not validator.is_valid(value | {"arena_bytes": -1})
    assert not validator.is_valid(value | {"content_sha256": "AB" * 32})
    jsonschema.Draft202012Validator.check_schema(policy_schema())


def change(path: str, new: Any) -> Callable[[dict[str, Any]], None]:
    *parents, last = path.split(".")

    def apply(value: Any) -> None:
        for key in parents:
            value = value[int(key) if key.isdigit() else key]
        value[int(last) if last.isdigit() else last] = new

    return apply


DRAW = {"node": "n", "operator": "RandomNormal", "seed": "seed"}
STATE = {"name": "s", "output": "n", "dtype": "float32", "shape": [4], "offset": 0, "bytes": 16, "initial": None}
OTHER = STATE | {"name": "t", "output": "m", "offset": 64}


ENTRY = {
    "name": "one",
    "model": {"name": "one", "format": "onnx", "sha256": "a" * 64, "opset": {}, "producer": None},
    "dims": [{"name": "n", "min": 1, "max": 4}],
    "inputs": [{"name": "x", "dtype": "float32", "shape": ["n", 2]}],
    "outputs": [{"name": "y", "dtype": "float32", "shape": ["n", 2]}],
    "states": [],
}


def test_entries_that_agree(value: dict[str, Any]) -> None:
    (alone,) = reread(value).every_entry()
    assert (alone.name, alone.inputs) == (value["model"]["name"], reread(value).inputs)
    second = ENTRY | {"name": "two", "inputs": [], "outputs": [], "dims": [], "states": ["s"]}
    read = reread(value | {"states": [STATE], "entries": [ENTRY, second]})
    assert [entry.name for entry in read.every_entry()] == ["one", "two"]
    with pytest.raises(BundleError, match="no entry uses the state 's'"):
        reread(value | {"states": [STATE], "entries": [ENTRY]})


def test_random_nodes_that_agree(value: dict[str, Any]) -> None:
    assert reread(value).model.random == ()
    seed = {"name": "seed", "dtype": "int64", "shape": []}
    nodes = [DRAW, DRAW | {"node": "m", "seed": None}]
    read = reread(value | {"inputs": [*value["inputs"], seed], "model": value["model"] | {"random": nodes}})
    assert [(item.node, item.seed) for item in read.model.random] == [("n", "seed"), ("m", None)]


def test_states_that_agree(value: dict[str, Any]) -> None:
    states = [STATE, OTHER | {"shape": [16], "bytes": 64, "initial": "scale"}]
    read = reread(value | {"states": states})
    assert [(state.name, state.shape, state.initial) for state in read.states] == [
        ("s", (4,), None),
        ("t", (16,), "scale"),
    ]


@pytest.mark.parametrize(
    ("path", "new", "message"),
    [
        ("arena_bytes", -1, r"\$\.arena_bytes: must be at least 0"),
        ("arena_bytes", 2**63, r"\$\.arena_bytes"),
        ("arena_bytes", True, r"\$\.arena_bytes: expected integer, found boolean"),
        ("arena_bytes", 64.0, r"\$\.arena_bytes: expected integer, found number"),
        ("arena_byts", 1, r"\$: unknown key 'arena_byts' \(did you mean 'arena_bytes'\?\)"),
        ("model.name", None, r"\$\.model\.name: expected string, found null"),
        ("model.name", "", r"\$\.model\.name"),
        ("model.opset", {"ai.onnx": "17"}, r"\$\.model\.opset\.ai\.onnx: expected integer"),
        ("model.random", [DRAW], r"\$\.model\.random\[0\]: 'seed' is not an input of one int64"),
        ("model.random", [DRAW | {"seed": "x"}], r"\$\.model\.random\[0\]: 'x' is not an input of one int64"),
        ("model.random", [DRAW | {"seed": None}] * 2, r"\$\.model\.random\[1\]: 'n' is listed twice"),
        ("parts", [{"kind": "graph", "first": 3, "last": 2}], r"\$\.parts\[0\]: first 3 is greater than last 2"),
        ("parts", [{"kind": "wait", "extents": ["n"]}], r"\$\.parts\[0\]\.extents: 'n' is not a run-time extent"),
        ("parts", [{"kind": "batch"}], r"\$\.parts\[0\]\.kind"),
        ("dims.0.min", 5, r"\$\.dims\[0\]: min 5 is greater than max 4"),
        ("dims.0.name", "n-1", r"\$\.dims\[0\]\.name: must be a C identifier"),
        ("dims", [{"name": "n", "min": 1, "max": 4, "buckets": [1, 3]}], r"\$\.dims\[0\]\.buckets: must increase"),
        ("dims", [{"name": "n", "min": 1, "max": 4, "buckets": [2, 1, 4]}], r"\$\.dims\[0\]\.buckets: must increase"),
        ("dims", [{"name": "n", "min": 1, "max": 4}] * 2, r"\$\.dims\[1\]: 'n' is listed twice"),
        ("inputs.0.shape.0", "k", r"\$\.inputs\[0\]\.shape\[0\]: 'k' is not one of the dims"),
        ("inputs.0.shape.0", "n+1", r"not one of the dims"),
        ("inputs.0.shape.0", 1.5, r"\$\.inputs\[0\]\.shape\[0\]: expected integer.*or expected string"),
        ("outputs.0.shape.0", "2*k", r"\$\.outputs\[0\]\.shape\[0\]: unknown dims: k"),
        ("outputs.0.shape.0", "n**2", r"\$\.outputs\[0\]\.shape\[0\]: unexpected"),
        ("outputs.0.dtype", "float31", r"\$\.outputs\[0\]\.dtype: expected one of"),
        ("states", [STATE | {"name": "x"}], r"\$\.states\[0\]\.name: 'x' is an input"),
        ("states", [STATE | {"output": "y"}], r"\$\.states\[0\]\.output: 'y' is an output"),
        ("states", [STATE, STATE | {"offset": 64}], r"\$\.states\[1\]: 's' is listed twice"),
        ("states", [STATE, STATE | {"name": "t", "offset": 64}], r"'n' is the next value of another state"),
        ("states", [STATE, OTHER | {"offset": 0}], r"\$\.states\[1\]\.offset: overlaps the state before, which ends"),
        ("states", [STATE | {"offset": 32}], r"\$\.states\[0\]\.offset: 32 is not a multiple of 64"),
        ("states", [STATE | {"bytes": 12}], r"\$\.states\[0\]\.bytes: 12 bytes do not fit"),
        ("states", [STATE | {"shape": ["n"]}], r"\$\.states\[0\]\.shape\[0\]: expected integer"),
        ("states", [STATE | {"initial": "w"}], r"\$\.states\[0\]\.initial: 'w' is not a constant"),
        ("states", [STATE | {"initial": "scale"}], r"\$\.states\[0\]\.initial: 'scale' has another dtype or shape"),
        ("entries", [ENTRY | {"inputs": []}], r"\$\.entries\[0\]\.inputs: differs from the manifest's inputs"),
        ("entries", [ENTRY, ENTRY], r"\$\.entries\[1\]: 'one' is listed twice"),
        ("entries", [ENTRY | {"states": ["s"]}], r"\$\.entries\[0\]\.states: 's' is not a state"),
        ("entries", [ENTRY, ENTRY | {"name": "b", "dims": []}], r"\$\.entries\[1\]\.inputs\[0\]\.shape\[0\]: 'n'"),
        ("targets.0", {"mcpu": "x"}, r"\$\.targets\[0\]: lacks the key 'kind'"),
        ("backends.0.primitives.0.flops", "1", r"\$\.backends\[0\]\.primitives\[0\]\.flops: expected integer"),
        ("backends.0.static_libraries.0.members", [1], r"\$\.backends\[0\]\.static_libraries\[0\]\.members\[0\]"),
        ("constants.0.bytes", 63, r"\$\.constants\[0\]\.bytes: 63 bytes do not fit"),
        ("constants.0.offset", 32, r"\$\.constants\[0\]\.offset: 32 is not a multiple of 64"),
        ("constants.0.aliases", ["scale"], r"\$\.constants\[0\]: 'scale' is listed twice"),
        ("constants.0.sha256", "0" * 63, r"\$\.constants\[0\]\.sha256: must be 64 lower-case hex digits"),
        ("weights.bytes", 1, r"\$\.weights\.bytes"),
        ("weights.storage", "none", r"\$\.weights\.storage"),
        ("weights.file", "x.safetensors", r"\$\.weights: file and file_sha256"),
        ("weights.file", "../x", r"\$\.weights\.file: must be a file name without a folder"),
        ("requirements.glibc", "2", r"\$\.requirements\.glibc"),
        ("requirements.cpu_levels", [{"name": "v3", "cpu_features": []}], r"cpu_levels\[0\]\.cpu_features: lacks sse2"),
        ("requirements.cpu_levels", [{"name": "v3", "cpu_features": ["avx", "sse2"]}], r"differs from cpu_features"),
        (
            "requirements.cpu_levels",
            [{"name": "v3", "cpu_features": ["sse2"]}, {"name": "v4", "cpu_features": ["avx"]}],
            r"cpu_levels\[1\]\.cpu_features: lacks sse2, which the level below requires",
        ),
        ("requirements.cpu_levels", [{"name": "v3", "cpu_features": ["sse2"]}] * 2, r"'v3' is listed twice"),
        ("requirements.cpu_levels", [{"name": "a/b", "cpu_features": ["sse2"]}], r"must be a CPU's name"),
        ("backends.0.primitives.0.levels", ["v4"], r"pk_scale has a clone for v4, which is not one of the higher CPU"),
        ("golden.rtol", -1, r"\$\.golden\.rtol"),
        ("golden.cases", 0, r"\$\.golden\.cases"),
        ("model.name", "a\ud800b", r"not valid JSON: .*surrogates not allowed"),
        ("form", "both", r"\$\.form: expected one of 'shared', 'static'"),
        ("schema_version", 0, r"\$\.schema_version"),
        ("schema_version", True, r"\$\.schema_version"),
        ("schema_version", 2, r"manifest schema version 2; this packager reads version 1"),
        ("abi_version", 7, r"ABI version 7; this packager reads version 1"),
    ],
)  # fmt: skip
def test_reader_is_strict(value: dict[str, Any], path: str, new: Any, message: str) -> None:
    change(path, new)(value)
    with pytest.raises(BundleError, match=message):
        reread(value)


def test_a_function_has_one_provider(value: dict[str, Any]) -> None:
    (backend,) = value["backends"]
    with pytest.raises(BundleError, match=r"\$\.backends: 'other' provides pk_scale, which is listed twice"):
        reread(value | {"backends": [backend, backend | {"kind": "other"}]})


def test_every_key_is_required(value: dict[str, Any]) -> None:
    for key in sorted(value.keys() - OPTIONAL):
        with pytest.raises(BundleError, match=f"lacks the key '{key}'"):
            reread({name: item for name, item in value.items() if name != key})


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"null", b"{", b"{}x", b'{"a":1,"a":1}', b"\xff\xfe", b"NaN", b"[" * 100_000, b"9" * 10_000,
     b'"\xed\xa0"'],
)  # fmt: skip
def test_reader_survives_any_text(text: bytes) -> None:
    with pytest.raises(BundleError, match="manifest is damaged"):
        parse_manifest(text)


def test_newer_schema_is_refused_before_its_unknown_keys(value: dict[str, Any]) -> None:
    with pytest.raises(BundleError, match="schema version 9"):
        reread(value | {"schema_version": 9, "novelty": []})


def test_section_round_trip_and_every_flip() -> None:
    section = manifest_section.encode_section(b'{"a":1}', 128)
    assert len(section) == 128
    assert manifest_section.decode_section(section) == b'{"a":1}'
    for index in range(len(section)):
        for bit in range(8):
            damaged = bytearray(section)
            damaged[index] ^= 1 << bit
            with pytest.raises(BundleError):
                manifest_section.decode_section(bytes(damaged))
    for size in range(len(section)):
        with pytest.raises(BundleError):
            manifest_section.decode_section(section[:size])
    with pytest.raises(BundleError, match="never sealed"):
        manifest_section.decode_section(bytes(128))


def test_section_that_is_too_small() -> None:
    assert len(manifest_section.encode_section(b"x" * 64, 128)) == 128
    with pytest.raises(ValueError, match="65 bytes; the section has room for 64"):
        manifest_section.encode_section(b"x" * 65, 128)


def test_content_sha256_takes_the_section_as_zero(tmp_path: Path) -> None:
    content = bytes(range(256)) * 20_000  # several chunks
    path = tmp_path / "file"
    path.write_bytes(content)
    for offset, size in ((0, 64), (1_500_000, 4096), (len(content) - 64, 64), (5, 0)):
        zeroed = content[:offset] + bytes(size) + content[offset + size :]
        expected = hashlib.sha256(zeroed).hexdigest()
        assert manifest_section.content_sha256(path, offset, size) == expected
    with pytest.raises(BundleError, match="manifest section is outside the file"):
        manifest_section.content_sha256(path, len(content) - 10, 11)


def test_manifest_values_cannot_change(good: Path) -> None:
    manifest = read_bundle(good).manifest
    with pytest.raises(dataclasses.FrozenInstanceError):
        manifest.arena_bytes = 0  # type: ignore[misc]
