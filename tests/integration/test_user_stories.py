"""Mistakes and habits of people who use Targets, libraries of operators and backends for the first time."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from command_line import ROOT, Cli, assert_refused, command, environment, tree
from graphs import save
from op_libraries import FLAGS, SWISH, SWISH_C, archive, compile_objects, describe, make_library, model

import packager
from packager.backends.attributes import attributes_of, from_text
from packager.backends.base import attribute
from packager.errors import BackendError, UsageError

pytestmark = pytest.mark.slow

SWISH_MODEL = "g (float[2,2] x) => (float[2,2] y) { y = com.acme.Swish(x) }"
BROKEN = """
from packager.backends.base import PartitionOptions

class Broken:
    api_version, kind, device, merges, options = 1, "broken", "cpu", False, PartitionOptions
    summary = "Fails in a predicate"
    def canonical(self, options, base): return options
    def probe(self, target): return None
    def patterns(self, target):
        return [][1]
    def compile(self, partitions, target, context): raise NotImplementedError
"""


@pytest.fixture(scope="module")
def swish(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one custom operator, ``swish.onnx``, in a folder with its library, ``acme.toml``."""
    folder = tmp_path_factory.mktemp("swish")
    save(model(SWISH_MODEL), folder / "swish.onnx")
    make_library(folder, {"swish.c": SWISH_C}, SWISH)
    return folder


@pytest.mark.parametrize("more", [("--dry-run",), ("-t", "ccompiler"), ("-t", "ccompiler -march=x86-64-v3")])
def test_a_cpu_that_llvm_does_not_know_is_refused_before_any_work(
    cli: Cli, models: Path, more: tuple[str, ...]
) -> None:
    done = cli("build", models / "mlp.onnx", "-t", "llvm -mcpu=x86-64-v9", *more)
    assert_refused(done, 2, "attribute 'mcpu' of Target 'llvm' is 'x86-64-v9'", hint="did you mean 'x86-64-v4'? valid")
    said = done.stderr.split("checking the Targets\n")[-1]
    assert said.startswith("error: ")  # the model is not looked at, and TVM has said nothing


def test_one_target_and_one_library_need_no_list(models: Path, swish: Path, tmp_path: Path) -> None:
    for index, target in enumerate(["ccompiler", {"kind": "ccompiler"}, ["ccompiler"]]):
        packager.build(models / "mlp.onnx", tmp_path / f"{index}.so", targets=target)  # type: ignore[arg-type]
    assert len({(tmp_path / f"{index}.so").read_bytes() for index in range(3)}) == 1
    for index, library in enumerate([swish / "acme.toml", str(swish / "acme.toml")]):
        out = packager.build(swish / "swish.onnx", tmp_path / f"swish{index}.so", op_libraries=library)  # type: ignore[arg-type]
        assert packager.verify(out).ok


def test_an_empty_choice_is_not_listed() -> None:
    @dataclasses.dataclass(frozen=True)
    class Options:
        core: str = attribute("", "Whose kernels", choices=("", "ZEN", "HASWELL"))

    core = attributes_of(Options)["core"]
    assert from_text("acme", core, [""]) == ""
    with pytest.raises(UsageError) as caught:
        from_text("acme", core, ["ZN"])
    assert caught.value.hint == "did you mean 'ZEN'? valid values: ZEN, HASWELL"


def test_each_target_has_a_line_in_the_report(cli: Cli, models: Path, tmp_path: Path) -> None:
    out = packager.build(
        models / "mlp.onnx", tmp_path / "out.so", targets=["llvm", "ccompiler -operators=dense,softmax"]
    )
    lines = cli("inspect", out).stdout.splitlines()
    first = next(index for index, line in enumerate(lines) if line.split()[:1] == ["targets"])
    assert lines[first].split()[1] == "llvm"
    kind, *attributes = lines[first + 1].split()
    assert kind == "ccompiler"
    assert "-operators=dense,softmax" in attributes
    parsed = packager.build(models / "mlp.onnx", tmp_path / "again.so", targets=[lines[first + 1].strip()])
    assert parsed.read_bytes() == out.read_bytes()  # what the report says can be given again


