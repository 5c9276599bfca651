"""``--weights external``: a plain safetensors file that moves with its bundle, and what happens when it does not."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import safetensors
import safetensors.numpy
from onnx import numpy_helper

import packager
from packager import PackagerError

from .conftest import Build
from .models import ROOT, Floats, Model
from .programs import attempt, check_host

pytestmark = pytest.mark.slow

WEIGHTS_STATUS = "PACKAGER_ERROR_WEIGHTS"


@pytest.fixture
def pair(build: Build, digits: Model, tmp_path: Path) -> Path:
    """A copy of the digits bundle, with its weights beside it, in a folder of the test's own."""
    bundle = build(digits, weights="external")
    shutil.copy(bundle.with_suffix(".safetensors"), tmp_path)
    return Path(shutil.copy(bundle, tmp_path))


def weights_of(bundle: Path) -> Path:
    return bundle.with_suffix(".safetensors")


def finding_names(bundle: Path) -> list[str]:
    return [finding.check for finding in packager.verify(bundle).findings]


def refusal(bundle: Path) -> str:
    """Return the message with which a session is refused."""
    with pytest.raises(PackagerError) as error:
        packager.load(bundle).session()
    assert error.value.name == WEIGHTS_STATUS  # type: ignore[attr-defined]
    assert error.value.hint
    return error.value.message


def initializers(model: Model) -> dict[str, Floats]:
    return {item.name: numpy_helper.to_array(item) for item in onnx.load(model.path).graph.initializer}


def values(array: Floats) -> Floats:
    """Return the values in order, without padding: what a change of layout keeps."""
    flat = np.sort(array, axis=None)
    return flat[flat != 0]


def by_initializer(bundle: Path) -> dict[str, tuple[str, Floats]]:
    """Return suffix and tensor by the name of the initializer that it was made of: ``.folded``, ``.permute_dims``."""
    found = {}
    for name, array in safetensors.numpy.load_file(weights_of(bundle)).items():
        source = ".".join(name.split(".")[:2])
        found[source] = (name.removeprefix(source), array)
    return found


def test_tensors_are_the_initializers(build: Build, mlp: Model) -> None:
    """Those that only moved to another layout have all their values; two of equal content are one tensor."""
    bundle = build(mlp, weights="external")
    wanted = initializers(mlp)
    aliases = {name: item.name for item in packager.inspect(bundle).manifest.constants for name in item.aliases}
    tensors = by_initializer(bundle)
    assert aliases == {"second.bias": "first.bias"}
    assert set(tensors) | set(aliases) == set(wanted)
    for name, array in wanted.items():
        suffix, tensor = tensors[aliases.get(name, name)]
        if suffix:
            np.testing.assert_array_equal(values(tensor), values(array))
        else:
            np.testing.assert_array_equal(tensor, array)
    assert tensors["first.bias"][0] == ""


def test_folded_tensors(build: Build, digits: Model) -> None:
    """The names say what was folded; the values are those of the batch normalization, worked out by hand."""
    tensors = by_initializer(build(digits, weights="external"))
    source = {name: array.astype(np.float64) for name, array in initializers(digits).items()}
    np.testing.assert_array_equal(values(tensors["dense1.weight"][1]), values(source["dense1.weight"]))
    epsilon = {
        node.output[0]: attribute.f
        for node in onnx.load(digits.path).graph.node
        for attribute in node.attribute
        if attribute.name == "epsilon"
    }
    for i in (1, 2):
        scale = source[f"norm{i}.weight"] / np.sqrt(source[f"norm{i}.running_var"] + epsilon.get(f"norm{i}", 1e-5))
        wanted = {
            f"conv{i}.bias": (source[f"conv{i}.bias"] - source[f"norm{i}.running_mean"]) * scale
            + source[f"norm{i}.bias"],
            f"conv{i}.weight": source[f"conv{i}.weight"] * scale[:, None, None, None],
        }
        for name, array in wanted.items():
            suffix, tensor = tensors[name]
            assert ".folded" in suffix
            np.testing.assert_allclose(values(tensor), values(array), rtol=2e-5, atol=1e-6)


def test_file_agrees_with_the_manifest(build: Build, digits: Model) -> None:
    bundle = build(digits, weights="external")
    manifest = packager.inspect(bundle).manifest
    raw = weights_of(bundle).read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    assert (8 + size) % 64 == 0
    assert set(header.pop("__metadata__")) == {"packager.data_sha256"}
    assert {name: item["data_offsets"][0] for name, item in header.items()} == {
        item.name: item.offset for item in manifest.constants
    }
    assert manifest.weights.file == "digits.safetensors"
    assert manifest.sizes.constants == 0
    assert len(raw) == 8 + size + manifest.weights.bytes
    assert bundle.stat().st_size < build(digits).stat().st_size - manifest.weights.bytes // 2
    with safetensors.safe_open(weights_of(bundle), framework="np") as file:
        assert len(list(file.keys())) == len(manifest.constants)


