"""Custom operators that cannot be built: each an error of its own that names the node, or library and symbol."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import save
from op_libraries import FLAGS, SWISH, SWISH_C, UNARY, archive, compile_objects, describe, make_library, model

import packager
from packager.errors import BackendError, ModelError, PackagerError, UnsupportedOperatorsError

SWISH_MODEL = "g (float[2,2] x) => (float[2,2] y) { y = com.acme.Swish(x) }"
MIX = """
[[operator]]
domain = "com.acme"
op_type = "Mix"
symbol = "acme_swish"
signature = "dltensor"
inputs = [{ name = "x", dtype = "float32", shape = ["n", "k"] }, { name = "s", dtype = "float32", shape = ["k"] }]
outputs = [{ name = "y", dtype = "float32", shape = ["n", "k // step"] }]
attributes = { step = { type = "int", default = 1 } }

[[operator]]
domain = "com.acme"
op_type = "Mix"
symbol = "acme_swish"
signature = "dltensor"
inputs = [{ name = "x", dtype = "float64", shape = ["n", 3] }]
outputs = [{ name = "y", dtype = "float64", shape = ["n", 3] }]
"""


def refused(text: str | onnx.ModelProto, library: Path, folder: Path, kind: type[PackagerError], **dims: object) -> str:
    """Build a model, which must fail with an error of a kind; return the error as the command line shows it."""
    path = save(text if isinstance(text, onnx.ModelProto) else model(text), folder / "model.onnx")
    with pytest.raises(kind) as caught:
        packager.build(path, folder / "out.so", op_libraries=[library], dims=dims)
    assert type(caught.value) is kind
    assert not (folder / "out.so").exists()
    return caught.value.render()


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that is right."""
    return make_library(tmp_path_factory.mktemp("acme"), {"swish.c": SWISH_C}, SWISH + MIX)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            "g (float[2,3] x, float[4] s) => (float[2,3] y) { y = com.acme.Mix(x, s) }",
            [
                "node 'y' of operator com.acme::Mix has the inputs (float32[2, 3], float32[4]), which match",
                "acme: Mix(x float32[n, k], s float32[k]): axis 0 of input s must be k, which is 3, but is 4",
                "acme: Mix(x float64[n, 3]): takes 1 inputs",
                "describe an overload",
            ],
        ),
        (
            "g (float[2,3] x) => (float[2,3] y) { y = com.acme.Mix(x) }",
            ["(float32[2, 3])", "takes 2 inputs", "input x must be float64"],
        ),
        (
            "g (double[2,4] x) => (double[2,4] y) { y = com.acme.Mix(x) }",
            ["axis 1 of input x must be 3, but is 4"],
        ),
        ("g (double[2,3,1] x) => (double[2,3] y) { y = com.acme.Mix(x) }", ["input x must be of rank 2"]),
        (
            "g (double[n,n] x) => (double[n,3] y) { y = com.acme.Mix(x) }",
            ["axis 1 of input x must be 3, but is n"],
        ),
        (
            'g (float[2,3] x, float[3] s) => (float[2,3] y) { y = com.acme.Mix("", s) }',
            ["node 'y' of operator com.acme::Mix leaves out input 0", "not optional"],
        ),
        (
            "g (float[2,3] x, float[3] s) => (float[2,3] y) { y, z = com.acme.Mix(x, s) }",
            ["node 'y' of operator com.acme::Mix has 2 outputs; the library's has 1"],
        ),
        (
            "g (float[2,3] x, float[3] s) => (float[2,1] y) { y = com.acme.Mix<step=4>(x, s) }",
            ["axis 1 of its output 'y' is 0, which can be less than 1"],
        ),
        (
            "g (float[2,3] x, float[3] s) => (float[2,1] y) { y = com.acme.Mix<step=0>(x, s) }",
            ["the shape of its output cannot be computed"],
        ),
        (
            "g (float[2,3] x, float[3] s) => (float[2,3] y) { y = com.acme.Mix<stop=1>(x, s) }",
            [
                "has the attribute 'stop', which the library does not know (did you mean 'step'?)",
                "its attributes: step",
            ],
        ),
        (
            "g (float[2,3] x, float[3] s) => (float[2,3] y) { y = com.acme.Mix<step=1.5>(x, s) }",
            ["attribute 'step' of node 'y' of operator com.acme::Mix is float 1.5, expected int"],
        ),
        (
            'g (float[2,3] x, float[3] s) => (float[2,3] y) { y = com.acme.Mix<step=["a"]>(x, s) }',
            ["attribute 'step' of node 'y' of operator com.acme::Mix is of type STRINGS", "int, float, string"],
        ),
        (
            "g (float[2,3] x, float[3] s) => (float[2,9] y) { y = com.acme.Mix(x, s) }",
            ["output 'y' is declared as float32[2, 9]"],
        ),
    ],
)
def test_nodes_that_the_library_does_not_take(acme: Path, tmp_path: Path, text: str, parts: Sequence[str]) -> None:
    dims = {"n": (1, 4)} if "[n," in text else {}
    shown = refused(text, acme, tmp_path, ModelError, **dims)
    for part in parts:
        assert part in shown


