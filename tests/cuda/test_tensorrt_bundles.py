"""Bundles with engines of TensorRT's, embedded, pending and appended: run with no GPU, by stand-ins for driver and
library.

The library's stand-in computes what its engines say: products with a row of weights. The model is just that, since no
kernel runs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from tensorrt_engines import make_stand_in, plan_bytes

import packager
from packager.backends import registry as backends
from packager.backends.tensorrt.library import installed_library
from packager.bundle.gpu.engine_graphs import read_graphs
from packager.bundle.gpu.engines import NewEngine, append_engines, check_engines, read_engines
from packager.bundle.manifest import SECTION_NAME
from packager.bundle.section import write_manifest
from packager.errors import BundleError

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MODEL = """
<ir_version: 10, opset_import: ["": 21]>
net (float[n,3] x) => (float[n,3] y) <float[3] w = {1, 2, 3}> { y = Mul(x, w) }
"""
VERSION = "10.13.3"
WEIGHTS = (1, 2, 3)
SCRIPT = """
import ctypes, json, sys, warnings
import numpy as np
import packager
bundle_path, rows, options = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
recorder = ctypes.CDLL("libcuda.so.1")
recorder.recorder_take.restype = recorder.recorder_live.restype = ctypes.c_char_p
swaps = options.pop("swaps", [])
x = lambda n: np.arange(3 * n, dtype=np.float32).reshape(n, 3)
told = {"outputs": []}
with warnings.catch_warnings(record=True) as caught, packager.load(bundle_path, libraries=[]) as bundle:
    warnings.simplefilter("always")
    try:
        with bundle.session(**options) as session, bundle.session(**options) as other:
            told["created"] = recorder.recorder_take().decode()
            for row in [None, *swaps]:
                if row is not None:
                    session.set_constants({"w": np.array(row, np.float32)})
                for n in rows:
                    told["outputs"].append(session.run({"x": x(n)})["y"].tolist())
            told["other"] = other.run({"x": x(rows[0])})["y"].tolist()
            told["recorded"] = recorder.recorder_take().decode()
    except packager.PackagerError as error:
        told["error"] = str(error)
told["warnings"] = [str(warning.message) for warning in caught]
told["live"] = recorder.recorder_live().decode()
try:
    library = ctypes.CDLL("libnvinfer.so.10")
    library.fake_state.restype = ctypes.c_char_p
    told["left"] = library.fake_state().decode()
except OSError:
    pass
print(json.dumps(told))
"""


@pytest.fixture(scope="module", autouse=True)
def installed_engines() -> Iterator[None]:
    """Make the distribution in tests/third_party one of those that are installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "tests" / "third_party"))
        backends._third_party.cache_clear()
        yield
    backends._third_party.cache_clear()


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stand-ins")
    flags = ["-D_GNU_SOURCE", "-std=gnu11", "-O1", "-fPIC", "-shared", "-fvisibility=hidden"]
    argv = ["gcc", *flags, HERE / "recorder" / "libcuda.c", "-o", folder / "libcuda.so.1", "-ldl", "-lpthread"]
    subprocess.run(argv, check=True)
    make_stand_in(folder, VERSION)
    return folder


def plan(weights: tuple[float, ...] = WEIGHTS, *, memory: int = 4096, name: str = "w") -> bytes:
    shape = (-1, 3)
    return plan_bytes(VERSION, weights, [("x", shape)], [("y", shape)], memory=memory, weights_name=name)


def build(folder: Path, engine: bytes | None, workspace: int = 4096, text: str = MODEL, attributes: str = "") -> Path:
    onnx.save(onnx.parser.parse_model(text), folder / "model.onnx")
    target = f"engines -workspace={workspace} {attributes}"
    if engine is not None:
        (folder / "engine.plan").write_bytes(engine)
        target += f" -plan={folder / 'engine.plan'}"
    targets = ["cuda -arch=sm_90a", target]
    return packager.build(folder / "model.onnx", folder / "model.so", targets=targets, dims={"n": (1, 64)})


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("embedded"), plan())


@pytest.fixture(scope="module")
def pending(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("pending"), None, workspace=0)


def append(bundle: Path, copy: Path, data: bytes, arch: int = 90) -> Path:
    """Do what finalizing does: append the engine to a copy of the bundle, and seal it anew."""
    shutil.copy(bundle, copy)
    (record,) = read_engines(copy)
    version = (*map(int, VERSION.split(".")), 0)
    append_engines(copy, {record.key: NewEngine(data, version, arch, 4096)})
    found = packager.inspect(bundle)
    section = found.elf.sections[SECTION_NAME]
    sizes = dataclasses.replace(found.manifest.sizes, file=copy.stat().st_size)
    write_manifest(copy, dataclasses.replace(found.manifest, sizes=sizes), section.offset, section.size)
    return copy


