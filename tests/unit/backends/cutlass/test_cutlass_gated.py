"""Gated products: which forms are taken, and that the constants, as kernels read them, give the result of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

pytest.importorskip("tvm")

from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.gemm.gated import EIGHT, FEWEST_ROWS, GatedProblem, interleave
from packager.backends.cutlass.gemm.kernels import GemmConfig
from packager.backends.cutlass.module import draft_group
from packager.bundle.arrays import Array
from packager.graph.products.activations import ACTIVATIONS
from packager.ir.model import PartitionedModel
from tests.stages import placed_file

ROWS, DEPTH, COLUMNS = 24, 32, 40
HEAD = '<ir_version: 8, opset_import: ["": 17]> net (float[{rows},32] x) => (float[{rows},40] y)'
IMAGE = '<ir_version: 8, opset_import: ["": 17]> net (float[2,32,4,3] x) => (float[2,40,4,3] y)'
SPLIT = "g, u = Split <axis = -1> (p)"
SWAPPED = "u, g = Split <axis = -1> (p)"
SILU = "s = Sigmoid(g) a = Mul(g, s)"
GELU = (
    "t0 = Mul(g, g) t1 = Mul(g, t0) t2 = Mul(t1, cube) t3 = Add(g, t2) t4 = Mul(t3, slope) t5 = Tanh(t4) "
    "t6 = Add(t5, one) t7 = Mul(g, half) a = Mul(t7, t6)"
)
BOTH = f"p = MatMul(x, w) {SPLIT}"
# What the model is, and the activation of its gates.
FORMS = {
    "one matrix": (f"{HEAD} {{ {BOTH} {SILU} y = Mul(a, u) }}", "silu"),
    "gates last": (f"{HEAD} {{ p = MatMul(x, w) {SWAPPED} a = Sigmoid(g) y = Mul(u, a) }}", "sigmoid"),
    "bias": (f"{HEAD} {{ m = MatMul(x, w) p = Add(m, b) {SWAPPED} a = Tanh(g) y = Mul(a, u) }}", "tanh"),
    "written out": (f"{HEAD} {{ {BOTH} {GELU} y = Mul(a, u) }}", "gelu_tanh"),
    "no activation": (f"{HEAD} {{ {BOTH} y = Mul(g, u) }}", "none"),
    "scale": (f"{HEAD} {{ m = MatMul(x, w) p = Mul(m, large) {SPLIT} a = Relu(g) y = Mul(a, u) }}", "relu"),
    "two matrices": (f"{HEAD} {{ g = MatMul(x, v) u = MatMul(x, z) {SILU} y = Mul(a, u) }}", "silu"),
    "two with biases": (
        f"{HEAD} {{ m = MatMul(x, v) g = Add(m, c) n = MatMul(x, z) u = Add(e, n) {SILU} y = Mul(u, a) }}",
        "silu",
    ),
    "convolutions": (
        f"{IMAGE} {{ g = Conv(x, f, c) u = Conv(x, h, e) a = Clip(g, zero, six) y = Mul(a, u) }}",
        "clip_",
    ),
    "halves of a convolution": (
        f"{IMAGE} {{ p = Conv(x, k, b) g, u = Split <axis = 1> (p) a = Sigmoid(g) y = Mul(a, u) }}",
        "sigmoid",
    ),
}
# ``large`` is no scale that is folded into weights.
SCALARS = {
    "large": 128.0,
    "half": 0.5,
    "one": 1.0,
    "zero": 0.0,
    "six": 6.0,
    "cube": 0.044715,
    "slope": np.sqrt(2 / np.pi),
}


def tensors(text: str) -> dict[str, Array]:
    """Return the constants that a model of this text reads, by name."""
    rng = np.random.default_rng(3)
    shapes: dict[str, tuple[int, ...]] = {
        **{"w": (DEPTH, 2 * COLUMNS), "v": (DEPTH, COLUMNS), "z": (DEPTH, COLUMNS), "b": (2 * COLUMNS,)},
        **{"c": (COLUMNS,), "e": (COLUMNS,), "f": (COLUMNS, DEPTH, 1, 1), "h": (COLUMNS, DEPTH, 1, 1)},
        **{"k": (2 * COLUMNS, DEPTH, 1, 1), "gains": (DEPTH,)},
    }
    made = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    made |= {name: np.array(value, np.float32) for name, value in SCALARS.items()}
    words = set(text.replace(",", " ").replace(")", " ").replace("(", " ").split())
    return {name: value for name, value in made.items() if name in words}


def model_of(tmp_path: Path, text: str, dtype: Any = np.float32) -> Path:
    model = onnx.parser.parse_model(text.replace("{rows}", str(ROWS)))
    arrays = {name: value.astype(dtype) for name, value in tensors(text).items()}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in arrays.items())
    onnx.checker.check_model(model)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    return path


def placed(path: Path, arch: str = "sm_90a", **options: Any) -> PartitionedModel:
    return placed_file(path, targets=(f"cuda -arch={arch}", "cutlass"), **{"precision": "fp16", **options})


def gated(model: PartitionedModel) -> list[Any]:
    """Return the partitions that are gated products."""
    parts = [one.partition for one in model.partitions.values()]
    return [part for part in parts if isinstance(part.composites[0].problem, GatedProblem)]


@pytest.mark.parametrize("form", FORMS)
def test_the_constants_of_a_form_give_its_result(tmp_path: Path, form: str) -> None:
    text, activation = FORMS[form]
    path = model_of(tmp_path, text)
    (partition,) = gated(placed(path))
    assert len(placed(path).partitions) == 1
    problem = partition.composites[0].problem
    assert problem.gated.activation.startswith(activation)
    group = draft_group(partition, CutlassOptions(arch=("sm_90a",)))
    (draft,) = group.functions
    kernels = [choice.kernel for candidate in draft.ranking.candidates for choice in candidate.choices]
    assert kernels
    assert all(isinstance(kernel, GemmConfig) and kernel.gated and kernel.early for kernel in kernels)

    x = np.random.default_rng(5).standard_normal((2, DEPTH, 4, 3) if text.startswith(IMAGE) else (ROWS, DEPTH))
    x = x.astype(np.float32)
    (expected,) = ReferenceEvaluator(onnx.load(path)).run(None, {"x": x})
    constants = list(tensors(text).values())
    rows = np.moveaxis(x, 1, -1).reshape(-1, DEPTH)
    found = emulated(problem, group.packings, constants, rows)
    found = np.moveaxis(found.reshape(2, 4, 3, COLUMNS), -1, 1) if x.ndim == 4 else found
    np.testing.assert_allclose(found, expected, rtol=2e-2, atol=2e-2)


def emulated(problem: Any, packings: Any, constants: list[Array], rows: Array, gains: Array | None = None) -> Array:
    """Return what a kernel computes of ``rows``: the constants are those of the model, found by their shapes."""
    products = problem.gated.products
    of_shape = {array.size: [each for each in constants if each.size == array.size] for array in constants}
    for size, arrays in list(of_shape.items()):
        if len(arrays) == 2 and arrays[0].ndim:  # two matrices of the same rows are one by then
            of_shape.setdefault(2 * size, [np.concatenate(arrays, axis=-1)])

    def packed(packing: Any, size: int) -> Array:
        arrays = of_shape[size][: len(products)]
        # Matrices [k, n], filters [n, 1, 1, k] as layouts have them by then.
        arrays = [np.moveaxis(each, 1, -1) if each.ndim == 4 else each for each in arrays]
        scales = [gains] if gains is not None and arrays[0].ndim > 1 else []
        return np.asarray(packing.pack(*arrays, *scales), np.float32)

    size = 2 * COLUMNS * DEPTH // len(products)
    matrix, *biases = packings
    sums = problem.gated.products[0].scale * rows @ packed(matrix, size).T
    if biases:
        sums = sums + packed(biases[0], 2 * COLUMNS // len(products))
    turns = sums.reshape(len(rows), -1, 2, EIGHT)
    name = problem.gated.activation
    activate = ACTIVATIONS.get(name, (lambda x: np.clip(x, 0, 6)) if name.startswith("clip_") else lambda x: x)
    return np.asarray(activate(turns[:, :, 0]) * turns[:, :, 1]).reshape(len(rows), -1)


NORM = (
    "s0 = Mul(x, x) s1 = ReduceMean <axes = [-1]> (s0) s2 = Add(s1, half) s3 = Sqrt(s2) s4 = Div(x, s3) "
    "s5 = Mul(s4, gains) "
)
FEW = [form for form, (text, _) in FORMS.items() if not text.startswith(IMAGE)]


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("form", FEW)
def test_few_rows_have_kernels_of_their_own(tmp_path: Path, form: str, normed: bool, arch: str) -> None:
    """On all GPUs. They divide their sums by the root mean square of the rows; gains are in the matrix."""
    text, _ = FORMS[form]
    text = text.replace("{rows}", str(FEWEST_ROWS - 1))
    if normed:
        text = text.replace("MatMul(x", "MatMul(s5").replace("{ ", f"{{ {NORM}", 1)
    half = model_of(tmp_path, text.replace("float[", "float16["), np.float16)
    (partition,) = [one.partition for one in placed(half, arch=arch, precision=None).partitions.values()]
    path = model_of(tmp_path, text)
    problem, norm = partition.composites[0].problem, None
    if normed:
        problem, norm = problem.problem, problem.norm
    group = draft_group(partition, CutlassOptions(arch=(arch,)))
    (draft,) = group.functions
    (kernel,) = [choice.kernel for candidate in draft.ranking.candidates for choice in candidate.choices]
    assert kernel.name.startswith("pk_gemm_rows_f16_f16_16_")
    assert (kernel.gated, kernel.normed) == (True, normed)
    x = np.random.default_rng(5).standard_normal((FEWEST_ROWS - 1, DEPTH)).astype(np.float32)
    (expected,) = ReferenceEvaluator(onnx.load(path)).run(None, {"x": x})
    rows = x if norm is None else x / np.sqrt((x**2).mean(-1, keepdims=True) + norm.epsilon)
    found = emulated(problem, group.packings, list(tensors(text).values()), rows, gains=tensors(text).get("gains"))
    np.testing.assert_allclose(found, expected, rtol=2e-2, atol=2e-2)


def test_rows_are_interleaved_by_eights() -> None:
    rows = np.arange(32)
    turns = [*range(8), *range(16, 24), *range(8, 16), *range(24, 32)]
    assert interleave(0, rows).tolist() == turns
    assert interleave(1, rows).tolist() == [*turns[8:16], *turns[:8], *turns[24:], *turns[16:24]]


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (FORMS["one matrix"][0], {"arch": "sm_80"}),
        (FORMS["one matrix"][0], {"arch": "sm_80,sm_90a"}),
        (FORMS["one matrix"][0], {"precision": None}),
        (FORMS["one matrix"][0].replace("{rows}", "3"), {"precision": None}),
        (f"{HEAD} {{ {BOTH} {SILU} m = Mul(a, u) y = Add(m, u) }}", {}),  # one half is read twice
        (f"{HEAD} {{ {BOTH} {SILU} d = Add(a, u) y = Mul(d, d) }}", {}),
        (f"{HEAD} {{ {BOTH} a = Cos(g) y = Mul(a, u) }}", {}),
        (f"{HEAD} {{ r = Relu(x) g = MatMul(x, v) u = MatMul(r, z) {SILU} y = Mul(a, u) }}", {}),  # of other rows
        (f"{HEAD} {{ m = MatMul(x, v) g = Add(m, c) u = MatMul(x, z) {SILU} y = Mul(a, u) }}", {}),  # one bias
    ],
)
def test_what_is_no_gated_product_stays(tmp_path: Path, text: str, options: dict[str, Any]) -> None:
    assert not gated(placed(model_of(tmp_path, text), **options))


def test_columns_that_are_no_eights_stay(tmp_path: Path) -> None:
    text = f"{HEAD} {{ {BOTH} {SILU} y = Mul(a, u) }}".replace("40]", "36]")
    path = tmp_path / "model.onnx"
    model = onnx.parser.parse_model(text.replace("{rows}", str(ROWS)))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((DEPTH, 72), np.float32), "w"))
    onnx.save(model, path)
    assert not gated(placed(path))


@pytest.mark.parametrize("form", ["one matrix", "two with biases", "convolutions"])
def test_rows_may_be_any(tmp_path: Path, form: str) -> None:
    path = model_of(tmp_path, FORMS[form][0].replace("{rows}", "n").replace("float[2,", "float[n,"))
    (partition,) = gated(placed(path, dims={"n": (1, 300)}))
    (draft,) = draft_group(partition, CutlassOptions(arch=("sm_90a",))).functions
    assert len(draft.scalars) == 1
