"""What a model calls its parts is data: with any names in any place it compiles to the same machine code."""

from __future__ import annotations

import hashlib
import random
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import packager
from packager import resources
from packager.bundle.elf.file import read_elf
from packager.bundle.elf.tables import SHF_EXECINSTR
from packager.bundle.gpu.fatbin import FATBIN_SECTION
from packager.codegen.c_tokens import first_difference
from packager.link import linker
from packager.link.plain_names import renamed

pytestmark = pytest.mark.slow
# What means something to C, its preprocessor, assemblers, linkers, jinja, printf, shells, or to nobody.
MARKS = [
    *(
        "*/",
        "/*",
        "//",
        "\\",
        "\\\n",
        "\n",
        "\r",
        '"',
        "'",
        "??/",
        "??/\n",
        "*\\\n/",
        "*??/\n/",
        "%:",
        "%",
        "{{",
        "}}",
        "{%",
    ),
    *(
        "%}",
        "{#",
        "\x01",
        "\x1b[31m",
        "\x7f",
        "é",
        "漢",
        "\u2028",
        "\u202e",
        "😀",
        '#include "/etc/passwd"',
        "; int x;",
    ),
    *(
        '.incbin "/etc/passwd"',
        '__asm__("x")',
        "$(id)",
        "`id`",
        "../../x",
        " ",
        "0",
        "-1",
        "int",
        "main",
        "free",
        'R"(',
    ),
    *("_", ".", "@", "%n%s", "<", ">", "&", "|", ";", "\t", "x" * 100),
]
Name = Callable[[str], str]


