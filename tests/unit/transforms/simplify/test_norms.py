"""Normalizations as exporters write them become ``packager.normalize``; what only looks like one stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
import tvm
from tvm import relax
from tvm_machine import compute

from packager.graph.dataflow import bindings_of, operator_of
from packager.graph.normalize import Normalization, attributes_of_call
from packager.ir.model import NamedArray
from packager.lower.legalize.normalize import expand_norms
from packager.transforms.simplify.no_ops import drop_no_ops
from packager.transforms.simplify.raise_norms import raise_norms, read_halves
from packager.transforms.simplify.regroup_norms import regroup_norms
from tests.unit.transforms.simplify.test_fold_arithmetic import arrays_of, make, operators

DATA = 'x: R.Tensor((2, 12, 5, 3), "float32")'
EPSILON = 'R.const(0.01, "float32")'
MEAN = "m = R.mean(x, axis=[2, 3], keepdims=True)"
CENTERED = (MEAN, "c = R.subtract(x, m)")
VARIANCE = "v = R.variance(x, axis=[2, 3], keepdims=True)"
SQUARES = {
    "multiply": "q = R.multiply(c, c)",
    "square": "q = R.square(c)",
    "power": 'q = R.power(c, R.const(2.0, "float32"))',
}
SHIFTED = f"e = R.add(v, {EPSILON})"
ENDS = {
    "divide": ("s = R.sqrt(e)", "y = R.divide(c, s)"),
    "reciprocal": ("s = R.sqrt(e)", 'r = R.divide(R.const(1.0, "float32"), s)', "y = R.multiply(c, r)"),
    "rsqrt": ("r = R.rsqrt(e)", "y = R.multiply(r, c)"),
    "power": ('s = R.power(e, R.const(0.5, "float32"))', "y = R.divide(c, s)"),
}
PLAIN = Normalization((2, 3), 0.01)
FORMS: dict[str, tuple[tuple[str, ...], Normalization]] = {
    **{name: ((*CENTERED, VARIANCE, SHIFTED, *end), PLAIN) for name, end in ENDS.items()},
    **{
        f"mean of {name}": (
            (*CENTERED, square, "v = R.mean(q, axis=[2, 3], keepdims=True)", SHIFTED, *ENDS["divide"]),
            PLAIN,
        )
        for name, square in SQUARES.items()
    },
    "mean of squares minus square": (
        (
            *CENTERED,
            "q = R.multiply(x, x)",
            "a = R.mean(q, axis=[2, 3], keepdims=True)",
            "b = R.square(m)",
            "d = R.subtract(a, b)",
            'v = R.maximum(d, R.const(0.0, "float32"))',
            SHIFTED,
            *ENDS["rsqrt"],
        ),
        PLAIN,
    ),
    "no epsilon": (
        (*CENTERED, "e = R.variance(x, axis=[2, 3], keepdims=True)", *ENDS["divide"]),
        Normalization((2, 3), 0.0),
    ),
    "no epsilon without a mean": (
        ("q = R.multiply(x, x)", "e = R.mean(q, axis=[3], keepdims=True)", "r = R.rsqrt(e)", "y = R.multiply(x, r)"),
        Normalization((3,), 0.0, centered=False),
    ),
    "axes restored by a reshape": (
        (
            "k = R.mean(x, axis=[1])",
            "m = R.reshape(k, R.shape([2, 1, 5, 3]))",
            "c = R.subtract(x, m)",
            "v = R.variance(x, axis=[1], keepdims=True)",
            SHIFTED,
            *ENDS["divide"],
        ),
        Normalization((1,), 0.01),
    ),
    "without a mean": (
        (
            "q = R.multiply(x, x)",
            "v = R.mean(q, axis=[3], keepdims=True)",
            SHIFTED,
            "r = R.rsqrt(e)",
            "y = R.multiply(x, r)",
        ),
        Normalization((3,), 0.01, centered=False),
    ),
}


def raised(module: tvm.IRModule, values: dict[str, np.ndarray] | None = None) -> tvm.IRModule:
    """Return the module with norms raised and regrouped, tidied as ``prepare`` does."""
    tidy = tvm.transform.Sequential(
        [
            relax.transform.CanonicalizeBindings(),
            relax.transform.EliminateCommonSubexpr(),
            relax.transform.CanonicalizeBindings(),
            relax.transform.DeadCodeElimination(),
        ]
    )
    module = tidy(raise_norms(relax.transform.Normalize()(module), 1))
    constants = {p.name: NamedArray((values or arrays_of(module))[p.name], ()) for p in module["main"].params[1:]}
    return tidy(drop_no_ops(regroup_norms(module, 1, constants)))


def found(module: tvm.IRModule) -> list[Normalization]:
    calls = [binding.value for binding in bindings_of(module["main"])]
    return [attributes_of_call(call.attrs) for call in calls if operator_of(call) == "packager.normalize"]


def agree(module: tvm.IRModule, changed: tvm.IRModule, arrays: dict[str, np.ndarray]) -> None:
    (got,), (wanted,) = (compute(m, arrays.values()) for m in (expand_norms(changed), module))
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def check(module: tvm.IRModule, wanted: Normalization, arrays: Any = None, rest: tuple[str, ...] = ()) -> None:
    arrays = arrays or arrays_of(module)
    changed = raised(module, arrays)
    (attributes,) = found(changed)
    assert attributes.epsilon == pytest.approx(wanted.epsilon)
    assert Normalization(**{**vars(attributes), "epsilon": wanted.epsilon}) == wanted
    assert operators(changed) == ["packager.normalize", *rest]
    agree(module, changed, arrays)


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_one_normalization(form: str) -> None:
    lines, wanted = FORMS[form]
    check(make(DATA, *lines, result="y"), wanted)


def test_scale_and_shift_as_keras_writes_them() -> None:
    module = make(
        f'{DATA}, g: R.Tensor((12, 1, 1), "float32"), b: R.Tensor((12, 1, 1), "float32")',
        *(MEAN, VARIANCE, SHIFTED, "r = R.rsqrt(e)", "k = R.multiply(r, g)"),
        *("p = R.multiply(x, k)", "t = R.multiply(m, k)", "o = R.subtract(b, t)", "y = R.add(p, o)"),
        result="y",
    )
    check(module, PLAIN, rest=("multiply", "add"))


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(
            (*CENTERED, "v = R.variance(x, axis=[1, 2, 3], keepdims=True)", SHIFTED, *ENDS["divide"]), id="axes"
        ),
        pytest.param((*CENTERED, "v = R.variance(c, axis=[2], keepdims=True)", SHIFTED, *ENDS["divide"]), id="data"),
        pytest.param((*CENTERED, VARIANCE, "e = R.add(v, m)", *ENDS["divide"]), id="epsilon"),
        pytest.param((*CENTERED, VARIANCE, SHIFTED, "r = R.rsqrt(e)", "y = R.multiply(x, r)"), id="not centered"),
        pytest.param((*CENTERED, VARIANCE, SHIFTED, "s = R.sqrt(e)", "y = R.multiply(c, s)"), id="not inverted"),
    ],
)
def test_what_is_no_normalization_stays(lines: tuple[str, ...]) -> None:
    assert not found(raised(make(DATA, *lines, result="y")))


def test_standardized_weights_are_folded_as_they_are() -> None:
    lines = [line.replace("(x", "(w") for line in (*CENTERED, VARIANCE, SHIFTED, *ENDS["divide"])]
    module = make(f'{DATA}, w: R.Tensor((2, 12, 5, 3), "float32")', *lines, "z = R.add(x, y)", result="z")
    assert not found(raised(module))


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (
            "y = R.nn.group_norm(x, g, b, num_groups=4, channel_axis=1, axes=[2, 3], epsilon=0.01)",
            Normalization((2, 3), 0.01, 1, 4),
        ),
        ("y = R.nn.instance_norm(x, g, b, channel_axis=1, axes=[2, 3], epsilon=0.01)", PLAIN),
    ],
)
def test_operators_of_frontends(line: str, wanted: Normalization) -> None:
    module = make(f'{DATA}, g: R.Tensor((12,), "float32"), b: R.Tensor((12,), "float32")', line, result="y")
    check(module, wanted, rest=("multiply", "add"))


GROUPS = {
    "merged": ([2, 4, 45], [4, 1], [2]),
    "split": ([2, 4, 3, 5, 3], [4, 3, 1, 1], [2, 3, 4]),
    "batch": ([8, 45], None, [1]),
}


@pytest.mark.parametrize("identity", [True, False])
@pytest.mark.parametrize("case", GROUPS)
def test_groups_of_a_reshape(case: str, identity: bool) -> None:
    """As PyTorch's exporter writes group norm; the scale and shift of groups vanish if they change nothing."""
    shape, constant, axes = GROUPS[case]
    constants = "" if constant is None else "".join(f', {n}: R.Tensor({tuple(constant)}, "float32")' for n in "gb")
    scaled = () if constant is None else ("z = R.multiply(n, g)", "w = R.add(z, b)")
    module = make(
        DATA + constants,
        f"h = R.reshape(x, R.shape({shape}))",
        f"m = R.mean(h, axis={axes}, keepdims=True)",
        "c = R.subtract(h, m)",
        f"v = R.variance(h, axis={axes}, keepdims=True)",
        *(SHIFTED, "s = R.sqrt(e)", "n = R.divide(c, s)"),
        *scaled,
        f"y = R.reshape({'w' if scaled else 'n'}, R.shape([2, 12, 5, 3]))",
        result="y",
    )
    arrays = arrays_of(module)
    if identity and constant is not None:
        arrays |= {"g": np.ones(constant, "f4"), "b": np.zeros(constant, "f4")}
    rest = () if identity or constant is None else ("multiply", "add")
    check(module, Normalization((2, 3), 0.01, 1, 4), arrays, rest)