def test_nodes_are_called_by_their_names(acme: Path, tmp_path: Path) -> None:
    broken = model("g (float[2,3] x) => (float[2,3] y) { y = com.acme.Mix(x) }")
    broken.graph.node[0].name = "/encoder/mix"
    assert "node '/encoder/mix' of operator com.acme::Mix" in refused(broken, acme, tmp_path, ModelError)


def test_operators_without_a_library_are_listed_with_what_to_do(acme: Path, tmp_path: Path) -> None:
    text = "g (float[2,2] x) => (float[2,2] y) { a = com.acme.Swish(x)  b = com.acme.Other(a)  y = com.beta.Swish(b) }"
    foreign = model(text, domains='"com.acme": 1, "com.beta": 1')
    shown = refused(foreign, acme, tmp_path, UnsupportedOperatorsError)
    assert "com.acme::Other: b" in shown
    assert "com.beta::Swish: y" in shown
    assert "com.acme::Swish" not in shown
    assert "--op-library" in shown


def test_an_attribute_that_is_missing(tmp_path: Path) -> None:
    library = make_library(tmp_path, {"a.c": SWISH_C}, SWISH.replace(", default = 1.0", ""))
    shown = refused(SWISH_MODEL, library, tmp_path, ModelError)
    assert "node 'y' of operator com.acme::Swish lacks the attribute 'beta'" in shown


def library_of(folder: Path, source: str, **options: object) -> Path:
    """Return a library whose one operator should be the function acme_swish."""
    return make_library(folder, {"a.c": source}, SWISH, **options)  # type: ignore[arg-type]


def as_cxx(folder: Path, source: str, flags: Sequence[str] = FLAGS) -> Path:
    """Return a library of C++."""
    return make_library(folder, {"a.cc": source}, SWISH, cc="g++", flags=flags)


