"""Custom operators from static libraries: right numbers, nothing linked but what is needed, and shown as what it is."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import ROOT, Cli, assert_refused
from graphs import normal, save
from op_libraries import (
    SWISH,
    SWISH_C,
    UNARY,
    archive,
    assert_outputs,
    build,
    compile_objects,
    describe,
    make_library,
    model,
    numbers,
    swish,
)

import packager
from packager.errors import ModelError, RunError

pytestmark = pytest.mark.slow

SPLIT_C = """
#include "packager.h"
int32_t acme_split(const DLTensor *x, DLTensor *a, DLTensor *b, const int64_t *factors, int64_t count) {
  const float *from = x->data;
  float *to_a = a->data, *to_b = b->data;
  if (x->ndim != 2 || x->device.device_type != kDLCPU || x->dtype.code != kDLFloat || x->dtype.bits != 32) return 1;
  if (x->dtype.lanes != 1 || x->byte_offset || count != 2 || b->shape[0] != x->shape[0]) return 2;
  if (x->strides[0] != x->shape[1] || b->strides[0] != 2 * x->strides[0] || b->strides[1] != 1) return 3;
  for (int64_t i = 0; i < x->shape[0]; i++)
    for (int64_t j = 0; j < x->shape[1]; j++) {
      const float v = from[i * x->strides[0] + j];
      to_a[i * a->strides[0] + j] = v * (float)factors[0];
      to_b[i * b->strides[0] + 2 * j] = to_b[i * b->strides[0] + 2 * j + 1] = v * (float)factors[1];
    }
  return 0;
}
"""
SPLIT = """
[[operator]]
domain = "com.acme"
op_type = "Split"
symbol = "acme_split"
signature = "dltensor"
inputs = [{ name = "x", dtype = "float32", shape = ["n", "k"] }]
outputs = [
  { name = "a", dtype = "float32", shape = ["n", "k"] },
  { name = "b", dtype = "float32", shape = ["n", "2*k"] },
]
attributes = { factors = { type = "ints" } }
"""


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of Swish (pointers) and Split (DLTensors)."""
    folder = tmp_path_factory.mktemp("acme")
    return make_library(folder, {"swish.c": SWISH_C, "split.c": SPLIT_C}, SWISH + SPLIT)


def test_both_signatures_among_standard_operators_with_a_symbolic_batch(acme: Path, tmp_path: Path) -> None:
    text = """g (float[n,4] x) => (float[n,12] y) {
      r = Relu(x)  s = com.acme.Swish<beta=0.5>(r)  a, b = com.acme.Split<factors=[2,3]>(s)
      c = Concat<axis=1>(a, b)  m = MatMul(c, w)  y = com.acme.Swish(m) }"""
    w = normal(12, 12)
    bundle = build(model(text, {"w": w}), acme, tmp_path, {"n": (1, 8)})
    for n in (1, 3, 8):
        x = numbers(n, 4)
        s = swish(np.maximum(x, 0), 0.5)
        assert_outputs(bundle, {"x": x}, y=swish(np.concatenate([2 * s, np.repeat(3 * s, 2, axis=1)], axis=1) @ w))
    by_composite = {
        primitive.composite: primitive
        for backend in packager.inspect(tmp_path / "out.so").manifest.backends
        if backend.kind == "external"
        for primitive in backend.primitives
    }
    assert sorted(by_composite) == ["com.acme::Split", "com.acme::Swish"]
    assert by_composite["com.acme::Split"].nodes == ("a",)


def test_equal_calls_share_a_function_and_others_do_not(acme: Path, tmp_path: Path) -> None:
    text = """g (float[2,4] x) => (float[2,4] y) {
      a = com.acme.Swish<beta=2.0>(x)  b = com.acme.Swish(a)  c = com.acme.Swish<beta=1.0>(b)  y = Add(a, c) }"""
    x = numbers(2, 4)
    a = swish(x, 2)
    assert_outputs(build(model(text), acme, tmp_path), {"x": x}, y=a + swish(swish(a)))
    (external,) = (b for b in packager.inspect(tmp_path / "out.so").manifest.backends if b.kind == "external")
    assert [(primitive.calls, primitive.nodes) for primitive in external.primitives] == [(1, ("a",)), (2, ("b", "c"))]