class Names:
    """Gives each part of a model a name of its own, made up of marks."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.names: dict[str, str] = {}

    def __call__(self, part: str) -> str:
        while part not in self.names:
            name = "".join(self.rng.choice(MARKS) for _ in range(self.rng.choice((1, 2, 3, 5, 1000))))
            if name not in self.names.values():
                self.names[part] = name
        return self.names[part]


def model(name: Name) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.standard_normal((8, 4), dtype=np.float32),
        "b": rng.standard_normal(4, dtype=np.float32),
        "c": rng.standard_normal((3, 4), dtype=np.float32),
        "axis": np.array(0),
    }
    rows = [
        ("MatMul", ("x", "w"), "t"),
        ("Add", ("t", "b"), "u"),
        ("Erf", ("u",), "v"),
        ("Softmax", ("v",), "y"),
        ("Gather", ("c", "i"), "g"),
        ("CumSum", ("g", "axis"), "z"),
    ]
    nodes = [
        helper.make_node(
            operator, [name(i) for i in inputs], [name(output)], name=name(f"node {output}"), doc_string=name("doc")
        )
        for operator, inputs, output in rows
    ]
    inputs = [
        helper.make_tensor_value_info(name("x"), TensorProto.FLOAT, [name("dim"), 8]),
        helper.make_tensor_value_info(name("i"), TensorProto.INT64, [5]),
    ]
    outputs = [
        helper.make_tensor_value_info(name("y"), TensorProto.FLOAT, [name("dim"), 4]),
        helper.make_tensor_value_info(name("z"), TensorProto.FLOAT, [5, 4]),
    ]
    weights = [numpy_helper.from_array(array, name(part)) for part, array in arrays.items()]
    graph = helper.make_graph(nodes, name("graph"), inputs, outputs, weights, doc_string=name("doc"))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name=name("producer"))
    made.ir_version = 8
    helper.set_model_props(made, {name("key"): name("value")})
    return made


def code(name: Name, folder: Path, targets: list[str]) -> dict[str, str]:
    """Build, and return the hashes of the machine code, for CPU and GPU, in all objects that are linked."""
    folder.mkdir()
    (folder / "model.onnx").write_bytes(model(name).SerializeToString())
    with pytest.raises(packager.PackagerError, match="no bounds") as caught:
        packager.build(folder / "model.onnx", folder / "o.so", targets=targets)
    dim = (caught.value.detail or "").partition(":")[0]
    work = folder / "work"
    bundle = packager.build(
        folder / "model.onnx",
        folder / "o.so",
        targets=targets,
        dims={dim: (1, 8)},
        keep_workdir=work,
        header=folder / "o.h",
    )
    assert {finding.check for finding in packager.verify(bundle).findings} <= {"machine.cuda_driver"}
    found = {}
    for path in sorted(work.rglob("*.o")):
        image, data = read_elf(path), path.read_bytes()
        text = [
            data[s.offset : s.offset + s.size]
            for s in image.sections.values()
            if s.flags & SHF_EXECINSTR or s.name == FATBIN_SECTION
        ]
        found[re.sub(r"[0-9a-f]{16,}", "", str(path.relative_to(work)))] = hashlib.sha256(b"".join(text)).hexdigest()
    assert found
    return found


@pytest.mark.parametrize("targets", [["llvm", "ccompiler"], ["llvm"], ["cuda -arch=sm_80"]], ids=" ".join)
@pytest.mark.parametrize(
    ("seed", "count"), [(0, 3), *(pytest.param(seed, 100, marks=pytest.mark.thorough) for seed in range(1, 6))]
)
def test_names_do_not_reach_the_code(seed: int, count: int, targets: list[str], tmp_path: Path) -> None:
    expected = code(lambda part: part.replace(" ", "_"), tmp_path / "plain", targets)
    for number in range(count):
        names = Names(seed * 1000 + number)
        assert code(names, tmp_path / str(number), targets) == expected, names.names


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.parametrize("targets", [["llvm", "ccompiler"], ["llvm"], ["cuda -arch=sm_80"]], ids=" ".join)
@pytest.mark.parametrize("count", [20, pytest.param(10_000, marks=pytest.mark.thorough)])
def test_the_entrypoint_is_the_same_code_with_any_names(
    targets: list[str], count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels are compiled once; the entrypoint, the one source with names, is rendered for each set of names.

    Its tokens must be those with plain names; of ten sets, the machine code too.
    """
    rendered: list[tuple[str, Any, Callable[[Any], str]]] = []

    def record(source: str, values: Any, render: Callable[[Any], str]) -> str:
        rendered.append((source, values, render))
        return source

    monkeypatch.setattr(linker, "check_names_are_data", record)
    (tmp_path / "model.onnx").write_bytes(model(lambda part: part.replace(" ", "_")).SerializeToString())
    options = {
        "targets": targets,
        "dims": {"dim": (1, 8)},
        "keep_workdir": tmp_path / "work",
    }  # built, not from the cache
    packager.build(tmp_path / "model.onnx", tmp_path / "o.so", **options)
    ((plain, values, render),) = rendered
    expected = machine_code(plain, tmp_path)
    for seed in range(count):
        names = Names(seed)
        source = render(renamed(values, names))
        assert first_difference(plain, source) is None, names.names
        if seed % (count // 10) == 0:
            assert machine_code(source, tmp_path) == expected, names.names


def machine_code(source: str, folder: Path) -> bytes:
    """Compile an entrypoint, and return its code: names are data beside it."""
    (folder / "entrypoint.c").write_text(source)
    include = resources.folder("runtime_stub")
    flags = ["-std=gnu11", "-O2", "-fPIC", f"-I{include / 'include'}", f"-I{include / 'src'}"]
    subprocess.run(["gcc", *flags, "-c", "entrypoint.c", "-o", "e.o"], cwd=folder, check=True)
    sections, data = read_elf(folder / "e.o").sections.values(), (folder / "e.o").read_bytes()
    return b"".join(data[s.offset : s.offset + s.size] for s in sections if s.flags & SHF_EXECINSTR)


@pytest.mark.parametrize("part", ["x", "y", "w"])
def test_a_name_with_a_zero_character_is_refused(part: str, tmp_path: Path) -> None:
    odd = model(lambda own: f"{own}\0" if own == part else own)
    (tmp_path / "model.onnx").write_bytes(odd.SerializeToString())
    with pytest.raises(packager.errors.ModelError, match="an input, output or constant is named"):
        packager.build(tmp_path / "model.onnx", tmp_path / "o.so", dims={"dim": (1, 8)})
