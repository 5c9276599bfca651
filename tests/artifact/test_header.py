"""``--header``: it compiles as C and C++ whatever the model's names are, and headers stand side by side."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import packager

from .conftest import Build
from .models import Model
from .programs import execute

NAMES = ["x.1", "x_1", "x/1", "/*", "*/", "1st", "größe", 'say "hi"\\n', "line\nbreak", "int"]
STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"]
LANGUAGES = [["-x", "c", "-std=c99"], ["-x", "c", "-std=c11"], ["-x", "c++", "-std=c++11"], ["-x", "c++", "-std=c++20"]]


def compile_text(folder: Path, text: str, *flags: str) -> None:
    source = folder / "program.txt"
    source.write_text(text)
    execute(["gcc", *STRICT, f"-I{folder}", *flags, source])


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A header for a model whose names are no C identifiers, and collide when made into some."""
    folder = tmp_path_factory.mktemp("odd")
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in NAMES]
    node = helper.make_node("Sum", NAMES, ["out*/"], "sum")
    graph = helper.make_graph(
        [node], "odd", inputs, [helper.make_tensor_value_info("out*/", TensorProto.FLOAT, [2, 3])]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "odd.onnx")
    packager.build(folder / "odd.onnx", folder / 'od"d.so', header=folder / "3-odd.h", name="*/ odd /*")
    return folder


@pytest.mark.parametrize("language", LANGUAGES, ids=" ".join)
def test_odd_names(odd: Path, language: list[str]) -> None:
    """Names that would give the same macro carry the index."""
    text = '#include "3-odd.h"\n#include "3-odd.h"\n'
    text += "static const char bundle[] = ___ODD____BUNDLE;\n"
    text += "int main(void) { return ___ODD____INPUT_X_1_0 + ___ODD____INPUT_X_1_1 + ___ODD____INPUT_X_1_2 + bundle[0]"
    text += " + ___ODD____INPUT_M1ST; }\n"
    compile_text(odd, text, *language)


def test_macros_are_the_indices(odd: Path) -> None:
    macros = dict(
        line.split(maxsplit=2)[1:]
        for line in (odd / "3-odd.h").read_text().splitlines()
        if line.startswith("#define ___ODD___")
    )
    indices = [int(value) for name, value in macros.items() if "_INPUT_" in name]
    assert indices == list(range(len(NAMES)))
    assert macros["___ODD____NUM_INPUTS"] == str(len(NAMES))
    assert macros["___ODD____BUNDLE"] == r'"od\042d.so"'


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES, ids=" ".join)
def test_two_archives_of_one_model(build: Build, digits: Model, tmp_path: Path, language: list[str]) -> None:
    """Macros start with the prefix, not with the name of the model, which both share."""
    for prefix in ("first", "second"):
        library = build(digits, prefix=prefix)
        shutil.copy(library.with_name(f"{prefix}.h"), tmp_path)
    text = '#include "first.h"\n#include "second.h"\nint main(void) {\n'
    text += "  return first_bundle_v1() == second_bundle_v1() ? FIRST_INPUT_IMAGE : SECOND_OUTPUT_LOGITS;\n}\n"
    compile_text(tmp_path, text, *language)


@pytest.mark.slow
def test_archive_with_the_prefix_packager(digits: Model, tmp_path: Path) -> None:
    """Its entry has the name of a shared bundle's, and is not taken out of the cache for one."""
    options = {"dims": {"n": 2}, "cache": True}
    shared = packager.build(digits.path, tmp_path / "digits.so", **options)  # type: ignore[arg-type]
    archive = packager.build(digits.path, tmp_path / "digits.a", static=True, prefix="packager", **options)  # type: ignore[arg-type]
    assert packager.inspect(shared).manifest.form == "shared"
    assert packager.inspect(archive).manifest.form == "static"
    assert archive.read_bytes().startswith(b"!<arch>")