@pytest.mark.parametrize(
    ("text", "outputs"),
    [
        ("g (float[n,4] x) => (float[n,8] b, float[n,4] a) { a, b = com.acme.Split<factors=[2,3]>(x) }", "ab"),
        ("g (float[n,4] x) => (float[n,4] a) { a, b = com.acme.Split<factors=[2,3]>(x) }", "a"),
        ("g (float[n,4] x) => (float[n,8] b) { a, b = com.acme.Split<factors=[2,3]>(x) }", "b"),
        ("g (float[n,4] x) => (float[n,4] a) { a = com.acme.Split<factors=[2,3]>(x) }", "a"),
    ],
)
def test_outputs_in_any_order_and_some_unused(acme: Path, tmp_path: Path, text: str, outputs: str) -> None:
    bundle = build(model(text), acme, tmp_path, {"n": (1, 4)})
    x = numbers(3, 4)
    wanted = {"a": 2 * x, "b": np.repeat(3 * x, 2, axis=1)}
    assert_outputs(bundle, {"x": x}, **{name: wanted[name] for name in outputs})


def test_shapes_of_custom_operators_reach_the_operators_after_them(acme: Path, tmp_path: Path) -> None:
    """A shape that is computed from theirs is known when the model is imported, and so is a chain of them."""
    text = """g (float[2,3] x) => (float[6,2] y) {
      a, b = com.acme.Split<factors=[1,1]>(x)  s = com.acme.Swish(b)  z = Shape(s)  r = Gather<axis=0>(z, order)
      h = Div(r, divisors)  y = Reshape(s, h) }"""
    weights = {"order": np.array([1, 0], np.int64), "divisors": np.array([1, 1], np.int64)}
    x = numbers(2, 3)
    bundle = build(model(text, weights), acme, tmp_path)
    assert_outputs(bundle, {"x": x}, y=swish(np.repeat(x, 2, axis=1)).reshape(6, 2))


def test_constants_of_all_sizes_can_be_inputs(acme: Path, tmp_path: Path) -> None:
    """A whole weight, a scalar that stays in the graph, and one that is folded first; the calls stay in the bundle."""
    text = """g (float[2,4] x) => (float[2,32] y, float[2,4] z) {
      s = com.acme.Swish(w)  y = MatMul(x, s)  h = com.acme.Swish(half)  t = Neg(half)  u = com.acme.Swish(t)
      v = Mul(x, h)  z = Mul(v, u) }"""
    w, half = normal(4, 32), np.array(0.5, np.float32)
    x = numbers(2, 4)
    bundle = build(model(text, {"w": w, "half": half}), acme, tmp_path)
    assert_outputs(bundle, {"x": x}, y=x @ swish(w), z=x * swish(half) * swish(-half))


def test_dims_may_be_expressions_by_then(acme: Path, tmp_path: Path) -> None:
    text = """g (float[n,4] x) => (float[m,8] y) {
      c = Concat<axis=0>(x, x, x)  a, y = com.acme.Split<factors=[1,2]>(c) }"""
    x = numbers(2, 4)
    bundle = build(model(text), acme, tmp_path, {"n": (1, 4)})
    assert_outputs(bundle, {"x": x}, y=np.repeat(2 * np.concatenate([x, x, x]), 2, axis=1))


