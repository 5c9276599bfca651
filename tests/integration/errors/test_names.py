"""Names that mean something to C, to the shell or to nobody: each must survive into the bundle as it is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import check, graph, save

import packager
from packager.bundle.reader import inspect

pytestmark = pytest.mark.slow

ODD = [
    "int",
    "main",
    "run",
    "a b",
    "a/b:0",
    "*/ #error",
    "*\\\n/ #error \\\n",
    "*??/\n/ #error",
    '*/ __asm__(".incbin \\"/etc/passwd\\""); /*',
    "/*",
    '"quoted"',
    "back\\slash",
    "percent %s %d",
    "{{ jinja }}",
    "größe",
    "入力",
    "🙂",
    "new\nline",
    "tab\t",
    "??/",
    "x" * 3000,
    "1",
    "-",
    "..",
    "$(touch pwned)",
    "__pk_model",
    "dim_n",
    "e\u0301 and é",
]


@pytest.mark.sampled(5, every_value=False)
@pytest.mark.parametrize("name", ODD, ids=lambda name: ascii(name[:20]))
def test_an_odd_name_everywhere(name: str, tmp_path: Path) -> None:
    model = graph(
        "g (float[n,3] x) => (float[n,2] y) { t = MatMul(x, w)\n y = Add(t, b) }",
        {"w": np.ones((3, 2), np.float32), "b": np.arange(2, dtype=np.float32)},
    )
    renamed = {
        "x": f"{name}",
        "y": f"{name}.out",
        "w": f"{name}.w",
        "b": f"{name}.b",
        "t": f"{name}.t",
        "n": f"{name}.n",
    }
    for node in model.graph.node:
        node.name = f"{name}.{node.op_type}"
        for field in (node.input, node.output):
            field[:] = [renamed[value] for value in field]
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        value.name = renamed[value.name]
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = renamed["n"]
    path = save(model, tmp_path / "m.onnx")
    with pytest.raises(packager.PackagerError, match="no bounds") as caught:
        packager.build(path, tmp_path / "m.so", name=name, cache=False)
    dim = (caught.value.detail or "").split(":")[0]
    assert dim.isascii()
    assert dim.isidentifier()
    header = tmp_path / "m.h"
    bundle = check(
        model,
        tmp_path,
        {dim: (1, 4)},
        ({renamed["n"]: 1}, {renamed["n"]: 4}),
        name=name,
        header=header,
        golden=1,
        targets=["llvm"],  # whose constants have the names of the model
    )
    assert bundle.manifest.model.name == name
    assert [tensor.name for tensor in bundle.inputs] == [renamed["x"]]
    assert [tensor.name for tensor in bundle.outputs] == [renamed["y"]]
    assert {constant.name for constant in bundle.manifest.constants} == {renamed["w"], renamed["b"]}
    nodes = {node for backend in bundle.manifest.backends for p in backend.primitives for node in p.nodes}
    assert nodes <= {f"{name}.MatMul", f"{name}.Add"}
    assert nodes
    bundle.close()
    assert packager.verify(bundle.path, run=True).ok
    compiles(header)


def compiles(header: Path) -> None:
    """Compile a C file and a C++ file that only include a header."""
    for compiler, standard in (("gcc", "-std=c11"), ("g++", "-std=c++17")):
        source = header.with_suffix(".c" if compiler == "gcc" else ".cc")
        source.write_text(f'#include "{header.name}"\n')
        subprocess.run(
            [compiler, standard, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", source.name],
            cwd=header.parent,
            check=True,
            capture_output=True,
        )


@pytest.mark.parametrize("dims", [("a b", "a_b"), ("for", "dim_for"), ("None", "True"), ("min", "max"), ("N", "n")])
def test_dims_that_differ_stay_different(dims: tuple[str, str], tmp_path: Path) -> None:
    model = graph("g (float[a,2] x, float[b,2] z) => (float[c,2] y) { y = Concat<axis=0>(x, z) }")
    for value, name in zip(model.graph.input, dims, strict=True):
        value.type.tensor_type.shape.dim[0].dim_param = name
    path = save(model, tmp_path / "m.onnx")
    with pytest.raises(packager.PackagerError, match="2 symbolic dims") as caught:
        packager.build(path, tmp_path / "m.so", cache=False)
    first, second = (line.split(":")[0] for line in (caught.value.detail or "").splitlines())
    points = ({dims[0]: 1, dims[1]: 4}, {dims[0]: 3, dims[1]: 2})
    bundle = check(model, tmp_path, {first: (1, 4), second: (1, 4)}, points)
    assert bundle.manifest.outputs[0].shape[0] in (f"{first} + {second}", f"{second} + {first}")
    bundle.close()


def test_tensors_whose_names_become_equal_in_c(tmp_path: Path) -> None:
    """Macros of the header must not clash: a redefinition is an error of the compiler."""
    model = graph("g (float[2] a, float[2] b) => (float[2] c, float[2] d) { c = Add(a, b)\n d = Sub(a, b) }")
    renamed = {"a": "x.1", "b": "x_1", "c": "X 1", "d": "x/1"}
    for node in model.graph.node:
        node.input[:] = [renamed[name] for name in node.input]
        node.output[:] = [renamed[name] for name in node.output]
    for value in (*model.graph.input, *model.graph.output):
        value.name = renamed[value.name]
    bundle = check(model, tmp_path, header=tmp_path / "m.h")
    bundle.close()
    compiles(tmp_path / "m.h")


def test_the_entry_point_of_an_archive_and_the_model_are_independent(tmp_path: Path) -> None:
    model = graph("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    path = save(model, tmp_path / "two words.onnx")
    out = packager.build(path, tmp_path / "lib.a", static=True, prefix="zwei", header=tmp_path / "z.h")
    assert inspect(out).manifest.requirements.exports == ("zwei_bundle_v1",)
    compiles(tmp_path / "z.h")


def test_a_model_and_an_output_in_folders_with_odd_names(tmp_path: Path) -> None:
    folder = tmp_path / "a 'b' \"c\" $d \\ ünï"
    folder.mkdir()
    model = graph("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    bundle = check(model, folder, header=folder / 'a"b\\.h')
    np.testing.assert_array_equal(bundle.run([np.ones(2, np.float32)])["y"], -np.ones(2, np.float32))
    bundle.close()


def test_external_weights_of_an_odd_name(tmp_path: Path) -> None:
    model = graph("g (float[2,2] x) => (float[2,2] y) { y = MatMul(x, w) }", {"w": np.eye(2, dtype=np.float32)})
    path = save(model, tmp_path / "m.onnx")
    out = packager.build(path, tmp_path / 'ö "x" \\n.so', weights="external")
    assert (tmp_path / 'ö "x" \\n.safetensors').exists()
    bundle = packager.load(out)
    x = np.arange(4, dtype=np.float32).reshape(2, 2)
    np.testing.assert_array_equal(bundle.run([x])["y"], x)
    bundle.close()


def test_onnx_of_an_old_ir_lists_initializers_among_the_inputs(tmp_path: Path) -> None:
    model = graph("g (float[2,3] x) => (float[2,2] y) { y = MatMul(x, w) }", {"w": np.ones((3, 2), np.float32)})
    model.ir_version = 3
    model.graph.input.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [3, 2]))
    bundle = check(model, tmp_path)
    assert [tensor.name for tensor in bundle.inputs] == ["x"]
    bundle.close()
