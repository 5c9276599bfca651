"""A CUDA bundle on a real GPU, with the tensors and streams of torch, CuPy and JAX.

Needs neither TVM nor a compiler: PACKAGER_GPU_BUNDLES names a folder with ``mlp.so``, a bundle that was built
elsewhere, and ``mlp.npz``, its inputs and the outputs expected, by name.
"""

from __future__ import annotations

import importlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import packager
from packager.deploy.load.loader import Bundle, Session
from packager.deploy.measure.bench import bench
from packager.deploy.measure.cuda_memory import Device
from packager.errors import RunError

pytestmark = pytest.mark.gpu

Arrays = dict[str, NDArray[Any]]
FOLDER = os.environ.get("PACKAGER_GPU_BUNDLES")
RTOL, ATOL = 1e-4, 1e-5
SLEEP_CYCLES = 200_000_000  # about a tenth of a second


@pytest.fixture(scope="module", autouse=True)
def gpu(request: pytest.FixtureRequest) -> None:
    if not FOLDER:
        pytest.skip("PACKAGER_GPU_BUNDLES is not set")
    request.getfixturevalue("real_gpu")


@pytest.fixture(scope="module")
def path() -> Path:
    return Path(str(FOLDER)) / "mlp.so"


@pytest.fixture(scope="module")
def bundle(path: Path) -> Iterator[Bundle]:
    with packager.load(path) as loaded:
        yield loaded


@pytest.fixture
def session(bundle: Bundle) -> Iterator[Session]:
    with bundle.session() as made:
        yield made


def arrays(bundle: Bundle, kind: str, names: list[str]) -> Arrays:
    """Return the arrays of the model's .npz, under their names or as benchmarks/gpu/models.py writes them."""
    with np.load(bundle.path.with_suffix(".npz")) as content:
        return {name: content[f"{kind}:{name}" if f"{kind}:{name}" in content else name] for name in names}


@pytest.fixture(scope="module")
def inputs(bundle: Bundle) -> Arrays:
    return arrays(bundle, "input", [info.name for info in bundle.inputs])


@pytest.fixture(scope="module")
def expected(bundle: Bundle) -> Arrays:
    return arrays(bundle, "output", [info.name for info in bundle.outputs])


@pytest.fixture(scope="module")
def torch() -> Any:
    module = pytest.importorskip("torch")
    if not module.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    return module


@pytest.fixture(scope="module")
def cupy() -> Any:
    return pytest.importorskip("cupy")


@pytest.fixture(scope="module")
def jax() -> Any:
    pytest.importorskip("jax")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    module = importlib.import_module("jax")
    if module.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    return module


def check(actual: dict[str, Any], expected: Arrays) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(np.asarray(actual[name]), value, RTOL, ATOL, err_msg=name)


def to_torch(torch: Any, arrays: Arrays, device: str = "cuda") -> dict[str, Any]:
    return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}


def blank(torch: Any, arrays: Arrays) -> dict[str, Any]:
    return {name: torch.full_like(torch.from_numpy(array), 77, device="cuda") for name, array in arrays.items()}


def from_torch(tensors: dict[str, Any]) -> Arrays:
    return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}


def test_host_arrays(session: Session, inputs: Arrays, expected: Arrays) -> None:
    for _ in range(3):
        check(session.run(inputs), expected)


def test_device_memory_of_no_library(session: Session, inputs: Arrays, expected: Arrays) -> None:
    with Device(0) as device:
        given = {name: device.upload(array, array.dtype.name) for name, array in inputs.items()}
        results = {name: device.empty(array.shape, array.dtype.name) for name, array in expected.items()}
        assert session.run(given, outputs=results) == results
        check({name: device.download(array) for name, array in results.items()}, expected)
        check(session.run(given), expected)  # to host memory
        session.run(inputs, outputs=results, stream=device.stream)
        check({name: device.download(array) for name, array in results.items()}, expected)


@pytest.mark.parametrize("graph", ["off", "on", "auto"])
def test_graphs_give_the_same_bits(bundle: Bundle, inputs: Arrays, expected: Arrays, graph: str) -> None:
    """With memory that moves between runs."""
    reference = None
    with bundle.session(graph=graph) as session, bundle.session(graph="off") as plain, Device(0) as device:
        for _ in range(5):
            given = {name: device.upload(array, array.dtype.name) for name, array in inputs.items()}
            results = {name: device.empty(array.shape, array.dtype.name) for name, array in expected.items()}
            reference = plain.run(given)
            for _ in range(2):
                session.run(given, outputs=results)
                for name, array in results.items():
                    np.testing.assert_array_equal(device.download(array), reference[name])
    assert reference is not None
    check(reference, expected)


