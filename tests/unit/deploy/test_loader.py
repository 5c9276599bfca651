from __future__ import annotations

import ctypes
import gc
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sealing import build_bundle

import packager
from packager.deploy.load import tensors
from packager.deploy.load.abi import dtype_name
from packager.deploy.load.library import TensorInfo
from packager.deploy.load.loader import Bundle
from packager.deploy.measure.bench import bench
from packager.deploy.measure.random_inputs import random_inputs
from packager.errors import BundleError, RunError, UsageError

X = np.array([[1.0, 2.0], [3.0, -4.0]], np.float32)


@pytest.fixture
def bundle(good: Path) -> Any:
    with packager.load(good) as loaded:
        yield loaded


def live_sessions(bundle: Bundle) -> int:
    """Read the counter that bundle.c shows in a reserved field."""
    return ctypes.c_int.from_address(bundle._library.table.reserved[0]).value


def pool(bundle: Bundle) -> int:
    return ctypes.c_int.from_address(bundle._library.table.reserved[0] + 4).value


def test_what_it_says_of_itself(bundle: Bundle) -> None:
    assert bundle.inputs == (TensorInfo("x", "float32", ("n", 2), (1, 2), (4, 2)),)
    assert bundle.outputs[0].name == "y"
    assert bundle.manifest.model.name == "scale"
    assert "loaded from" in repr(bundle)


def test_a_bundle_without_constants_of_its_own(bundle: Bundle) -> None:
    """And without a function to set them, as the table of an older bundle."""
    assert bundle.constants == ()
    with bundle.session() as session:
        session.set_constants({})
        with pytest.raises(RunError, match="there is no constant 'scale'"):
            session.set_constants({"scale": np.zeros(16, np.float32)})


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_numerics_by_name_by_order_and_called(bundle: Bundle, rows: int) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, 2)).astype(np.float32)
    for result in (bundle.run({"x": x}), bundle.run([x]), bundle.run((x,)), bundle(x)):
        assert result.keys() == {"y"}
        np.testing.assert_array_equal(result["y"], 2 * x, strict=True)


def test_arrays_with_gaps_are_copied(bundle: Bundle) -> None:
    wide = np.arange(24, dtype=np.float32).reshape(4, 6)
    for x in (wide[:, ::3], wide[::-1, :2], np.asfortranarray(wide[:, :2]), np.broadcast_to(np.float32(3), (4, 2))):
        np.testing.assert_array_equal(bundle(x)["y"], 2 * x)
    raw = np.zeros(17, np.uint8)
    misaligned = raw[1:].view(np.float32).reshape(2, 2)
    misaligned[...] = X
    assert not misaligned.flags.aligned
    np.testing.assert_array_equal(bundle(misaligned)["y"], 2 * X)
    read_only = X.copy()
    read_only.flags.writeable = False
    np.testing.assert_array_equal(bundle(read_only)["y"], 2 * X)


def test_outputs_are_written_in_place(bundle: Bundle) -> None:
    y = np.zeros((2, 2), np.float32)
    assert bundle.run({"x": X}, outputs={"y": y})["y"] is y
    np.testing.assert_array_equal(y, 2 * X)


def test_dlpack_without_copies(bundle: Bundle) -> None:
    torch = pytest.importorskip("torch")
    x, y = torch.tensor(X), torch.zeros(2, 2)
    given = tensors.borrow(x, "x", "float32", writable=False)
    assert given.tensor.data + given.tensor.byte_offset == x.data_ptr()
    assert bundle.run({"x": x}, outputs=[y])["y"] is y
    np.testing.assert_array_equal(y.numpy(), 2 * X)
    np.testing.assert_array_equal(bundle(torch.tensor(X)[1:])["y"], 2 * X[1:])
    with pytest.raises(RunError, match="not compact") as caught:
        bundle(torch.zeros(2, 2).t().contiguous().t())
    assert caught.value.name == "PACKAGER_ERROR_LAYOUT"
    with pytest.raises(RunError, match="expected float32"):
        bundle(torch.zeros(2, 2, dtype=torch.float64))
    with pytest.raises(RunError, match="cannot be shared through DLPack"):
        bundle(torch.zeros(2, 2, requires_grad=True))