def test_groups_of_the_last_axis() -> None:
    """As Keras writes group norm, over NHWC."""
    module = make(
        'x: R.Tensor((2, 5, 3, 12), "float32"), g: R.Tensor((1, 1, 1, 4, 3), "float32")',
        "h = R.reshape(x, R.shape([2, 5, 3, 4, 3]))",
        "m = R.mean(h, axis=[1, 2, 4], keepdims=True)",
        "c = R.subtract(h, m)",
        "v = R.variance(h, axis=[1, 2, 4], keepdims=True)",
        *(SHIFTED, "r = R.rsqrt(e)", "n = R.multiply(c, r)", "w = R.multiply(n, g)"),
        "y = R.reshape(w, R.shape([2, 5, 3, 12]))",
        result="y",
    )
    check(module, Normalization((1, 2), 0.01, 3, 4), rest=("multiply",))


def test_one_group_is_a_normalization_of_all_axes() -> None:
    module = make(
        DATA,
        "h = R.reshape(x, R.shape([2, 180]))",
        "m = R.mean(h, axis=[1], keepdims=True)",
        "c = R.subtract(h, m)",
        "v = R.variance(h, axis=[1], keepdims=True)",
        *(SHIFTED, "s = R.sqrt(e)", "n = R.divide(c, s)"),
        "y = R.reshape(n, R.shape([2, 12, 5, 3]))",
        result="y",
    )
    check(module, Normalization((1, 2, 3), 0.01))


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_one_group_has_numbers_for_scale_and_shift(scale: float) -> None:
    """As PyTorch's exporter writes a group norm of one group: constants of one element are in the graph."""
    module = make(
        DATA,
        "h = R.reshape(x, R.shape([2, 1, 180]))",
        "m = R.mean(h, axis=[2], keepdims=True)",
        "c = R.subtract(h, m)",
        "v = R.variance(h, axis=[2], keepdims=True)",
        *(SHIFTED, "s = R.sqrt(e)", "n = R.divide(c, s)"),
        f'z = R.multiply(n, R.const([[{scale}]], "float32"))',
        'w = R.add(z, R.const([[0.0]], "float32"))',
        "y = R.reshape(w, R.shape([2, 12, 5, 3]))",
        result="y",
    )
    check(module, Normalization((2, 3), 0.01, 1, 1), rest=() if scale == 1 else ("multiply",))


