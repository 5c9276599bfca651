"""Models whose shapes a run computes: each result has the shape and the values that onnxruntime gives it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from command_line import Cli

import packager
from packager.errors import ModelError, RunError
from tests.chains_at_random import Growth, inputs
from tests.one_cpu import targets_here
from tests.onnx_nodes import Array, check_runs

pytestmark = pytest.mark.slow


def parsed(text: str, weights: dict[str, Array] | None = None, opset: int = 18) -> onnx.ModelProto:
    """Return a model of ONNX's text; ``weights`` become initializers."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]>\n{text}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in (weights or {}).items())
    return model


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


# The elements of x [n, 6] that are above a limit, as rows [k, 4] of a table that their column chooses.
ROWS = """limit = Constant <value_float = 0.5> ()
          good = Greater(x, limit)
          where = NonZero(good)
          column = Gather <axis = 0> (where, one)
          rows = Gather (table, column)
          """
WEIGHTS: dict[str, Array] = {
    "one": np.array(1),
    "table": numbers(6, 4),
    "weight": numbers(4, 5),
    "axis0": np.array([0]),
    "axis1": np.array([1]),
    "end": np.array([-1]),
    "kept": np.array([2, -1]),
}
CHAINS = {
    "sum": "float[a,b] y => y = ReduceSum(rows, axis0)",
    "sum of all": "float y => y = ReduceSum <keepdims = 0> (rows)",
    "product of rows and columns": "float[a,b] y => t = Transpose(rows) y = MatMul(t, rows)",
    "product with weights": "float[a,b] y => y = MatMul(rows, weight)",
    "softmax along it": "float[a,b] y => y = Softmax <axis = 0> (rows)",
    "softmax of each": "float[a,b] y => m = MatMul(rows, weight) y = Softmax (m)",
    "attention": "float[a,b] y => t = Transpose(rows) s = MatMul(rows, t) p = Softmax(s) y = MatMul(p, rows)",
    "concatenation": "float[a,b] y => y = Concat <axis = 0> (rows, table, rows)",
    "normalization": "float[a,b] y => y = LayerNormalization (rows, scale)",
    "convolution": "float[a,b,c] y => u = Unsqueeze(rows, axis1) y = Conv <pads = [1, 1]> (u, kernel)",
    "cumulative sum": "float[a,b] y => y = CumSum (rows, zero)",
    "new order": "float[a,b] y => r = Reshape(rows, kept) y = Transpose(r)",
    "sorted": """float[a,b] y, int64[a,b] i => s = Shape(rows) k = Slice(s, axis0, axis1)
                 y, i = TopK <axis = 0> (rows, k)""",
    "best two": """float[a,b] y, int64[a,b] i => s = Shape(rows) k = Slice(s, axis0, axis1)  c = Min (k, two)
                   y, i = TopK <axis = 0> (rows, c)""",
    "chosen again": """float[a,b] y => t = ReduceSum <keepdims = 0> (rows, axis1) p = Less (t, limit)
                       y = Compress <axis = 0> (rows, p)""",
    "distinct": "int64[a] y, int64[b] n => y, i, j, n = Unique (column)",
    "numbers of them": "int64[a] y => s = Shape(rows) k = Gather (s, zero) y = Range (zero, k, one)",
    "as many zeros": "float[a,b] y => s = Shape(rows) z = ConstantOfShape (s) y = Add (z, rows)",
    "spread": "float[a,b,c] y => s = Shape(rows) d = Concat <axis = 0> (kept2, s) y = Expand (rows, d)",
    "half": """float[a,b] y => s = Shape(rows) k = Gather (s, zero) h = Div (k, two) e = Reshape (h, end)
               y = Slice (rows, axis0, e, axis0)""",
    "padded": "float[a,b] y => y = Pad (rows, pads)",
    "pairs": "float[a,b,c] y => u = Unsqueeze(rows, axis0) v = Unsqueeze(rows, axis1) y = Sub(u, v)",
    "scattered": "float[a,b] y => r = Transpose(where) v = GatherND(x, r) n = Neg(v) y = ScatterND(x, r, n)",
}
CHAIN_WEIGHTS: dict[str, Array] = {
    **WEIGHTS,
    "scale": numbers(4),
    "kernel": numbers(3, 1, 3),
    "zero": np.array(0),
    "two": np.array(2),
    "kept2": np.array([3]),
    "pads": np.array([1, 0, 2, 1]),
}