class OldExporter:
    """An object of before DLPack 1.0: no max_version, unversioned capsule."""

    def __init__(self, array: np.ndarray[Any, Any], device: int = 1) -> None:
        self.array = array
        self.device = device

    def __dlpack__(self, stream: object = None) -> object:
        assert stream is None
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)


class NewExporter(OldExporter):
    def __dlpack__(self, *, max_version: tuple[int, int]) -> object:  # type: ignore[override]
        return self.array.__dlpack__(max_version=max_version)


@pytest.mark.parametrize("exporter", [OldExporter, NewExporter])
def test_both_kinds_of_capsules(bundle: Bundle, exporter: type[OldExporter]) -> None:
    y = np.zeros((2, 2), np.float32)
    for _ in range(100):  # a capsule that is released twice or too early would not survive this
        bundle.run([exporter(X.copy())], outputs=[exporter(y)])
    np.testing.assert_array_equal(y, 2 * X)
    with pytest.raises(RunError, match="DLPack device 2") as caught:
        bundle(exporter(X, device=2))
    assert caught.value.name == "PACKAGER_ERROR_DEVICE"


def test_read_only_capsule_is_no_output(bundle: Bundle) -> None:
    y = np.zeros((2, 2), np.float32)
    y.flags.writeable = False
    for output in (y, NewExporter(y)):
        with pytest.raises(RunError, match="read-only"):
            bundle.run([X], outputs=[output])


@pytest.mark.parametrize(
    ("inputs", "message", "name"),
    [
        ({"x": X.astype(np.float64)}, "dtype float64, expected float32", "DTYPE"),
        ({"x": X.astype(">f4")}, "big-endian", "DTYPE"),
        ({"x": X.astype(np.int32)}, "dtype int32, expected float32", "DTYPE"),
        ({"x": X[0]}, "must have 2 dimensions", "RANK"),
        ({"x": np.zeros((2, 3), np.float32)}, "wrong shape", "SHAPE"),
        ({"x": np.zeros((5, 2), np.float32)}, "wrong shape", "SHAPE"),
        ({"x": np.zeros((0, 2), np.float32)}, "wrong shape", "SHAPE"),
        ({"x": X.tolist()}, "is list, neither a numpy array", "ARGUMENT"),
        ({"x": None}, "is NoneType", "ARGUMENT"),
        ({}, "input 'x' is missing", "ARGUMENT"),
        ({"x": X, "xx": X}, r"no input 'xx' \(did you mean 'x'\?\)", "ARGUMENT"),
        ([], "0 inputs given, 1 needed", "ARGUMENT"),
        ([X, X], "2 inputs given, 1 needed", "ARGUMENT"),
        (X, "must be a mapping by name, a list or a tuple", "ARGUMENT"),
    ],
)
def test_refused_inputs(bundle: Bundle, inputs: Any, message: str, name: str) -> None:
    with pytest.raises(RunError, match=message) as caught:
        bundle.run(inputs)
    assert caught.value.name == f"PACKAGER_ERROR_{name}"
    assert caught.value.status < 0
    assert caught.value.hint
    np.testing.assert_array_equal(bundle(X)["y"], 2 * X)  # usable after


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (np.zeros((2, 2), np.float64), "expected float32"),
        (np.zeros((2, 4), np.float32)[:, ::2], "not contiguous"),
        (np.zeros((3, 2), np.float32), "output 'y' has a wrong shape"),
        ([[0.0]], "neither a numpy array"),
    ],
)
def test_refused_outputs(bundle: Bundle, output: Any, message: str) -> None:
    with pytest.raises(RunError, match=message):
        bundle.run([X], outputs=[output])


