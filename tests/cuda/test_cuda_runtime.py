"""The CUDA runtime against the recording stand-in for libcuda.so.1: what it asks of the driver, not what that computes.

The programs are in c/, the stand-in is in recorder/.
"""

from __future__ import annotations

import functools
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from runtime_builder import BUNDLE, FLAVOURS, PLAIN, Builder, Flavor, execute

HERE = Path(__file__).parent
SESSIONS = ["life", "options", "logging", "constants", "values"]
RUNS = ["streams", "host_tensors", "sizes", "tensors", "captured", "profile"]
GRAPHS = ["automatic", "pointers", "shapes", "refused"]
SEGMENTS = ["automatic", "pointers", "graphs_of_a_session", "refused", "captured", "profile"]
LAUNCHES = ["overlapping", "graphs", "filled", "filled_graphs", "refused", "failing"]
OPAQUE = ["prepared", "launched", "graphs", "captured", "profile", "failing", "faults"]
STATES = ["life", "values", "runs", "graphs", "profile", "entries"]
MACHINE, MEMORY, WEIGHTS, KERNEL, DRIVER = "-11", "-10", "-12", "-14", "-16"
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY (out of memory)"
INVALID = "CUDA_ERROR_INVALID_VALUE (invalid argument)"
FREE = "; 1073741744 of the device's 1073741824 bytes are free"


class CudaBuilder(Builder):
    """A builder of CUDA bundles and of the stand-in that they run against."""

    def __init__(self, flavor: Flavor, folder: Path) -> None:
        super().__init__(flavor, folder, device="cuda", sources=HERE / "c")
        self.driver = self.make_driver("driver")

    def make_driver(self, name: str, *defines: str) -> Path:
        """Compile the stand-in with these macros into a folder of its own."""
        driver = self.folder / name
        driver.mkdir()
        recorder = HERE / "recorder" / "libcuda.c"
        target = driver / "libcuda.so.1"
        self.compile("-D_GNU_SOURCE", *defines, *BUNDLE, "-shared", recorder, "-o", target, "-lpthread")
        return driver

    def record(self, program: str, case: str, *arguments: str | Path, **environment: str) -> None:
        environment.setdefault("LD_LIBRARY_PATH", str(self.driver))
        self.run(program, case, *arguments, environment=environment)

    def refuse(self, status: str, message: str, *defines: str, **environment: str) -> None:
        """Expect that no session of a bundle with these macros can be created."""
        bundle = self.bundle("refused" + re.sub(r"\W", "", "".join(defines)), *defines)
        self.record("failures", "refused", bundle, status, message, **environment)

    @property
    def dynamic(self) -> Path:
        return self.bundle("dynamic")

    @property
    def static(self) -> Path:
        return self.bundle("static", "-DMODEL_STATIC")

    @property
    def segments(self) -> Path:
        return self.bundle("segments", "-DMODEL_SEGMENTS", f"-I{HERE / 'c'}")

    @property
    def states(self) -> Path:
        return self.bundle("states", "-DMODEL_STATIC", "-DMODEL_STATES")

    @property
    def flagged(self) -> Path:
        return self.bundle("flagged", "-DFLAGS=PK_CUDA_PROGRAMMATIC")

    @property
    def filled(self) -> Path:
        return self.bundle("filled", "-DMODEL_FILLED", "-DFLAGS=PK_CUDA_PROGRAMMATIC", f"-I{HERE / 'c'}")

    @property
    def opaque(self) -> Path:
        return self.bundle("opaque", "-DMODEL_OPAQUE", "-DFLAGS=PK_CUDA_PROGRAMMATIC", f"-I{HERE / 'c'}")


@pytest.fixture(scope="module")
def builders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Flavor], CudaBuilder]:
    """The one builder of each flavor."""

    @functools.cache
    def make(flavor: Flavor) -> CudaBuilder:
        flavor.require()
        return CudaBuilder(flavor, tmp_path_factory.mktemp(f"cuda-{flavor.name}"))

    return make


@pytest.fixture(scope="module", params=FLAVOURS, ids=lambda flavor: flavor.name)
def builder(request: pytest.FixtureRequest, builders: Callable[[Flavor], CudaBuilder]) -> CudaBuilder:
    return builders(request.param)


@pytest.fixture(scope="module")
def plain(builders: Callable[[Flavor], CudaBuilder]) -> CudaBuilder:
    """A builder for what is checked natively and without sanitizers only."""
    return builders(PLAIN)


@pytest.mark.slow
@pytest.mark.parametrize("case", SESSIONS)
def test_sessions(builder: CudaBuilder, case: str) -> None:
    builder.record("sessions", case, builder.dynamic)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", RUNS)
def test_runs(builder: CudaBuilder, case: str) -> None:
    builder.record("runs", case, builder.dynamic)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", GRAPHS)
def test_graphs(builder: CudaBuilder, case: str) -> None:
    builder.record("graphs", case, builder.dynamic, builder.static)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", SEGMENTS)