def test_files_that_are_no_archives(tmp_path: Path) -> None:
    (tmp_path / "libacme.a").write_text("INPUT(libother.a)\n")
    shown = refused(SWISH_MODEL, describe(tmp_path, SWISH), tmp_path, BackendError)
    assert "library 'acme': libacme.a is not an object file for x86_64" in shown
    archive(tmp_path / "libacme.a", [])
    assert "libacme.a has no members" in refused(SWISH_MODEL, tmp_path / "acme.toml", tmp_path, BackendError)
    (tmp_path / "notes.txt").write_text("notes")
    archive(tmp_path / "libacme.a", [tmp_path / "notes.txt"])
    assert "libacme.a(notes.txt) is not an object" in refused(
        SWISH_MODEL, tmp_path / "acme.toml", tmp_path, BackendError
    )
    library = library_of(tmp_path, SWISH_C)
    content = (tmp_path / "libacme.a").read_bytes()
    (tmp_path / "libacme.a").write_bytes(content[: len(content) // 2])
    assert "libacme.a is neither an archive nor an object file" in refused(SWISH_MODEL, library, tmp_path, BackendError)


def test_shared_libraries_and_thin_archives(tmp_path: Path) -> None:
    (swish,) = compile_objects(tmp_path, {"swish.c": SWISH_C}, cc="gcc", flags=FLAGS)
    subprocess.run(["gcc", "-shared", swish, "-o", tmp_path / "libacme.so"], check=True)
    library = describe(tmp_path, SWISH, files='"libacme.so"')
    assert "library 'acme': libacme.so is shared and no object" in refused(SWISH_MODEL, library, tmp_path, BackendError)
    subprocess.run(["ar", "rcsDT", tmp_path / "libacme.a", swish], check=True)
    assert "is a thin archive" in refused(SWISH_MODEL, describe(tmp_path, SWISH), tmp_path, BackendError)


def test_another_machine(tmp_path: Path) -> None:
    if shutil.which("aarch64-linux-gnu-gcc") is None:
        pytest.skip("aarch64-linux-gnu-gcc is not installed")
    library = library_of(tmp_path, SWISH_C, tools="aarch64-linux-gnu-")
    shown = refused(SWISH_MODEL, library, tmp_path, BackendError)
    assert "library 'acme': libacme.a(a.o) is for aarch64, and the bundle is for x86_64" in shown
    assert "-mtriple" in shown


def test_code_that_is_no_machine_code(tmp_path: Path) -> None:
    shown = refused(SWISH_MODEL, library_of(tmp_path, SWISH_C, flags=(*FLAGS, "-flto")), tmp_path, BackendError)
    assert "libacme.a(a.o) was compiled with -flto and has no machine code" in shown
    assert "without -flto" in shown
    (tmp_path / "a.o").write_bytes(b"BC\xc0\xde" + bytes(60))
    archive(tmp_path / "libacme.a", [tmp_path / "a.o"])
    assert "is LLVM bitcode" in refused(SWISH_MODEL, tmp_path / "acme.toml", tmp_path, BackendError)


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        (
            "acme_swish",
            "acme_swash",
            ["define 'acme_swish', the function of com.acme::Swish", "'acme_swash'?"],
        ),
        ("acme_swish", "other", ["does not define 'acme_swish'", "its files are libacme.a"]),
        ("int32_t acme", "static __attribute__((used)) int32_t acme", ["in libacme.a(a.o) it is static"]),
    ],
)
def test_symbols_that_are_not_there(tmp_path: Path, old: str, new: str, parts: Sequence[str]) -> None:
    shown = refused(SWISH_MODEL, library_of(tmp_path, SWISH_C.replace(old, new)), tmp_path, BackendError)
    for part in ("library 'acme'", *parts):
        assert part in shown


def test_operators_that_the_model_does_not_use_must_be_there_too(tmp_path: Path) -> None:
    library = make_library(tmp_path, {"a.c": SWISH_C}, SWISH + UNARY.format(name="Gelu", symbol="acme_gelu"))
    shown = refused(SWISH_MODEL, library, tmp_path, BackendError)
    assert "does not define 'acme_gelu', the function of com.acme::Gelu" in shown


@pytest.mark.slow
def test_cxx_names_and_the_cxx_library(tmp_path: Path) -> None:
    shown = refused(SWISH_MODEL, as_cxx(tmp_path, SWISH_C), tmp_path, BackendError)
    assert "defines the C++ function _Z10acme_swishPKfPflf" in shown
    assert 'extern "C"' in shown
    source = SWISH_C.replace("int32_t acme", '#include <vector>\nextern "C" int32_t acme')
    source = source.replace("  for", "  std::vector<float> copy(x, x + n);\n  x = copy.data();\n  for", 1)
    shown = refused(SWISH_MODEL, as_cxx(tmp_path, source), tmp_path, BackendError)
    assert "library 'acme' is C++ code that needs its run-time library" in shown
    assert "_Znwm" in shown
    assert "stdc++" in shown


@pytest.mark.slow
def test_cxx_works_with_what_it_needs(tmp_path: Path) -> None:
    """Without the C++ library, or with it where that is declared."""
    plain = SWISH_C.replace("int32_t acme", 'extern "C" int32_t acme')
    copying = plain.replace("  for", "  std::vector<float> copy(x, x + n);\n  x = copy.data();\n  for", 1)
    path = save(model(SWISH_MODEL), tmp_path / "model.onnx")
    x = np.float32([[1, 2], [-3, 4]])
    for name, source, keys in (("plain", plain, ""), ("full", f"#include <vector>\n{copying}", '"stdc++"')):
        folder = tmp_path / name
        folder.mkdir()
        library = make_library(folder, {"a.cc": source}, SWISH, cc="g++", keys=f"system_libraries = [{keys}]")
        bundle = packager.build(path, folder / "out.so", op_libraries=[library])
        np.testing.assert_allclose(packager.load(bundle).run({"x": x})["y"], x / (1 + np.exp(-x)), rtol=1e-5)
        needed = packager.inspect(bundle).manifest.requirements.needed
        assert ("libstdc++.so.6" in needed) == (name == "full")


