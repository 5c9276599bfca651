"""The second wall: where the first leaves a name as it is, no source that holds it is written."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import packager
from packager.codegen import c_tokens
from packager.codegen.escape import CText
from packager.link import entrypoint, header

# What ends a comment, or a string, and begins code.
IN_COMMENTS = [
    "x*/ , { evil } /*",
    "*\\\n/ }; static int32_t evil(void) { return 0; } /*",
    '*??/\n/ __asm__(".incbin \\"/etc/passwd\\""); /*',
]
IN_STRINGS = ['x", evil(), "y', 'x"\n#define pk_session_create evil\n"y', "x\\", "x\ny"]
FORGOTTEN = [
    *((entrypoint, "c_string", part, name) for part in ("input", "output", "constant") for name in IN_STRINGS),
    *((entrypoint, "comment_text", "constant", name) for name in IN_COMMENTS),
    *((header, "comment_text", part, name) for part in ("input", "output") for name in IN_COMMENTS),
]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('f("a", 1); /* x */', 'f("b\\"", 1); // y'),
        ('"\\\\"', '""'),
        ("/* // */ a", "a"),
        ('/* " */ a /* " */', "a"),
        ("a /* \n */ b", "a b"),
        ('"a\\\nb"', '"c"'),
        ("??/\n", "\\\n"),
    ],
)
def test_the_same_code(one: str, other: str) -> None:
    assert c_tokens.first_difference(one, other) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("f(a);", "f(b);"),
        ("f(a);", "f(a"),
        ('f("a");', 'f("a" "b");'),
        ('"a"b"', '"a"'),
        ("/* a */ */", "/* a */"),
        ("/* a *\\\n/ b */", "/* a */"),
        ("/* a *??/\n/ b */", "/* a */"),
        ("// a \\\nb\nc", "// a\nb\nc"),
        ("a\n#b", "a #b"),
        ("'a'", "'b'"),
        ("/* a", "/* a */"),
        ("%:define", "#define"),
    ],
)
def test_other_code(one: str, other: str) -> None:
    assert c_tokens.first_difference(one, other)
    assert c_tokens.first_difference(other, one)


def test_macros_may_have_other_names() -> None:
    assert c_tokens.first_difference("#define A_1 0", "#define B 0", macros=True) is None
    assert c_tokens.first_difference("#define A_1 0", "#define b 0", macros=True)
    assert c_tokens.first_difference("#define A_1 0", "#define A_1 1", macros=True)


def model(path: Path, part: str, name: str) -> Path:
    """Write a model with a hostile name for one of its parts."""

    def own(other: str) -> str:
        return name if other == part else other

    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", [own("input"), own("constant")], [own("output")])],
        "g",
        [value(own("input"), TensorProto.FLOAT, ["n", 3])],
        [value(own("output"), TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(np.ones((3, 2), np.float32), own("constant"))],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.slow
@pytest.mark.sampled(5, every_value=False)
@pytest.mark.parametrize(("module", "escape", "part", "name"), FORGOTTEN, ids=range(len(FORGOTTEN)))
def test_a_name_that_nothing_escapes(
    module: ModuleType, escape: str, part: str, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As if packager had forgotten to escape, where the entrypoint or the header is rendered."""
    monkeypatch.setattr(module, escape, lambda text: CText(f'"{text}"' if escape == "c_string" else text))
    path, options = model(tmp_path / "m.onnx", part, name), {"targets": ["llvm -mcpu=x86-64"], "dims": {"n": (1, 4)}}
    with pytest.raises(ValueError, match="a name in the model changes rendered code"):
        packager.build(path, tmp_path / "m.so", header=tmp_path / "m.h", **options)
    assert not (tmp_path / "m.so").exists()