def test_overloads_are_chosen_by_number_types_and_shapes_of_inputs(tmp_path: Path) -> None:
    source = """
    #include "packager.h"
    int32_t scale_any(const DLTensor *x, DLTensor *y) { /* one function for two types */
      for (int64_t i = 0; i < x->shape[0]; i++)
        if (x->dtype.bits == 64) ((double *)y->data)[i] = ((const double *)x->data)[i] * 2;
        else ((int8_t *)y->data)[i] = (int8_t)(((const int8_t *)x->data)[i] * 3);
      return 0;
    }
    void scale_vector(const float *x, float *y, int64_t n) { for (int64_t i = 0; i < n; i++) y[i] = x[i] * 5; }
    void scale_matrix(const float *x, float *y, int64_t n) { for (int64_t i = 0; i < n; i++) y[i] = x[i] * 7; }
    void scale_square(const float *x, float *y, int64_t n) { for (int64_t i = 0; i < n * n; i++) y[i] = x[i] * 11; }
    void scale_by(const float *x, const float *s, float *y, int64_t n, int64_t k) {
      for (int64_t i = 0; i < n; i++) for (int64_t j = 0; j < k; j++) y[i * k + j] = x[i * k + j] * s[j];
    }"""
    entry = """
    [[operator]]
    domain = "com.acme"
    op_type = "Scale"
    symbol = "{symbol}"
    signature = "{signature}"
    returns = "{returns}"
    inputs = [{inputs}]
    outputs = [{{ name = "y", dtype = "{dtype}", shape = "like:x" }}]
    """
    x = '{{ name = "x", dtype = "{}", shape = [{}] }}'.format
    operators = ""
    for dtype in ("float64", "int8"):
        values = {"symbol": "scale_any", "signature": "dltensor", "returns": "int32", "dtype": dtype}
        operators += entry.format(inputs=x(dtype, '"n"'), **values)
    for symbol, shape, arguments in [
        ("scale_vector", '"n"', '"n"'),
        ("scale_square", '"n", "n"', '"n"'),
        ("scale_matrix", '"n", "k"', '"n*k"'),
        ("scale_by", '"n", "k"', '"n", "k"'),
    ]:
        by = ', { name = "s", dtype = "float32", shape = ["k"] }' if symbol == "scale_by" else ""
        values = {"symbol": symbol, "signature": "pointers", "returns": "void", "dtype": "float32"}
        operators += entry.format(inputs=x("float32", shape) + by, **values)
        operators += f'arguments = ["x", {chr(34) + "s" + chr(34) + ", " if by else ""}"y", {arguments}]\n'
    library = make_library(tmp_path, {"scale.c": source}, operators)
    text = """g (double[6] d, int8[6] i, float[6] v, float[n,3] m, float[3,3] q) =>
              (double[6] od, int8[6] oi, float[6] ov, float[n,3] om, float[3,3] oq, float[n,3] os) {
      od = com.acme.Scale(d)  oi = com.acme.Scale(i)  ov = com.acme.Scale(v)  om = com.acme.Scale(m)
      oq = com.acme.Scale(q)  os = com.acme.Scale(m, s) }"""
    s = np.array([1, 2, 3], np.float32)
    bundle = build(model(text, {"s": s}), library, tmp_path, {"n": (1, 8)})
    inputs = {
        "d": np.arange(6.0),
        "i": np.arange(6, dtype=np.int8),
        "v": numbers(6),
        "m": numbers(4, 3),
        "q": numbers(3, 3),
    }
    expected = {"od": inputs["d"] * 2, "oi": inputs["i"] * 3, "ov": inputs["v"] * 5, "om": inputs["m"] * 7}
    assert_outputs(bundle, inputs, **expected, oq=inputs["q"] * 11, os=inputs["m"] * s)


def test_attributes_of_all_types_arrive(tmp_path: Path) -> None:
    source = """
    #include <math.h>
    #include <stdint.h>
    int32_t acme_tell(const float *x, float *y, int64_t least, float f, const char *s, const int64_t *is, int64_t ni,
                      const float *fs, int64_t nf, const float *none, int64_t nn, float inf, int64_t size) {
      if (least != INT64_MIN || size != 3 * ni + 1 || nn != 0 || none) return 1;
      y[0] = x[0] + f;
      y[1] = y[2] = 0;
      for (const char *c = s; *c; c++) y[1] = y[1] * 2 + (float)(unsigned char)*c;
      for (int64_t k = 0; k < ni; k++) y[2] += (float)is[k];
      for (int64_t k = 0; k < nf; k++) y[2] += fs[k];
      return isinf(inf) && inf < 0 ? 0 : 2;
    }"""
    operators = """
    [[operator]]
    domain = "com.acme"
    op_type = "Tell"
    symbol = "acme_tell"
    signature = "pointers"
    inputs = [{ name = "x", dtype = "float32", shape = [1] }]
    outputs = [{ name = "y", dtype = "float32", shape = ["len(is) + len(none)"] }]
    arguments = [
      "x", "y", "least", "f", "lambda", "is", "len(is)", "fs", "len(fs)", "none", "len(none)", "inf", "3*len(is) + 1",
    ]
    [operator.attributes]
    least = { type = "int" }
    f = { type = "float", default = 0.1 }
    lambda = { type = "string" }
    is = { type = "ints" }
    fs = { type = "floats", default = [0.25, 0.5] }
    none = { type = "floats", default = [] }
    inf = { type = "float" }
    """
    text = 'a"\\\u00e9'
    library = make_library(tmp_path, {"tell.c": source}, operators)
    tell = model("g (float[1] x) => (float[3] y) { y = com.acme.Tell(x) }")
    values = {"least": -(2**63), "lambda": text, "is": [5, -7, 4], "inf": float("-inf")}
    tell.graph.node[0].attribute.extend(onnx.helper.make_attribute(name, value) for name, value in values.items())
    of_text = 0.0
    for byte in text.encode():
        of_text = of_text * 2 + byte
    bundle = build(tell, library, tmp_path)
    assert_outputs(bundle, {"x": np.float32([2])}, y=np.float32([2 + np.float32(0.1), of_text, 2.75]))