def test_undefined_symbols(tmp_path: Path) -> None:
    source = SWISH_C.replace("int32_t acme", "float acme_deep(float);\nfloat acme_far(float);\nint32_t acme")
    library = library_of(tmp_path, source.replace("x[i] /", "acme_far(acme_deep(x[i])) /"))
    shown = refused(SWISH_MODEL, library, tmp_path, BackendError)
    assert "library 'acme' needs symbols that nothing provides: acme_deep, acme_far" in shown
    assert "system_libraries" in shown


@pytest.mark.slow
def test_symbols_that_are_defined_twice(tmp_path: Path) -> None:
    first, second = compile_objects(tmp_path, {"a.c": SWISH_C, "b.c": SWISH_C}, cc="gcc", flags=FLAGS)
    library = describe(tmp_path, SWISH, files=f'["{first.name}", "{second.name}"]')
    packager.build(save(model(SWISH_MODEL), tmp_path / "m.onnx"), tmp_path / "fine.so", op_libraries=[library])
    uses = SWISH_C.replace("int32_t acme", "extern const char more[];\nint32_t acme")
    uses = uses.replace("float beta) {", "float beta) {\n  if (n < 0) return more[0];")
    sources = {"a.c": uses, "b.c": SWISH_C + 'const char more[] = "both are needed";\n'}
    compile_objects(tmp_path, sources, cc="gcc", flags=FLAGS)
    shown = refused(SWISH_MODEL, library, tmp_path, BackendError)
    assert "library 'acme' cannot be linked" in shown
    assert "acme_swish" in shown


def test_system_libraries_that_are_not_there(tmp_path: Path) -> None:
    library = library_of(tmp_path, SWISH_C, keys='system_libraries = ["m", "acme-nowhere"]')
    shown = refused(SWISH_MODEL, library, tmp_path, BackendError)
    assert "library 'acme' needs the system library 'acme-nowhere', which cannot be linked" in shown
    assert "libacme-nowhere.so" in shown
    (tmp_path / "acme.toml").write_text((tmp_path / "acme.toml").read_text().replace("acme-nowhere", "gcc"))
    assert "static archive only" in refused(SWISH_MODEL, library, tmp_path, BackendError)


def test_code_that_is_bound_to_its_place(tmp_path: Path) -> None:
    source = SWISH_C.replace("int32_t acme", "static const float table[] = {1, 2, 3, 4};\nint32_t acme")
    source = source.replace("x[i] /", "table[(int64_t)x[i] & 3] /")
    shown = refused(SWISH_MODEL, library_of(tmp_path, source, flags=("-O2", "-fno-pic")), tmp_path, BackendError)
    for part in ("acme", "libacme.a(a.o)", "not position-independent", "-fPIC"):
        assert part in shown


def test_constructors(tmp_path: Path) -> None:
    source = SWISH_C + 'static __attribute__((constructor)) void acme_start(void) { setenv("A", "1", 1); }\n'
    library = library_of(tmp_path, "#include <stdlib.h>\n" + source)
    shown = refused(SWISH_MODEL, library, tmp_path, BackendError)
    for part in ("libacme.a(a.o)", "acme_start", "at load or unload"):
        assert part in shown


def test_a_call_that_is_left_has_no_other_implementation(acme: Path, tmp_path: Path) -> None:
    path = save(model(SWISH_MODEL), tmp_path / "model.onnx")
    target = {"kind": "external", "libraries": [str(acme)], "min_partition_flops": 1000}
    with pytest.raises(UnsupportedOperatorsError) as caught:
        packager.build(path, tmp_path / "out.so", targets=[target])
    assert caught.value.operators == {"com.acme::Swish": ("y",)}