def mask_runs(first: str = "x") -> list[dict[str, Array]]:
    """Runs with other extents: some elements, all, none, and few of them."""
    some = numbers(3, 6)
    return [{first: x} for x in (some, np.abs(numbers(5, 6)) + 1, -np.abs(numbers(2, 6)), some + 0.2, numbers(1, 6))]


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.parametrize("what", CHAINS)
def test_chains_over_elements_that_are_chosen(what: str, tmp_path: Path) -> None:
    outputs, body = CHAINS[what].split(" => ")
    used = {name: w for name, w in CHAIN_WEIGHTS.items() if name in re.findall(r"\w+", ROWS + body)}
    model = parsed(f"chain (float[n,6] x) => ({outputs}) {{ {ROWS} {body} }}", used)
    check_runs(model, mask_runs(), tmp_path, {"n": (1, 5)})


DETECTOR = """detector (float[n,8,4] boxes, float[n,3,8] scores)
=> (float[a,4] best, float[b] found, int64[c] kind, int64[d,3] kept)
{
    kept = NonMaxSuppression (boxes, scores, most, overlap, least)
    found = GatherND (scores, kept)
    s = Shape (found)
    k = Min (s, three)
    value, place = TopK <axis = 0> (found, k)
    class, picture, number = Split <axis = 1> (kept, parts)
    kind0 = Gather (picture, place)
    kind = Squeeze (kind0, axis1)
    index = Concat <axis = 1> (class, number)
    chosen = Gather (index, place)
    best = GatherND (boxes, chosen)
}"""


