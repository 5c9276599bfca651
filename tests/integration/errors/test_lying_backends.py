"""A backend of a third party that says one thing and hands back another: the build fails, and says who it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import graph, save
from installed_backend import installed

import packager
from packager.errors import BackendError

# Takes relu. The attribute ``tell`` chooses what is wrong; with none it is an honest backend with libgcc's dispatcher.
LIAR = '''
import dataclasses
import subprocess
from packager.backends.base import API_VERSION, PartitionOptions, Pattern, attribute
from packager.bundle.manifest import License
from packager.ir.primitives import (
    BackendOutput, FunctionGroup, Parameter, PrimitiveFunction, StaticLibrary, SystemLibrary)

CODE = """
#include <stdint.h>
{before}
{attributes} int32_t {symbol}(const float *x, float *y) {{
  {inside}
  for (int i = 0; i < 8; i++) y[i] = x[i] < 0 ? 0 : x[i];
  return 0;
}}
"""
ASKS = "__builtin_cpu_init(); if (!__builtin_cpu_supports(\\"sse2\\")) return 7;"
FAULTS = {
    "nothing": dict(attributes='__attribute__((target_clones("avx512f", "avx2", "default")))', inside=ASKS),
    "leak": dict(before="int leaked(void) { return 1; }"),
    "undefined": dict(before="int foo(void);", inside="if (foo()) return 1;"),
    "constructor": dict(before="static volatile int s; __attribute__((constructor)) static void boot(void) { s = 1; }"),
    "weak": dict(before="__attribute__((weak)) int bar(void);", inside="if (bar) return bar();"),
    "protected": dict(attributes='__attribute__((visibility("protected")))'),
}
FLAGS = {"position": ["-fno-pic", "-mcmodel=medium"]}
CODE_OF_POSITION = "static int table[8] = {1, 2};"


@dataclasses.dataclass(frozen=True)
class LiarOptions(PartitionOptions):
    tell: str = attribute("nothing", "What is wrong")


class Liar:
    api_version = API_VERSION
    kind = "liar"
    device = "cpu"
    options = LiarOptions
    summary = "for tests"
    merges = False

    def canonical(self, options, base):
        return options

    def probe(self, target):
        return None

    def patterns(self, target):
        from tvm.relax.dpl import is_op, wildcard

        return [Pattern("liar.relu", is_op("relax.nn.relu")(wildcard()))]

    def compile(self, partitions, target, context):
        if not partitions:
            return BackendOutput(self.kind)
        tell = target.options.tell
        (name,) = (partition.name for partition in partitions)
        symbol = {"runtime": "pk_session_run", "libc": "qsort", "entrypoint": "call_names"}.get(tell, f"{name}_relu")
        values = {"before": "", "inside": "", "attributes": "", "symbol": symbol, **FAULTS.get(tell, {})}
        if tell == "position":
            values |= {"before": CODE_OF_POSITION, "inside": "if (table[(int)*x & 7] > 5) return 1;"}
        path = context.workdir / "liar.o"
        (context.workdir / "liar.c").write_text(CODE.format(**values))
        argv = ["gcc", "-O2", *FLAGS.get(tell, ["-fPIC"]), "-c", "liar.c", "-o", "liar.o"]
        subprocess.run(argv, cwd=context.workdir, check=True)
        if tell == "nothing":  # clones are visible: in an archive they may be
            subprocess.run(["ar", "rcsD", "liar.a", "liar.o"], cwd=context.workdir, check=True)
            path = context.workdir / "liar.a"
        provides = {"missing": (symbol, "liar_other"), "unlisted": ("liar_other",)}.get(tell, (symbol,))
        files = () if tell == "files" else (path,)
        library = StaticLibrary("liar", files, provides, ("avx", "avx2", "avx512f", "avx512dq", "avx512bw", "avx512vl"))
        function = PrimitiveFunction(symbol, (Parameter("argument", 0), Parameter("argument", 1, written=True)))
        requires = (SystemLibrary("liar_absent", "libliar_absent.so.3"),) if tell == "requires" else ()
        return BackendOutput(self.kind, (library,), {name: FunctionGroup((function,), ())}, requires=requires,
                             licenses=(License("liar", "MIT"),))
'''


@pytest.fixture(scope="module", autouse=True)
def liar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Install the backend for these tests."""
    with installed(tmp_path_factory.mktemp("site"), "liar", "Liar", LIAR):
        yield


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of one relu, and a sum for TVM."""
    return save(graph("m (float[8] x) => (float[8] y) { r = Relu(x) y = Add(r, x) }"), tmp_path / "m.onnx")


def build(model: Path, tell: str, output: str = "m.so", base: str = "llvm") -> Path:
    path = model.parent / output
    static: dict[str, Any] = {"static": True, "prefix": "m"} if output.endswith(".a") else {}
    return packager.build(model, path, targets=[base, f"liar -tell={tell}"], **static)


def test_an_honest_backend(model: Path) -> None:
    """Its code is cloned for several CPUs and asks which it has: with libgcc, and without constructors."""
    path = build(model, "nothing")
    assert packager.verify(path).ok
    bundle = packager.inspect(path)
    assert (bundle.elf.init_entries, bundle.elf.fini_entries) == (0, 0)
    records = {backend.kind: backend for backend in bundle.manifest.backends}
    assert [record.name for record in records["liar"].static_libraries] == ["liar.a"]
    assert records["liar"].static_libraries[0].members == ("liar.o",)
    assert [primitive.composite for primitive in records["liar"].primitives] == ["liar.relu"]
    assert len(records["llvm"].primitives) == 1
    licenses = {item.component for item in bundle.manifest.licenses}
    assert licenses == {"packager runtime", "Apache TVM generated code", "liar"}
    assert "avx512f" not in bundle.manifest.requirements.cpu_features
    x = np.linspace(-3, 4, 8, dtype=np.float32)
    np.testing.assert_allclose(packager.load(path).run([x])["y"], np.maximum(x, 0) + x)


@pytest.mark.slow
def test_an_honest_backend_in_an_archive(model: Path) -> None:
    path = build(model, "nothing", "libm.a")
    assert packager.verify(path).ok
    assert "__cpu_model" in packager.inspect(path).manifest.requirements.undefined


def test_builds_are_equal(model: Path) -> None:
    assert build(model, "nothing", "a.so").read_bytes() == build(model, "nothing", "b.so").read_bytes()


@pytest.mark.parametrize(
    ("tell", "message"),
    [
        ("leak", "liar: liar.o defines leaked, which liar does not provide"),
        ("undefined", "liar: liar needs foo (in liar.o)"),
        ("weak", "liar: liar needs bar (in liar.o)"),
        ("constructor", "liar: liar.o runs boot at load or unload"),
        ("missing", "liar: liar provides liar_other, but liar.o does not define it"),
        ("unlisted", "_relu, which none of its libraries provides"),
        ("position", "liar: liar: liar.o is not position-independent code"),
        ("protected", "has protected visibility in liar.o"),
        ("libc", "liar: liar provides qsort, a name of the C library"),
        ("runtime", "liar: it provides pk_session_run, a name of packager's runtime or entrypoint"),
        ("entrypoint", "liar: it provides call_names, a name of packager's runtime or entrypoint"),
        ("requires", "liar: a library that it requires cannot be linked: libliar_absent.so.3"),
        ("files", "_relu, but it has no files"),
    ],
)
def test_a_lie(model: Path, tell: str, message: str) -> None:
    with pytest.raises(BackendError) as caught:
        build(model, tell)
    assert message in caught.value.message
    assert caught.value.message.startswith("liar: ")
    assert caught.value.exit_code == 5
    assert caught.value.hint
    assert not (model.parent / "m.so").exists()


def test_an_object_for_another_machine(model: Path) -> None:
    """It compiles with the compiler of this machine, whatever the bundle's is."""
    with pytest.raises(BackendError, match=r"liar: liar\.o is for x86_64, not aarch64"):
        build(model, "requires-nothing", base="llvm -mtriple=aarch64-linux-gnu")