def test_sessions_are_destroyed(bundle: Bundle) -> None:
    assert live_sessions(bundle) == 0
    with bundle.session() as session:
        assert live_sessions(bundle) == 1
        np.testing.assert_array_equal(session.run([X])["y"], 2 * X)
    assert live_sessions(bundle) == 0
    session.close()
    with pytest.raises(UsageError, match="session is closed"):
        session.run([X])
    bundle.session()
    assert live_sessions(bundle) == 0  # dropped without close


def test_what_is_bound_keeps_its_session_and_arrays(bundle: Bundle) -> None:
    before, y = live_sessions(bundle), np.empty((2, 2), np.float32)
    again = bundle.session().bind([X.copy()], [y])
    gc.collect()
    again()
    np.testing.assert_array_equal(y, bundle(X)["y"])
    del again
    gc.collect()
    assert live_sessions(bundle) == before + 1  # that of this thread


def test_each_thread_has_a_session_that_ends_with_it(bundle: Bundle) -> None:
    counts: list[int] = []
    barrier = threading.Barrier(3)

    def work() -> None:
        for _ in range(50):
            np.testing.assert_array_equal(bundle(X)["y"], 2 * X)
        barrier.wait()
        counts.append(live_sessions(bundle))
        barrier.wait()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [3, 3, 3]
    gc.collect()
    assert live_sessions(bundle) == 0


def test_busy_session_and_close_while_running(good: Path) -> None:
    bundle = packager.load(good)
    session = bundle.session()
    slow = np.full((1, 2), 42, np.float32)  # bundle.c takes its time for this input
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(session.run([slow])))
    thread.start()
    while not session._running.locked():
        time.sleep(0.001)
    for call in (lambda: session.run([X]), session.close, bundle.close):
        with pytest.raises(RunError, match="running in another thread") as caught:
            call()
        assert caught.value.name == "PACKAGER_ERROR_BUSY"
    thread.join()
    np.testing.assert_array_equal(results[0]["y"], 2 * slow)
    assert not bundle.closed
    bundle.close()


def test_use_after_close(good: Path) -> None:
    bundle = packager.load(good)
    session = bundle.session()
    y = bundle(X)["y"]
    bundle.close()
    bundle.close()
    assert bundle.closed
    assert "closed" in repr(bundle)
    np.testing.assert_array_equal(y, 2 * X)
    for call in (lambda: bundle(X), lambda: session.run([X]), bundle.session, lambda: bundle.set_threads(2)):
        with pytest.raises(UsageError, match="is closed"):
            call()


def test_constants_after_close(good: Path) -> None:
    bundle = packager.load(good)
    bundle.close()
    with pytest.raises(UsageError, match="is closed"):
        _ = bundle.constants


@pytest.mark.slow
def test_unloads_and_loads_again(good: Path) -> None:
    def mapped() -> bool:
        return str(good) in Path("/proc/self/maps").read_text()

    gc.collect()
    assert not mapped()
    for _ in range(200):
        with packager.load(good) as bundle:
            bundle(X)
            assert mapped()
    assert not mapped()
    dropped = packager.load(good)
    dropped(X)
    cycle = [dropped]
    cycle.append(cycle)  # type: ignore[arg-type]
    del dropped, cycle
    gc.collect()
    assert not mapped()


def test_threads(good: Path) -> None:
    with packager.load(good, threads=3) as bundle:
        assert pool(bundle) == 3
        bundle.set_threads(1)
        assert pool(bundle) == 1
        with pytest.raises(RunError, match="too many threads") as caught:
            bundle.set_threads(65)
        assert caught.value.name == "PACKAGER_ERROR_THREADS"
    with pytest.raises(UsageError, match="negative"):
        packager.load(good, threads=-1)


def test_load_does_not_hash_unless_asked(good: Path, tmp_path: Path) -> None:
    content = good.read_bytes()
    path = tmp_path / "flipped.so"
    assert content.count(b"GCC: (") == 1  # the compiler's name in .comment, which nothing reads
    path.write_bytes(content.replace(b"GCC: (", b"GCC; ("))
    packager.load(path).close()
    with pytest.raises(BundleError, match="the file is damaged"):
        packager.load(path, verify=True)
    packager.load(good, verify=True).close()


