"""The backend of the Triton server: built, and driven through its C API by a program in place of the server."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import packager

from .conftest import ROOT, SAMPLES, Run

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent / "triton"
# With sanitizers: what a request leaves behind, and what is read after its release, ends the program.
FLAGS = ["-std=c++17", "-O1", "-g", "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined",
         "-fno-sanitize-recover=all", "-I", ROOT / "runtime_stub" / "include"]  # fmt: skip

Serve = Callable[..., list[str]]
GPU_BUNDLES = os.environ.get("PACKAGER_GPU_BUNDLES")  # as tests/cuda/test_cuda_device_tensors.py has it


def compile_with(command: list[object]) -> None:
    done = subprocess.run(["g++", *map(str, [*FLAGS, *command])], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The program in place of the server, and the backend.

    ``TRITON_INCLUDE`` may name a folder with the server's own headers to build the backend against.
    """
    folder = tmp_path_factory.mktemp("triton")
    declared = HERE / "include"
    compile_with(["-I", declared, HERE / "server.cpp", "-rdynamic", "-o", folder / "server", "-ldl", "-lpthread"])
    headers = os.environ.get("TRITON_INCLUDE", declared)
    source = SAMPLES / "triton" / "backend.cpp"
    compile_with(["-I", headers, "-shared", "-fPIC", source, "-o", folder / "libtriton_packager.so", "-ldl"])
    return [folder / "server", folder / "libtriton_packager.so"]


@pytest.fixture
def serve(server: list[Path], tmp_path: Path) -> Serve:
    """Serve batches of requests, lines of server.cpp, by a bundle; return what it prints."""

    def run(bundle: Path, *batches: list[str], threads: int = 1, seconds: float = 0, **variables: str) -> list[str]:
        (tmp_path / "model" / "1").mkdir(parents=True, exist_ok=True)
        (tmp_path / "model" / "1" / "model.so").unlink(missing_ok=True)
        (tmp_path / "model" / "1" / "model.so").symlink_to(bundle)
        done = subprocess.run(
            [*map(str, server), str(tmp_path / "model"), str(threads), str(seconds)],
            input="\n\n".join("\n".join(batch) for batch in batches),
            env=os.environ | variables,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            return [done.stderr.strip()]
        assert done.stderr == ""
        *lines, last = done.stdout.splitlines()
        assert last.endswith(" different 0"), last
        return [*lines, last.removesuffix(" different 0")]

    return run


def request_of(array: np.ndarray, path: Path, name: str = "image", wanted: str = "*", buffers: int = 1) -> str:
    array.tofile(path)
    return f"{wanted} {buffers} {name}:FP32:{','.join(map(str, array.shape))}:{path}"


def outputs_of(lines: list[str]) -> list[np.ndarray]:
    found = [line.split() for line in lines if line.startswith("output ")]
    types = {"FP32": np.float32, "INT64": np.int64}
    return [
        np.frombuffer(bytes.fromhex(words[4]), types[words[2]]).reshape([int(extent) for extent in words[3].split(",")])
        for words in found
    ]


def build_model(folder: Path, run_cli: Run, nodes: list[onnx.NodeProto], x: list, *outputs: tuple, **more: str) -> Path:
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info(*output) for output in outputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, folder / "model.onnx")
    options = [part for name, value in more.items() for part in (f"--{name}", value)]
    run_cli(["build", folder / "model.onnx", "-o", folder / "model.so", "-t", "llvm", *options])
    return folder / "model.so"


def test_requests_of_a_batch_share_a_run(
    serve: Serve, digits_bundle: Path, digits_images: np.ndarray, tmp_path: Path
) -> None:
    parts = np.split(digits_images[:11], [1, 4])
    lines = serve(digits_bundle, [request_of(part, tmp_path / f"{i}.f32") for i, part in enumerate(parts)])
    assert [line for line in lines if not line.startswith("output")] == [*["sent"] * 3, "runs 11", "responses 3"]
    found = outputs_of(lines)
    assert [len(logits) for logits in found] == [1, 3, 7]
    wanted = packager.load(digits_bundle).run({"image": digits_images[:11]})["logits"]
    assert np.concatenate(found).tobytes() == wanted.tobytes()


def test_a_batch_is_no_larger_than_the_bundle_allows(
    serve: Serve, digits_bundle: Path, digits_images: np.ndarray, tmp_path: Path
) -> None:
    request = request_of(digits_images[:30], tmp_path / "30.f32")
    assert "runs 60 30" in serve(digits_bundle, [request] * 3)


def test_a_bad_request_fails_alone(
    serve: Serve, digits_bundle: Path, digits_images: np.ndarray, tmp_path: Path
) -> None:
    good = request_of(digits_images[:2], tmp_path / "good.f32")
    rows = request_of(digits_images[:65], tmp_path / "rows.f32")
    shape = request_of(digits_images[:2].reshape(2, 1, 4, 16), tmp_path / "shape.f32")
    cut = good.replace(":2,1,8,8:", ":3,1,8,8:")
    other = good.replace("image", "picture")
    lines = serve(digits_bundle, [good, rows, shape, cut, other, good.replace("FP32", "INT32"), good])
    answers = [line for line in lines if not line.startswith(("output", "runs"))]
    assert answers[0] == answers[6] == "sent"
    assert answers[1].startswith("error INVALID_ARG PACKAGER_ERROR_SHAPE: ")
    assert answers[2].startswith("error INVALID_ARG PACKAGER_ERROR_SHAPE: ")
    for answer in (answers[3], answers[5]):
        assert answer == "error INVALID_ARG image: its type, rank or size is not that of the model's input"
    assert answers[4] == "error INVALID_ARG no such input"
    assert len(outputs_of(lines)) == 2