def test_objects_of_one_name_in_two_folders(swish: Path, tmp_path: Path) -> None:
    for name, text in (("a", SWISH_C), ("b", "int unused(void) { return 1; }\n")):
        compile_objects(tmp_path / name, {"x.c": text}, cc="gcc", flags=FLAGS)
    for order in ('["a/x.o", "b/x.o"]', '["b/x.o", "a/x.o"]'):
        library = describe(tmp_path, SWISH, files=order)
        out = packager.build(swish / "swish.onnx", tmp_path / "out.so", op_libraries=[library])
        assert packager.verify(out).ok


def test_an_archive_without_an_index(swish: Path, tmp_path: Path) -> None:
    (done,) = compile_objects(tmp_path / "objects", {"swish.c": SWISH_C}, cc="gcc", flags=FLAGS)
    subprocess.run(["ar", "rcSD", tmp_path / "libacme.a", done], check=True)
    library = describe(tmp_path, SWISH)
    with pytest.raises(BackendError) as caught:
        packager.build(swish / "swish.onnx", tmp_path / "out.so", op_libraries=[library])
    assert "archive has no index" in caught.value.render()
    assert caught.value.hint == "make the archive with `ar rcsD`"
    archive(tmp_path / "libacme.a", [done])
    packager.build(swish / "swish.onnx", tmp_path / "out.so", op_libraries=[library])


@pytest.mark.parametrize(
    ("file", "message", "hint"),
    [
        ("absent.toml", "absent.toml: No such file or directory", "name the TOML file"),
        ("libacme.a", "libacme.a: it is not a TOML file", "docs/custom-operators.md"),
    ],
)
def test_what_is_no_description_of_a_library(cli: Cli, swish: Path, file: str, message: str, hint: str) -> None:
    done = cli("build", swish / "swish.onnx", "--op-library", swish / file)
    assert_refused(done, 2, message, hint=hint)


def test_no_one_else_can_compile_a_custom_operator(cli: Cli, swish: Path) -> None:
    target = f"external -libraries={swish / 'acme.toml'} -min_partition_flops=1000000"
    done = cli("build", swish / "swish.onnx", "-t", target)
    assert_refused(done, 3, "com.acme::Swish")


def test_an_exception_in_a_backend_names_its_line(cli: Cli, models: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    information = site / "acme_broken-1.2.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-broken\nVersion: 1.2\n")
    (information / "entry_points.txt").write_text("[packager.backends]\nbroken = acme_broken:Broken\n")
    (site / "acme_broken.py").write_text(BROKEN)
    line = 1 + BROKEN.splitlines().index("        return [][1]")
    done = cli(
        "build", models / "mlp.onnx", "-t", "broken", "--dry-run", env={"PYTHONPATH": f"{ROOT}{os.pathsep}{site}"}
    )
    assert_refused(
        done,
        5,
        "the backend 'broken' of acme-broken 1.2 cannot be used",
        "IndexError: list index out of range",
        f"at {site / 'acme_broken.py'}:{line}, in patterns",
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_the_c_compiler_runs_leaves_nothing(
    models: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """The compiler is a script that says when it has begun, and then takes its time."""
    tools, cwd = tmp_path / "tools", tmp_path / "cwd"
    tools.mkdir()
    cwd.mkdir()
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    compiler = tools / "gcc"
    pause = f"echo > {begun}; exec sleep 100"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *ccompiler.o*) {pause};; esac\nexec {shutil.which("gcc")} "$@"\n')
    compiler.chmod(0o755)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(
        command("build", models / "mlp.onnx", "-o", cwd / "out.so", "-t", "ccompiler", "--no-cache"),
        cwd=cwd,
        env=environment({"PATH": path, "PACKAGER_SANDBOX": "off"}, tmp_path / "tmp"),
        stderr=subprocess.PIPE,
        text=True,
    )
    begun.read_text()
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr.endswith("interrupted\n")
    assert tree(cwd) == {}
    assert tree(tmp_path / "tmp") == {}
