"""What Python hands to a bundle of CUDA: options, streams and tensors. No GPU, no driver: bundle.c says what it got."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sealing import build_bundle, golden_image
from typer.testing import CliRunner

import packager
from packager.bundle.manifest import Manifest
from packager.bundle.reader import inspect
from packager.bundle.requirements import CudaRequirements
from packager.cli.main import app
from packager.cli.reports.measure import bench_tables
from packager.deploy.load import tensors
from packager.deploy.load.abi import DLDevice, SessionOptions
from packager.deploy.load.loader import Bundle
from packager.deploy.load.session import Step
from packager.deploy.measure import profile
from packager.deploy.measure.bench import bench
from packager.deploy.measure.bench_cuda import CudaFigures
from packager.deploy.measure.cuda_memory import DeviceArray
from packager.deploy.verify.golden import golden_findings
from packager.errors import RunError, UsageError

X = np.array([[1.0, 2.0], [3.0, -4.0]], np.float32)
OWN_STREAM = 0x5000  # of bundle.c


class Seen(ctypes.Structure):
    """What bundle.c was given last."""

    _fields_ = (
        ("options", SessionOptions),
        ("stream", ctypes.c_void_p),
        ("input", DLDevice),
        ("output", DLDevice),
    )


class OnDevice(DeviceArray):
    """Memory of the host that is passed off as a GPU's; keeps the streams that it was asked for."""

    def __init__(self, array: np.ndarray[Any, Any], device: int = 0) -> None:
        super().__init__(array.ctypes.data, array.shape, array.dtype.name, device)
        self.array = array
        self.streams: list[int | None] = []

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None) -> object:
        self.streams.append(stream)
        return super().__dlpack__(stream=stream, max_version=max_version)


class OnHost:
    """A tensor in host memory whose library, as torch does, takes no stream for it."""

    def __init__(self, array: np.ndarray[Any, Any], device_type: int = 1) -> None:
        self.array = array
        self.device_type = device_type

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None) -> object:
        return self.array.__dlpack__(max_version=max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device_type, 0)


def of_cuda(manifest: Manifest) -> Manifest:
    cuda = CudaRequirements(("sm_90a",), (), "13.0")
    requirements = dataclasses.replace(manifest.requirements, cuda=cuda)
    targets = (*manifest.targets, {"kind": "cuda", "arch": ("sm_90a",), "ptx": ()})
    return dataclasses.replace(manifest, targets=targets, requirements=requirements)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_bundle(tmp_path_factory.mktemp("cuda") / "scale.so", defines=("CUDA",), patch=of_cuda)


@pytest.fixture
def bundle(path: Path) -> Any:
    with packager.load(path) as loaded:
        yield loaded


def seen(bundle: Bundle) -> Seen:
    return Seen.from_address(bundle._library.table.reserved[1])


def test_options(path: Path, bundle: Bundle) -> None:
    assert bundle.on_cuda
    with bundle.session(2):
        options = seen(bundle).options
        assert options.struct_size == ctypes.sizeof(SessionOptions) == 120
        assert (options.device_index, options.max_threads, options.graph, options.launch_blocking) == (0, 2, 0, 0)
        assert (options.device_arena, options.device_arena_bytes) == (None, 0)
        assert (options.num_selected, bool(options.selection)) == (0, False)
    memory = OnDevice(np.zeros((4, 64), np.uint8), device=3)
    with bundle.session(device=3, graph="off", launch_blocking=True, arena=memory):
        options = seen(bundle).options
        assert (options.device_index, options.graph, options.launch_blocking) == (3, 2, 1)
        assert (options.device_arena, options.device_arena_bytes) == (memory.address, 256)
    with packager.load(path, device=1) as other:
        other.run([X])
        assert seen(other).options.device_index == 1
        with other.session(device=0, graph="on"):
            assert (seen(other).options.device_index, seen(other).options.graph) == (0, 1)


