"""Chains of additions and multiplications with constants, and powers, that become cheaper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
import tvm
from tvm import relax
from tvm_machine import compute

from packager.graph.dataflow import bindings_of, computed_from_constants, operator_of
from packager.transforms.simplify.arithmetic import simplify_arithmetic

HEADER = "@I.ir_module\nclass Module:\n    @R.function\n"


def make(parameters: str, *lines: str, result: str) -> tvm.IRModule:
    """Return a module whose main computes ``lines`` in a dataflow block."""
    body = "".join(f"            {line}\n" for line in lines)
    text = f"    def main({parameters}):\n        with R.dataflow():\n{body}            R.output({result})\n"
    return tvm.script.from_source(HEADER + text + f"        return {result}\n")


def operators(module: tvm.IRModule) -> list[str]:
    """Return the operators that depend on the first parameter, in order."""
    main = module["main"]
    found, reached = [], {main.params[0].__chandle__()}
    for block in main.body.blocks:
        for binding in block.bindings:
            if any(v.__chandle__() in reached for v in relax.analysis.free_vars(binding.value)):
                reached.add(binding.var.__chandle__())
                if isinstance(binding.value, relax.Call):
                    found.append(binding.value.op.name.removeprefix("relax."))
    return found


def run(module: tvm.IRModule, arrays: Mapping[str, np.ndarray]) -> Any:
    (result,) = compute(module, arrays.values())
    return result


def arrays_of(module: tvm.IRModule) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    shapes = {p.name: tuple(map(int, p.ty.shape.values)) for p in module["main"].params}
    return {name: rng.uniform(0.5, 2, shape).astype("f4") for name, shape in shapes.items()}


def check(module: tvm.IRModule, wanted: list[str], **options: bool) -> None:
    """Compare what is computed before and after, and the operators that are left."""
    module = relax.transform.Normalize()(module)
    simplified = relax.transform.DeadCodeElimination()(simplify_arithmetic(module, 1, **options))
    assert operators(simplified) == wanted
    arrays = arrays_of(module)
    np.testing.assert_allclose(run(simplified, arrays), run(module, arrays), rtol=1e-4, atol=1e-5)


IMAGE = 'x: R.Tensor((2, 6, 5, 4), "float32")'
CHANNELS = ", ".join(f'{name}: R.Tensor((1, 6, 1, 1), "float32")' for name in "abcd")


def test_a_batch_norm_with_a_scale_behind_it_is_a_product_and_a_sum() -> None:
    lines = ["t = R.subtract(x, a)", "u = R.divide(t, b)", "v = R.multiply(c, u)", "w = R.add(v, d)"]
    lines += ["y = R.multiply(w, a)", "z = R.add(y, b)", "r = R.nn.relu(z)"]
    check(make(f"{IMAGE}, {CHANNELS}", *lines, result="r"), ["multiply", "add", "nn.relu"])


def test_sums_are_one_sum_and_products_one_product() -> None:
    lines = ["t = R.subtract(x, a)", "u = R.add(t, b)", "y = R.multiply(u, x)", "v = R.multiply(y, c)"]
    lines += ["w = R.divide(v, d)"]
    check(make(f"{IMAGE}, {CHANNELS}", *lines, result="w"), ["add", "multiply", "multiply"])


@pytest.mark.parametrize("scale", ["(1, 6, 1, 1)", "(6, 1, 1)", "(1,)"])
def test_a_convolution_takes_the_product(scale: str) -> None:
    parameters = f'{IMAGE}, w: R.Tensor((6, 3, 3, 3), "float32"), s: R.Tensor({scale}, "float32")'
    lines = ["t = R.nn.conv2d(x, w, groups=2)", "u = R.add(t, s)", "y = R.multiply(u, s)", "z = R.add(y, s)"]
    check(make(parameters, *lines, result="z"), ["nn.conv2d", "add"])


def test_a_number_is_folded_into_weights_that_stay_constants() -> None:
    """Passes that follow know of constants that are parameters, or computed from them, not of computed numbers."""
    parameters = f'{IMAGE}, w: R.Tensor((6, 3, 3, 3), "float32"), s: R.Tensor((6, 1, 1), "float32")'
    lines = ["t = R.nn.conv2d(x, w, groups=2)", "u = R.add(t, s)", 'y = R.multiply(u, R.const(0.25, "float32"))']
    lines += ['z = R.divide(y, R.const(3.0, "float32"))', 'r = R.subtract(z, R.const(1.0, "float32"))']
    module = make(parameters, *lines, result="r")
    check(module, ["nn.conv2d", "add"])
    main = simplify_arithmetic(relax.transform.Normalize()(module), 1)["main"]
    (*_, weight) = [b.value.args[1] for b in bindings_of(main) if operator_of(b.value) == "nn.conv2d"]
    assert weight in computed_from_constants(main, 1)


LAYER = ("p = R.permute_dims(w)", "t = R.matmul(x, p)", "u = R.add(t, b)")
ADDED = ("z = R.add(x, y)",)
SCALED = {
    "layer scale": ("y = R.multiply(s, u)", ADDED, ["matmul", "add", "add"]),
    "half a layer": ('y = R.multiply(u, R.const(0.5, "float32"))', ADDED, ["matmul", "add", "add"]),
    "vector that is read by others": (
        "y = R.multiply(s, u)",
        ("z = R.nn.relu(y)",),
        ["matmul", "add", "multiply", "nn.relu"],
    ),
    "number": ('y = R.divide(u, R.const(8.0, "float32"))', ("z = R.nn.relu(y)",), ["matmul", "add", "nn.relu"]),
    "small number": (
        'y = R.multiply(u, R.const(1e-4, "float32"))',
        ("z = R.nn.relu(y)",),
        ["matmul", "add", "multiply", "nn.relu"],
    ),
    "rows": ("y = R.multiply(u, v)", ADDED, ["matmul", "add", "multiply", "add"]),
}


@pytest.mark.parametrize("form", SCALED)
def test_a_matmul_takes_what_costs_its_weights_no_bits(form: str) -> None:
    scale, after, wanted = SCALED[form]
    square = 'x: R.Tensor((2, 5, 6), "float32"), w: R.Tensor((6, 6), "float32")'
    vectors = 'b: R.Tensor((6,), "float32"), s: R.Tensor((6,), "float32"), v: R.Tensor((5, 1), "float32")'
    module = make(f"{square}, {vectors}", *LAYER, scale, *after, result="z")
    check(module, wanted, of_matmuls=True)
    check(module, ["matmul", "add", operators(module)[2], *wanted[-1:]])


@pytest.mark.parametrize("shape", ["(6,)", "(1, 6)"])
def test_a_matmul_takes_the_scale_of_a_batch_norm(shape: str) -> None:
    """What is lost of a small scale is lost when the shift is added, too."""
    vectors = ", ".join(f'{name}: R.Tensor({shape}, "float32")' for name in "abcd")
    parameters = f'x: R.Tensor((5, 6), "float32"), w: R.Tensor((6, 6), "float32"), {vectors}'
    lines = ["m = R.matmul(x, w)", "t = R.subtract(m, a)", "u = R.divide(t, b)", "v = R.multiply(c, u)"]
    lines += ["y = R.add(v, d)", "z = R.nn.relu(y)"]
    module = make(parameters, *lines, result="z")
    check(module, ["matmul", "add", "nn.relu"], of_matmuls=True)
    check(module, ["matmul", "multiply", "add", "nn.relu"])


def test_a_convolution_that_is_read_elsewhere_keeps_its_weights() -> None:
    parameters = f'{IMAGE}, w: R.Tensor((6, 6, 1, 1), "float32"), {CHANNELS}'
    lines = ["t = R.nn.conv2d(x, w)", "u = R.multiply(t, a)", "v = R.multiply(u, b)", "y = R.add(t, v)"]
    check(make(parameters, *lines, result="y"), ["nn.conv2d", "multiply", "add"])


def test_what_does_not_become_shorter_stays() -> None:
    """Its constants can then be swapped."""
    lines = ["t = R.multiply(x, a)", "y = R.add(t, b)"]
    module = relax.transform.Normalize()(make(f"{IMAGE}, {CHANNELS}", *lines, result="y"))
    assert simplify_arithmetic(module, 1).same_as(module)


def test_a_value_that_is_read_twice_ends_a_chain() -> None:
    lines = ["t = R.multiply(x, a)", "u = R.multiply(t, b)", "y = R.add(t, u)"]
    check(make(f"{IMAGE}, {CHANNELS}", *lines, result="y"), ["multiply", "multiply", "add"])


def test_constants_that_make_a_result_larger_are_left() -> None:
    parameters = 'x: R.Tensor((1, 6, 1, 1), "float32"), a: R.Tensor((2, 6, 5, 4), "float32")'
    lines = ["t = R.multiply(x, a)", "u = R.multiply(t, a)", "y = R.multiply(u, a)"]
    check(make(parameters, *lines, result="y"), ["multiply", "multiply"])


@pytest.mark.parametrize(("exponent", "products"), [(2.0, 1), (3.0, 2)])
def test_squares_and_cubes_are_products(exponent: float, products: int) -> None:
    check(make(IMAGE, f'y = R.power(x, R.const({exponent}, "float32"))', result="y"), ["multiply"] * products)


def test_three_quarters_are_square_roots() -> None:
    check(make(IMAGE, 'y = R.power(x, R.const(0.75, "float32"))', result="y"), ["sqrt", "sqrt", "multiply"])