def test_other_operators_between_the_reshapes_stay_there() -> None:
    module = make(
        DATA + ', g: R.Tensor((4, 45), "float32")',
        "h = R.reshape(x, R.shape([2, 4, 45]))",
        "m = R.mean(h, axis=[2], keepdims=True)",
        "c = R.subtract(h, m)",
        "v = R.variance(h, axis=[2], keepdims=True)",
        *(SHIFTED, "s = R.sqrt(e)", "n = R.divide(c, s)", "w = R.multiply(n, g)"),
        "y = R.reshape(w, R.shape([2, 12, 5, 3]))",
        result="y",
    )
    check(module, Normalization((2, 3), 0.01, 1, 4), rest=("reshape", "multiply", "reshape"))


HALF_FORMS = {
    "operator": ("y = R.nn.instance_norm(x, g, b, channel_axis=1, axes=[2, 3], epsilon=0.01)",),
    "written out": (
        *(line.replace("float32", "float16") for line in (*CENTERED, VARIANCE, SHIFTED, *ENDS["divide"][:1])),
        "n = R.divide(c, s)",
        "w = R.multiply(n, R.reshape(g, R.shape([12, 1, 1])))",
        "y = R.add(w, R.reshape(b, R.shape([12, 1, 1])))",
    ),
    "reshapes": (
        "h = R.reshape(x, R.shape([24, 15]))",
        "m = R.mean(h, axis=[1], keepdims=True)",
        "c = R.subtract(h, m)",
        "v = R.variance(h, axis=[1], keepdims=True)",
        'e = R.add(v, R.const(0.01, "float16"))',
        "s = R.sqrt(e)",
        "n = R.divide(c, s)",
        "o = R.reshape(n, R.shape([2, 12, 5, 3]))",
        "w = R.multiply(o, R.reshape(g, R.shape([12, 1, 1])))",
        "y = R.add(w, R.reshape(b, R.shape([12, 1, 1])))",
    ),
}