def test_options_that_there_are_not(bundle: Bundle, path: Path, good: Path) -> None:
    with pytest.raises(UsageError, match="graph='of': expected auto, on, off"):
        bundle.session(graph="of")
    for call in (lambda: bundle.session(device=-1), lambda: packager.load(path, device=-1)):
        with pytest.raises(UsageError, match="device must not be negative, is -1"):
            call()
    with pytest.raises(UsageError, match=r"device 1: .* has no CUDA code"):
        packager.load(good, device=1)
    with packager.load(good) as on_cpu:
        assert not on_cpu.on_cuda
        with pytest.raises(UsageError, match="graph, launch_blocking: only for CUDA bundles"):
            on_cpu.session(graph="off", launch_blocking=True)
        with pytest.raises(UsageError, match="device, arena: only for CUDA bundles"):
            on_cpu.session(device=1, arena=OnDevice(X))


@pytest.mark.parametrize(
    ("arena", "message", "status"),
    [
        (OnHost(np.zeros(64, np.uint8)), "arena is in host memory", "DEVICE"),
        (np.zeros(64, np.uint8), "arena is in host memory", "DEVICE"),
        (OnDevice(np.zeros(64, np.uint8), device=1), "on CUDA device 1, the session on 0", "DEVICE"),
        (b"memory", "arena is bytes", "ARGUMENT"),
    ],
)
def test_arenas_that_are_refused(bundle: Bundle, arena: Any, message: str, status: str) -> None:
    with pytest.raises(RunError, match=message) as caught:
        bundle.session(arena=arena)
    assert caught.value.name == f"PACKAGER_ERROR_{status}"


def test_arena_with_gaps(bundle: Bundle) -> None:
    arena = OnDevice(np.zeros((8, 8), np.uint8))
    strides = (ctypes.c_int64 * 2)(16, 1)
    arena._managed.tensor.strides = strides
    with pytest.raises(RunError, match="arena is not contiguous"):
        bundle.session(arena=arena)
    strides[:] = (8, 1)
    bundle.session(arena=arena).close()


def test_the_arena_waits_for_its_library_once(bundle: Bundle) -> None:
    """With the stream of the run that uses it first; when the session is made there is nothing to order yet."""
    arena = OnDevice(np.zeros(64, np.uint8))
    with bundle.session(arena=arena) as session:
        for _ in range(2):
            session.run([X], stream=77)
    assert arena.streams == [tensors.NO_SYNC, 77]


class Torch:
    def __init__(self, handle: int) -> None:
        self.cuda_stream = handle


class CuPy:
    def __init__(self, handle: int) -> None:
        self.ptr = handle


class Protocol:
    def __init__(self, handle: int, version: int = 0) -> None:
        self.answer = (version, handle)

    def __cuda_stream__(self) -> tuple[int, int]:
        return self.answer


@pytest.mark.parametrize("kind", [int, Torch, CuPy, Protocol])
@pytest.mark.parametrize(("handle", "given"), [(0, 1), (1, 1), (2, 2), (0x7F00_1234_5678, 0x7F00_1234_5678)])
def test_streams(bundle: Bundle, kind: Any, handle: int, given: int) -> None:
    """The bundle works on it, and the tensors' libraries are told; 0 is the legacy default stream."""
    x, y = OnDevice(X), OnDevice(np.zeros_like(X))
    with bundle.session() as session:
        assert session.run([x], outputs=[y], stream=kind(handle))["y"] is y
    assert seen(bundle).stream == given
    assert (x.streams, y.streams) == ([given], [given])
    np.testing.assert_array_equal(y.array, 2 * X)


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (-1, "stream is -1, which is not a CUDA stream"),
        (1 << 64, "not a CUDA stream"),
        ("stream", "stream is str"),
        (True, "not a CUDA stream"),
        (Torch(None), "stream is NoneType"),  # type: ignore[arg-type]
        (Protocol(5, version=1), "__cuda_stream__ of version 1, expected 0"),
    ],
)
def test_streams_that_are_none(bundle: Bundle, stream: Any, message: str) -> None:
    with pytest.raises(RunError, match=message) as caught:
        bundle.run([X], stream=stream)
    assert caught.value.name == "PACKAGER_ERROR_ARGUMENT"
    np.testing.assert_array_equal(bundle(X)["y"], 2 * X)


def test_the_sessions_own_stream(bundle: Bundle) -> None:
    x, y = OnDevice(X), OnDevice(np.zeros_like(X))
    with bundle.session() as session:
        assert session.stream == OWN_STREAM
        session.run([x], outputs=[y])
        assert seen(bundle).stream is None
        assert (x.streams, y.streams) == ([OWN_STREAM], [OWN_STREAM])
    assert session.stream is None