def test_segments(builder: CudaBuilder, case: str) -> None:
    builder.record("segments", case, builder.segments)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", STATES)
def test_states(builder: CudaBuilder, case: str) -> None:
    builder.record("states", case, builder.states)


@pytest.mark.parametrize(
    ("faults", "status", "message"),
    [
        (
            "cuMemAlloc:2:2",
            MEMORY,
            f"could not allocate 128 bytes of device memory for the states: {OUT_OF_MEMORY}{FREE}",
        ),
        ("cuMemsetD8Async:1:1", DRIVER, f"the states cannot be reset: {INVALID}"),
        ("cuMemcpyDtoDAsync:1:1", DRIVER, f"the states cannot be reset: {INVALID}"),
    ],
)
def test_states_that_cannot_be_made(builder: CudaBuilder, faults: str, status: str, message: str) -> None:
    builder.record("failures", "refused", builder.states, status, message, RECORDER_FAIL=faults)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", LAUNCHES)
def test_launches(builder: CudaBuilder, case: str) -> None:
    builder.record("launches", case, builder.flagged, builder.filled)


def test_counters_of_kernels(builder: CudaBuilder) -> None:
    bundle = builder.bundle("counted", "-DMODEL_COUNTED", "-DFLAGS=PK_CUDA_PROGRAMMATIC")
    builder.record("launches", "counted", bundle)
    builder.record("launches", "uncounted", bundle, RECORDER_FAIL="cuMemsetD8Async:1:1")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", OPAQUE)
def test_work_of_libraries(builder: CudaBuilder, case: str) -> None:
    builder.record("opaque", case, builder.opaque)


def test_a_library_that_cannot_choose(builder: CudaBuilder) -> None:
    bundle = builder.bundle("unprepared", "-DMODEL_OPAQUE", "-DLIBRARY_FAILS=4096", f"-I{HERE / 'c'}")
    builder.record("opaque", "unprepared", bundle)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{"RECORDER_ARCH": "89"}, {"RECORDER_PTX": "80"}, {"RECORDER_ARCH": "120"}], ids=str
)
def test_overlap_where_gpu_and_code_can(plain: CudaBuilder, settings: dict[str, str]) -> None:
    plain.record("launches", "overlapping", plain.flagged, plain.filled, **settings)


def test_arguments_that_are_too_large(plain: CudaBuilder) -> None:
    bundle = plain.bundle("large", "-DMODEL_FILLED", "-DARGUMENTS=((uint64_t)1<<60)", f"-I{HERE / 'c'}")
    plain.record("launches", "no_memory", bundle)


def test_an_old_driver(builder: CudaBuilder) -> None:
    driver = builder.make_driver("old", "-DRECORDER_OLD")
    builder.record("launches", "old", builder.flagged, builder.filled, LD_LIBRARY_PATH=str(driver))


def test_modules_for_one_architecture(builder: CudaBuilder) -> None:
    builder.record("launches", "elsewhere", builder.bundle("elsewhere", "-DSECOND_ARCH=80"))
    builder.record("graphs", "automatic", builder.bundle("gated", "-DFIRST_ARCH=90", "-DSECOND_ARCH=90"))


def test_no_module_for_the_gpu(plain: CudaBuilder) -> None:
    message = "Recorder 0 is of sm_90, which the bundle has no code for: it has sm_80, sm_90a, compute_80"
    plain.refuse(MACHINE, message, "-DFIRST_ARCH=80", "-DSECOND_ARCH=100")


def test_threads(builder: CudaBuilder) -> None:
    builder.record("parallel", "threads", builder.dynamic)
    builder.record("parallel", "threads", builder.filled)
    builder.record("parallel", "threads", builder.opaque)


def test_1000_loads_and_unloads(builder: CudaBuilder) -> None:
    builder.record("sessions", "cycles", builder.dynamic, "1000" if builder.flavor.plain else "60")
    builder.record("sessions", "cycles", builder.filled, "60")
    builder.record("sessions", "cycles", builder.opaque, "60")


def test_without_memory_pools(builder: CudaBuilder) -> None:
    builder.record("sessions", "cycles", builder.dynamic, "60", RECORDER_POOLS="0")


@pytest.mark.parametrize("case", ["creation", "running"])
def test_every_call_that_can_fail(builder: CudaBuilder, case: str) -> None:
    builder.record("failures", case, builder.dynamic)


def test_every_call_of_segments_that_can_fail(builder: CudaBuilder) -> None:
    builder.record("segments", "faults", builder.segments)


@pytest.mark.parametrize("blocking", ["0", "1"])
def test_faults(builder: CudaBuilder, blocking: str) -> None:
    builder.record("failures", "fault", builder.dynamic, blocking)


def test_without_a_driver(builder: CudaBuilder, tmp_path: Path) -> None:
    message = "libcuda.so.1 cannot be opened: "
    builder.record("failures", "no_driver", builder.dynamic, message, LD_LIBRARY_PATH=str(tmp_path))


