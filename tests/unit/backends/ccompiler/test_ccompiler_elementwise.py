"""Elementwise operators of the ccompiler backend against numpy: every operator, special values, random chains."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("tvm")
from ccompiler_runner import Runner, partition, variable
from tvm import relax, tirx
from tvm.relax import op

from packager.backends.ccompiler.core.expressions import ARITIES

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e-3, 80.0, -80.0, np.inf, -np.inf, np.nan]
FLOAT_UNARY: dict[str, Callable[[Any], Any]] = {
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf, otypes=["f8"]),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.round,
    "nn.silu": lambda x: x / (1 + np.exp(-x)),
    "nn.gelu": lambda x: x * (0.5 + 0.5 * np.vectorize(math.erf, otypes=["f8"])(x / math.sqrt(2))),
    "nn.gelu_tanh": lambda x: x * (0.5 + 0.5 * np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "nn.leakyrelu": lambda x: np.where(x < 0, 0.01 * x, x),
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
}
ANY_UNARY: dict[str, Callable[[Any], Any]] = {
    "abs": np.abs,
    "sign": np.sign,
    "negative": np.negative,
    "square": np.square,
    "nn.relu": lambda x: np.maximum(x, x.dtype.type(0)),
    "clip": lambda x: np.clip(x, x.dtype.type(-1), x.dtype.type(2)),
}
ANY_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}
INTEGER_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "divide": lambda a, b: np.where(b == 0, 0, np.trunc(a.astype("f8") / np.where(b == 0, 1, b).astype("f8"))),
    "floor_divide": lambda a, b: np.where(b == 0, 0, np.floor_divide(a, np.where(b == 0, 1, b))),
    "mod": lambda a, b: np.where(b == 0, 0, np.fmod(a, np.where(b == 0, 1, b))),
    "floor_mod": lambda a, b: np.where(b == 0, 0, np.mod(a, np.where(b == 0, 1, b))),
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
}
FLOAT_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "divide": np.divide,
    "floor_divide": lambda a, b: np.floor(a / b),
    "power": np.power,
}
BOOL: dict[str, Callable[..., Any]] = {
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "logical_not": np.logical_not,
    "bitwise_not": np.logical_not,
}
TESTED = {*FLOAT_UNARY, *ANY_UNARY, *ANY_BINARY, *INTEGER_BINARY, *FLOAT_BINARY, *BOOL}


def call(name: str, *operands: Any) -> Any:
    """Return the Relax call of an operator, attributes as tests expect them."""
    place: Any = op
    for part in name.split("."):
        place = getattr(place, part)
    return place(*operands, -1, 2) if name == "clip" else place(*operands)


def all_of(functions: dict[str, Callable[..., Any]], dtype: str, arity: int, folder: Path) -> None:
    """Check operators, all in one partition with many results, on all pairs of special values."""
    if np.dtype(dtype).kind == "f":
        values = np.array(SPECIAL, dtype)
    elif dtype == "bool":
        values = np.array([False, True])
    else:
        limits = np.iinfo(dtype)
        values = np.unique(np.clip([limits.min, -7, -1, 0, 1, 2, 3, 100, limits.max], limits.min, limits.max))
        values = values.astype(dtype)
    arrays = list(np.meshgrid(*[values] * arity)) if arity == 2 else [values]
    arrays = [np.ascontiguousarray(array) for array in arrays]
    arguments = [variable(f"x{i}", array.shape, dtype) for i, array in enumerate(arrays)]
    run = Runner(partition(arguments, lambda e, *xs: tuple(e(call(name, *xs)) for name in functions)), folder)
    results = run(*arrays)
    for (name, function), got in zip(functions.items(), results, strict=True):
        with np.errstate(all="ignore"):
            inputs = [a.astype("f8") if dtype in ("float16", "float32") and name in WIDE else a for a in arrays]
            wanted = function(*inputs).astype(got.dtype)
        if got.dtype.kind == "f":
            unit = {"float16": 1e-3, "float32": 3e-6, "float64": 1e-14}[dtype]
            np.testing.assert_allclose(got, wanted, rtol=unit, atol=unit / 4, err_msg=name)
        else:
            np.testing.assert_array_equal(got, wanted, err_msg=name)


WIDE = {*FLOAT_UNARY} - {"isnan", "isinf", "isfinite"}


def test_functions_of_floats_of_all_sizes(tmp_path: Path) -> None:
    """The polynomials that reduce their argument: within 3 units in the last place, subnormal or huge."""
    names = ("log", "sin", "cos", "tan", "atan", "asin", "acos")
    bits = np.arange(1, 0x7F800000, 40961, dtype=np.uint32)  # of positive numbers
    x = bits.view("f4")
    parameter = variable("x", x.shape, "float32")
    run = Runner(partition([parameter], lambda e, x: tuple(e(call(name, x)) for name in names)), tmp_path)
    for name, got in zip(names, run(x), strict=True):
        known = x <= 1 if name in ("asin", "acos") else x > 0
        wanted = FLOAT_UNARY[name](x[known].astype("f8"))
        units = np.abs(got[known] - wanted) / np.spacing(np.abs(wanted).astype("f4"))
        assert units.max() < 3, f"{name} of {x[units.argmax()]}"
        assert np.isnan(got[~known]).all(), name


# Units in the last place of normal results.
BOUNDED = {"exp": 1, "sigmoid": 4, "tanh": 6, "erf": 6, "sinh": 3, "cosh": 3, "asinh": 4, "acosh": 3, "atanh": 3}


def test_functions_that_bound_their_argument(tmp_path: Path) -> None:
    """Over all floats: within a few units, subnormal and infinite where results should be."""
    size = np.arange(1, 0x7F800000, 40961, dtype=np.uint32).view("f4")
    near = np.linspace(-110, 110, 50001, dtype=np.float32)  # where e^x begins, and ends, to be a number
    x = np.concatenate([size, -size, near, np.array(SPECIAL, "f4")])
    parameter = variable("x", x.shape, "float32")
    run = Runner(partition([parameter], lambda e, x: tuple(e(call(name, x)) for name in BOUNDED)), tmp_path)
    for name, got in zip(BOUNDED, run(x), strict=True):
        with np.errstate(all="ignore"):
            wanted = FLOAT_UNARY[name](x.astype("f8"))
            rounded = wanted.astype("f4")
        finite = np.isfinite(rounded)
        np.testing.assert_array_equal(got[~finite], rounded[~finite], err_msg=name)
        if name == "sigmoid":  # 1 + e^89 is no number: less than the least normal one
            low = x < -87
            assert ((got[low] >= 0) & (got[low] < 2.0**-125)).all()
            finite &= ~low
        least = np.float32(2.0**-126)
        units = np.abs(got[finite] - wanted[finite]) / np.spacing(np.maximum(np.abs(rounded[finite]), least))
        assert units.max() < BOUNDED[name], f"{name} at {x[finite][units.argmax()]}"
        assert name not in ("sigmoid", "tanh", "erf") or np.abs(got[finite]).max() == 1


@pytest.mark.parametrize("march", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_exponential_functions_alone(march: str, tmp_path: Path) -> None:
    """Which have tables: over all floats, within a unit, of lengths that vectors do not divide."""
    size = np.arange(1, 0x7F800000, 40961, dtype=np.uint32).view("f4")
    near = np.linspace(-110, 110, 100001, dtype=np.float32)
    x = np.concatenate([size, -size, near, np.array([*SPECIAL, 1.5], "f4")])
    n = tirx.Var("n", "int64")
    run = Runner(partition([variable("x", (n,))], lambda e, x: e(op.exp(x))), tmp_path, f"ccompiler -march={march}")
    for length in (len(x), 4097, 13, 5, 1):
        part = x[-length:]
        got = run(part)
        with np.errstate(all="ignore"):
            wanted = np.exp(part.astype("f8"))
            rounded = wanted.astype("f4")
        finite = np.isfinite(rounded)
        np.testing.assert_array_equal(got[~finite], rounded[~finite])
        least = np.float32(2.0**-126)
        units = np.abs(got[finite] - wanted[finite]) / np.spacing(np.maximum(rounded[finite], least))
        most = 2 if march == "x86-64-v2" else 1  # which has no FMA
        assert units.max() < most, part[finite][units.argmax()]


def test_powers(tmp_path: Path) -> None:
    """By any exponent within 2 units; of zero, infinity, NaN, one and negative numbers as C has them."""
    rng, special = np.random.default_rng(2), np.array([*SPECIAL, 2.0, -3.0, 1e-42, -1e-42, 16777217.0, 2.5], "f4")
    pairs = np.array(np.meshgrid(special, special), "f4").reshape(2, -1)
    bases = [pairs[0], rng.uniform(0, 9, 20000), np.exp(rng.uniform(-80, 80, 20000)), -rng.integers(1, 50, 2000)]
    exponents = [pairs[1], rng.uniform(-9, 9, 20000), rng.uniform(-3, 3, 20000), rng.integers(-9, 9, 2000)]
    a, b = (np.concatenate(parts).astype("f4") for parts in (bases, exponents))
    numbers = (0.5, -0.5, 4.0, 2.2)

    def build(e: Any, x: Any, y: Any) -> tuple[Any, ...]:
        return (e(op.power(x, y)), *(e(op.power(x, relax.const(number, "float32"))) for number in numbers))

    run = Runner(partition([variable("x", a.shape), variable("y", a.shape)], build), tmp_path)
    with np.errstate(all="ignore"):
        given = [b, *(np.full_like(a, number) for number in numbers)]  # of a scalar numpy takes the square root
        exact = [np.power(a.astype("f8"), exponent.astype("f8")) for exponent in given]
        for got, wanted in zip(run(a, b), exact, strict=True):
            rounded = wanted.astype("f4")
            finite = np.isfinite(rounded)
            np.testing.assert_array_equal(got[~finite], rounded[~finite])
            np.testing.assert_array_equal(np.signbit(got[finite]), np.signbit(rounded[finite]))
            size = np.maximum(np.abs(rounded[finite]), np.float32(2.0**-126))
            assert (np.abs(got[finite] - wanted[finite]) / np.spacing(size)).max() < 2


def test_branches_of_one_input_are_one_loop(tmp_path: Path) -> None:
    """As softplus has them; two results, of which one reads what the other does."""
    values = np.linspace(-3, 3, 100, dtype="f4")
    x = variable("x", values.shape, "float32")

    def build(e: Any, x: Any) -> tuple[Any, Any]:
        low = e(op.log(e(op.add(e(op.exp(e(op.negative(e(op.abs(x)))))), relax.const(1.0, "float32")))))
        soft = e(op.add(e(op.nn.relu(x)), low))
        return soft, e(op.multiply(low, x))

    run = Runner(partition([x], build), tmp_path)
    low = np.log1p(np.exp(-np.abs(values.astype("f8"))))
    for got, wanted in zip(run(values), (np.maximum(values, 0) + low, low * values), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    assert len(run.group.functions) == 1


def test_every_operator_is_tested() -> None:
    assert set(ARITIES) == TESTED | {"astype", "where", "broadcast_to"}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_float_operators(dtype: str, tmp_path: Path) -> None:
    all_of({**FLOAT_UNARY, **ANY_UNARY}, dtype, 1, tmp_path / "unary")
    all_of({**FLOAT_BINARY, **ANY_BINARY}, dtype, 2, tmp_path / "binary")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "int64"])
def test_integer_operators_wrap_around(dtype: str, tmp_path: Path) -> None:
    unary = {name: f for name, f in ANY_UNARY.items() if not (dtype.startswith("u") and name in ("negative", "clip"))}
    all_of(unary, dtype, 1, tmp_path / "unary")
    binary = {**INTEGER_BINARY, **ANY_BINARY}
    if dtype == "int64":
        del binary["divide"]  # the reference above goes through double
    all_of(binary, dtype, 2, tmp_path / "binary")


def test_bool_operators(tmp_path: Path) -> None:
    all_of({name: f for name, f in BOOL.items() if not name.endswith("not")}, "bool", 2, tmp_path / "binary")
    all_of({name: f for name, f in BOOL.items() if name.endswith("not")}, "bool", 1, tmp_path / "unary")


@pytest.mark.slow
@pytest.mark.parametrize("source", ["float32", "float16", "int8", "uint8", "int32", "int64", "bool"])
def test_casts(source: str, tmp_path: Path) -> None:
    targets = [t for t in ("float32", "float16", "float64", "int8", "int32", "int64", "bool") if t != source]
    values = np.array([0, 1, 2, 3, 100], source)
    x = variable("x", values.shape, source)
    run = Runner(partition([x], lambda e, x: tuple(e(op.astype(x, target)) for target in targets)), tmp_path)
    for got in run(values):
        np.testing.assert_array_equal(got, values.astype(got.dtype))


@pytest.mark.parametrize("needed", ["whole numbers", "both", "sums of both"])
def test_rounding_and_converting_are_one_step(needed: str, tmp_path: Path) -> None:
    """Where nothing else needs the rounded value; where something does, it is there."""
    values = [-2.5, -1.5, -0.5, -0.0, 0.5, 1.5, 2.5, 0.49999997, 8388609.0, -2147483648.0, 2147483520.0]
    data = np.array(values * 5, "f4")

    def body(e, x):
        rounded = e(op.round(x))
        whole = e(op.astype(rounded, "int32"))
        if needed == "both":
            return whole, rounded
        return (whole,) if needed == "whole numbers" else (whole, e(op.add(rounded, x)))

    run = Runner(partition([variable("x", data.shape)], body), tmp_path)
    results = run(data)
    whole, *others = results if isinstance(results, tuple) else (results,)
    np.testing.assert_array_equal(whole, np.rint(data).astype(np.int32))
    for other in others:
        np.testing.assert_array_equal(other, np.rint(data) + (data if needed == "sums of both" else 0))
    source = (tmp_path / "ccompiler.c").read_text()
    assert source.count("pk_nearest(") == 1 + (needed == "whole numbers")  # its definition, and a use


@pytest.mark.parametrize("march", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("bounded", [False, True])
def test_quotients_that_are_rounded_need_no_division(bounded: bool, march: str, tmp_path: Path) -> None:
    """As QuantizeLinear has them: the same integers as of a division, at the middle of two and beside it too."""
    rng = np.random.default_rng(5)
    scales = [0.02, 1 / 3, 7.0, 0.013, 1.9999999, *rng.uniform(1e-4, 2, 5)]
    middles = np.arange(-300, 300, dtype="f8") + 0.5
    size = (4, 4096)

    def body(e, x):
        def quantized(scale):
            numbers = e(op.divide(x, relax.const(scale, "float32")))
            if bounded:
                numbers = e(op.clip(numbers, -(2.0**30), 2.0**30))
            return e(op.astype(e(op.round(numbers)), "int32"))

        return tuple(map(quantized, scales))

    run = Runner(partition([variable("x", size)], body), tmp_path, f"ccompiler -march={march}")
    for number, scale in enumerate(np.array(scales, "f4")):
        near = (middles * scale).astype("f4")
        data = [near, np.nextafter(near, np.float32(9)), np.nextafter(near, np.float32(-9)), rng.normal(0, 50, 9999)]
        x = np.concatenate([[np.inf, -np.inf, 1e30] if bounded else [], *data]).astype("f4")
        x = np.resize(x, size)
        wanted = np.rint(np.clip(x / scale, -(2.0**30), 2.0**30))
        np.testing.assert_array_equal(run(x)[number], wanted.astype(np.int32))
    assert (tmp_path / "ccompiler.c").read_text().count("pk_quotient(") == 1 + len(scales)


@pytest.mark.parametrize("march", ["x86-64-v2", "x86-64-v4"])
def test_quotients_of_bounded_numbers_need_no_division(march: str, tmp_path: Path) -> None:
    """As of hard swish: the same floats as of a division, of NaN too."""

    def body(e, x):
        clipped = e(op.clip(e(op.add(x, relax.const(3.0, "float32"))), 0.0, 6.0))
        gate = e(op.divide(clipped, relax.const(6.0, "float32")))
        return e(op.multiply(x, gate)), e(op.divide(e(op.tanh(x)), relax.const(0.7, "float32")))

    x = np.random.default_rng(5).uniform(-5, 5, (7, 3001)).astype("f4")
    x[0, :5] = np.inf, -np.inf, np.nan, 0, -3
    run = Runner(partition([variable("x", x.shape)], body), tmp_path, f"ccompiler -march={march}")
    with np.errstate(invalid="ignore"):
        wanted = x * (np.clip(x + np.float32(3), 0, 6) / np.float32(6))
    swish, quotient = run(x)
    np.testing.assert_array_equal(swish, wanted)
    np.testing.assert_allclose(quotient, np.tanh(x) / np.float32(0.7), rtol=1e-6, atol=1e-6)
    assert (tmp_path / "ccompiler.c").read_text().count("pk_quotient(") == 3


def test_where_with_broadcast_condition(tmp_path: Path) -> None:
    n = tirx.Var("n", "int64")
    arguments = [variable("c", (n, 1), "bool"), variable("x", (n, 9)), variable("y", (9,))]
    run = Runner(partition(arguments, lambda e, c, x, y: e(op.where(c, x, y))), tmp_path)
    c, x, y = np.array([[True], [False]]), np.arange(18, dtype="f4").reshape(2, 9), -np.arange(9, dtype="f4")
    np.testing.assert_array_equal(run(c, x, y), np.where(c, x, y))


def test_sum_as_the_onnx_frontend_writes_it(tmp_path: Path) -> None:
    arguments = [variable("a", (2, 5)), variable("b", (2, 5)), variable("c", (2, 5))]

    def body(e, a, b, c):
        parts = [e(op.broadcast_to(part, (2, 5))) for part in (a, b, c)]
        return e(op.nn.relu(e(op.sum(e(op.stack(parts, 0)), [0]))))

    run = Runner(partition(arguments, body), tmp_path)
    arrays = [np.random.default_rng(i).standard_normal((2, 5)).astype("f4") for i in range(3)]
    np.testing.assert_allclose(run(*arrays), np.maximum(sum(arrays), 0), rtol=1e-6)


def test_a_value_of_a_smaller_shape_is_a_stage_of_its_own(tmp_path: Path) -> None:
    arguments = [variable("s", (4, 1)), variable("x", (4, 6))]

    def body(e, s, x):
        scale = e(op.exp(s))
        return scale, e(op.multiply(x, scale))

    run = Runner(partition(arguments, body), tmp_path)
    assert len(run.group.functions) == 2
    s, x = np.linspace(-1, 1, 4, dtype="f4").reshape(4, 1), np.arange(24, dtype="f4").reshape(4, 6)
    scale, scaled = run(s, x)
    np.testing.assert_allclose(scale, np.exp(s), rtol=1e-6)
    np.testing.assert_allclose(scaled, np.exp(s) * x, rtol=1e-6)


# Random chains: operators on what there is, every shape broadcast from (n, 3, 1, 5), some values results too.

SAFE_UNARY = {"nn.relu": ANY_UNARY["nn.relu"], "tanh": np.tanh, "sigmoid": FLOAT_UNARY["sigmoid"], "abs": np.abs}
SAFE_BINARY = {"add": np.add, "subtract": np.subtract, "maximum": np.maximum, "minimum": np.minimum}
SHAPES: list[tuple[Any, ...]] = [
    ("n", 3, 4, 5),
    ("n", 1, 4, 5),
    (3, 1, 1),
    (5,),
    (1,),
    ("n", 3, 1, 1),
    (4, 5),
    (1, 1, 5),
]


@dataclass(frozen=True)
class Chain:
    """Shapes of inputs; operators with the numbers of the values that they read; which values are results."""

    dtype: str
    inputs: tuple[tuple[Any, ...], ...]
    steps: tuple[tuple[str, tuple[int, ...]], ...]
    results: tuple[int, ...]


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    """Draw a chain; its first input has all axes, so that the dim is known."""
    dtype = draw(st.sampled_from(["float32", "float16", "int32", "int8"]))
    inputs = (SHAPES[0], *draw(st.lists(st.sampled_from(SHAPES), max_size=4)))
    steps = []
    for count in range(len(inputs), len(inputs) + draw(st.integers(1, 8))):
        pick = st.integers(max(0, count - 5), count - 1)
        unary = [name for name in SAFE_UNARY if np.dtype(dtype).kind == "f" or name in ("nn.relu", "abs")]
        name = draw(st.sampled_from([*unary, *SAFE_BINARY]))
        steps.append((name, (draw(pick),) if name in SAFE_UNARY else (draw(pick), draw(pick))))
    numbers = range(len(inputs), len(inputs) + len(steps))
    used = {operand for _, operands in steps for operand in operands}
    unread = [number for number in numbers if number not in used]
    taps = draw(st.lists(st.sampled_from(list(numbers)), max_size=2))
    return Chain(dtype, inputs, tuple(steps), tuple(sorted({*unread, *taps})))


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(chains())
def test_random_chains(chain: Chain) -> None:
    n = tirx.Var("n", "int64")
    arguments = [
        variable(f"x{i}", [n if e == "n" else e for e in shape], chain.dtype) for i, shape in enumerate(chain.inputs)
    ]

    def body(e: Any, *xs: relax.Var) -> tuple[relax.Var, ...]:
        values = list(xs)
        for name, operands in chain.steps:
            values.append(e(call(name, *(values[number] for number in operands))))
        return tuple(values[number] for number in chain.results)

    with tempfile.TemporaryDirectory() as folder:
        run = Runner(partition(arguments, body), Path(folder), flags=("-O1", "-fsanitize=undefined"))
        for size in (1, 3):
            rng = np.random.default_rng(size)
            arrays = [
                (rng.standard_normal(shape) * 3).astype(chain.dtype)
                for shape in ([size if e == "n" else e for e in shape] for shape in chain.inputs)
            ]
            values: list[np.ndarray] = list(arrays)
            for name, operands in chain.steps:
                function: Callable[..., Any] = {**SAFE_UNARY, **SAFE_BINARY}[name]
                with np.errstate(over="ignore"):
                    value = function(*(values[number] for number in operands))
                values.append(np.asarray(value).astype(chain.dtype))
            got = run(*arrays)
            got = got if isinstance(got, tuple) else (got,)
            for array, number in zip(got, chain.results, strict=True):
                assert array.shape == values[number].shape
                tolerance = {"float32": 1e-5, "float16": 1e-2}.get(chain.dtype, 0)
                np.testing.assert_allclose(array, values[number], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("target", ["ccompiler", "ccompiler -march=x86-64"])
def test_half_precision_is_exact(target: str, tmp_path: Path) -> None:
    """Every half plus, minus and times others, overflow and subnormal results among them, is what numpy has."""
    every = np.arange(2**16, dtype="u2").view("f2")
    others = np.array([1, -3.5, 2e-7, 6e-5, 333.3, 65504, np.inf], "f2").reshape(-1, 1)
    arguments = [variable("x", every.shape, "float16"), variable("y", others.shape, "float16")]

    def body(e: Any, x: Any, y: Any) -> tuple[Any, ...]:
        return e(op.add(x, y)), e(op.subtract(x, y)), e(op.multiply(x, y)), e(op.astype(x, "float32"))

    *got, widened = Runner(partition(arguments, body), tmp_path, target)(every, others)
    with np.errstate(all="ignore"):
        wanted = [every + others, every - others, every * others]
    for ours, theirs in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert (np.signbit(ours) == np.signbit(theirs))[~np.isnan(theirs)].all()
    np.testing.assert_array_equal(widened, every.astype("f4"))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["ccompiler", "ccompiler -march=x86-64"])
def test_remainders_are_exact(target: str, tmp_path: Path) -> None:
    """Bit by bit, for quotients of up to 277 bits."""
    rng, limits = np.random.default_rng(7), np.array([*SPECIAL, 3.4e38, 1e-45, 0.7], "f4")
    with np.errstate(all="ignore"):
        many = rng.integers(0, 2**32, (2, 20000), dtype=np.uint32).view("f4")
        multiples = many[0] * rng.integers(1, 9, many.shape[1]).astype("f4")
        a = np.concatenate([many[0], multiples, limits.repeat(len(limits))])
        b = np.concatenate([many[1], many[0], np.tile(limits, len(limits))])
        x, y = variable("x", a.shape), variable("y", a.shape)
        divisors = [None, np.float32(0.7), np.float32(-1e-30)]

        def body(e: Any, x: Any, y: Any) -> Any:
            return relax.Tuple([e(op.mod(x, y if d is None else relax.const(d))) for d in divisors])

        found = Runner(partition([x, y], body, []), tmp_path, target)(a, b)
        for got, divisor in zip(found, divisors, strict=True):
            wanted = np.fmod(a, b if divisor is None else divisor)
            same = (got.view("u4") == wanted.view("u4")) | (np.isnan(got) & np.isnan(wanted))
            assert same.all()