def test_workspaces_and_shape_expressions(tmp_path: Path) -> None:
    source = """
    #include <stdint.h>
    int32_t acme_pool(const float *x, float *y, double *sums, int64_t n, int64_t k, int64_t m, int64_t stride) {
      for (int64_t i = 0; i < n; i++) {
        sums[0] = 0;
        for (int64_t j = 0; j < k; j++) sums[j + 1] = sums[j] + x[i * k + j];
        for (int64_t j = 0; j < m; j++) y[i * m + j] = (float)(sums[j * stride + 2] - sums[j * stride]);
      }
      return 0;
    }"""
    operators = """
    [[operator]]
    domain = "com.acme"
    op_type = "Pool"
    symbol = "acme_pool"
    signature = "pointers"
    inputs = [{ name = "x", dtype = "float32", shape = ["n", "k"] }]
    outputs = [{ name = "y", dtype = "float32", shape = ["n", "(k - 2) // stride + 1"] }]
    attributes = { stride = { type = "int", default = 2 } }
    workspace = "8 * (k + 1)"
    arguments = ["x", "y", "workspace", "n", "k", "numel(y) // n", "stride"]
    """
    library = make_library(tmp_path, {"pool.c": source}, operators)
    text = """g (float[n,k] x) => (float[n,m] y, float[n,l] z) {
      y = com.acme.Pool(x)  z = com.acme.Pool<stride=3>(x) }"""
    bundle = build(model(text), library, tmp_path, {"n": (1, 4), "k": (2, 9)})
    for n, k in ((1, 2), (3, 7), (4, 9)):
        x = numbers(n, k)
        pairs = x[:, :-1] + x[:, 1:]
        assert_outputs(bundle, {"x": x}, y=pairs[:, ::2], z=pairs[:, ::3])
    with pytest.raises(
        ModelError, match=r"node 'y' of operator com.acme::Pool: axis 1 of its output 'y' .* less than 1"
    ):
        build(model(text), library, tmp_path, {"n": (1, 4), "k": (1, 9)})


def test_libraries_with_equal_names_inside_do_not_clash(tmp_path: Path) -> None:
    """Their functions, private and global ones, and their variables have the same names and differ in what they do."""
    source = """
    #include <stdint.h>
    #include "../factor.h"
    static const float bias = FACTOR;
    static float shifted(float v) {{ return v + bias; }}
    int32_t acme_run(const float *x, float *y, int64_t n) {{
      for (int64_t i = 0; i < n; i++) y[i] = helper(shifted(x[i])) * table[0];
      return 0;
    }}"""
    helper = """
    #include "../factor.h"
    float table[2] = {{FACTOR, 0}};
    float helper(float v) {{ return v * FACTOR; }}"""
    libraries = []
    for name, factor in (("first", 3), ("second", 5)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "factor.h").write_text(f"#define FACTOR {factor}\nextern float table[2];\nfloat helper(float v);\n")
        sources = {"run.c": source.format(), "helper.c": helper.format()}
        operators = UNARY.format(name=name.title(), symbol="acme_run")
        libraries.append(make_library(folder, sources, operators, name=name))
    text = "g (float[4] x) => (float[4] y) { t = com.acme.First(x)  y = com.acme.Second(t) }"
    x = numbers(4)
    first = (x + 3) * 9
    assert_outputs(build(model(text), libraries, tmp_path), {"x": x}, y=(first + 5) * 25)
    manifest = packager.inspect(tmp_path / "out.so").manifest
    assert manifest.requirements.exports == ("packager_bundle_v1",)
    licenses = {entry.component: entry.spdx for entry in manifest.licenses}
    assert licenses["first"] == licenses["second"] == "MIT"


