"""Cases of test_cuda_loader.py, each run in a process of its own: ``loader_cases.py CASE BUNDLE``.

The process finds the recording stand-in for libcuda.so.1: nothing is computed, but copies are made, and the log says
what the driver was asked for.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import packager
from packager.cli.main import app
from packager.deploy.measure.bench import bench
from packager.deploy.measure.cuda_memory import Device
from packager.errors import PackagerError, RunError, UsageError

X = np.arange(32, dtype=np.float32).reshape(8, 4)
recorder = ctypes.CDLL("libcuda.so.1")
recorder.recorder_take.restype = recorder.recorder_live.restype = ctypes.c_char_p


def taken() -> list[str]:
    """Return the log since the last call."""
    return recorder.recorder_take().decode().splitlines()


def launches(log: list[str]) -> list[str]:
    """Return what was done in streams, without what was waited for and recorded."""
    return [line for line in log if " in " in line and not line.startswith(("record", "wait", "context"))]


@contextmanager
def refused(name: str, *texts: str) -> Iterator[None]:
    with pytest.raises(RunError) as caught:
        yield
    error = caught.value
    assert error.name == f"PACKAGER_ERROR_{name}", error.message
    for text in texts:
        assert text in f"{error.message} {error.hint}"


def host_arrays(path: Path) -> None:
    with packager.load(path) as bundle:
        assert bundle.on_cuda
        assert not taken(), "loading touches no driver"
        for _ in range(3):
            result = bundle.run([X])
            np.testing.assert_array_equal(result["echo"], X)
        names = [constant.name for constant in bundle.constants]
        assert names == ["w", "b"]


def device_arrays(path: Path) -> None:
    with Device(0) as device, packager.load(path) as bundle, bundle.session(graph="off") as session:
        x = device.upload(X, "float32")
        outputs = [device.empty(X.shape, "float32") for _ in range(2)]
        session.run([x], outputs=outputs)
        np.testing.assert_array_equal(device.download(outputs[1]), X)
        taken()
        session.run([x], outputs=outputs)
        own = launches(taken())
        session.run([x], outputs=outputs, stream=device.stream)
        given = launches(taken())
        assert len(own) == len(given) == 3, (own, given)  # no staging
        assert {line.rpartition(" in ")[2] for line in own} != {line.rpartition(" in ")[2] for line in given}
        assert [line.rpartition(" in ")[0] for line in own] == [line.rpartition(" in ")[0] for line in given]
        session.run([x], outputs=outputs, stream=0)
        assert {line.rpartition(" in ")[2] for line in launches(taken())} == {"default1"}
        with refused("OVERLAP"):
            session.run([x], outputs=[x, outputs[1]])
    with Device(1) as other, packager.load(path, device=1) as bundle:
        np.testing.assert_array_equal(bundle.run([other.upload(X, "float32")])["echo"], X)
        with refused("DEVICE", "is on CUDA device 1, the session on 0"), bundle.session(device=0) as session:
            session.run([other.upload(X, "float32")])


def graphs(path: Path) -> None:
    with packager.load(path) as bundle:
        for mode, replays in (("off", 0), ("on", 3), ("auto", 2)):
            with bundle.session(graph=mode) as session:
                taken()
                for _ in range(3):
                    np.testing.assert_array_equal(session.run([X])["echo"], X)
                log = taken()
                assert len([line for line in log if line.startswith("launch x")]) == replays, (mode, log)


def profile(path: Path) -> None:
    with packager.load(path) as bundle, bundle.session() as session:
        steps = session.profile([X])
        assert [step.symbol for step in steps] == ["scale", "add", "keep"]
        assert all(step.duration_ns > 0 for step in steps)
        assert [step.start_ns for step in steps] == sorted(step.start_ns for step in steps)


def arena(path: Path) -> None:
    with Device(0) as device, packager.load(path) as bundle:
        size = bundle.manifest.arena_bytes
        memory = device.empty((size,), "uint8")
        taken()
        with bundle.session(arena=memory, graph="off") as session:
            np.testing.assert_array_equal(session.run([X])["echo"], X)
        with refused("ARGUMENT", "device_arena"):
            bundle.session(arena=device.empty((size // 2,), "uint8"))


def constants(path: Path) -> None:
    w = np.full(4, 3, np.float32)
    with Device(0) as device, packager.load(path) as bundle, bundle.session() as session:
        session.set_constants({"w": w})
        session.run([X])
        session.set_constants({"w": None})
        with refused("DEVICE", "not in host memory"):
            session.set_constants({"w": device.upload(w, "float32")})


def faults(path: Path) -> None:
    recorder.recorder_fault(b"add")
    with packager.load(path) as bundle:
        session = bundle.session(launch_blocking=True)
        for _ in range(2):
            with refused("GPU", "started again"):
                session.run([X])
        session.close()


def blocking_names_the_function(path: Path) -> None:
    recorder.recorder_fault(b"add")
    with packager.load(path) as bundle, bundle.session(launch_blocking=True) as session, refused("GPU", "add"):
        session.run([X])


def creation(path: Path) -> None:
    """Whatever the driver refuses, nothing is left, and the next session works."""
    with packager.load(path) as bundle:
        with refused("DRIVER", "device"):
            bundle.session(device=7)
        for function in (b"cuMemAllocAsync:1:2", b"cuModuleLoadData:1:209"):
            recorder.recorder_fail(function)
            with refused("MEMORY" if b"Alloc" in function else "MACHINE"):
                bundle.session()
            recorder.recorder_fail(b"")
        np.testing.assert_array_equal(bundle.run([X])["echo"], X)


def measuring(path: Path) -> None:
    for graph in ("on", "off"):
        result = bench(path, runs=4, warmup=2, graph=graph, profile=True)
        assert result.cuda
        assert (result.cuda.device, result.cuda.graph, result.dims) == (0, graph, {"n": 4096})
        assert result.median_ms == 1  # the stand-in's events are a millisecond apart
        found = result.profile
        assert found
        assert {item.symbol for item in found.primitives} == {"scale", "add", "keep"}
        assert sum(item.share for item in found.primitives) > 0.999
        assert len(found.trace) == 3
        assert not live(), live()
    with refused("DRIVER", "no CUDA device 5"):
        bench(path, runs=1, device=5)
    recorder.recorder_fail(b"cuMemAlloc:1:2")
    with refused("MEMORY", "bytes of device memory"):
        bench(path, runs=1)


def commands(path: Path) -> None:
    profile, trace = path.with_name("profile.json"), path.with_name("trace.json")
    options = ["--runs", "2", "--device", "1", "--profile-json", str(profile), "--trace", str(trace)]
    result = CliRunner().invoke(app, ["bench", str(path), *options])
    assert result.exit_code == 0, result.output
    for text in ("Recorder 1", "enqueue, median, p95", "Primitives by time (3 of 3)"):
        assert text in result.stdout, result.stdout
    assert json.loads(profile.read_text())["schema_version"] == 1
    assert len(json.loads(trace.read_text())["traceEvents"]) == 5
    taken()
    result = CliRunner().invoke(app, ["run", str(path), "--random", "1", "--device", "1", "--json"])
    assert [output["name"] for output in json.loads(result.stdout)["outputs"]] == ["y", "echo"]
    assert any("of device 1" in line for line in taken())
    result = CliRunner().invoke(app, ["bench", str(path), "--trace", str(path.parent / "absent" / "trace.json")])
    assert isinstance(result.exception, UsageError)
    assert "trace.json" in result.exception.message


def old_driver(path: Path) -> None:
    with packager.load(path) as bundle, refused("DRIVER", "12.4", "13.0"):
        bundle.session()


def no_device(path: Path) -> None:
    with packager.load(path) as bundle, refused("DRIVER"):
        bundle.session()
    with refused("DRIVER"):
        bench(path)


def live() -> str:
    return recorder.recorder_live().decode()


if __name__ == "__main__":
    case, bundle = sys.argv[1:]
    function: Any = globals()[case]
    try:
        function(Path(bundle))
    except PackagerError as failure:
        print(failure.render(), *taken(), sep="\n", file=sys.stderr)
        raise
    assert case in ("faults", "blocking_names_the_function") or not live(), live()
    assert recorder.recorder_depth() == 0