def test_an_input_in_several_buffers(
    serve: Serve, digits_bundle: Path, digits_images: np.ndarray, tmp_path: Path
) -> None:
    lines = serve(digits_bundle, [request_of(digits_images[:3], tmp_path / "3.f32", buffers=5)])
    wanted = packager.load(digits_bundle).run({"image": digits_images[:3]})["logits"]
    assert outputs_of(lines)[0].tobytes() == wanted.tobytes()


def test_outputs_that_are_asked_for_and_extents_that_the_run_finds(serve: Serve, run_cli: Run, tmp_path: Path) -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["where"]), helper.make_node("Neg", ["x"], ["negative"])]
    outputs = ("where", TensorProto.INT64, [1, None]), ("negative", TensorProto.FLOAT, [6])
    bundle = build_model(tmp_path, run_cli, nodes, [6], *outputs)
    x = np.array([0, 5, 0, 7, 8, 0], np.float32)
    path = tmp_path / "x.f32"
    lines = serve(bundle, [request_of(x, path, "x")], [request_of(x, path, "x", "where")])
    negative, where, alone = outputs_of(lines)  # what is computed in place comes first
    assert where.tolist() == alone.tolist() == [[1, 3, 4]]
    assert negative.tolist() == (-x).tolist()


def test_rows_that_depend_on_each_other_run_alone(serve: Serve, run_cli: Run, tmp_path: Path) -> None:
    nodes = [helper.make_node("Transpose", ["x"], ["t"]), helper.make_node("MatMul", ["x", "t"], ["y"])]
    bundle = build_model(tmp_path, run_cli, nodes, ["n", 3], ("y", TensorProto.FLOAT, ["n", "n"]), dim="n=1:8")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    lines = serve(bundle, [request_of(x, tmp_path / "x.f32", "x")] * 2)
    assert "runs 1 1" in lines
    for product in outputs_of(lines):
        np.testing.assert_allclose(product, x @ x.T, rtol=1e-6)


def test_models_that_cannot_be_served(serve: Serve, digits_bundle: Path, run_cli: Run, tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("no ELF file")
    assert "model.so" in serve(tmp_path / "text.so")[0]
    assert serve(digits_bundle, TRITON_MINOR="3") == ["UNSUPPORTED the server's backend API is of another version"]
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT4)]
    bundle = build_model(tmp_path, run_cli, nodes, [4], ("y", TensorProto.INT4, [4]))
    assert serve(bundle) == ["UNSUPPORTED y: the server has no such element type"]
    nodes = [helper.make_node("Add", ["x", "x"], ["next"]), helper.make_node("Neg", ["x"], ["y"])]
    outputs = ("next", TensorProto.FLOAT, [4]), ("y", TensorProto.FLOAT, [4])
    bundle = build_model(tmp_path, run_cli, nodes, [4], *outputs, state="x=next")
    assert serve(bundle) == ["UNSUPPORTED the model keeps states, and requests of clients would share them"]


def test_load(serve: Serve, digits_bundle: Path, digits_images: np.ndarray, tmp_path: Path) -> None:
    """Two instances in threads of their own: each response is the first one again, and nothing is left behind."""
    batches = [
        [request_of(digits_images[i : i + rows], tmp_path / f"{i}-{rows}.f32") for i in range(count)]
        for count, rows in ((1, 1), (4, 2), (3, 20))
    ]
    last = serve(digits_bundle, *batches, threads=2, seconds=2)[-1]
    assert int(last.removeprefix("responses ")) > 100


@pytest.mark.gpu
@pytest.mark.parametrize("place", ["host", "device"])
def test_tensors_in_device_memory(place: str, serve: Serve, tmp_path: Path) -> None:
    """A CUDA bundle reads and writes the server's tensors where they are; so do two instances at the same time.

    ASan's gap of addresses is where the driver maps device memory.
    """
    if not GPU_BUNDLES:
        pytest.skip("PACKAGER_GPU_BUNDLES is not set")
    bundle, arrays = Path(GPU_BUNDLES) / "mlp.so", dict(np.load(Path(GPU_BUNDLES) / "mlp.npz"))
    (spec,), (wanted,) = packager.inspect(bundle).manifest.inputs, packager.inspect(bundle).manifest.outputs
    batches = [[request_of(arrays[spec.name], tmp_path / "x.f32", spec.name)] * count for count in (1, 3)]
    variables = {"TRITON_DEVICE_MEMORY": "1"} if place == "device" else {}
    asan = "protect_shadow_gap=0:detect_leaks=0"  # the driver keeps what it allocates until the process ends
    lines = serve(bundle, *batches, threads=2, seconds=1, ASAN_OPTIONS=asan, **variables)
    assert lines.count("sent") == 4, lines
    for found in outputs_of(lines):
        np.testing.assert_allclose(found, arrays[wanted.name], rtol=1e-4, atol=1e-5)