@pytest.mark.parametrize(
    ("define", "error", "message"),
    [
        ("ABI=2", BundleError, "ABI version 2; this packager reads 1"),
        ("ARENA=65", BundleError, "does not describe the code"),
    ],
)
def test_code_that_is_not_what_the_manifest_says(
    define: str, error: type[Exception], message: str, tmp_path: Path
) -> None:
    path = build_bundle(tmp_path / "wrong.so", defines=(define,))
    with pytest.raises(error, match=message):
        packager.load(path)
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_machine_refusal_and_static_archive(archive: Path, tmp_path: Path) -> None:
    with packager.load(build_bundle(tmp_path / "refuse.so", defines=("REFUSE",))) as bundle:
        with pytest.raises(RunError, match="lacks avx1024") as caught:
            bundle(X)
        assert caught.value.name == "PACKAGER_ERROR_MACHINE"
        assert "packager verify" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="static archive"):
        packager.load(archive)


def test_dynamic_linker_refusal(tmp_path: Path) -> None:
    absent = ("-Wl,--auxiliary,x", "-Wl,--no-as-needed", f"-L{tmp_path}", "-lpackager_absent")
    (tmp_path / "empty.c").write_text("int packager_absent = 1;")
    library = tmp_path / "libpackager_absent.so"
    subprocess.run(["gcc", "-shared", "-fPIC", tmp_path / "empty.c", "-o", library], check=True)
    path = build_bundle(tmp_path / "needs.so", link=absent)
    library.unlink()
    with pytest.raises(BundleError, match=r"dynamic linker refuses.*libpackager_absent\.so"):
        packager.load(path)


def test_random_inputs_and_bench(good: Path, bundle: Bundle) -> None:
    first, again, other = (random_inputs(bundle.manifest, seed)["x"] for seed in (1, 1, 2))
    assert first.shape == (4, 2)
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    result = bench(good, runs=20, warmup=2, threads=2)
    assert 0 < result.min_ms <= result.p5_ms <= result.median_ms <= result.p95_ms
    assert (result.runs, result.threads, result.dims, result.calls, result.flops) == (20, 2, {"n": 4}, 1, 8)
    assert result.file_bytes == good.stat().st_size
    assert result.to_json()["schema_version"] == 1
    with pytest.raises(UsageError, match="runs must be"):
        bench(good, runs=0)


@pytest.mark.parametrize("name", ["float16", "bool", "int8", "int64", "uint64", "bfloat16"])
def test_views_of_other_dtypes(name: str) -> None:
    array = tensors.empty("x", name, (3, 0, 2))
    view = tensors.borrow(array, "x", name, writable=True).tensor
    assert dtype_name(view.dtype) == name
    assert [view.shape[axis] for axis in range(view.ndim)] == [3, 0, 2]
    assert tensors.borrow(tensors.empty("x", name, ()), "x", name, writable=True).tensor.ndim == 0
    with pytest.raises(RunError, match="expected float64"):
        tensors.borrow(array, "x", "float64", writable=False)


def test_bfloat16_without_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(RunError, match="bfloat16, which numpy lacks") as caught:
        tensors.empty("y", "bfloat16", (1,))
    assert "ml_dtypes" in (caught.value.hint or "")
    tensors._numpy_dtype.cache_clear()
    for dtype in (np.float64, np.uint16):
        with pytest.raises(RunError, match="expected bfloat16"):
            tensors.borrow(np.zeros(2, dtype), "x", "bfloat16", writable=False)
    tensors._numpy_dtype.cache_clear()
    torch = pytest.importorskip("torch")
    view = tensors.borrow(torch.zeros(2, dtype=torch.bfloat16), "x", "bfloat16", writable=True)
    assert dtype_name(view.tensor.dtype) == "bfloat16"
