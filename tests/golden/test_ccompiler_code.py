"""The C that the ccompiler backend renders, word for word, for one partition of each family.

A change here is a change of the bundles: look at the difference, then ``pytest tests/golden --rewrite-golden``.
"""

from __future__ import annotations

import difflib
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm")
from tvm import relax, tirx
from tvm.relax import op

from packager.backends.ccompiler.core.machine import Machine
from packager.backends.ccompiler.module import render_module
from packager.ir.primitives import CallSite, Cost, Partition

EXPECTED = Path(__file__).parent / "expected" / "ccompiler"
AVX2 = Machine(32, 16, "avx2")
N = tirx.Var("n", "int64")
Body = Callable[..., Any]


def tensor(name: str, shape: Sequence[Any], dtype: str = "float32") -> relax.Var:
    """Return an argument."""
    return relax.Var(name, relax.TensorType(tuple(shape), dtype))


def chain(e: Body, x: Any, b: Any, s: Any) -> tuple[Any, ...]:
    """Two results, an operand of one element per row and one of one row."""
    scaled = e(op.multiply(e(op.add(x, b)), s))
    return scaled, e(op.nn.gelu(e(op.clip(scaled, -3, 3))))


def residual(e: Body, x: Any, w: Any, b: Any, r: Any) -> Any:
    """A product with everything that is fused to it."""
    return e(op.nn.relu(e(op.add(e(op.add(e(op.matmul(x, w)), b)), r))))


def quantized(e: Body, x: Any, w: Any, s: Any) -> Any:
    """A convolution of bytes, requantized."""
    numbers = e(op.astype(e(op.nn.conv2d(x, w, strides=(2, 2), **LAYOUTS, out_dtype="int32")), "float32"))
    rounded = e(op.astype(e(op.round(e(op.multiply(numbers, s)))), "int32"))
    return e(op.astype(e(op.clip(rounded, 0, 255)), "uint8"))


LAYOUTS = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}
CASES: dict[str, tuple[list[relax.Var], Body, set[int]]] = {
    "elementwise": ([tensor("x", (N, 7, 40)), tensor("b", (40,)), tensor("s", (N, 1, 1))], chain, set()),
    "dense": (
        [tensor("x", (N, 30)), tensor("w", (30, 32)), tensor("b", (32,)), tensor("r", (N, 32))],
        residual,
        {1, 2},
    ),
    "dense_deep": (
        [tensor("x", (60, 1536)), tensor("w", (1536, 320)), tensor("b", (320,))],
        lambda e, x, w, b: e(op.nn.relu(e(op.add(e(op.matmul(x, w)), b)))),
        {1, 2},
    ),
    "dense_int8": (
        [tensor("x", (5, 31), "int8"), tensor("w", (31, 16), "int8")],
        lambda e, x, w: e(op.astype(e(op.matmul(x, w, out_dtype="int32")), "float32")),
        {1},
    ),
    "dense_of_two": (
        [tensor("x", (N, 4, 9, 8), "float16"), tensor("y", (N, 4, 8, 9), "float16")],
        lambda e, x, y: e(op.matmul(x, y)),
        set(),
    ),
    "conv2d": (
        [tensor("x", (1, 9, 9, 3)), tensor("w", (20, 3, 3, 3)), tensor("b", (20,))],
        lambda e, x, w, b: e(op.nn.relu(e(op.add(e(op.nn.conv2d(x, w, padding=(1, 1, 1, 1), **LAYOUTS)), b)))),
        {1, 2},
    ),
    "conv2d_bytes": (
        [tensor("x", (1, 11, 11, 3), "uint8"), tensor("w", (16, 3, 3, 3), "int8"), tensor("s", (16,))],
        quantized,
        {1, 2},
    ),
    "winograd": (
        [tensor("x", (N, 24, 22, 32)), tensor("w", (48, 3, 3, 32))],
        lambda e, x, w: e(op.nn.relu(e(op.nn.conv2d(x, w, padding=(1, 1, 1, 1), **LAYOUTS)))),
        {1},
    ),
    "planar_windows": (
        [tensor("x", (N, 2, 40, 48)), tensor("w", (20, 3, 3, 2)), tensor("b", (20,))],
        lambda e, x, w, b: e(
            op.permute_dims(
                e(
                    op.add(
                        e(
                            op.nn.conv2d(
                                e(op.permute_dims(x, (0, 2, 3, 1))), w, strides=(2, 2), padding=(1, 1, 1, 1), **LAYOUTS
                            )
                        ),
                        b,
                    )
                ),
                (0, 3, 1, 2),
            )
        ),
        {1, 2},
    ),
    "depthwise": (
        [tensor("x", (N, 12, 12, 24)), tensor("w", (24, 3, 3, 1))],
        lambda e, x, w: e(op.nn.conv2d(x, w, strides=(2, 2), groups=24, **LAYOUTS)),
        {1},
    ),
    "max_pool2d": (
        [tensor("x", (N, 8, 8, 3), "int8")],
        lambda e, x: e(op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1), layout="NHWC")),
        set(),
    ),
    "plane_mean": ([tensor("x", (N, 7, 7, 3))], lambda e, x: e(op.mean(x, [1, 2], keepdims=True)), set()),
    "softmax": (
        [tensor("x", (N, 6, 24)), tensor("m", (N, 1, 24))],
        lambda e, x, m: e(op.nn.softmax(e(op.add(x, m)), -1)),
        set(),
    ),
    "layer_norm": (
        [tensor("x", (N, 24)), tensor("gamma", (24,)), tensor("beta", (24,))],
        lambda e, x, gamma, beta: e(op.nn.layer_norm(x, gamma, beta, [-1], 1e-5)),
        {1, 2},
    ),
}


