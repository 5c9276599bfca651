"""Bundles whose convolutions are cuDNN's: run with no GPU, by stand-ins for the driver and for the library.

The library's stand-in computes what its descriptors say, so that numbers tell whether they are right. The model
consists of convolutions alone, since no kernel runs: its images have their channels last already.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import packager
from packager.backends.cudnn import module
from packager.backends.cudnn.planner import Choice, Libraries, Plans

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MODEL = """
<ir_version: 10, opset_import: ["": 21]>
net (TYPE[n,9,10,8] image, TYPE[n,4,5,12] r, TYPE[n,6,11] line, TYPE[n,4,3,4,5] volume)
    => (TYPE[n,4,5,12] grouped, TYPE[n,6,11] lines, TYPE[n,6,3,4,5] volumes, TYPE[n,6,6,9,10] inflated) {
  x = Transpose<perm=[0,3,1,2]>(image)
  a0 = Conv<pads=[0,1,1,2], strides=[2,2], dilations=[1,2], group=2>(x, w0, b12) a1 = Transpose<perm=[0,2,3,1]>(a0)
  a2 = Add(a1, r) grouped = Relu(a2)
  lines = Conv<pads=[2,2], dilations=[2]>(line, w1, b6)
  c0 = Conv<pads=[1,1,1,1,1,1]>(volume, w2) volumes = Relu(c0)
  inflated = ConvTranspose<pads=[1,1,1,1,1,1], strides=[2,2,2], output_padding=[0,1,0], group=2>(volume, w3)
}
"""
INPUTS = {"image": (9, 10, 8), "r": (4, 5, 12), "line": (6, 11), "volume": (4, 3, 4, 5)}
WEIGHTS = {"w0": (12, 4, 3, 3), "w1": (6, 6, 3), "w2": (6, 4, 3, 3, 3), "w3": (4, 3, 4, 4, 4), "b12": (12,), "b6": (6,)}
PROBLEMS = 4
LARGEST = 4
SCRIPT = """
import ctypes, json, sys
import numpy as np
import packager
bundle_path, folder, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
recorder = ctypes.CDLL("libcuda.so.1")
library = ctypes.CDLL("libcudnn.so.9")
recorder.recorder_take.restype = recorder.recorder_live.restype = library.fake_state.restype = ctypes.c_char_p
state = lambda: dict(zip("handles descriptors asked executed engine".split(), map(int, library.fake_state().split())))
inputs, told = dict(np.load(folder + "/inputs.npz")), {"log": []}
with packager.load(bundle_path) as bundle:
    try:
        with bundle.session(**options) as session, bundle.session(**options):
            told["created"] = state()
            for _ in range(3):
                outputs = session.run(inputs)
            told["run"], told["recorded"] = state(), recorder.recorder_take().decode()
            np.savez(folder + "/outputs.npz", **outputs)
    except packager.PackagerError as error:
        told["error"] = str(error)