def test_torch_in_place(session: Session, torch: Any, inputs: Arrays, expected: Arrays) -> None:
    given, results = to_torch(torch, inputs), blank(torch, expected)
    before = torch.cuda.current_device()
    returned = session.run(given, outputs=results)
    assert all(returned[name] is tensor for name, tensor in results.items())
    check(from_torch(results), expected)
    results = blank(torch, expected)
    session.run(inputs, outputs=results)  # from host memory
    check(from_torch(results), expected)
    check(session.run(given), expected)  # to host memory
    assert torch.cuda.current_device() == before
    assert torch.ones(3, device="cuda").sum().item() == 3


def test_torch_work_that_is_pending_comes_first(bundle: Bundle, torch: Any, inputs: Arrays, expected: Arrays) -> None:
    """The run waits for what torch's current stream still has to do to its inputs, on each kind of stream."""
    side = torch.cuda.Stream()
    for stream in (None, side, torch.cuda.default_stream(), side.cuda_stream, 0):
        with bundle.session() as session:
            truth, given = to_torch(torch, inputs), {k: torch.zeros_like(v) for k, v in to_torch(torch, inputs).items()}
            results = blank(torch, expected)
            session.run(truth, outputs=results)  # loads kernels, which would wait for the GPU
            torch.cuda.synchronize()
            torch.cuda._sleep(SLEEP_CYCLES)
            for name, tensor in given.items():
                tensor.copy_(truth[name])
            session.run(given, outputs=results, stream=stream)
            if stream is not None:
                torch.cuda.synchronize()
            check(from_torch(results), expected)


def test_a_run_on_a_stream_is_asynchronous(session: Session, torch: Any, inputs: Arrays, expected: Arrays) -> None:
    given, results = to_torch(torch, inputs), blank(torch, expected)
    pinned = {name: torch.from_numpy(array).clone().fill_(77).pin_memory() for name, array in expected.items()}
    stream = torch.cuda.Stream()
    done = torch.cuda.Event()
    for outputs in (results, pinned):
        with torch.cuda.stream(stream):
            session.run(given, outputs=outputs, stream=stream)
            torch.cuda.synchronize()
            torch.cuda._sleep(SLEEP_CYCLES)
            session.run(given, outputs=outputs, stream=stream)
            done.record()
            assert not done.query()
            done.synchronize()
        check(from_torch(outputs), expected)
    with torch.cuda.stream(stream):  # new numpy arrays are pageable memory: the run waits
        torch.cuda._sleep(SLEEP_CYCLES)
        host = session.run(given, stream=stream)
        assert stream.query()
        check(host, expected)


def test_runs_of_one_session_follow_each_other(session: Session, torch: Any, inputs: Arrays, expected: Arrays) -> None:
    """They share an arena, so that runs on different streams must not overlap."""
    given = to_torch(torch, inputs)
    streams = [torch.cuda.Stream() for _ in range(4)]
    results = [blank(torch, expected) for _ in range(32)]
    torch.cuda.synchronize()
    for index, outputs in enumerate(results):
        session.run(given, outputs=outputs, stream=streams[index % len(streams)])
    torch.cuda.synchronize()
    for outputs in results:
        check(from_torch(outputs), expected)


def test_torch_captures_a_run(session: Session, torch: Any, inputs: Arrays, expected: Arrays) -> None:
    given, results = to_torch(torch, inputs), blank(torch, expected)
    session.run(given, outputs=results)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        session.run(given, outputs=results, stream=torch.cuda.current_stream())
    for _ in range(3):
        for tensor in results.values():
            tensor.fill_(77)
        graph.replay()
        torch.cuda.synchronize()
        check(from_torch(results), expected)


def test_threads_with_a_session_and_a_stream_each(bundle: Bundle, torch: Any, inputs: Arrays, expected: Arrays) -> None:
    problems: list[BaseException] = []

    def work() -> None:
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream), bundle.session() as session:
                for _ in range(50):
                    given, results = to_torch(torch, inputs), blank(torch, expected)
                    session.run(given, outputs=results, stream=stream)
                    check(from_torch(results), expected)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems[0]