# Packed constants are aligned to their elements only: code for SSE faults on a 16-byte access that is not.
@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=x86-64"])
@pytest.mark.parametrize("name", ["digits", "mlp"])
def test_same_bits_as_embedded(build: Build, name: str, target: str, request: pytest.FixtureRequest) -> None:
    model: Model = request.getfixturevalue(name)
    rows = model.rows(9)
    external, embedded = (
        packager.load(build(model, target=target, weights=weights)).run([rows])[model.output]
        for weights in ("external", "embedded")
    )
    model.check(rows, external)
    assert external.tobytes() == embedded.tobytes()


def test_moved_together(pair: Path, host: Path, digits: Model, tmp_path: Path) -> None:
    """From any working folder, by absolute and by relative path."""
    place = tmp_path / "a folder" / "déployé"
    place.mkdir(parents=True)
    for path in (pair, weights_of(pair)):
        shutil.move(path, place)
    moved = place / pair.name
    check_host([host], moved, digits, 4, tmp_path)
    assert packager.verify(moved).ok
    rows = digits.rows(2)
    rows.tofile(place / "in.f32")
    done = subprocess.run(
        [host, f"./{moved.name}", "in.f32", "out.f32"], cwd=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    digits.check(rows, np.fromfile(place / "out.f32", np.float32))


@pytest.mark.parametrize("bundle_name", ["model.so", "libmodel.so.1", "model", "my.model.v2.so"])
def test_renamed_together(pair: Path, digits: Model, bundle_name: str) -> None:
    renamed = pair.rename(pair.with_name(bundle_name))
    weights_of(pair).rename(renamed.with_suffix(".safetensors"))
    digits.check(digits.rows(3), packager.load(renamed).run([digits.rows(3)])[digits.output])
    assert packager.verify(renamed).findings == ()


def test_bundle_renamed_alone(pair: Path, digits: Model) -> None:
    renamed = pair.rename(pair.with_name("other.so"))
    digits.check(digits.rows(3), packager.load(renamed).run([digits.rows(3)])[digits.output])
    assert packager.verify(renamed).findings == ()


def test_foreign_file_of_the_bundles_new_name_does_not_matter(pair: Path, digits: Model) -> None:
    """model.safetensors is what model hubs call their files."""
    renamed = pair.rename(pair.with_name("model.so"))
    safetensors.numpy.save_file({"x": np.zeros(3, np.float32)}, weights_of(renamed))
    digits.check(digits.rows(3), packager.load(renamed).run([digits.rows(3)])[digits.output])
    assert packager.verify(renamed).findings == ()


def test_foreign_file_of_the_original_name_does_not_matter(pair: Path, digits: Model) -> None:
    """Two builds of one name, the first renamed to make room for the second."""
    renamed = pair.rename(pair.with_name("old.so"))
    weights_of(pair).rename(weights_of(renamed))
    safetensors.numpy.save_file({"x": np.zeros(3, np.float32)}, weights_of(pair))
    digits.check(digits.rows(3), packager.load(renamed).run([digits.rows(3)])[digits.output])
    assert packager.verify(renamed).findings == ()


def test_linked_side_by_side(pair: Path, digits: Model, tmp_path: Path) -> None:
    """A folder of links, as content-addressed stores keep files."""
    store = tmp_path / "store"
    place = tmp_path / "place"
    store.mkdir()
    place.mkdir()
    for number, path in enumerate((pair, weights_of(pair))):
        blob = path.rename(store / str(number))
        (place / path.name).symlink_to(blob)
    digits.check(digits.rows(3), packager.load(place / pair.name).run([digits.rows(3)])[digits.output])


def test_weights_missing(pair: Path, host: Path, digits: Model, tmp_path: Path) -> None:
    weights_of(pair).unlink()
    message = refusal(pair)
    assert str(weights_of(pair)) in message
    assert "No such file" in message
    assert finding_names(pair) == ["integrity.weights_missing"]
    digits.rows(1).tofile(tmp_path / "in")
    done = attempt([host, pair, tmp_path / "in", tmp_path / "out"])
    assert done.returncode == 1
    assert WEIGHTS_STATUS in done.stderr


@pytest.mark.parametrize("size", [0, 5, 8, 100, -1])
def test_weights_short(pair: Path, size: int) -> None:
    image = weights_of(pair).read_bytes()
    weights_of(pair).write_bytes(image[:size])
    assert f"{len(image[:size])} bytes, expected {len(image)}" in refusal(pair)
    assert finding_names(pair) in (["integrity.weights_size"], ["integrity.weights_header"])


def test_weights_long(pair: Path) -> None:
    with weights_of(pair).open("ab") as file:
        file.write(b"\0")
    assert "expected" in refusal(pair)
    assert finding_names(pair) == ["integrity.weights_size"]


def test_weights_of_another_model(pair: Path, build: Build, twin: Model) -> None:
    shutil.copy(weights_of(build(twin, weights="external")), weights_of(pair))
    assert "bytes, expected" in refusal(pair)
    assert not packager.verify(pair).ok


def test_weights_of_another_training(pair: Path) -> None:
    """The same names and shapes with other values: the data's hash in the header tells."""
    tensors = safetensors.numpy.load_file(weights_of(pair))
    image = bytearray(weights_of(pair).read_bytes())
    image[image.index(b"packager.data_sha256") + 25] ^= 1
    weights_of(pair).write_bytes(image)
    assert len(tensors) == 8
    assert "the header differs from byte" in refusal(pair)
    assert "integrity.weights_data" in finding_names(pair)


def test_flipped_data(pair: Path) -> None:
    """Loading does not read all data; verify does."""
    image = bytearray(weights_of(pair).read_bytes())
    image[-100] ^= 1
    weights_of(pair).write_bytes(image)
    assert finding_names(pair) == ["integrity.weights_data"]


def test_weights_are_a_folder(pair: Path) -> None:
    weights_of(pair).unlink()
    weights_of(pair).mkdir()
    assert str(weights_of(pair)) in refusal(pair)
    assert not packager.verify(pair).ok


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_weights_unreadable(pair: Path) -> None:
    weights_of(pair).chmod(0)
    assert "Permission denied" in refusal(pair)


@pytest.mark.usefixtures("pair")
def test_relative_path_and_changed_folder(tmp_path: Path) -> None:
    """dlopen keeps the path that it was given: after chdir the message says so."""
    script = (
        "import ctypes, os, sys\n"
        "library = ctypes.CDLL('./digits.so')\n"
        "os.chdir('/')\n"
        "library.packager_bundle_v1.restype = ctypes.POINTER(ctypes.c_void_p)\n"
        "table = library.packager_bundle_v1()\n"
        f"create = ctypes.cast(table[{80 // ctypes.sizeof(ctypes.c_void_p)}], "
        "ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)))\n"
        "session = ctypes.c_void_p()\n"
        "sys.exit(-create(None, ctypes.byref(session)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 12, done.stderr  # PACKAGER_ERROR_WEIGHTS; Python's loader takes absolute paths
    script = (
        "import os, packager, numpy\nbundle = packager.load('./digits.so')\nos.chdir('/')\n"
        "bundle.run([numpy.ones((1, 1, 8, 8), 'float32')])"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, env=environment)


def test_weights_recover(pair: Path, digits: Model) -> None:
    """A session that was refused can be made when the file is there."""
    away = weights_of(pair).rename(pair.with_name("away"))
    bundle = packager.load(pair)
    with pytest.raises(PackagerError, match=r"digits\.safetensors"):
        bundle.session()
    away.rename(weights_of(pair))
    digits.check(digits.rows(2), bundle.run([digits.rows(2)])[digits.output])


@pytest.mark.parametrize("asked", [True, False])
def test_build_keeps_a_foreign_file(digits: Model, tmp_path: Path, asked: bool) -> None:
    """A model.safetensors that packager did not write is the user's."""
    foreign = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({"x": np.zeros(3, np.float32)}, foreign)
    before = foreign.read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("packager.link.weights.MAX_ARCHIVE_BYTES", 1000)  # an archive has external weights unasked
        options: dict[str, Any] = {"weights": "external"} if asked else {"static": True, "prefix": "m"}
        with pytest.raises(PackagerError, match="exists and is not a weights file"):
            packager.build(digits.path, tmp_path / "model.so", dims={"n": 1}, cache=False, **options)
    assert foreign.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_build_replaces_its_own_file(pair: Path, digits: Model, tmp_path: Path) -> None:
    before = weights_of(pair).read_bytes()
    packager.build(
        digits.path,
        pair,
        targets=["llvm"],
        dims={"n": (1, 32)},
        weights="external",
        keep_workdir=tmp_path / "work",
    )
    assert weights_of(pair).read_bytes() == before