def test_a_cpu_bundle_has_no_streams(good: Path) -> None:
    with packager.load(good) as on_cpu:
        with on_cpu.session() as session:
            assert session.stream is None
            with pytest.raises(RunError, match="the bundle cannot measure itself"):
                session.profile([X])
        with pytest.raises(RunError, match="stream: only for CUDA bundles"):
            on_cpu.run([X], stream=5)
        with pytest.raises(RunError, match="DLPack device 2, not in host memory") as caught:
            on_cpu.run([OnDevice(X)])
        assert caught.value.name == "PACKAGER_ERROR_DEVICE"


def test_where_tensors_lie(bundle: Bundle) -> None:
    """On the GPU or in host memory, mixed; pinned memory is what its library says it is."""
    for x, y, devices in (
        (OnDevice(X), np.zeros_like(X), (2, 1)),
        (X, OnDevice(np.zeros_like(X)), (1, 2)),
        (OnHost(X), OnHost(np.zeros_like(X)), (1, 1)),
        (OnHost(X, 3), OnHost(np.zeros_like(X), 3), (3, 3)),
    ):
        bundle.run([x], outputs=[y])
        last = seen(bundle)
        assert (last.input.device_type, last.output.device_type) == devices
        np.testing.assert_array_equal(y if isinstance(y, np.ndarray) else y.array, 2 * X)
    result = bundle.run([OnDevice(X)])["y"]
    assert isinstance(result, np.ndarray)
    np.testing.assert_array_equal(result, 2 * X)


def test_tensors_elsewhere(bundle: Bundle) -> None:
    with pytest.raises(RunError, match="'x' is on CUDA device 1, the session on 0") as caught:
        bundle(OnDevice(X, device=1))
    assert caught.value.name == "PACKAGER_ERROR_DEVICE"
    with pytest.raises(RunError, match="DLPack device 8, neither in host memory nor on a CUDA GPU"):
        bundle(OnHost(X, 8))
    with pytest.raises(RunError, match="expected float32"):
        bundle(OnDevice(X.astype(np.float64)))


def test_exporters_of_before_dlpack_1(bundle: Bundle) -> None:
    class Old(OnDevice):
        def __dlpack__(self, stream: int | None = None) -> object:  # type: ignore[override]
            return super().__dlpack__(stream=stream)

    x, y = Old(X), Old(np.zeros_like(X))
    bundle.run([x], outputs=[y], stream=9)
    assert (x.streams, y.streams) == ([9], [9])


def test_tensors_of_a_run_on_a_stream_live_until_the_next(bundle: Bundle) -> None:
    with bundle.session() as session:
        x = OnDevice(X)
        alive = weakref.ref(x)
        session.run([x], stream=5)
        del x
        assert alive() is not None
        with pytest.raises(RunError, match="expected float32"):
            session.run([X.astype(np.float64)], stream=5)
        assert alive() is not None  # a run that was refused is none
        session.run([X], stream=5)
        gc.collect()
        assert alive() is None


def test_profile(bundle: Bundle) -> None:
    y = np.zeros_like(X)
    with bundle.session() as session:
        steps = session.profile([X], outputs=[y])
        assert session.profile({"x": X}) == steps
        with pytest.raises(RunError, match="wrong shape"):
            session.profile([np.zeros((9, 2), np.float32)])
    assert steps == [("pk_scale", 1000, 4000), ("copy", 6000, 1000)]
    assert steps[0].symbol == "pk_scale"
    np.testing.assert_array_equal(y, 2 * X)


def test_bind(bundle: Bundle) -> None:
    x, y = OnDevice(X.copy()), OnDevice(np.zeros_like(X))
    with bundle.session() as session:
        again = session.bind([x], [y], stream=7)
        x.array[...] = 5
        again()
        again()
    assert x.streams == [7]
    assert seen(bundle).stream == 7
    assert (y.array == 10).all()