@pytest.mark.parametrize("form", HALF_FORMS)
def test_half_precision_is_rounded_once(form: str) -> None:
    """Scale and shift are of float32 too: the result is the float16 next to what float64 computes, or one beside it."""
    parameters = "".join(f', {name}: R.Tensor((12,), "float16")' for name in "gb")
    module = make(DATA.replace("float32", "float16") + parameters, *HALF_FORMS[form], result="y")
    arrays = {name: array.astype("f2") for name, array in arrays_of(module).items()}
    changed = raised(module, arrays)
    names = [name for name in operators(changed) if name != "reshape"]
    assert names == ["astype", "packager.normalize", "multiply", "add", "astype"]
    x, g, b = (array.astype("f8") for array in arrays.values())
    deviation = np.sqrt(x.var((2, 3), keepdims=True) + float(found(changed)[0].epsilon))
    exact = (x - x.mean((2, 3), keepdims=True)) / deviation * g[:, None, None] + b[:, None, None]
    (got,) = compute(expand_norms(changed), arrays.values())
    assert got.dtype == np.float16
    assert np.all(np.abs(got - exact) <= 0.51 * np.spacing(np.abs(exact).astype("f2")))


def test_those_of_rows_and_of_channels_alone_are_raised_where_asked() -> None:
    for axes, found in (("[3]", 1), ("[1]", 1), ("[2]", 0), ("[2, 3]", 0), ("[1, 2, 3]", 0)):
        lines = (
            f"m = R.mean(x, axis={axes}, keepdims=True)",
            "c = R.subtract(x, m)",
            f"v = R.variance(x, axis={axes}, keepdims=True)",
            SHIFTED,
            *ENDS["divide"],
        )
        changed = raise_norms(make(DATA, *lines, result="y"), 1, of_vectors=True)
        assert operators(changed).count("packager.normalize") == found


def test_those_of_channels_of_volumes_are_too() -> None:
    for axes, found in (("[2, 3, 4]", 1), ("[3, 4]", 0), ("[1, 2, 3, 4]", 0)):
        lines = (
            f"m = R.mean(x, axis={axes}, keepdims=True)",
            "c = R.subtract(x, m)",
            f"v = R.variance(x, axis={axes}, keepdims=True)",
            SHIFTED,
            *ENDS["divide"],
        )
        changed = raise_norms(make('x: R.Tensor((2, 3, 4, 5, 6), "float32")', *lines, result="y"), 1, of_vectors=True)
        assert operators(changed).count("packager.normalize") == found


def test_half_precision_is_read_by_the_normalization() -> None:
    lines = (
        'w = R.astype(x, "float32")',
        "q = R.multiply(w, w)",
        "v = R.mean(q, axis=[3], keepdims=True)",
        SHIFTED,
        "s = R.sqrt(e)",
        "y = R.divide(w, s)",
    )
    module = make('x: R.Tensor((2, 12, 5, 3), "float16")', *lines, result="y")
    changed = read_halves(raise_norms(module, 1, of_vectors=True))
    (call,) = (b.value for b in bindings_of(changed["main"]) if operator_of(b.value) == "packager.normalize")
    assert (str(call.args[0].ty.dtype), str(call.ty.dtype)) == ("float16", "float32")
    x = np.random.default_rng(0).standard_normal((2, 12, 5, 3)).astype(np.float16)
    (got,), (wanted,) = (compute(m, [x]) for m in (expand_norms(changed), module))
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