def test_only_what_is_needed_is_linked(tmp_path: Path) -> None:
    """Of the archive the members, and of those the functions, that the model's operators lead to."""
    sources = {
        "swish.c": SWISH_C + '\nconst char *unused(void) { return "an unused function"; }\n',
        "needed.c": 'const char needed_text[] = "a needed member";\n',
        "dead.c": 'const char *dead(void) { return "a dead member"; }\n',
    }
    sources["swish.c"] = sources["swish.c"].replace(
        "float beta) {", "float beta) { extern const char needed_text[]; if (n < 0) return needed_text[-n];"
    )
    flags = ("-O2", "-fPIC", "-ffunction-sections")
    library = make_library(tmp_path, sources, SWISH + SPLIT.replace("acme_split", "dead"), flags=flags)
    x = numbers(2, 2)
    bundle = build(model("g (float[2,2] x) => (float[2,2] y) { y = com.acme.Swish(x) }"), library, tmp_path)
    assert_outputs(bundle, {"x": x}, y=swish(x))
    (external,) = (b for b in packager.inspect(tmp_path / "out.so").manifest.backends if b.kind == "external")
    (record,) = (entry for entry in external.static_libraries if entry.name == "libacme.a")
    assert record.members == ("needed.o", "swish.o")
    assert record.sha256 == packager_hash(tmp_path / "libacme.a")
    content = (tmp_path / "out.so").read_bytes()
    assert b"a needed member" in content
    assert b"a dead member" not in content
    assert b"an unused function" not in content


def packager_hash(path: Path) -> str:
    """Return the hash that coreutils give."""
    return subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True).stdout.split()[0]


def test_objects_and_several_archives_are_libraries_too(tmp_path: Path) -> None:
    call = "#include <stdint.h>\nfloat deep(float);\nint32_t acme_run(const float *x, float *y, int64_t n) {\n"
    call += "  for (int64_t i = 0; i < n; i++) y[i] = deep(x[i]);\n  return 0;\n}\n"
    sources = {"run.c": call, "deep.c": "float deep(float v) { return v * 3; }\n"}
    run, deep = compile_objects(tmp_path, sources, cc="gcc", flags=["-O2", "-fPIC"])
    archive(tmp_path / "libdeep.a", [deep])
    operators = UNARY.format(name="Run", symbol="acme_run")
    library = describe(tmp_path, operators, files=f'["libdeep.a", "{run.name}"]')
    x = numbers(5)
    text = "g (float[5] x) => (float[5] y) { y = com.acme.Run(x) }"
    assert_outputs(build(model(text), library, tmp_path), {"x": x}, y=x * 3)


def test_names_of_standard_operators_are_free_in_other_domains(tmp_path: Path) -> None:
    source = SWISH_C.replace(", float beta", "").replace("-beta", "-1")
    names = ("Conv", "If", "Optional", "Dropout", "Shape", "Constant")
    library = make_library(
        tmp_path, {"a.c": source}, "".join(UNARY.format(name=name, symbol="acme_swish") for name in names)
    )
    calls = "  ".join(f"t{i + 1} = com.acme.{name}(t{i})" for i, name in enumerate(names))
    x = numbers(2, 3)
    expected = x
    for _ in names:
        expected = swish(expected)
    text = f"g (float[2,3] t0) => (float[2,3] t{len(names)}) {{ {calls} }}"
    assert_outputs(build(model(text), library, tmp_path), {"t0": x}, **{f"t{len(names)}": expected})


def test_a_library_goes_before_a_function_of_the_model(acme: Path, tmp_path: Path) -> None:
    """Exporters put a slow definition in standard operators beside a custom operator; without a library it is used."""
    text = """g (float[2,2] x) => (float[2,2] y) { t = com.acme.Swish<beta=1.0>(x)  y = com.acme.Twice(t) }
    <domain: "com.acme", opset_import: ["": 17]> Swish <beta> (x) => (y) { y = Neg(x) }
    <domain: "com.acme", opset_import: ["": 17]> Twice (x) => (y) { y = Add(x, x) }"""
    x = numbers(2, 2)
    assert_outputs(build(model(text), acme, tmp_path / "with"), {"x": x}, y=2 * swish(x))
    assert_outputs(build(model(text), [], tmp_path / "without"), {"x": x}, y=-2 * x)


