"""What is generated for a few fixed models, word for word: C, assembly, header, and every command that is run.

A change here is a change of the bundles: look at the difference, then ``pytest tests/golden --rewrite-golden``.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import packager
from packager.codegen.cuda_toolkit import find_cuda_toolkit
from packager.resources import folder

EXPECTED = Path(__file__).parent / "expected"
TOOLS = ("gcc", "ld", "ar", "objcopy")


@dataclass(frozen=True)
class Case:
    """A graph, the shapes of its weights, and options and Targets of the build."""

    graph: str
    weights: Mapping[str, tuple[int, ...]]
    options: Mapping[str, object] = field(default_factory=dict)
    targets: tuple[str, ...] = ("llvm -mtriple=x86_64-linux-gnu",)


CASES = {
    "conv": Case(
        """conv (float[1,3,8,8] image) => (float[1,10] scores) {
          [conv] c = Conv<pads=[1,1,1,1]>(image, w, b)  [relu] r = Relu(c)  [pool] p = GlobalAveragePool(r)
          [flatten] f = Flatten<axis=1>(p)  [dense] scores = Gemm(f, v, u) }""",
        {"w": (16, 3, 3, 3), "b": (16,), "v": (16, 10), "u": (10,)},
        {"golden": 1},
    ),
    "mlp": Case(
        """mlp (float[n,256] x, int64[n,1] gain) => (float[n,256] y, float[n,256] x_again, float[m,256] both) {
          [dense] h = Gemm(x, w, b)  [act] a = Relu(h)  [cast] g = Cast<to=1>(gain)  [scale] y = Mul(a, g)
          [same] x_again = Identity(x)  [both] both = Concat<axis=0>(y, x) }""",
        {"w": (256, 256), "b": (256,)},
        {"dims": {"n": (1, 64)}},
    ),
    "external": Case(
        """external (float[2,4] x) => (float[2,3] y, float[4,3] weights) {
          [dense] y = Gemm(x, w, b)  weights = Identity(w) }""",
        {"w": (4, 3), "b": (3,)},
        {"weights": "external"},
    ),
    "archive": Case(
        "archive (float[4] x) => (float[4] y) { [half] y = Mul(x, w) }",
        {"w": (1,)},
        {"static": True, "prefix": "half"},
    ),
    "states": Case(
        """states (float[1,8] k, int64[1] at, float[16,8] keys, float[8] mean) =>
            (float[8] y, float[16,8] keys_out, float[8] mean_out) {
          zero = Constant<value_ints = [0]>()  [row] i = Unsqueeze(at, zero)  [cache] keys_out = ScatterND(keys, i, k)
          [sum] y = ReduceSum<keepdims=0>(keys_out, zero)  [mean] mean_out = Identity(y) }""",
        {},
        {"states": {"keys": "keys_out", "mean": "mean_out"}},
    ),
    "buckets": Case(
        """buckets (float[n,seq,16] x) => (float[n,seq,16] y, float[n,flat] again) {
          [norm] p = Softmax(x) [dense] y = MatMul(p, w)  [flat] again = Flatten(x) }""",
        {"w": (16, 16)},
        {"dims": {"n": (1, 2), "seq": packager.Buckets(4, 8)}, "golden": 1},
    ),
    "batches": Case(
        """batches (float[6,s,4] x, float[4] gain) => (float[6,s,3] y, float[6,s,4] again) {
          [scale] m = Mul(x, gain)  [dense] y = MatMul(m, w)  [same] again = Identity(x) }""",
        {"w": (4, 3)},
        {"dims": {"s": (1, 5)}},
        ("llvm -mtriple=x86_64-linux-gnu -micro_batch=2",),
    ),
    "one_level": Case(
        "one_level (float[4] x) => (float[4] y) { [half] y = Mul(x, w) }",
        {"w": (1,)},
        targets=("llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3",),
    ),
    "gpu": Case(
        """gpu (float[n,1,8,8] image) => (float[n,3] y) {
          [conv] c = Conv<pads=[1,1,1,1]>(image, k, u)  [relu] r = Relu(c)
          [pool] p = MaxPool<kernel_shape=[2,2],strides=[2,2]>(r)  [flatten] f = Flatten(p)
          [dense] d = Gemm(f, w, b)  [soft] y = Softmax(d) }""",
        {"k": (4, 1, 3, 3), "u": (4,), "w": (64, 3), "b": (3,)},
        {"dims": {"n": (1, 8)}, "jobs": 2},  # a module for each
        ("llvm -mtriple=x86_64-linux-gnu", "cuda -arch=sm_80,sm_90a -ptx=compute_80"),
    ),
}


QUICK = {"conv", "mlp"}


def model_of(case: Case) -> bytes:
    """Return the ONNX file of a case; its weights are simple numbers."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{case.graph}')
    for name, shape in case.weights.items():
        values = (np.arange(np.prod(shape)) % 17 - 8).astype(np.float32) / 16
        model.graph.initializer.append(onnx.numpy_helper.from_array(values.reshape(shape), name))
    return model.SerializeToString()


