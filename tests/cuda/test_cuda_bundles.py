"""CUDA bundles from model to launch: built here for GPUs that are not here, their calls seen by the stand-in."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import packager
from packager.deploy.verify.verifier import verify
from packager.errors import ToolchainError, UsageError
from packager.targets.target_list import parse_targets

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RECORDED = """
import ctypes, json, sys
import numpy as np
import packager
recorder = ctypes.CDLL("libcuda.so.1")
recorder.recorder_take.restype = recorder.recorder_live.restype = ctypes.c_char_p
logs = {}
with packager.load(sys.argv[1]) as bundle:
    with bundle.session(graph=sys.argv[2]) as session:
        for n in (1, 5, 5, 5):
            recorder.recorder_take()
            session.run([np.zeros((n, 1, 8, 8), np.float32)])
            logs.setdefault(str(n), []).append(recorder.recorder_take().decode().splitlines())
logs["left"] = recorder.recorder_live().decode()
print(json.dumps(logs))
"""
NET = """
<ir_version: 8, opset_import: ["": 17]>
net (float[n,1,8,8] image) => (float[n,3] y) {
  c = Conv <pads = [1, 1, 1, 1]> (image, k)
  r = Relu(c)
  p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
  f = Flatten(p)
  y = Gemm(f, w, b)
}
"""


def save(text: str, weights: dict[str, np.ndarray], path: Path) -> Path:
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    weights = {"k": rng.random((4, 1, 3, 3)), "w": rng.random((64, 3)), "b": rng.random(3)}
    return save(NET, {k: v.astype(np.float32) for k, v in weights.items()}, tmp_path_factory.mktemp("net") / "net.onnx")


@pytest.fixture(scope="module")
def bundle(net: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For two architectures and PTX, with a golden pair from the CPU."""
    return packager.build(
        net,
        tmp_path_factory.mktemp("bundle") / "net.so",
        targets=["cuda -arch=sm_80,sm_90a -ptx=compute_80"],
        dims={"n": (1, 8)},
        golden=0,
    )


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the recording stand-in."""
    folder = tmp_path_factory.mktemp("recorder")
    flags = ["-D_GNU_SOURCE", "-std=c11", "-O1", "-fPIC", "-shared", "-fvisibility=hidden"]
    source = HERE / "recorder" / "libcuda.c"
    subprocess.run(["gcc", *flags, source, "-o", folder / "libcuda.so.1", "-lpthread"], check=True)
    return folder


def machine(path: Path, *, arch: str = "sm_90", driver: str = "13.0", memory: int = 1 << 34) -> Path:
    """Write the description of a machine like this one that has a GPU."""
    described = json.loads(
        subprocess.run([sys.executable, "-m", "packager", "machine", "--json"], capture_output=True, check=True).stdout
    )
    device = {"name": "GPU", "arch": arch, "memory_bytes": memory}
    described["cuda"] = {"driver": driver, "driver_version": "580.00", "devices": [device]}
    path.write_text(json.dumps(described))
    return path


def test_what_is_in_the_file(bundle: Path) -> None:
    manifest = packager.inspect(bundle).manifest
    assert manifest.requirements.cuda is not None
    assert manifest.requirements.cuda.archs == ("sm_80", "sm_90a")
    assert manifest.requirements.cuda.ptx == ("compute_80",)
    assert manifest.requirements.cuda.driver == "13.0"
    assert not [name for name in manifest.requirements.needed if "cuda" in name]
    assert [record.kind for record in manifest.backends if record.primitives] == ["cuda"]
    assert manifest.golden is not None
    offsets = [constant.offset for constant in manifest.constants]
    assert len(offsets) > 2
    assert not any(offset % 256 for offset in offsets)


def test_the_code_is_what_an_independent_reader_finds(bundle: Path) -> None:
    from importlib.metadata import files

    reader = next(path.locate() for path in files("nvidia-cuda-cuobjdump") or () if path.name == "cuobjdump")
    done = subprocess.run(
        [str(reader), "--list-elf", "--list-ptx", str(bundle)], capture_output=True, text=True, check=True
    )
    found = {(kind, arch) for arch, kind in re.findall(r"\.(sm_\w+)\.(cubin|ptx)", done.stdout)}
    assert {("cubin", "sm_80"), ("cubin", "sm_90a")} <= found
    assert [arch for kind, arch in found if kind == "ptx"] == ["sm_80"]


@pytest.mark.parametrize(
    ("given", "check"),
    [
        ({}, None),
        ({"arch": "sm_89"}, None),  # the PTX
        ({"arch": "sm_75"}, "machine.gpu_arch"),
        ({"driver": "12.4"}, "machine.cuda_driver"),
        ({"memory": 1 << 10}, "machine.gpu_memory"),
    ],
)
def test_machines(bundle: Path, tmp_path: Path, given: dict[str, object], check: str | None) -> None:
    result = verify(bundle, machine=machine(tmp_path / "machine.json", **given))  # type: ignore[arg-type]
    assert [finding.check for finding in result.findings if finding.severity == "error"] == ([check] if check else [])


def record(bundle: Path, driver: Path, graph: str) -> dict[str, list[list[str]]]:
    environment = os.environ | {"LD_LIBRARY_PATH": str(driver), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", RECORDED, bundle, graph], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    logs: dict[str, list[list[str]]] = json.loads(done.stdout)
    assert logs.pop("left") == ""
    return logs


def test_grids_and_arguments_follow_the_shape(bundle: Path, driver: Path) -> None:
    logs = record(bundle, driver, "off")
    calls = {n: [line for line in logs[n][0] if line.startswith("launch")] for n in ("1", "5")}
    symbols = [
        symbol for _, primitive in packager.inspect(bundle).manifest.primitives() for symbol in [primitive.symbol]
    ]
    for n, lines in calls.items():
        assert sorted(line.split()[1] for line in lines) == sorted(symbols)
        assert all(re.search(rf" {n} in s\d+$", line) for line in lines), "the last argument is n"
        for line in lines:
            _, _, grid, block, *_ = line.split()
            threads = np.prod([int(v) for field in (grid, block) for v in field.split("=")[1].split(",")])
            assert threads >= int(n)
    assert calls["1"] != calls["5"]
    assert logs["5"][0][1:] == logs["5"][1] or [x for x in logs["5"][1] if x.startswith("launch")] == calls["5"]


def test_graphs_are_captured_when_a_shape_comes_again(bundle: Path, driver: Path) -> None:
    logs = record(bundle, driver, "auto")
    starts = [[line.split()[0] for line in log] for log in logs["5"]]
    assert "launch" in starts[0]
    assert "capture" not in starts[0]
    assert "capture" in starts[1]
    assert not {"capture", "change"} & set(starts[2])
    assert sum(line.startswith("launch x") for line in logs["5"][2]) == 1


def test_equal_builds_are_equal(net: Path, tmp_path: Path) -> None:
    built = [
        packager.build(
            net,
            tmp_path / f"{jobs}.so",
            targets="cuda -arch=sm_90a",
            dims={"n": (1, 8)},
            keep_workdir=tmp_path / f"work-{jobs}",
            jobs=jobs,
        ).read_bytes()
        for jobs in (1, 2)
    ]
    assert built[0] == built[1]


def test_half_precision(net: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    half = packager.build(
        net,
        tmp_path / "half.so",
        targets="cuda -arch=sm_90a",
        dims={"n": (1, 8)},
        precision="fp16",
        golden=0,
        keep_workdir=work,
    )
    manifest = packager.inspect(half).manifest
    assert [spec.dtype for spec in (*manifest.inputs, *manifest.outputs)] == ["float32", "float32"]
    assert {constant.dtype for constant in manifest.constants if len(constant.shape) > 1} == {"float16"}
    assert manifest.golden is not None
    assert manifest.golden.rtol == pytest.approx(0.02)


def test_a_mean_of_one_element_is_that_element(tmp_path: Path) -> None:
    """TVM ends the process over such a reduction, where a division follows."""
    text = """
        <ir_version: 8, opset_import: ["": 17]>
        net (float[1,8] x) => (float[1,8] y) { m = ReduceMean <axes = [0]> (x) y = Div(x, m) }
    """
    model = save(text, {}, tmp_path / "m.onnx")
    bundle = packager.build(model, tmp_path / "m.so", targets=["cuda -arch=sm_80"])
    (primitive,) = [primitive for _, primitive in packager.inspect(bundle).manifest.primitives()]
    assert "mean" not in primitive.ops


def test_a_transpose_behind_a_reshape(tmp_path: Path) -> None:
    """Its kernel sees tensors in other shapes than the graph."""
    text = """
        <ir_version: 8, opset_import: ["": 17]>
        net (float[2,8,16,64] x) => (float[2,32,256] y)
        <int64[3] shape = {2, 32, 256}> { t = Transpose <perm = [0, 3, 1, 2]> (x) r = Reshape(t, shape) y = Relu(r) }
    """
    bundle = packager.build(save(text, {}, tmp_path / "m.onnx"), tmp_path / "m.so", targets=["cuda -arch=sm_80"])
    (primitive,) = [primitive for _, primitive in packager.inspect(bundle).manifest.primitives()]
    assert "transpose" in primitive.symbol


def test_an_architecture_must_be_given() -> None:
    with pytest.raises(UsageError, match="no attribute 'arch'") as failure:
        parse_targets("cuda")
    assert "sm_90a" in str(failure.value.hint)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("cuda -arch=90", "attribute 'arch' of Target 'cuda' is '90', which is no GPU architecture"),
        ("cuda -arch=sm_80 -ptx=sm_80", "attribute 'ptx' of Target 'cuda' is 'sm_80'"),
        ("cuda -arch=sm_81", "sm_81"),
    ],
)
def test_architectures_that_are_refused(net: Path, tmp_path: Path, target: str, message: str) -> None:
    with pytest.raises(UsageError) as failure:
        packager.build(net, tmp_path / "net.so", targets=target, dims={"n": (1, 8)}, cache=False)
    assert message in failure.value.message
    assert not list(tmp_path.iterdir())


def test_one_device_for_a_bundle(net: Path) -> None:
    with pytest.raises(UsageError, match="'ccompiler' is for device 'cpu', but the bundle runs on device 'cuda'"):
        packager.build(net, targets=["cuda -arch=sm_80", "ccompiler"])


def test_a_toolkit_that_is_named_must_be_there(net: Path, tmp_path: Path) -> None:
    with pytest.raises((UsageError, ToolchainError), match="no CUDA toolkit"):
        packager.build(net, tmp_path / "net.so", targets="cuda -arch=sm_80", cuda_home=tmp_path, cache=False)
    with pytest.raises(UsageError, match="no Target is for CUDA"):
        packager.build(net, tmp_path / "net.so", cuda_home=tmp_path)


def test_the_driver_is_not_needed_to_load(bundle: Path) -> None:
    with packager.load(bundle) as loaded:
        assert [info.name for info in loaded.inputs] == ["image"]


def test_rows_of_any_number_of_images_share_thread_blocks(tmp_path: Path, driver: Path) -> None:
    """A schedule sees the pixels of an image as one axis behind that of images, whose extent a run has."""
    text = """
        <ir_version: 8, opset_import: ["": 17]>
        net (float[n,1,8,8] image) => (float[n,2,4,8] y)
        <int64[4] shape = {0, 2, 4, 8}> { r = Reshape(image, shape) y = LayerNormalization(r, scale, shift) }
    """
    weights = {name: np.ones(8, np.float32) for name in ("scale", "shift")}
    model = save(text, weights, tmp_path / "m.onnx")
    bundle = packager.build(model, tmp_path / "m.so", targets="cuda -arch=sm_90a", dims={"n": (1, 8)}, golden=0)
    logs = record(bundle, driver, "off")
    for n in ("1", "5"):
        (launch,) = (line.split() for line in logs[n][0] if line.startswith("launch"))
        assert launch[2:4] == [f"grid={n},1,1", "block=4,8,1"]