def test_a_model_gets_the_newest_implementation_of_its_version(tmp_path: Path) -> None:
    function = "#include <stdint.h>\n" + "".join(
        f"int32_t v{factor}(const float *x, float *y, int64_t n) "
        f"{{ for (int64_t i = 0; i < n; i++) y[i] = x[i] * {factor}; return 0; }}\n"
        for factor in (2, 3, 5)
    )
    operators = "".join(
        UNARY.format(name="Run", symbol=symbol) + f"since = {since}\n"
        for symbol, since in (("v3", 3), ("v2", 2), ("v5", 5))
    )
    library = make_library(tmp_path, {"a.c": function}, operators)
    x = numbers(3)
    text = "g (float[3] x) => (float[3] y) { y = com.acme.Run(x) }"
    for version, factor in ((2, 2), (3, 3), (4, 3), (9, 5)):
        bundle = build(model(text, domains=f'"com.acme": {version}'), library, tmp_path / str(version))
        assert_outputs(bundle, {"x": x}, y=x * factor)
    with pytest.raises(ModelError, match=r"imports version 1 of com.acme; .* com.acme::Run from version 2 on"):
        build(model(text), library, tmp_path)


def test_where_two_libraries_implement_an_operator_the_first_does(acme: Path, tmp_path: Path) -> None:
    other = make_library(tmp_path, {"a.c": SWISH_C.replace("x[i] /", "2 * x[i] /")}, SWISH, name="other")
    x = numbers(2)
    text = "g (float[2] x) => (float[2] y) { y = com.acme.Swish(x) }"
    assert_outputs(build(model(text), [acme, other], tmp_path / "first"), {"x": x}, y=swish(x))
    assert_outputs(build(model(text), [other, acme], tmp_path / "second"), {"x": x}, y=2 * swish(x))


def test_a_failure_of_the_function_fails_the_run(tmp_path: Path) -> None:
    source = SWISH_C.replace("  for", "  if (x[0] < 0) return 7;\n  for")
    library = make_library(tmp_path, {"a.c": source}, SWISH)
    bundle = build(model("g (float[2] x) => (float[2] y) { y = com.acme.Swish(x) }"), library, tmp_path)
    with pytest.raises(RunError) as caught:
        bundle.run({"x": np.float32([-1, 1])})
    assert caught.value.name == "PACKAGER_ERROR_KERNEL"
    assert_outputs(bundle, {"x": np.float32([1, 1])}, y=swish(np.float32([1, 1])))


def test_system_libraries_are_needed_by_the_bundle(tmp_path: Path) -> None:
    """A library of the system that is not glibc's, made here: the bundle needs it by its soname, if it is used."""
    (tmp_path / "half.c").write_text("float system_half(float v) { return v / 2; }\n")
    shared = tmp_path / "libpkhalf.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-Wl,-soname,libpkhalf.so.1", "-o", shared, tmp_path / "half.c"], check=True
    )
    source = SWISH_C.replace("int32_t", "float system_half(float v);\nint32_t", 1).replace("expf(", "system_half(")
    library = make_library(tmp_path, {"a.c": source}, SWISH, keys='system_libraries = ["pkhalf", "m"]')
    path = save(model("g (float[2] x) => (float[2] y) { y = com.acme.Swish(x) }"), tmp_path / "model.onnx")
    wrapper = tmp_path / "bin"  # a compiler that looks for libraries there too, as with a development package
    wrapper.mkdir()
    (wrapper / "gcc").write_text(f'#!/bin/sh\nexec {shutil.which("gcc")} "$@" -L{tmp_path}\n')
    (wrapper / "gcc").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{wrapper}:{Path(shutil.which('gcc') or '').parent}")
        bundle = packager.build(path, tmp_path / "out.so", op_libraries=[library], cache=False)
    assert "libpkhalf.so.1" in packager.inspect(bundle).manifest.requirements.needed
    assert any("libpkhalf.so.1" in finding.what + finding.where for finding in packager.verify(bundle).findings)