def test_two_bundles_and_torch(bundle: Bundle, torch: Any, inputs: Arrays, expected: Arrays, tmp_path: Path) -> None:
    second = shutil.copy(bundle.path, tmp_path / "second.so")
    for weights in bundle.path.parent.glob("mlp*.safetensors"):
        shutil.copy(weights, tmp_path)
    given = to_torch(torch, inputs)
    for _ in range(3):
        with packager.load(second) as other, other.session() as theirs, bundle.session() as ours:
            check(theirs.run(given), expected)
            check(ours.run(given), expected)
        assert (torch.ones(1000, device="cuda") * 2).sum().item() == 2000


def test_an_arena_of_torch(bundle: Bundle, torch: Any, inputs: Arrays, expected: Arrays) -> None:
    size = bundle.manifest.arena_bytes
    if not size:
        pytest.skip("the bundle needs no arena")
    arena = torch.empty(size, dtype=torch.uint8, device="cuda")
    with bundle.session(arena=arena) as session:
        for _ in range(3):
            check(session.run(inputs), expected)
    with pytest.raises(RunError, match="arena"):
        bundle.session(arena=arena[: size // 2])
    assert int(arena.sum()) >= 0  # still torch's


def test_torch_tensors_that_are_refused(session: Session, torch: Any, inputs: Arrays, expected: Arrays) -> None:
    name = next(iter(inputs))
    given = to_torch(torch, inputs)
    wide = torch.stack([given[name], given[name]], -1)
    for tensor, status in (
        (wide[..., 0], "LAYOUT"),
        (given[name].double(), "DTYPE"),
        (given[name][..., :-1].contiguous(), "SHAPE"),
    ):
        with pytest.raises(RunError) as caught:
            session.run(given | {name: tensor})
        assert caught.value.name == f"PACKAGER_ERROR_{status}"
    check(session.run(given), expected)


def test_cupy(session: Session, cupy: Any, inputs: Arrays, expected: Arrays) -> None:
    given = {name: cupy.asarray(array) for name, array in inputs.items()}
    results = {name: cupy.full(array.shape, 77, array.dtype) for name, array in expected.items()}
    session.run(given, outputs=results)
    check({name: cupy.asnumpy(array) for name, array in results.items()}, expected)
    for stream in (cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream.null):
        with stream:
            given = {name: cupy.asarray(array) * 1 for name, array in inputs.items()}
            results = {name: cupy.full(array.shape, 77, array.dtype) for name, array in expected.items()}
            session.run(given, outputs=results, stream=stream)
            stream.synchronize()
            check({name: cupy.asnumpy(array) for name, array in results.items()}, expected)


def test_jax(session: Session, jax: Any, inputs: Arrays, expected: Arrays) -> None:
    twice: Callable[[Any], Any] = jax.jit(lambda value: value * 2)
    for _ in range(3):
        given = {
            name: jax.device_put(array) if array.dtype.kind != "f" else twice(jax.device_put(array / 2))
            for name, array in inputs.items()
        }
        check(session.run(given), expected)


def test_profile(bundle: Bundle, session: Session, inputs: Arrays) -> None:
    session.run(inputs)
    steps = session.profile(inputs)
    symbols = {primitive.symbol for _, primitive in bundle.manifest.primitives()}
    assert steps
    assert {step.symbol for step in steps} <= symbols | {"copy"}
    assert all(step.duration_ns >= 0 for step in steps)
    assert [step.start_ns for step in steps] == sorted(step.start_ns for step in steps)


@pytest.mark.parametrize("graph", ["on", "off"])
def test_bench(path: Path, graph: str) -> None:
    result = bench(path, runs=20, graph=graph, profile=True)
    assert 0 < result.min_ms <= result.median_ms <= result.p95_ms
    assert result.cuda
    assert result.cuda.graph == graph
    assert 0 < result.cuda.enqueue_us_median / 1e3 < result.cuda.latency_ms_median
    profile = result.profile
    assert profile
    assert sum(item.share for item in profile.primitives) == pytest.approx(1)
    assert len(profile.trace_events("mlp", "GPU")["traceEvents"]) == 2 + len(profile.trace)