def record_tools(place: Path, log: Path) -> None:
    """Make scripts that note how a tool is called, and then call it."""
    place.mkdir()
    for tool in TOOLS:
        record(place / tool, str(shutil.which(tool)), log)


def record(script: Path, tool: str, log: Path) -> None:
    """Make a script that notes its call in one write, since several may run at once."""
    script.write_text(
        f'#!/bin/bash\nline=$(printf "%q " {script.name} "$@")\necho "$line" >> {log}\nexec {tool} "$@"\n'
    )
    script.chmod(0o755)


def record_nvcc(home: Path, log: Path) -> None:
    """Make a CUDA toolkit of the wheels' files that notes how its nvcc is called."""
    nvcc = find_cuda_toolkit("").nvcc
    (home / "bin").mkdir(parents=True)
    for path in [*nvcc.parent.parent.iterdir(), *nvcc.parent.iterdir()]:
        link = home / path.relative_to(nvcc.parent.parent)
        if path not in (nvcc.parent, nvcc):
            link.symlink_to(path)
    record(home / "bin" / "nvcc", str(nvcc), log)


def generate(name: str, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Build a case and return the generated files by name, without paths and machine-dependent sizes."""
    model = tmp_path / f"{name}.onnx"
    model.write_bytes(model_of(case))
    record_tools(tmp_path / "bin", tmp_path / "commands")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PACKAGER_SANDBOX", "off")  # the tools that record write beside the work folder
    work = tmp_path / "work"
    suffix = "a" if case.options.get("static") else "so"
    options: dict[str, Any] = {"jobs": 1, **case.options}
    if on_gpu := any(target.startswith("cuda") for target in case.targets):
        record_nvcc(tmp_path / "cuda", tmp_path / "commands")
        options["cuda_home"] = tmp_path / "cuda"
    packager.build(
        model,
        tmp_path / f"{name}.{suffix}",
        targets=case.targets,
        header=tmp_path / f"{name}.h",
        keep_workdir=work,
        cache=False,  # the runtime's commands are recorded, too
        **options,
    )
    stub = folder("runtime_stub")
    commands = []
    for line in (tmp_path / "commands").read_text().splitlines():
        words = [word.replace(str(work), "WORK").replace(str(stub), "STUB") for word in shlex.split(line)]
        words = [word.replace(f"{tmp_path / 'bin'}{os.sep}", "") for word in words]
        by_gcc = words[0] == "ld" and "-r" not in words  # gcc runs the linker with arguments of its own
        by_nvcc = any("tmpxft" in word for word in words)  # and nvcc gcc, with temporary files
        if words[1:] not in (["--version"], ["--help"]) and not by_gcc and not by_nvcc:
            commands.append(shlex.join(words))
    if options["jobs"] > 1:
        commands.sort()
    abi = (stub / "include" / "packager.h").read_text()
    generated = {
        "entrypoint.c": re.sub(r"(\.manifest_(?:bytes|size) = )\d+", r"\1ROOM", (work / "entrypoint.c").read_text()),
        "data.S": re.sub(r"\.zero \d+", ".zero ROOM", (work / "data.S").read_text()),
        f"{name}.h": (tmp_path / f"{name}.h").read_text().replace(abi, "<packager.h>\n"),
        "commands.txt": "\n".join(commands) + "\n",
    }
    return generated | ({"cuda.c": (work / "cuda" / "cuda.c").read_text()} if on_gpu else {})


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in CASES]
)
def test_generated_files_are_as_expected(
    name: str, rewrite: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = EXPECTED / name
    generated = generate(name, CASES[name], tmp_path, monkeypatch)
    for text in generated.values():
        assert str(tmp_path) not in text
        assert str(Path(packager.__file__).parents[1]) not in text
    if rewrite:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for file, text in generated.items():
            (place / f"{file}.expected").write_text(text)
        return
    assert {path.name for path in place.iterdir()} == {f"{file}.expected" for file in generated}
    for file, text in generated.items():
        expected = (place / f"{file}.expected").read_text()
        difference = difflib.unified_diff(
            expected.splitlines(), text.splitlines(), f"expected/{name}/{file}", "generated", lineterm=""
        )
        assert text == expected, "\n".join(difference)