def test_a_driver_without_a_function(builder: CudaBuilder, tmp_path: Path) -> None:
    source = tmp_path / "empty.c"
    source.write_text("int cuInit(unsigned flags) { return (int)flags; }")
    builder.compile("-shared", "-fPIC", source, "-o", tmp_path / "libcuda.so.1")
    message = "libcuda.so.1 has no cuDriverGetVersion: the driver is older than that of CUDA 12.0"
    builder.record("failures", "no_driver", builder.dynamic, message, LD_LIBRARY_PATH=str(tmp_path))


def test_no_device(plain: CudaBuilder) -> None:
    message = "CUDA cannot be initialized: CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)"
    plain.refuse(DRIVER, message, RECORDER_DEVICES="0")


def test_a_driver_that_is_too_old(plain: CudaBuilder) -> None:
    message = "the driver is too old: it is of CUDA 12.4, the bundle's code needs that of CUDA 13.1 or newer"
    plain.refuse(DRIVER, message, "-DDRIVER=13010", RECORDER_VERSION="12040")


def test_no_code_for_the_gpu(plain: CudaBuilder) -> None:
    message = "Recorder 0 is of sm_90, which the bundle has no code for: it has sm_80, sm_90a, compute_80"
    plain.refuse(MACHINE, message, RECORDER_FAIL="cuModuleLoadData:2:209")


def test_ptx_that_is_too_new(plain: CudaBuilder) -> None:
    message = (
        "Recorder 0 (sm_90) needs the bundle's PTX (it has sm_80, sm_90a, compute_80), which the driver of CUDA 13.0 "
        "cannot compile: CUDA_ERROR_UNSUPPORTED_PTX_VERSION "
        "(the provided PTX was compiled with an unsupported toolchain.)"
    )
    plain.refuse(DRIVER, message, RECORDER_FAIL="cuModuleLoadData:1:222")


def test_a_module_that_is_broken(plain: CudaBuilder) -> None:
    message = "module 2 of 2 cannot be loaded on Recorder 0 (sm_90): CUDA error 200"
    plain.refuse(KERNEL, message, '-DKERNELS="garbage"')
    message = "kernel add: not found in its module: CUDA_ERROR_NOT_FOUND (named symbol not found)"
    plain.refuse(KERNEL, message, '-DKERNELS="recorded unused:8 sub:32"')


def test_out_of_memory(plain: CudaBuilder) -> None:
    arena = f"could not allocate 65536 bytes of device memory for the arena: {OUT_OF_MEMORY}"
    for pools in ("0", "1"):
        message = f"{arena}; 59920 of the device's 60000 bytes are free"
        plain.refuse(MEMORY, message, RECORDER_MEMORY="60000", RECORDER_POOLS=pools)
    constants = f"could not allocate 80000 bytes of device memory for constants: {OUT_OF_MEMORY}"
    message = f"{constants}; 60000 of the device's 60000 bytes are free"
    plain.refuse(MEMORY, message, "-DCONSTANT_BYTES=80000", RECORDER_MEMORY="60000")


def test_a_launch_that_is_not_possible(plain: CudaBuilder) -> None:
    bundle = plain.bundle("launch", "-DADD_BLOCK=2048")
    plain.record("failures", "launch", bundle)


def test_external_weights(builder: CudaBuilder, tmp_path: Path) -> None:
    """They are copied to the device, and their file is open no longer than that takes."""
    header = (8).to_bytes(8, "little") + b"{}      "
    (builder.folder / "weights_header.inc").write_text(",".join(map(str, header)))
    bundle = builder.bundle("external", '-DWEIGHTS_FILE="w.safetensors"')
    copy = Path(shutil.copy(bundle, tmp_path / "external.so"))
    path = tmp_path / "w.safetensors"
    message = f"external weights '{path}' cannot be opened: No such file or directory"
    builder.record("failures", "refused", copy, WEIGHTS, message)
    path.write_bytes(header + bytes(range(80)))
    builder.record("sessions", "external", copy)


@pytest.mark.slow
def test_symbols(plain: CudaBuilder) -> None:
    """The bundle depends on nothing but libc, of a version that does not have dlopen itself, and not on libcuda."""
    lines = [line.split() for line in execute(["objdump", "-T", plain.dynamic]).splitlines() if "*UND*" in line]
    versions = {fields[-1]: fields[-2].strip("()") for fields in lines}
    assert {versions[name] for name in ("dlopen", "dlsym", "dlerror")} <= {"GLIBC_2.2.5", "GLIBC_2.17"}
    assert not [name for name in versions if name.startswith("cu")]
    numbered = [version[6:] for version in versions.values() if version.startswith("GLIBC_")]
    assert max(tuple(map(int, version.split("."))) for version in numbered) <= (2, 28)
    dynamic = execute(["readelf", "-d", plain.dynamic])
    needed = {line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "(NEEDED)" in line}
    assert needed <= {"libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
    for path in plain.runtime(False):
        assert ".init_array" not in execute(["readelf", "-SW", path])