told["left"], told["live"] = state(), recorder.recorder_live().decode()
print(json.dumps(told))
"""


def weights() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {name: (rng.standard_normal(shape) / 2).astype(np.float16) for name, shape in WEIGHTS.items()}


def save(path: Path, dtype: str) -> Path:
    model = onnx.parser.parse_model(MODEL.replace("TYPE", dtype))
    arrays = {name: array.astype(np.float16 if dtype == "float16" else np.float32) for name, array in weights().items()}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    onnx.save(model, path)
    return path


def build(folder: Path, *targets: str) -> Path:
    model = save(folder / "model.onnx", "float16")
    return packager.build(
        model, folder / "model.so", targets=["cuda -arch=sm_90a", *targets], dims={"n": (1, LARGEST)}, golden=0
    )


def ask(_library: Libraries, _device: Any, problems: Sequence[Any], candidates: int, _workdir: Path) -> Plans:
    """Answer as the stand-in would: its good engines, with their settings, the last of them first."""
    engines = [10 + rank for rank in reversed(range(candidates))]
    choices = tuple(Choice(engine, ((2, engine * 10), (3, engine * 10 + 1))) for engine in engines)
    return Plans("9.19.0", (choices,) * len(problems))


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory, stand_ins: Path) -> Path:
    """A bundle with plans of version 9.19.0."""
    with pytest.MonkeyPatch.context() as patch:
        library = stand_ins / "libcudnn.so.9"
        patch.setattr(module, "find_libraries", lambda _: Libraries(library, library))
        patch.setattr(module, "ask", ask)
        return build(tmp_path_factory.mktemp("planned"), "cudnn")


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("stand-ins")
    flags = ["-D_GNU_SOURCE", "-std=gnu11", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Werror"]
    sources = {
        "recorder/libcuda.c": "libcuda.so.1",
        "cudnn/cudnn.c": "libcudnn.so.9",
        "cublaslt/cublaslt.c": "libcublasLt.so.13",
    }
    for source, name in sources.items():
        command = ["gcc", *flags, HERE / source, "-o", folder / name, "-lm", "-ldl", "-lpthread"]
        subprocess.run(command, check=True)
    return folder


def run(bundle: Path, stand_ins: Path, folder: Path, rows: int = LARGEST, /, **options: Any) -> dict[str, Any]:
    """Run the bundle three times in a process of its own; upper-case options are environment variables."""
    rng = np.random.default_rng(1)
    inputs = {name: (rng.standard_normal((rows, *shape)) / 2).astype(np.float16) for name, shape in INPUTS.items()}
    np.savez(folder / "inputs.npz", **inputs)
    own = {"LD_LIBRARY_PATH": str(stand_ins), "PYTHONPATH": str(ROOT), "RECORDER_MAPS": "1"}
    own |= {name: options.pop(name) for name in list(options) if name.isupper()}
    argv = [sys.executable, "-c", SCRIPT, str(bundle), str(folder), json.dumps(options)]
    done = subprocess.run(argv, env=os.environ | own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert (told["left"]["handles"], told["left"]["descriptors"], told["live"]) == (0, 0, "")
    return {**told, "inputs": inputs}


@pytest.mark.parametrize("rows", [1, 3, LARGEST])
def test_numbers(planned: Path, stand_ins: Path, tmp_path: Path, rows: int) -> None:
    """Layouts, groups, paddings of both sides, dilation, gradients, a residual, and a bias that is missing."""
    told = run(planned, stand_ins, tmp_path, rows, graph="off")
    outputs = dict(np.load(tmp_path / "outputs.npz"))
    reference = onnxruntime.InferenceSession(save(tmp_path / "wide.onnx", "float"))
    names = [output.name for output in reference.get_outputs()]
    wanted = reference.run(names, {name: array.astype(np.float32) for name, array in told["inputs"].items()})
    assert sorted(outputs) == sorted(names)
    for name, array in zip(names, wanted, strict=True):
        np.testing.assert_allclose(outputs[name].astype(np.float32), array, rtol=3e-3, atol=3e-3)


def test_plans_are_those_of_the_build(planned: Path, stand_ins: Path, tmp_path: Path) -> None:
    """Nothing is asked at session creation; other sizes are, once, by each session that has them."""
    largest = run(planned, stand_ins, tmp_path, graph="off")
    assert (largest["created"]["handles"], largest["created"]["asked"]) == (2, 0)
    assert largest["created"]["executed"] == 2 * PROBLEMS
    assert (largest["run"]["asked"], largest["run"]["engine"]) == (0, 13)
    other = run(planned, stand_ins, tmp_path, 1, graph="off")
    assert (other["run"]["asked"], other["run"]["engine"]) == (2 * PROBLEMS, 10)


def test_another_version_is_asked(planned: Path, stand_ins: Path, tmp_path: Path) -> None:
    told = run(planned, stand_ins, tmp_path, graph="off", FAKE_VERSION="92801")
    assert told["created"]["asked"] == 2 * 2 * PROBLEMS  # two sessions, both modes
    assert told["run"]["engine"] == 10


def test_candidates(planned: Path, stand_ins: Path, tmp_path: Path) -> None:
    """Ranks of the plans, and of the library's answers; the last stands for those that it does not give."""
    entries = packager.inspect(planned).manifest.selection
    selection = {entry.symbol: "cudnn_2" for entry in entries if "cudnn_2" in entry.candidates}
    assert len(selection) == PROBLEMS
    assert run(planned, stand_ins, tmp_path, graph="off", selection=selection)["run"]["engine"] == 11
    newer = {"graph": "off", "selection": selection, "FAKE_VERSION": "92801"}
    assert run(planned, stand_ins, tmp_path, **newer)["run"]["engine"] == 12
    assert run(planned, stand_ins, tmp_path, **newer, FAKE_ANSWERS="2")["run"]["engine"] == 11


def test_graphs(planned: Path, stand_ins: Path, tmp_path: Path) -> None:
    told = run(planned, stand_ins, tmp_path, graph="on")
    assert told["recorded"].count("add a graph of 2 nodes") == PROBLEMS


def test_what_the_library_refuses(planned: Path, stand_ins: Path, tmp_path: Path) -> None:
    told = run(planned, stand_ins, tmp_path, FAKE_REFUSES="12", FAKE_VERSION="92801")
    assert "the library that it calls failed with status 3000" in told["error"]


def test_libraries(planned: Path, stand_ins: Path, tmp_path: Path) -> None:
    """cuBLASLt is opened first; without cuDNN sessions take what TVM makes of the convolutions, and say so."""
    libraries = packager.inspect(planned).manifest.requirements.libraries
    assert [library.sonames[0] for library in libraries] == ["libcublasLt.so.13", "libcudnn.so.9"]
    assert [library.chosen_with for library in libraries] == [None, "9.19.0"]
    assert all(library.optional for library in libraries)
    shutil.copy(stand_ins / "libcuda.so.1", tmp_path)
    shutil.copy(stand_ins / "libcublasLt.so.13", tmp_path)
    script = """
import sys, warnings, packager
with warnings.catch_warnings(record=True) as told, packager.load(sys.argv[1], libraries=[]) as bundle:
    warnings.simplefilter("always")
    with bundle.session():
        print([str(warning.message) for warning in told])
"""
    own = {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(ROOT), "RECORDER_MAPS": "1"}
    argv = [sys.executable, "-c", script, str(planned)]
    done = subprocess.run(argv, env=os.environ | own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "libcudnn.so.9" in done.stdout


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers(sanitizer: str, tmp_path: Path) -> None:
    """Sessions of four threads: plans of the build, of other batches and versions; nothing is left."""
    program = tmp_path / "convolutions"
    include = [f"-I{ROOT / 'templates' / 'cudnn'}", f"-I{ROOT / 'runtime_stub' / 'include'}"]
    flags = ["-D_GNU_SOURCE", "-std=gnu11", "-O1", "-g", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"]
    warnings = ["-Wall", "-Wextra", "-Werror"]
    stand_in = tmp_path / "cudnn.o"  # compiled by itself: its functions have types of its own
    subprocess.run(["gcc", *flags, "-c", HERE / "cudnn" / "cudnn.c", "-o", stand_in], check=True)
    sources = [HERE / "cudnn" / "convolutions.c", stand_in]
    subprocess.run(["gcc", *flags, *warnings, *include, *sources, "-o", program, "-lpthread", "-ldl"], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("0 0 0 0 version 9.19 0 0 ")
