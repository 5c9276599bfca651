"""Descriptions of libraries of custom operators: what is read of them, what is refused, and how overloads fit."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from packager.custom_ops.library import OpLibrary, decode_call, encode_call, load_op_libraries, load_op_library
from packager.custom_ops.rules import (
    INTEGERS,
    Argument,
    Given,
    NoFitError,
    bind,
    complete_attributes,
    counts,
    output_shapes,
)
from packager.errors import ModelError, UsageError

LIBRARY = """
[library]
name = "acme"
archive = "libacme.a"
license = "MIT"
"""
POOL = """
[[operator]]
domain = "com.acme"
op_type = "Pool"
symbol = "acme_pool"
signature = "pointers"
inputs = [
  { name = "x", dtype = "float32", shape = ["n", "k", 4] },
  { name = "scale", dtype = "float32", shape = ["k"] },
]
outputs = [{ name = "y", dtype = "float32", shape = ["n", "(k - 2) // stride + 1"] }]
attributes = { stride = { type = "int", default = 2 }, alpha = { type = "float" } }
arguments = ["x", "scale", "y", "n", "k", "stride", "numel(x)", "alpha"]
"""


def write(folder: Path, text: str, name: str = "acme.toml") -> Path:
    (folder / "libacme.a").write_bytes(b"!<arch>\n")
    (folder / name).write_text(text)
    return folder / name


def load(folder: Path, operators: str = POOL, library: str = LIBRARY) -> OpLibrary:
    return load_op_library(write(folder, library + operators))


def same(a: object, b: object) -> bool:
    return a == b


def test_everything_in_a_description_is_read(tmp_path: Path) -> None:
    library = load(tmp_path, library=f'{LIBRARY}system_libraries = ["m"]\ndispatched_features = ["avx512f"]\n')
    assert (library.name, library.license) == ("acme", "MIT")
    assert (library.system_libraries, library.dispatched_features) == (("m",), ("avx512f",))
    assert library.files == (tmp_path / "acme.toml", tmp_path / "libacme.a")
    (pool,) = library.operators
    assert (pool.name, pool.since, pool.symbol, pool.signature) == ("com.acme::Pool", 1, "acme_pool", "pointers")
    assert pool.returns == "int32"
    assert pool.takes == "x float32[n, k, 4], scale float32[k]"
    assert [(rule.name, rule.type, rule.default) for rule in pool.attributes] == [
        ("stride", "int", 2),
        ("alpha", "float", None),
    ]
    kinds = [argument.kind for argument in pool.arguments]
    assert kinds == ["tensor", "tensor", "tensor", "size", "size", "size", "size", "attribute"]


def test_dltensor_functions_take_everything_in_order(tmp_path: Path) -> None:
    text = POOL.replace('"pointers"', '"dltensor"')
    text = re.sub(r"arguments = .*", 'workspace = "4*numel(y)"', text).replace('alpha = { type = "float" }', "") + (
        'attributes.factors = { type = "floats", default = [0.5] }\n'
    )
    text = text.replace('attributes = { stride = { type = "int", default = 2 },  }', "attributes.stride.type = 'int'")
    (pool,) = load(tmp_path, text).operators
    assert pool.arguments == (
        *(Argument("tensor", name) for name in ("x", "scale", "y")),
        *(Argument("size", "stride"), Argument("attribute", "factors"), Argument("size", "len(factors)")),
        Argument("workspace", "workspace"),
    )


def test_several_archives_are_looked_for_beside_the_description(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "more.o").write_bytes(b"")
    text = LIBRARY.replace('"libacme.a"', '["libacme.a", "lib/more.o"]')
    assert load(tmp_path, library=text).archives == (tmp_path / "libacme.a", tmp_path / "lib" / "more.o")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('op_type = "Pool"', "", r"operator\[0\]: lacks the key 'op_type'"),
        ('op_type = "Pool"', 'op_typ = "Pool"', r"unknown key 'op_typ' \(did you mean 'op_type'\?\)"),
        ('"com.acme"', '""', "ai.onnx::Pool cannot come from a library: packager compiles it"),
        ('"com.acme"', '"ai.onnx"', "ai.onnx::Pool cannot come from a library"),
        ('"pointers"', '"pointer"', "expected one of 'pointers', 'dltensor'; found 'pointer'"),
        ('"acme_pool"', '"acme-pool"', "symbol: must be a C identifier"),
        ('"float32", shape = ["n", "k", 4]', '"float8", shape = ["n"]', "dtype: expected one of"),
        ('["n", "k", 4]', '["n", "2*k", 4]', "the extent '2[*]k' is neither a number nor a name"),
        ('["n", "(k - 2) // stride + 1"]', '["n", "(k - 2"]', r"outputs \(y\): unexpected end"),
        (
            '["n", "(k - 2) // stride + 1"]',
            '["n", "m"]',
            "uses 'm', which is neither a dim of an input nor an int attribute",
        ),
        ('["n", "(k - 2) // stride + 1"]', '["strid"]', "did you mean 'stride'"),
        ('["n", "(k - 2) // stride + 1"]', '["alpha"]', "uses 'alpha', which is neither a dim"),
        ('["n", "(k - 2) // stride + 1"]', '["numel(y)"]', "uses 'numel_y'"),
        ('["n", "(k - 2) // stride + 1"]', '["n", "08"]', "starts with 0"),
        ('["n", "(k - 2) // stride + 1"]', '"like:z"', "'like:z' is neither a list nor like:INPUT"),
        ('["n", "(k - 2) // stride + 1"]', '"like x"', "'like x' is neither a list nor like:INPUT"),
        ('name = "scale"', 'name = "n"', "the name 'n' is used twice"),
        ('name = "scale"', 'name = "workspace"', "the name 'workspace' is used twice or reserved"),
        ('name = "scale"', 'name = "for"', "the name 'for' is used twice or reserved"),
        ("default = 2", "default = 2.5", "stride.default: expected integer"),
        ("default = 2", "default = true", "stride.default: expected integer"),
        ('type = "float"', 'type = "float", default = 1e60', "too large for float32"),
        ('type = "float"', 'type = "double"', "alpha.type: expected one of"),
        ('"n", "k", "stride"', '"n", "k", "strode"', "did you mean 'stride'"),
        ('"scale", "y"', '"y"', "arguments: lacks the tensor 'scale'"),
        ('arguments = ["x"', 'wrguments = ["x"', "unknown key 'wrguments'"),
        ('"x", "scale"', '"x", "workspace", "scale"', "uses 'workspace'"),
        (re.search(r"arguments = .*", POOL)[0], "", "the signature 'pointers' needs 'arguments'"),  # type: ignore[index]
        ("arguments =", 'workspace = "4*n"\narguments =', "arguments: lacks the workspace"),
        ("arguments =", "since = 0\narguments =", "since: must be at least 1"),
        ("[[operator]]", "[operator]", "operator: expected array"),
        ("[[operator]]", "[[operator", "operator library .*acme.toml: "),
    ],
)
def test_wrong_descriptions_are_refused_with_their_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in POOL
    with pytest.raises(UsageError, match=message) as caught:
        load(tmp_path, POOL.replace(old, new, 1))
    assert "acme.toml" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('license = "MIT"', "", "library: lacks the key 'license'"),
        ('"libacme.a"', '"libother.a"', "libother.a is not a file"),
        ('"libacme.a"', "1", "archive: expected"),
        ('name = "acme"', 'name = "../acme"', "name: must be a name of letters"),
        ('license = "MIT"', 'license = "MIT"\nsystem_libraries = ["-lm"]', "must be a name as in -lNAME"),
        ('license = "MIT"', 'license = "MIT"\nsystem_libraries = ["a b"]', "must be a name as in -lNAME"),
    ],
)
def test_wrong_libraries_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(tmp_path, library=LIBRARY.replace(old, new))


def test_files_that_are_no_text_or_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none.toml: No such file or directory"):
        load_op_library(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"binary.toml: .*UTF-8"):
        load_op_library(tmp_path / "binary.toml")
    with pytest.raises(UsageError, match="Is a directory"):
        load_op_library(tmp_path)


def test_operators_that_packager_compiles_are_refused_in_their_domain_alone(tmp_path: Path) -> None:
    contrib = POOL.replace("com.acme", "com.microsoft")
    load(tmp_path, contrib)
    with pytest.raises(UsageError, match=r"com\.microsoft::FastGelu cannot come from a library"):
        load(tmp_path, contrib.replace('"Pool"', '"FastGelu"'))


def test_one_implementation_cannot_stand_twice(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"operator\[1\]: com.acme::Pool .* is described twice"):
        load(tmp_path, POOL + POOL)
    assert len(load(tmp_path, POOL + POOL.replace("arguments =", "since = 2\narguments =")).operators) == 2


def test_libraries_have_different_names(tmp_path: Path) -> None:
    first, second = write(tmp_path, LIBRARY + POOL), write(tmp_path, LIBRARY + POOL, "other.toml")
    with pytest.raises(UsageError, match="two operator libraries are named 'acme'"):
        load_op_libraries([first, second])


def test_calls_are_encoded_without_loss(tmp_path: Path) -> None:
    library = load(tmp_path)
    (pool,) = library.operators
    values = {"stride": -(2**63), "alpha": float("inf"), "text": 'a"\\\n\u00e9', "list": (1, 2), "none": ()}
    name = encode_call(library, pool, values)
    assert name.isascii()
    assert decode_call(name, [library]) == (library, pool, values)
    assert decode_call(name, []) is None
    assert decode_call("external_0", [library]) is None


def test_dims_are_bound_and_checked(tmp_path: Path) -> None:
    (pool,) = load(tmp_path).operators
    x, scale = Given("float32", (3, 7, 4)), Given("float32", (7,))
    values = bind(pool, [x, scale], same)
    assert values == {"n": 3, "k": 7, "numel_x": 84, "numel_scale": 7}
    values |= counts(pool, {"stride": 2, "alpha": 1.0})
    assert output_shapes(pool, [x, scale], values, INTEGERS) == ((3, 3),)
    for inputs, reason in [
        ([x], "takes 2 inputs"),
        ([Given("float64", (3, 7, 4)), scale], "input x must be float32"),
        ([Given("float32", (3, 7)), scale], "input x must be of rank 3"),
        ([Given("float32", (3, 7, 5)), scale], "axis 2 of input x must be 4, but is 5"),
        ([x, Given("float32", (8,))], "axis 0 of input scale must be k, which is 7, but is 8"),
    ]:
        with pytest.raises(NoFitError, match=reason):
            bind(pool, inputs, same)


def test_extents_that_are_not_known_leave_others_known(tmp_path: Path) -> None:
    (pool,) = load(tmp_path).operators
    given = [Given("float32", (None, 6, 4)), Given("float32", None)]
    values = bind(pool, given, same) | {"stride": 4}
    assert values["numel_x"] is None
    assert output_shapes(pool, given, values, INTEGERS) == ((None, 2),)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2*n + 1", 11),
        ("(n - 2) // 2", 1),
        ("n % 3", 2),
        ("min(n, 3) + max(n, 7)", 10),
        ("numel(x) - len( a )", 18),
        ("n - missing", None),
    ],
)
def test_expressions(text: str, value: int | None) -> None:
    assert INTEGERS.evaluate(text, {"n": 5, "numel_x": 20, "len_a": 2}) == value


def test_attributes_are_completed_and_checked(tmp_path: Path) -> None:
    (pool,) = load(tmp_path).operators
    assert complete_attributes(pool, {"alpha": ("float", 0.5)}, "p") == {"stride": 2, "alpha": 0.5}
    with pytest.raises(ModelError, match=r"node 'p' of operator com\.acme::Pool lacks the attribute 'alpha'"):
        complete_attributes(pool, {}, "p")
    with pytest.raises(ModelError, match=r"attribute 'strid', which .* does not know \(did you mean 'stride'\?\)"):
        complete_attributes(pool, {"alpha": ("float", 0.5), "strid": ("int", 1)}, "p")
    with pytest.raises(ModelError, match=r"attribute 'alpha' of node 'p' .* is int 1, expected float"):
        complete_attributes(pool, {"alpha": ("int", 1)}, "p")


def test_reading_a_description_starts_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, LIBRARY + POOL)
    program = (
        "import sys; from packager.backends.external.backend import BACKEND; "
        "from packager.custom_ops.library import load_op_library; "
        f"load_op_library(__import__('pathlib').Path({str(path)!r})); "
        "print(*sorted({'tvm', 'onnx', 'numpy', 'jinja2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