def make_partition(name: str) -> Partition:
    """Return the partition of a case."""
    arguments, body, constants = CASES[name]
    builder = relax.BlockBuilder()
    with builder.function("main", arguments):
        with builder.dataflow():
            made = body(builder.emit, *arguments)
            outputs = [builder.emit_output(result) for result in (made if isinstance(made, tuple) else (made,))]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    function = builder.get()["main"]
    return Partition(name, (), function, frozenset(constants), (CallSite((), {}),), Cost(0, 0, 0))


def interface(name: str) -> tuple[str, str]:
    """Return the preamble of a module and what a case adds to it, how the functions are called included."""
    empty, _, _ = render_module([], (), AVX2)
    source, groups, given_back = render_module([make_partition(name)], (), AVX2)
    assert given_back == {}
    group = groups[name]
    lines = [
        f"{f.symbol}({', '.join(f'{p.kind} {p.index}' + (' written' if p.written else '') for p in f.parameters)};"
        f" {', '.join(map(str, f.scalars))}; {f.extent})"
        for f in group.functions
    ]
    lines += [f"workspace {size}" for size in group.workspaces]
    lines += [f"packing of argument {p.argument} as {p.layout}" for p in group.packings]
    assert source.startswith(empty.rstrip("\n"))
    own = source[len(empty.rstrip("\n")) :].strip("\n")
    return empty, "".join(f"// {line}\n" for line in lines) + "\n" + own + "\n"


def compare(name: str, text: str, rewrite: bool) -> None:
    """Compare with an expected file, or write it."""
    path = EXPECTED / f"{name}.expected"
    if rewrite:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return
    expected = path.read_text()
    difference = difflib.unified_diff(
        expected.splitlines(), text.splitlines(), f"expected/ccompiler/{name}", "generated", lineterm=""
    )
    assert text == expected, "\n".join(difference)


@pytest.mark.parametrize("name", CASES)
def test_rendered_functions_are_as_expected(name: str, rewrite: bool) -> None:
    _, own = interface(name)
    compare(f"{name}.c", own, rewrite)


def test_the_preamble_is_as_expected(rewrite: bool) -> None:
    compare("preamble.c", render_module([], ("<limits.h>", "/opt/ours.h"), AVX2)[0], rewrite)


def test_no_expected_file_is_left_over() -> None:
    assert {path.name for path in EXPECTED.iterdir()} == {f"{name}.c.expected" for name in (*CASES, "preamble")}


def test_all_cases_compile_together_without_warnings() -> None:
    """None needs more of the stack than docs/ccompiler.md says, less what calls it."""
    source, groups, _ = render_module([make_partition(name) for name in CASES], (), AVX2)
    assert list(groups) == list(CASES)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "all.c"
        path.write_text(source)
        strict = ["gcc", "-O1", "-march=x86-64-v3", "-std=gnu11", "-Wall", "-Wextra", "-Werror"]
        strict += [f"-Wframe-larger-than={124 << 10}", "-c", str(path), "-o", str(path.with_suffix(".o"))]
        done = subprocess.run(strict, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