def run(bundle: Path, stand_ins: Path, rows: list[int], /, **options: Any) -> dict[str, Any]:
    """Run the bundle in a process of its own; upper-case options are environment variables."""
    own = {"LD_LIBRARY_PATH": str(stand_ins), "PYTHONPATH": str(ROOT), "RECORDER_MAPS": "1"}
    own |= {name: options.pop(name) for name in list(options) if name.isupper()}
    argv = [sys.executable, "-c", SCRIPT, str(bundle), json.dumps(rows), json.dumps(options)]
    done = subprocess.run(argv, env=os.environ | own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert told["live"] == ""
    assert told.get("left", "0 0 0 0").split()[:4] == ["0"] * 4
    return told


def product(rows: int, weights: tuple[float, ...] = WEIGHTS) -> Any:
    return (np.arange(3 * rows, dtype=np.float32).reshape(rows, 3) * np.array(weights, np.float32)).tolist()


def test_an_embedded_engine_runs(embedded: Path, stand_ins: Path) -> None:
    """Sizes have contexts of their own: what was made before is used again."""
    (record,) = read_engines(embedded)
    assert (record.state, record.version, record.arch) == ("embedded", (10, 13, 3, 0), 90)
    (library,) = packager.inspect(embedded).manifest.requirements.libraries
    assert (library.sonames, library.least, library.chosen_with) == (("libnvinfer.so.10",), "10.13.3", "10.13.3")
    told = run(embedded, stand_ins, [2, 64, 1, 2], graph="off")
    assert told["outputs"] == [product(rows) for rows in (2, 64, 1, 2)]
    assert not told["warnings"]


def test_graphs_hold_an_engine_as_one_node(embedded: Path, stand_ins: Path) -> None:
    told = run(embedded, stand_ins, [4, 4], graph="on")
    assert "add a graph of 2 nodes" in told["recorded"]


def test_graphs_are_changed_where_constants_are_swapped(embedded: Path, stand_ins: Path) -> None:
    """Of each size when it is next run: refitting is once for all."""
    told = run(embedded, stand_ins, [2, 3, 2], graph="on", swaps=[(5, 7, 11), (5, 13, 11)])
    assert told["left"].split()[5] == "2"
    assert told["recorded"].count(" to a graph of 2 nodes") == 4


def test_an_engine_that_needs_more_memory_than_planned_allocates_it(stand_ins: Path, tmp_path: Path) -> None:
    bundle = build(tmp_path, plan(), workspace=4095)
    assert run(bundle, stand_ins, [2], graph="off")["outputs"] == [product(2)]


def test_an_engine_of_the_backend_itself_runs_the_sizes_of_its_dim(stand_ins: Path, tmp_path: Path) -> None:
    """By the names, the profile and the extents that the backend gives it."""
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    targets = ["cuda -arch=sm_90a", "tensorrt -engines=pending -min_partition_flops=0 -refit=1"]
    bundle = packager.build(tmp_path / "model.onnx", tmp_path / "m.so", targets=targets, dims={"n": (1, 64)})
    (graph,) = read_graphs(packager.inspect(bundle)).values()
    assert graph.settings["profile"] == {"input_0": [[1, 3], [64, 3], [64, 3]]}
    shape = (-1, 3)
    data = plan_bytes(VERSION, WEIGHTS, [("input_0", shape)], [("output_0", shape)], memory=512, weights_name="w")
    final = append(bundle, tmp_path / "final.so", data)
    (choice,) = packager.inspect(final).manifest.choices
    chosen = {choice.name: choice.alternatives[0].name}
    for mode in ("off", "on"):
        told = run(final, stand_ins, [2, 64, 1, 2], graph=mode, selection=chosen, swaps=[(5, 7, 11)])
        assert "error" not in told
        if mode == "off":
            sizes = (2, 64, 1, 2)
            assert told["outputs"] == [product(n) for n in sizes] + [product(n, (5, 7, 11)) for n in sizes]


def test_an_output_of_another_size_than_planned_is_refused(embedded: Path, stand_ins: Path) -> None:
    """Memory is planned for the bundle's; nothing is enqueued."""
    told = run(embedded, stand_ins, [2], graph="off", FAKE_LONGER="1")
    assert "failed with status 7: engine " in told["error"]
    assert "computes output 'y' in another size than the bundle" in told["error"]
    assert told["left"].split()[4] == "0"


def test_swapped_constants_are_refitted_by_name(embedded: Path, stand_ins: Path) -> None:
    """For one session alone, the other keeps the bundle's; also the same values again, and the bundle's own."""
    swaps = [(5, 7, 11), (5, 13, 11), (1, 2, 3)]
    told = run(embedded, stand_ins, [2, 3], graph="off", swaps=swaps)
    assert told["outputs"] == [product(rows, row) for row in (WEIGHTS, *swaps) for rows in (2, 3)]
    assert told["other"] == product(2)
    assert told["left"].split()[5] == "3"


def test_an_engine_that_is_not_refittable_refuses_other_constants(stand_ins: Path, tmp_path: Path) -> None:
    bundle = build(tmp_path, plan(name=""))
    told = run(bundle, stand_ins, [2], graph="off", swaps=[(5, 7, 11)])
    assert told["outputs"] == [product(2)]
    assert "failed with status 9: engine " in told["error"]
    assert "cannot be refitted: createInferRefitter: Error Code 3: the engine is not refittable" in told["error"]


def test_a_pending_engine_is_an_error_of_the_session(pending: Path, stand_ins: Path) -> None:
    (record,) = read_engines(pending)
    assert (record.state, record.bytes, record.version) == ("pending", 0, (0, 0, 0, 0))
    (library,) = packager.inspect(pending).manifest.requirements.libraries
    assert library.sonames == ("libnvinfer.so.11", "libnvinfer.so.10", "libnvinfer.so.8")
    told = run(pending, stand_ins, [2])
    assert f"failed with status 1: engine {record.key[:12]} is pending: `packager finalize` builds it" in told["error"]


def test_an_appended_engine_runs_and_can_be_replaced(pending: Path, stand_ins: Path, tmp_path: Path) -> None:
    first = append(pending, tmp_path / "first.so", plan())
    (record,) = read_engines(first)
    assert (record.state, record.bytes, record.offset % 65536) == ("appended", len(plan()), 0)
    assert run(first, stand_ins, [2, 3], graph="off")["outputs"] == [product(2), product(3)]
    second = append(first, tmp_path / "second.so", plan((4, 5, 6)))
    assert second.stat().st_size == first.stat().st_size
    assert run(second, stand_ins, [2], graph="off")["outputs"] == [product(2, (4, 5, 6))]


def test_an_appended_engine_comes_before_an_embedded_one(embedded: Path, stand_ins: Path, tmp_path: Path) -> None:
    other = append(embedded, tmp_path / "other.so", plan((4, 5, 6)))
    assert run(other, stand_ins, [2], graph="off")["outputs"] == [product(2, (4, 5, 6))]


def test_verify_takes_an_appended_engine_and_sees_damage(pending: Path, tmp_path: Path) -> None:
    """The whole file is under the bundle's hash; nothing lies outside of its sections."""
    bundle = append(pending, tmp_path / "bundle.so", plan())
    checks = {check.name: check.status for check in packager.verify(bundle).checks}
    assert [checks[name] for name in ("integrity", "elf", "manifest", "code", "policy")] == ["passed"] * 5
    assert not check_engines(bundle, read_engines(bundle))
    (record,) = read_engines(bundle)
    with bundle.open("r+b") as file:
        file.seek(record.offset + 100)
        file.write(b"\xff")
    assert check_engines(bundle, read_engines(bundle)) == [record.key]
    with pytest.raises(BundleError, match="the file is damaged"):
        packager.verify(bundle)


def test_damage_is_an_error_where_the_engine_is_read(pending: Path, stand_ins: Path, tmp_path: Path) -> None:
    bundle = append(pending, tmp_path / "bundle.so", plan())
    (record,) = read_engines(bundle)
    junk = append(pending, tmp_path / "junk.so", b"junk" * 100)
    choices = {choice.name: "engines(multiply)" for choice in packager.inspect(bundle).manifest.choices}
    why = f"failed with status 4: engine {record.key[:12]} is refused: deserializeCudaEngine: Error"
    assert why in run(junk, stand_ins, [2], selection=choices)["error"]
    without = run(junk, stand_ins, [2])
    assert "error" not in without
    assert re.search(r"slower alternatives are used, without a library: .*" + why, without["warnings"][0])
    assert "launch pkf_multiply" in without["recorded"]


def test_an_engine_for_another_gpu_is_done_without(pending: Path, stand_ins: Path, tmp_path: Path) -> None:
    other = append(pending, tmp_path / "gpu.so", plan(), arch=80)
    told = run(other, stand_ins, [2])
    assert len(told["warnings"]) == 2  # sessions
    assert "is for GPUs of sm_80, not of sm_90" in told["warnings"][0]
    assert "launch pkf_multiply" in told["recorded"]


@pytest.mark.parametrize("states", [101302, 90300])
def test_sessions_do_without_a_library_of_another_version(
    embedded: Path, stand_ins: Path, tmp_path: Path, states: int
) -> None:
    """The choice's other alternative is used, and the log says why."""
    shutil.copy(stand_ins / "libcuda.so.1", tmp_path)
    make_stand_in(tmp_path, VERSION, states=states)
    told = run(embedded, tmp_path, [2])
    warning = told["warnings"][0]
    assert "slower alternatives are used, without a library: libnvinfer.so.10 of version 10.13.3 or newer" in warning


def test_a_newer_library_is_refused_too(embedded: Path, stand_ins: Path, tmp_path: Path) -> None:
    shutil.copy(stand_ins / "libcuda.so.1", tmp_path)
    make_stand_in(tmp_path, VERSION, states=101400)
    warning = run(embedded, tmp_path, [2])["warnings"][0]
    assert "is version 10.14.0: an engine was built by 10.13.3 and runs in no other version" in warning
    choices = {choice.name: "engines(multiply)" for choice in packager.inspect(embedded).manifest.choices}
    told = run(embedded, tmp_path, [2], selection=choices)
    assert "the selection needs a library" in told["error"]


def test_engines_have_a_place_only_in_shared_bundles_of_the_backend(pending: Path, tmp_path: Path) -> None:
    other = NewEngine(plan(), (10, 13, 3, 0), 90, 0)
    with pytest.raises(BundleError, match="has no engine 0000"):
        append_engines(shutil.copy(pending, tmp_path / "copy.so"), {"0" * 64: other})
    model = onnx.parser.parse_model(MODEL)
    onnx.save(model, tmp_path / "model.onnx")
    plain = packager.build(tmp_path / "model.onnx", tmp_path / "plain.so", dims={"n": (1, 64)})
    assert read_engines(plain) == ()
    with pytest.raises(BundleError, match="has no place for engines"):
        append_engines(plain, {"0" * 64: other})


def test_tensors_between_calls_are_aligned_as_the_library_wants(stand_ins: Path, tmp_path: Path) -> None:
    """The engine's result, 12 bytes a row, lies behind its workspace, and nothing is copied."""
    text = MODEL.replace("=> (float[n,3] y)", "=> (float[n,3] z, float[n,3] y)")
    text = text.replace("{ y = Mul(x, w) }", "{ a = Mul(x, w) z = Neg(a) y = Mul(a, w) }")
    bundle = build(tmp_path, plan(), workspace=4096, text=text)
    told = run(bundle, stand_ins, [5], graph="off")
    assert told["outputs"] == [product(5, (1, 4, 9))]
    offsets = re.findall(r"^launch pkf_tir_negative .* m\d+\+(\d+) ", told["recorded"], re.MULTILINE)
    assert offsets
    assert all(int(offset) % 256 == 0 for offset in offsets)
    assert "copy" not in told["recorded"]


def test_an_embedded_library_needs_no_file(stand_ins: Path, tmp_path: Path) -> None:
    """The lean runtime, of a later version than the engine, from a file in memory alone."""
    (tmp_path / "made").mkdir()
    library = make_stand_in(tmp_path / "made", VERSION).rename(tmp_path / "made" / "libnvinfer_lean.so.10")
    bundle = build(tmp_path, plan(), attributes=f"-form=tensorrt_lean -version=10.9.2 -library={library}")
    library.unlink()
    (requirement,) = packager.inspect(bundle).manifest.requirements.libraries
    assert (requirement.sonames, requirement.embedded) == (("libnvinfer_lean.so.10",), True)
    (tmp_path / "driver").mkdir()
    shutil.copy(stand_ins / "libcuda.so.1", tmp_path / "driver")
    told = run(bundle, tmp_path / "driver", [2, 3], graph="off")
    assert told["outputs"] == [product(2), product(3)]
    assert not told["warnings"]
    findings = {finding.check for finding in packager.verify(bundle).findings}
    assert "machine.library" not in findings
    swapped = run(bundle, tmp_path / "driver", [2], graph="off", swaps=[(5, 7, 11)])
    assert swapped["outputs"] == [product(2)]
    assert "cannot be refitted: this form of the library has no refitter" in swapped["error"]


def test_the_real_lean_runtime_is_embedded(stand_ins: Path, tmp_path: Path) -> None:
    """It is opened from memory; then it finds no real driver."""
    library = installed_library("tensorrt_lean")
    assert library is not None, "tensorrt-lean-cu13-libs is not installed: make env"
    bundle = build(tmp_path, plan(), attributes=f"-form=tensorrt_lean -version=11.0.0 -library={library}")
    assert bundle.stat().st_size > library.stat().st_size
    (tmp_path / "driver").mkdir()
    shutil.copy(stand_ins / "libcuda.so.1", tmp_path / "driver")
    error = run(bundle, tmp_path / "driver", [2])["warnings"][0]
    assert re.search(r"failed with status 3: TensorRT 11\.\d+\.\d+ makes no runtime: createInferRuntime: ", error)