def test_the_bundle_follows_the_library(acme: Path, tmp_path: Path) -> None:
    """A change of the archive, or of its description, is another build for the cache."""
    shutil.copytree(acme.parent, tmp_path, dirs_exist_ok=True)
    path = save(model("g (float[2] x) => (float[2] y) { y = com.acme.Swish(x) }"), tmp_path / "model.onnx")
    x = numbers(2)

    def run(name: str) -> np.ndarray:
        bundle = packager.build(path, tmp_path / name, op_libraries=[tmp_path / "acme.toml"])
        return packager.load(bundle).run({"x": x})["y"]

    np.testing.assert_allclose(run("first.so"), swish(x), rtol=1e-5)
    make_library(tmp_path, {"a.c": SWISH_C.replace("x[i] /", "3 * x[i] /")}, SWISH)
    np.testing.assert_allclose(run("second.so"), 3 * swish(x), rtol=1e-5)
    (tmp_path / "acme.toml").write_text((tmp_path / "acme.toml").read_text().replace("default = 1.0", "default = 2.0"))
    np.testing.assert_allclose(run("third.so"), 3 * swish(x, 2), rtol=1e-5)


def test_the_command_line(acme: Path, warm_cli: Cli, tmp_path: Path) -> None:
    """--op-library, and the Target that it is short for, give the same bytes in any folder."""
    text = "g (float[n,2] x) => (float[n,4] y) { s = com.acme.Swish(x)  a, y = com.acme.Split<factors=[1,1]>(s) }"
    results = []
    for name, options in {
        "option": ["--op-library", "acme.toml", "-t", "llvm"],
        "target": ["-t", "external -libraries=acme.toml", "-t", "llvm"],
    }.items():
        folder = tmp_path / name
        shutil.copytree(acme.parent, folder)
        save(model(text), folder / "model.onnx")
        done = warm_cli(
            "build", "model.onnx", "-o", "out.so", "--dim", "n=1:4", "--keep-workdir", "work", *options, cwd=folder
        )
        assert done.returncode == 0, done.stderr
        results.append((folder / "out.so").read_bytes())
    assert results[0] == results[1]
    shown = warm_cli("inspect", tmp_path / "option" / "out.so").stdout
    for part in ("external", "com.acme::Swish", "com.acme::Split", "acme", "MIT"):
        assert part in shown
    assert warm_cli("verify", tmp_path / "option" / "out.so").returncode == 0
    assert_refused(
        warm_cli("build", "model.onnx", "--op-library", "none.toml", cwd=tmp_path / "option"), 2, "none.toml"
    )
    twice = ["--op-library", "acme.toml", "--op-library", "acme.toml"]
    assert_refused(warm_cli("build", "model.onnx", *twice, cwd=tmp_path / "option"), 2, "are named 'acme'")


def test_libraries_are_for_onnx_models(acme: Path, warm_cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text("{}")
    done = warm_cli("build", tmp_path / "model.json", "--op-library", acme)
    assert_refused(done, 2, "operator libraries implement operators of ONNX models", hint="export the model to ONNX")


def test_another_machine(tmp_path: Path) -> None:
    """The library and the bundle for aarch64, run under qemu by the C host program."""
    for tool in ("aarch64-linux-gnu-gcc", "qemu-aarch64"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    sources = {"swish.c": SWISH_C, "split.c": SPLIT_C}
    library = make_library(tmp_path, sources, SWISH + SPLIT, tools="aarch64-linux-gnu-")
    text = "g (float[n,3] x) => (float[n,6] y) { s = com.acme.Swish(x)  a, y = com.acme.Split<factors=[1,2]>(s) }"
    path = save(model(text), tmp_path / "model.onnx")
    bundle = packager.build(
        path,
        tmp_path / "out.so",
        targets=["llvm -mtriple=aarch64-linux-gnu"],
        op_libraries=[library],
        dims={"n": (1, 4)},
    )
    assert packager.inspect(bundle).manifest.requirements.machine == "aarch64"
    host = tmp_path / "host"
    source = ROOT / "samples" / "hosts" / "c" / "host.c"
    include = ROOT / "runtime_stub" / "include"
    subprocess.run(["aarch64-linux-gnu-gcc", "-O2", f"-I{include}", source, "-o", host, "-ldl"], check=True)
    x = numbers(4, 3)
    x.tofile(tmp_path / "in")
    qemu = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
    subprocess.run([*qemu, host, bundle, tmp_path / "in", tmp_path / "result"], check=True)
    y = np.fromfile(tmp_path / "result", np.float32).reshape(4, 6)
    np.testing.assert_allclose(y, np.repeat(2 * swish(x), 2, axis=1), rtol=1e-5)
