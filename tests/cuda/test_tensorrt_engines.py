"""The code of the tensorrt backend beside the library: stand-ins of four versions, and the real ones, with no GPU."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest
from tensorrt_engines import FORMS, all_functions, compile_program, engine, make_stand_in, plan_bytes, simple
from tvm import tirx

import packager.backends.tensorrt.module as tensorrt
from packager.backends.tensorrt.library import LIBRARIES
from packager.bundle.gpu.engines import LIBRARY_NUMBERS
from packager.errors import BackendError

pytestmark = pytest.mark.slow
SANITIZERS = {"address": "-fsanitize=address,undefined", "thread": "-fsanitize=thread"}


def run(program: Path, library: Path, **environment: str) -> str:
    done = subprocess.run([program, library], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("version", FORMS)
def test_engines_run_in_sessions_of_four_threads(version: str, sanitizer: str, tmp_path: Path) -> None:
    """Of each version's slots: sizes, alignments, swapped constants, and what is refused; nothing is left."""
    flags = (SANITIZERS[sanitizer], "-fno-sanitize-recover=all")
    program = compile_program(tmp_path, "engines.c", all_functions(version, tirx.Var("n", "int64")), *flags)
    told = run(program, make_stand_in(tmp_path, version, *flags)).splitlines()
    assert told[0] == f"version {version}"
    live, executed, refitted = told[1].split()[:4], *map(int, told[1].split()[4:])
    assert live == ["0"] * 4
    contexts = 2 + 2 * 4  # four sizes of the bundle's engine, and of the session's own
    assert (executed, refitted) == (4 * (2 * (2 + 4 * 6) + contexts), 4 * 2 * 3)


@pytest.mark.parametrize(
    ("version", "states", "why"),
    [
        ("10.13.3", 101302, "an engine was built by 10.13.3 and runs in no other version"),
        ("10.13.3", 110000, "an engine was built by 10.13.3 and runs in no other version"),
        ("8.6.1", 8600, "an engine was built by 8.6.1 and runs in no other version"),
        ("11.1.0", 120000, "the bundle does not know the binary interface of that major version"),
        ("10.13.3", 90300, "the bundle does not know the binary interface of that major version"),
        ("1.7.1", 10700, "an engine was built by 1.7.1 and runs in no other version"),
        ("1.7.1", 20000, "the bundle does not know the binary interface of that major version"),
    ],
)
def test_other_versions_are_refused(version: str, states: int, why: str, tmp_path: Path) -> None:
    program = compile_program(tmp_path, "engines.c", all_functions(version, tirx.Var("n", "int64")))
    told = run(program, make_stand_in(tmp_path, version, states=states))
    assert told.rstrip().endswith(f" refused: {why}")


@pytest.mark.parametrize(
    ("environment", "status", "why"),
    [
        ("FAKE_NO_RUNTIME", 3, "TensorRT 10.13.3 makes no runtime: createInferRuntime: Error Code 6: API Usage Error"),
        ("FAKE_NO_CONTEXT", 6, "engine 555555555555: no execution context: createExecutionContext: Error Code 1"),
        ("FAKE_NO_ENQUEUE", 8, "engine 555555555555 cannot be run: IExecutionContext::enqueueV3: Error Code 3"),
    ],
)
def test_failures_are_in_the_words_of_the_library(environment: str, status: int, why: str, tmp_path: Path) -> None:
    version = "10.13.3"
    plan = plan_bytes(version, (1,), [("x", (2, 3))], [("y", (2, 3))])
    functions = [
        simple("engine_junk", engine(version, "4", b"junk")),
        simple("engine_real", engine(version, "5", plan)),
    ]
    program = compile_program(tmp_path, "real.c", functions, SANITIZERS["address"])
    told = run(program, make_stand_in(tmp_path, version), **{environment: "1"}).splitlines()
    assert told[2].startswith(f"{status} {why}")
    assert told[4] == told[2]  # where the session is made