def pictures(n: int, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    corner = rng.random((n, 8, 2)).astype(np.float32)
    return {
        "boxes": np.concatenate([corner, corner + 0.4], -1),
        "scores": rng.random((n, 3, 8)).astype(np.float32),
    }


def test_a_detector_takes_the_best_of_the_boxes_that_it_keeps(tmp_path: Path) -> None:
    weights: dict[str, Array] = {
        "most": np.array([4]),
        "overlap": np.array([0.4], np.float32),
        "least": np.array([0.5], np.float32),
        "three": np.array([3]),
        "parts": np.array([1, 1, 1]),
        "axis1": np.array([1]),
    }
    model = parsed(DETECTOR, weights)
    nothing = {**pictures(2), "scores": np.zeros((2, 3, 8), np.float32)}
    one = {**nothing, "scores": np.eye(24, dtype=np.float32)[:2].reshape(2, 3, 8)}
    made = check_runs(model, [pictures(3), nothing, pictures(1), one], tmp_path, {"n": (1, 3)})
    assert [len(result["best"]) for result in made] == [3, 0, 3, 2]


def test_a_range_as_long_as_data_say(tmp_path: Path) -> None:
    """The mask of padded sequences: the longest of them is known to the caller only, who says its maximum."""
    text = """mask (int64[n] lengths, float[n,8] x) => (bool[n,longest] valid, float[a,b] cut) {
        longest = ReduceMax <keepdims = 0> (lengths)
        steps = Range (zero, longest, one)
        column = Unsqueeze (lengths, axis1)
        valid = Less (steps, column)
        end = Reshape (longest, axis1)
        cut = Slice (x, axis0, end, axis1)
    }"""
    weights: dict[str, Array] = {
        "zero": np.array(0),
        "one": np.array(1),
        "axis0": np.array([0]),
        "axis1": np.array([1]),
    }
    model = parsed(text, weights, 20)
    lengths = ([3, 8, 1], [2], [1, 1, 1, 1], [0, 0])
    runs = [{"lengths": np.array(n), "x": numbers(len(n), 8)} for n in lengths]
    with pytest.raises(ModelError, match="nothing bounds it") as caught:
        check_runs(model, runs, tmp_path, {"n": (1, 4)})
    assert "--dim reducemax_0=" in str(caught.value.hint) or "--dim " in str(caught.value.hint)
    name = str(caught.value.hint).split("--dim ")[1].split("=")[0]
    check_runs(model, runs, tmp_path, {"n": (1, 4), name: (1, 8)})
    with packager.load(tmp_path / "model.so") as bundle:
        assert [(extent.name, extent.bound) for extent in bundle.manifest.extents] == [(name, 8)]
        for wrong in (9, -1):
            with pytest.raises(RunError, match=rf"{name} of longest is {wrong}, expected 0..8"):
                bundle.run({"lengths": np.array([wrong]), "x": numbers(1, 8)})
        assert bundle.run(runs[1])["valid"].tolist() == [[True, True]], "the session works on"


LARGER = """larger (float[n,6] x) => (float[a] y, int64 k) {
    zero = Constant <value_float = 0.0> ()
    p = Greater (x, zero)
    s = Shape (x)
    k = Gather (s, first)
    flat = Reshape (x, all)
    chosen = Reshape (p, all)
    y = Compress (flat, chosen)
}"""
LARGER_WEIGHTS: dict[str, Array] = {"first": np.array(0), "all": np.array([-1])}


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose output has the elements above 0 of an input [n, 6], n up to 4."""
    folder = tmp_path_factory.mktemp("larger")
    onnx.save(parsed(LARGER, LARGER_WEIGHTS), folder / "model.onnx")
    return packager.build(folder / "model.onnx", folder / "larger.so", dims={"n": (1, 4)}, targets=targets_here())


def test_the_manifest_has_run_time_extents(larger: Path) -> None:
    with packager.load(larger) as bundle:
        (extent,) = bundle.manifest.extents
        assert (extent.name, extent.node) == ("compress_0", "y")
        assert bundle.manifest.outputs[0].shape == (extent.name,)
        assert bundle.outputs[0].max_shape == (24,)
        assert bundle.outputs[0].min_shape == (0,)


def test_outputs_of_the_caller_are_used_again_and_again(larger: Path) -> None:
    room = np.full(24, -1, np.float32)
    with packager.load(larger) as bundle:
        for x in (numbers(4, 6), -np.abs(numbers(4, 6)), np.abs(numbers(4, 6)), numbers(4, 6, seed=1)):
            made = bundle.run({"x": x}, outputs={"y": room, "k": np.empty((), np.int64)})["y"]
            assert np.shares_memory(made, room) or not made.size
            np.testing.assert_array_equal(made, x[x > 0])
            np.testing.assert_array_equal(room[: made.size], x[x > 0])


def test_room_has_to_be_as_large_as_the_inputs_demand(larger: Path) -> None:
    with packager.load(larger) as bundle:
        x = np.ones((2, 6), np.float32)
        for size in (11, 13, 24):
            with pytest.raises(RunError, match=r"output 'y'.*12"):
                bundle.run({"x": x}, outputs={"y": np.empty(size, np.float32), "k": np.empty((), np.int64)})
        made = bundle.run({"x": x}, outputs={"y": np.empty(12, np.float32), "k": np.empty((), np.int64)})
        assert made["y"].tolist() == [1.0] * 12


def test_bound_runs_restore_the_room(larger: Path) -> None:
    x, y, k = numbers(4, 6), np.empty(24, np.float32), np.empty((), np.int64)
    with packager.load(larger) as bundle, bundle.session() as session:
        again = session.bind({"x": x}, outputs={"y": y, "k": k})
        for seed in range(4):
            x[:] = numbers(4, 6, seed=seed) - seed
            again()
            want = x[x > 0]
            np.testing.assert_array_equal(y[: want.size], want)


BRANCHES = {
    "other extents": """g (float[n,6] x, bool p) => (float[a,b] y) {
        y = If (p) <then_branch = t () => (float[c,6] u) { u = Concat <axis = 0> (x, x) },
                    else_branch = e () => (float[d,6] v) { v = Slice (x, first, last, first) }> }""",
    "sizes that data decide": """g (float[n,6] x, bool p) => (float[a,b] y) {
        zero = Constant <value_float = 0.0> ()
        good = Greater (x, zero)
        y = If (p) <then_branch = t () => (float[c,d] u) {
                        w = NonZero (good) i = Gather <axis = 0> (w, place) u = Gather (table, i) },
                    else_branch = e () => (float[6,4] v) { v = Neg (table) }> }""",
    "a condition that data decide": """g (float[n,6] x, bool p) => (float[a,b] y) {
        zero = Constant <value_float = 0.0> ()
        sum = ReduceSum <keepdims = 0> (x)
        above = Greater (sum, zero)
        q = And (above, p)
        y = If (q) <then_branch = t () => (float[c,6] u) { u = Exp (x) },
                    else_branch = e () => (float[d,6] v) { v = Neg (x) }> }""",
    "within one another": """g (float[n,6] x, bool p) => (float[a,b] y) {
        zero = Constant <value_float = 0.0> ()
        sum = ReduceSum <keepdims = 0> (x)
        above = Greater (sum, zero)
        y = If (p) <then_branch = t () => (float[c,6] u) {
                        u = If (above) <then_branch = tt () => (float[e,6] k) { k = Exp (x) },
                                        else_branch = te () => (float[f,6] l) { l = Concat <axis = 0> (x, x) }> },
                    else_branch = e () => (float[d,6] v) {
                        o = If (above) <then_branch = et () => (float[h,6] m) { m = Sqrt (x) },
                                        else_branch = ee () => (float[i,6] r) { r = Neg (x) }>
                        v = Relu (o) }> }""",
    "what follows": """g (float[n,6] x, bool p) => (float[a,b] y, float[e,f] z, int64[2] s) {
        u = If (p) <then_branch = t () => (float[c,6] u1) { u1 = Concat <axis = 0> (x, x) },
                    else_branch = e () => (float[d,6] u2) { u2 = Identity (x) }>
        y = Relu (u)  m = Transpose (u)  z = MatMul (m, y)  s = Shape (u) }""",
    "several results": """g (float[n,6] x, bool p) => (float[a,b] y, float[e,f] z) {
        y, z = If (p) <then_branch = t () => (float[c,6] u1, float[g,6] w1) { u1 = Exp (x) w1 = Neg (x) },
                       else_branch = e () => (float[d,6] u2, float[h,6] w2) {
                           u2 = Identity (x) w2 = Identity (x) }> }""",
    "a constant": """g (float[n,6] x, bool p) => (float[a,b] y) {
        y = If (p) <then_branch = t () => (float[6,4] u) { u = Identity (table) },
                    else_branch = e () => (float[d,6] v) { v = Abs (x) }> }""",
    "none of what it is given": """g (float[n,6] x, bool p) => (float[a,b] y) {
        q = Not (p)
        y0 = If (p) <then_branch = t () => (float[c,6] u) { u = Identity (x) },
                    else_branch = e () => (float[d,6] v) { v = Abs (x) }>
        y = If (q) <then_branch = t2 () => (float[g,6] u2) { u2 = Add (y0, x) },
                    else_branch = e2 () => (float[h,6] v2) { v2 = Identity (y0) }> }""",
}
BRANCH_WEIGHTS: dict[str, Array] = {
    "first": np.array([1]),
    "last": np.array([3]),
    "place": np.array(1),
    "table": numbers(6, 4),
}


@pytest.mark.parametrize("what", BRANCHES)
def test_branches(what: str, tmp_path: Path) -> None:
    text = BRANCHES[what]
    model = parsed(text, {name: w for name, w in BRANCH_WEIGHTS.items() if name in re.findall(r"\w+", text)})
    runs = [{"x": x, "p": np.array(p)} for x in (numbers(3, 6), -numbers(3, 6), numbers(1, 6)) for p in (True, False)]
    check_runs(model, runs, tmp_path, {"n": (1, 4)})


def test_sums_over_half_of_one_row(tmp_path: Path) -> None:
    """An extent that is 0 for some sizes of a dim: a product over it is 0, by whichever backend."""
    text = """g (float[n,6] x) => (float[6,6] y, float[1,6] z, float[a,6] r) {
        s = Shape (x)  k = Slice (s, axis0, axis1)  h = Div (k, two)  r = Slice (x, axis0, h, axis0)
        t = Transpose (r)  p = MatMul (t, r)  y = Relu (p)  e = Exp (r)  z = ReduceSum (e, axis0) }"""
    used = {name: CHAIN_WEIGHTS[name] for name in ("axis0", "axis1", "two")}
    check_runs(parsed(text, used), [{"x": numbers(rows, 6)} for rows in (4, 1, 3, 1)], tmp_path, {"n": (1, 4)})


SAME = {
    "slices to one end": (
        "float[n,a] y, float[n,b] z => y = Slice (x, axis0, e, axis1)  r = Neg (x)  z = Slice (r, axis0, e, axis1)",
        "int64[1] e",
        [[2], [0], [6], [-1], [9]],
        {},
    ),
    "two of one shape": (
        "float[c,a] y, float[d,b] z => y = Reshape (x, e)  r = Neg (x)  z = Reshape (r, e)",
        "int64[2] e",
        [[-1, 6], [6, -1], [-1, 3]],
        {},
    ),
    "an input": (
        "int64[a] y, int64 z => y = Range (zero, e, one)  z = Add (e, one)",
        "int64 e",
        [2, 0, 6],
        {"e_0": (1, 8)},
    ),
    "tiles": (
        "float[c,a] y => y = Tile (x, e)",
        "int64[2] e",
        [[1, 1], [2, 3], [0, 1]],
        {"e_0": (1, 3), "e_1": (1, 3)},
    ),
    "zeros": (
        "float[a,b] y => y = ConstantOfShape (e)",
        "int64[2] e",
        [[1, 1], [2, 3], [0, 1]],
        {"e_0": (1, 3), "e_1": (1, 3)},
    ),
}


@pytest.mark.parametrize("what", SAME)
def test_shapes_that_are_inputs_or_the_same(what: str, tmp_path: Path) -> None:
    chain, given, values, dims = SAME[what]
    outputs, body = chain.split(" => ")
    used = {name: w for name, w in CHAIN_WEIGHTS.items() if name in re.findall(r"\w+", body)}
    with_x = re.search(r"\bx\b", body) is not None
    model = parsed(f"g ({'float[n,6] x, ' if with_x else ''}{given}) => ({outputs}) {{ {body} }}", used)
    runs = [{**({"x": numbers(3, 6)} if with_x else {}), "e": np.array(value)} for value in values]
    check_runs(model, runs, tmp_path, {**({"n": (1, 4)} if with_x else {}), **dims})


PROGRAM = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include "packager.h"

typedef const packager_bundle_v1_t table_t;

static int run(table_t *t, packager_session_t *s, float *x, int64_t *room, float *y, int64_t *strides) {
  int64_t given[] = {2, 6}, k;
  DLTensor in = {x, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, given, NULL, 0};
  DLTensor found = {y, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, room, strides, 0};
  DLTensor number = {&k, {kDLCPU, 0}, 0, {kDLInt, 64, 1}, NULL, NULL, 0};
  const DLTensor *inputs[] = {&in};
  DLTensor *outputs[] = {&found, &number};
  return t->session_run(s, inputs, 1, outputs, 2, NULL);
}

int main(int argc, char **argv) {
  void *library = dlopen(argv[argc - 1], RTLD_NOW | RTLD_LOCAL);
  packager_bundle_v1_fn *entry;
  *(void **)&entry = dlsym(library, PACKAGER_ENTRY_SYMBOL);
  const packager_bundle_v1_t *t = entry();
  packager_session_t *s;
  if (t->session_create(NULL, &s)) return 1;
  float x[12] = {1, -1, 2, -2, 3, -3, 4, -4, 5, -5, 6, -6}, y[12];
  int64_t given[] = {2, 6}, room[1], strides[1] = {1};
  DLTensor in = {NULL, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, given, NULL, 0};
  const DLTensor *inputs[] = {&in};
  printf("%d..%d\n", (int)t->outputs[0].min_shape[0], (int)t->outputs[0].max_shape[0]);
  if (t->session_output_shape(s, inputs, 1, 0, room)) return 2;
  printf("room %d\n", (int)room[0]);
  if (run(t, s, x, room, y, strides)) return 3;
  printf("%d, last %g\n", (int)room[0], y[room[0] - 1]);
  printf("%s\n", t->status_name(run(t, s, x, room, y, strides)));
  room[0] = 12;
  memset(x, 0, sizeof x);
  if (run(t, s, x, room, y, NULL)) return 4;
  printf("%d\n", (int)room[0]);
  if (t->session_output_shape(s, inputs, 1, 0, room)) return 5;
  printf("room %d\n", (int)room[0]);
  return t->session_destroy(s);
}
"""


def test_a_c_program_gives_room_and_reads_shapes(larger: Path, tmp_path: Path) -> None:
    (tmp_path / "program.c").write_text(PROGRAM)
    flags = ["-std=c11", "-Wall", "-Werror", "-I", "runtime_stub/include"]
    root = Path(packager.__file__).parents[1]
    subprocess.run(["gcc", *flags, tmp_path / "program.c", "-o", tmp_path / "program", "-ldl"], cwd=root, check=True)
    made = subprocess.run([tmp_path / "program", larger], stdout=subprocess.PIPE, text=True, timeout=30, check=True)
    assert made.stdout.splitlines() == [
        "0..24",
        "room 12",
        "6, last 6",
        "PACKAGER_ERROR_SHAPE",
        "0",
        "room 12",
    ]


def test_many_branches_in_a_row(tmp_path: Path) -> None:
    """Expressions of extents do not double with each."""
    steps = [
        f"""s{i} = ReduceSum <keepdims = 0> (x{i})  q{i} = Greater (s{i}, limit)
            x{i + 1} = If (q{i})
                <then_branch = t{i} () => (float[a{i},6] u{i}) {{ u{i} = Concat <axis = 0> (x{i}, x0) }},
                 else_branch = e{i} () => (float[b{i},6] v{i}) {{ v{i} = Neg (x{i}) }}>"""
        for i in range(12)
    ]
    text = f"g (float[n,6] x0) => (float[c,6] y) {{ {' '.join(steps)} y = Relu (x12) }}"
    drawn = (np.random.default_rng(seed).integers(-3, 4, (2, 6)) for seed in range(4))
    runs: list[dict[str, Array]] = [{"x0": x.astype(np.float32)} for x in drawn]  # whole numbers: sums are exact
    check_runs(parsed(text, {"limit": np.array(0, np.float32)}), runs, tmp_path, {"n": (1, 4)})


def test_commands_show_and_measure_run_time_extents(larger: Path, warm_cli: Cli) -> None:
    shown = warm_cli("inspect", larger)
    assert re.search(r"Run-time extents\n  name +bounds +node\n  compress_0  0..n \* 6  y", shown.stdout)
    model = larger.with_name("model.onnx")
    explained = warm_cli("explain", model, "--dim", "n=1:4")
    assert "extent     compress_0  0..n * 6, read during a run from node 'y'" in explained.stdout
    assert "run_time" not in explained.stdout
    on_gpu = warm_cli("explain", model, "--dim", "n=1:4", "-t", "cuda -arch=sm_90a")
    assert "waits for the GPU" in on_gpu.stdout
    measured = warm_cli("bench", larger, "--runs", 3, "--profile", "--json")
    assert json.loads(measured.stdout)["runs"] == 3
    assert warm_cli("run", larger, "--random", 0).returncode == 0


def test_a_branch_that_is_not_taken_is_not_computed(tmp_path: Path) -> None:
    """The product takes more than a millisecond, the other branch nothing."""
    text = """g (float[512,512] x, bool p) => (float[a,b] y) {
        y = If (p) <then_branch = t () => (float[c,512] u) {
                        m = MatMul (x, x) k = MatMul (m, x) u = Concat <axis = 0> (k, k) },
                    else_branch = e () => (float[512,512] v) { v = Neg (x) }> }"""
    onnx.save(parsed(text), tmp_path / "model.onnx")
    packager.build(tmp_path / "model.onnx", tmp_path / "model.so", targets=targets_here())
    x = numbers(512, 512)
    with packager.load(tmp_path / "model.so") as bundle, bundle.session() as session:
        times = {}
        for taken in (True, False):
            runs = [session.profile({"x": x, "p": np.array(taken)}) for _ in range(5)]
            times[taken] = min(sum(step.duration_ns for step in steps) for steps in runs)
    assert times[False] * 3 < times[True]


def test_buckets_and_models_with_run_time_extents(tmp_path: Path) -> None:
    onnx.save(parsed(LARGER, LARGER_WEIGHTS), tmp_path / "larger.onnx")
    other = parsed("other (float[n,6] x) => (int64[2,a] w) { w = NonZero (x) }")
    onnx.save(other, tmp_path / "other.onnx")
    paths = [tmp_path / "larger.onnx", tmp_path / "other.onnx"]
    dims = {"n": packager.Buckets(2, 4)}
    packager.build(paths, tmp_path / "both.so", dims=dims, targets=targets_here(), golden=0)
    assert packager.verify(tmp_path / "both.so", run=True).ok
    with packager.load(tmp_path / "both.so") as bundle, bundle.session() as session:
        for seed in range(3):
            for rows in (2, 4):
                x = np.maximum(numbers(rows, 6, seed=seed), 0)
                np.testing.assert_array_equal(session.run({"x": x}, entry="larger")["y"], x[x > 0])
                np.testing.assert_array_equal(session.run({"x": x}, entry="other")["w"], np.nonzero(x))


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(s, marks=pytest.mark.thorough) for s in range(8, 38))])
def test_models_at_random(seed: int, tmp_path: Path) -> None:
    """A model that is computed wrong is saved beside its bundle, and drawn again by its seed."""
    check_runs(Growth(seed).model(3 + seed % 8), inputs(seed), tmp_path, {"n": (1, 4)})