def test_summary_and_trace(bundle: Bundle) -> None:
    """bundle.c's primitive function reads 96 and writes 32 bytes, with 8 FLOPs."""
    runs = [
        [Step("pk_scale", 0, time), Step("copy", time, 10), Step("pk_scale", time + 10, 30)] for time in (20, 90, 30)
    ]
    found = profile.summarize(bundle.manifest, runs)
    scale, copy = found.primitives
    assert (found.runs, found.total_us) == (3, 0.07)
    assert (scale.symbol, scale.backend, scale.calls, scale.us) == ("pk_scale", "llvm", 2, 0.06)
    assert (scale.bytes, scale.flops, scale.share) == (256, 16, pytest.approx(6 / 7))
    assert scale.gb_per_second == pytest.approx(256 / 60)
    assert scale.gflops_per_second == pytest.approx(16 / 60)
    assert (copy.symbol, copy.backend, copy.us, copy.flops) == ("copy", None, 0.01, None)
    assert found.trace == (("pk_scale", 0.0, 0.03), ("copy", 0.03, 0.01), ("pk_scale", 0.04, 0.03))

    trace = json.loads(json.dumps(found.trace_events("scale", "GPU")))
    assert [event["ph"] for event in trace["traceEvents"]] == ["M", "M", "X", "X", "X"]
    assert {"name": "copy", "cat": "copy", "ts": 0.03, "dur": 0.01}.items() <= trace["traceEvents"][3].items()
    assert found.to_json()["primitives"][0]["ops"] == ("multiply",)


def test_the_report(bundle: Bundle, good: Path) -> None:
    found = profile.summarize(bundle.manifest, [[Step("pk_scale", 0, 20), Step("copy", 20, 10)]])
    figures = CudaFigures(0, "a GPU", "sm_90", "13.0", "auto", 100.0, 1.5, 2.0, 0.01, 0.02)
    result = dataclasses.replace(bench(good, runs=1, warmup=0), cuda=figures, profile=found)
    _, cuda, primitives = bench_tables(result)
    assert cuda.title == "a GPU (sm_90), driver of CUDA 13.0, device 0, graph auto"
    assert cuda.rows[0] == ("enqueue, median, p95", "1.50, 2.00 us")
    assert primitives.title == "Primitives by time (2 of 2), 0.0 us in all"
    assert primitives.rows == (
        ("pk_scale", "llvm", "1", "0.02", "66.7 %", "0.000", "6", "0.000", "0.4"),
        ("copy", "-", "1", "0.01", "33.3 %", "-", "-", "-", "-"),
    )
    assert all(len(row) == len(primitives.columns) for row in primitives.rows)


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def test_a_bundle_that_finds_no_driver(tmp_path: Path) -> None:
    path = build_bundle(tmp_path / "scale.so", defines=("CUDA", "NO_DRIVER"), patch=of_cuda, golden=golden_image())
    result = CliRunner().invoke(app, ["run", str(path), "--random", "1"])
    assert isinstance(result.exception, RunError)
    assert (result.exception.name, result.exception.exit_code) == ("PACKAGER_ERROR_DRIVER", 2)
    (finding,) = golden_findings(inspect(path), timeout=60)
    assert (finding.check, finding.what) == ("run.refused", "libcuda.so.1 cannot be opened")
    assert "packager machine" in finding.hint


@pytest.mark.skipif(has_driver(), reason="this machine has a CUDA driver")
def test_bench_without_a_driver(path: Path) -> None:
    with pytest.raises(RunError, match=r"no CUDA driver: libcuda\.so\.1 cannot be opened") as caught:
        bench(path)
    assert caught.value.name == "PACKAGER_ERROR_DRIVER"
    assert "packager machine" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bench", "--graph", "on"), "graph: only for CUDA bundles"),
        (("bench", "--device", "1"), "has no CUDA code"),
        (("run", "--random", "1", "--device", "1"), "has no CUDA code"),
    ],
)
def test_commands_on_a_cpu_bundle(good: Path, arguments: tuple[str, ...], message: str) -> None:
    command, *options = arguments
    result = CliRunner().invoke(app, [command, str(good), *options])
    assert isinstance(result.exception, UsageError)
    assert message in result.exception.message


def test_run_on_a_device(path: Path) -> None:
    result = CliRunner().invoke(app, ["run", str(path), "--random", "1", "--device", "2", "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["outputs"][0]["shape"] == [4, 2]
