"""Kernels that may be started while those before them end: they wait before they read, and are launched accordingly."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx.helper
import onnx.parser
import pytest
from model_builds import cuobjdump

import packager
from packager.backends.cuda.codegen import let_kernels_wait
from packager.errors import BackendError

WAIT = "griddepcontrol.wait"
# Loops, rows that threads reduce together, shared memory, pads, stores before loads: the forms of TVM's kernels.
MODEL = """
<ir_version: 8, opset_import: ["": 17]>
forms (float[n,1,8,8] image) => (float[n,3] y, float[8,16,64] z) {
  c = Conv <pads = [1, 1, 1, 1]> (image, k)
  p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)
  f = Flatten(p)
  m = LayerNormalization(f, g)
  d = Gemm(m, w, b)
  y = Softmax(d)
  r = ReduceMean <axes = [0], keepdims = 0> (m)
  e = Expand(r, two)
  z = ScatterND(t, i, e)
}
"""
DECLARED = 'extern "C" __global__ void __launch_bounds__(128) f(float* __restrict__ y, int64_t n);\n'
DEFINED = DECLARED.replace(";", " {") + "  y[threadIdx.x] = n;\n}\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    shapes = {"k": (4, 1, 3, 3), "g": (64,), "w": (64, 3), "b": (3,), "t": (8, 16, 64)}
    parsed = onnx.parser.parse_model(MODEL)
    for name, shape in shapes.items():
        parsed.graph.initializer.append(onnx.numpy_helper.from_array(rng.random(shape, np.float32), name))
    for name, numbers in (("two", [2, 64]), ("i", [[1, 2], [3, 4]])):
        parsed.graph.initializer.append(onnx.numpy_helper.from_array(np.array(numbers), name))
    path = tmp_path_factory.mktemp("forms") / "forms.onnx"
    path.write_bytes(parsed.SerializeToString())
    return path


def build(model: Path, target: str, folder: Path) -> tuple[Path, str]:
    """Return the bundle, and the C code that launches its kernels."""
    work = folder / "work"
    bundle = packager.build(model, folder / "forms.so", targets=target, dims={"n": (1, 8)}, keep_workdir=work)
    return bundle, (work / "cuda" / "cuda.c").read_text()


@pytest.mark.slow
def test_every_kernel_waits_before_it_touches_memory(model: Path, tmp_path: Path) -> None:
    bundle, launchers = build(model, "cuda -arch=sm_80 -ptx=compute_90", tmp_path)
    symbols = [primitive.symbol for _, primitive in packager.inspect(bundle).manifest.primitives()]
    _, *kernels = cuobjdump("--dump-ptx", bundle).split(".entry ")
    assert sorted(text.split("(")[0] for text in kernels) == sorted(symbols)
    for text in kernels:
        before, after = text.split(WAIT)  # it is there once
        assert not re.search(r"\b(ld|st|atom|red|cp|prefetch)\.(?!param)", before), text
        assert before.count("griddepcontrol.launch_dependents") == 1
        assert re.search(r"\bst\.global", after)

    # What earlier kernels write must not be loaded by ld.global.nc in a kernel that is placed before they are complete.
    overlapping = {}
    for text in re.split(r"\nint32_t (?=pkf_\w+\([^;{]*\{)", launchers)[1:]:
        overlapping[text.split("(")[0]] = "PK_CUDA_PROGRAMMATIC }" in text
    assert sorted(overlapping) == sorted(symbols)
    for text in kernels:
        assert overlapping[text.split("(")[0]] == ("ld.global.nc" not in text), text
    assert set(overlapping.values()) == {False, True}


@pytest.mark.slow
def test_code_for_older_gpus_alone(model: Path, tmp_path: Path) -> None:
    bundle, launchers = build(model, "cuda -arch=sm_80 -ptx=compute_80", tmp_path)
    assert WAIT not in cuobjdump("--dump-ptx", bundle)
    assert "PK_CUDA_PROGRAMMATIC" not in launchers


def test_declarations_stay() -> None:
    code = let_kernels_wait(DECLARED + DEFINED, ["f"])
    assert code.startswith(DECLARED)
    assert code.index(WAIT) < code.index("y[threadIdx.x]")
    assert code.count(WAIT) == 1


@pytest.mark.parametrize(
    "code",
    [
        DECLARED,
        DEFINED + DEFINED.replace(" f(", " g("),
        DEFINED + DEFINED.replace(" f(", " (f)("),
        DEFINED.replace("__global__", "__kernel__"),
        DEFINED.replace(" f(", " f_kernel("),
    ],
)
def test_code_that_is_not_understood_is_refused(code: str) -> None:
    with pytest.raises(BackendError, match="TVM's code has the kernels"):
        let_kernels_wait(code, ["f"])