def test_the_real_library_for_rtx_refuses_engines_without_a_gpu(tmp_path: Path) -> None:
    """Its runtime is made and destroyed; it reads an engine until that needs a GPU; nothing is left."""
    library = installed("tensorrt_rtx_libs", "libtensorrt_rtx.so.1")
    version, data = rtx_engine()
    functions = [
        simple("engine_junk", tensorrt.Engine("4" * 64, "tensorrt_rtx", b"junk" * 64, version)),
        simple("engine_real", tensorrt.Engine("5" * 64, "tensorrt_rtx", data, version)),
    ]
    program = compile_program(tmp_path, "real.c", functions, SANITIZERS["address"])
    told = run(program, library).splitlines()
    assert told[0] == f"version {'.'.join(map(str, version))}"
    for junk, real in (told[1:3], told[3:5]):
        assert junk.startswith("4 engine 444444444444 is refused: IRuntime::deserializeCudaEngine: Error Code 1: Seri")
        assert real.startswith("4 engine 555555555555 is refused: ")
        assert "cudaError 35" in real


def test_the_real_lean_runtime_makes_none_without_a_gpu(tmp_path: Path) -> None:
    """It returns the address of a part of NULL."""
    library = installed("tensorrt_lean_libs", "libnvinfer_lean.so.11")
    functions = [
        simple("engine_junk", tensorrt.Engine("4" * 64, "tensorrt_lean", b"junk" * 64, (11, 0, 0))),
        simple("engine_real", tensorrt.Engine("5" * 64, "tensorrt_lean", b"more" * 64, (11, 2, 1))),
    ]
    program = compile_program(tmp_path, "real.c", functions, SANITIZERS["address"])
    told = run(program, library).splitlines()
    assert told[0].startswith("version 11.")
    assert len(told) == 5
    for line in told[1:]:
        assert line.startswith("3 TensorRT 11.")
        assert (
            "makes no runtime: createInferRuntime: Error Code 6: API Usage Error (CUDA initialization failure" in line
        )


def installed(package: str, name: str) -> Path:
    """Return the library of a wheel that the test lock has."""
    found = importlib.util.find_spec(package)
    assert found is not None, f"{package} is not installed: make env"
    assert found.submodule_search_locations
    return Path(found.submodule_search_locations[0]) / name


def rtx_engine() -> tuple[tuple[int, ...], bytes]:
    """Return the version of TensorRT for RTX, and an engine that it builds without a GPU, for one of sm_89."""
    import tensorrt_rtx_bindings as rtx

    builder = rtx.Builder(rtx.Logger(rtx.Logger.ERROR))
    network, config = builder.create_network(), builder.create_builder_config()
    layer = network.add_activation(network.add_input("x", rtx.float32, (2, 3)), rtx.ActivationType.RELU)
    layer.get_output(0).name = "y"
    network.mark_output(layer.get_output(0))
    config.num_compute_capabilities = 1
    config.set_compute_capability(rtx.ComputeCapability.SM89, 0)
    return tuple(map(int, rtx.__version__.split(".")[:3])), bytes(builder.build_serialized_network(network, config))


def test_functions_are_refused_that_cannot_be_stated() -> None:
    made = engine("10.13.3", "0", b"plan")
    tensor = tensorrt.EngineTensor("x", "complex64", (1,), 0)
    deep = tensorrt.EngineTensor("x", "float32", (1,) * 9, 0)
    wrong = [
        tensorrt.EngineFunction("f", (tensor,), (), made),
        tensorrt.EngineFunction("f", (deep,), (), made),
        tensorrt.EngineFunction("f", (), (), tensorrt.Engine("0" * 64, "tensorrt", b"plan")),
    ]
    for function in wrong:
        with pytest.raises(BackendError, match="tensorrt: f: "):
            tensorrt.check_function(function)


def test_every_form_has_a_number_of_its_own() -> None:
    assert {library.number: form for form, library in LIBRARIES.items()} == LIBRARY_NUMBERS
