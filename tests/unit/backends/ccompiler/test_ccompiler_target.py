"""The ccompiler backend as a backend: its Target attributes, what it hands back, and its errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from ccompiler_runner import Runner, compile_all, least_base, partition, variable
from tvm import relax, tirx
from tvm.relax import op

from packager.backends.ccompiler.backend import BACKEND, OPERATORS, default_march
from packager.bundle.elf.file import read_elf
from packager.errors import BackendError, PackagerError, UsageError
from packager.targets.target_list import parse_targets

LIBC = {"memcpy", "memset", "memmove"}


def mixed(name: str = "mixed") -> Any:
    """A partition with most families in it: conv2d, pooling, dense, softmax, layer norm, and elementwise chains."""
    n = tirx.Var("n", "int64")
    arguments = [
        variable("x", (n, 9, 9, 3)),
        variable("f", (8, 3, 3, 3)),
        variable("b", (8,)),
        variable("w", (128, 20)),
        variable("g", (20,)),
    ]

    def body(e: Any, x: Any, f: Any, b: Any, w: Any, g: Any) -> tuple[Any, ...]:
        layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}
        convolved = e(op.nn.relu(e(op.add(e(op.nn.conv2d(x, f, padding=(1, 1, 1, 1), **layouts)), b))))
        pooled = e(op.nn.max_pool2d(convolved, (3, 3), (2, 2), layout="NHWC"))
        flat = e(op.reshape(pooled, (n, 128)))
        hidden = e(op.nn.gelu(e(op.matmul(flat, w))))
        normal = e(op.nn.layer_norm(hidden, g, g, [-1], 1e-5))
        return pooled, e(op.nn.softmax(normal, -1))

    return partition(arguments, body, [1, 2, 3, 4], name)


def values() -> list[np.ndarray]:
    """Arguments of ``mixed``."""
    rng = np.random.default_rng(3)
    return [rng.standard_normal(shape, dtype="f4") for shape in ((2, 9, 9, 3), (8, 3, 3, 3), (8,), (128, 20), (20,))]


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    """What ``mixed`` gives at -O0, which is compared with numpy, family by family, elsewhere."""
    return list(Runner(mixed(), tmp_path_factory.mktemp("wanted"), "ccompiler -opt_level=0")(*values()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    [
        "ccompiler",
        "ccompiler -opt_level=1",
        "ccompiler -opt_level=2",
        "ccompiler -fast_math=1",
        "ccompiler -march=x86-64",
        "ccompiler -march=x86-64-v2",
        "ccompiler -march=native",
        "ccompiler -march=native -fast_math=1 -opt_level=2",
        "ccompiler -header=<limits.h>",
    ],
)
def test_attributes_change_the_code_and_not_the_numbers(target: str, wanted: list[np.ndarray], tmp_path: Path) -> None:
    for got, want in zip(Runner(mixed(), tmp_path, target)(*values()), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["ccompiler", "ccompiler -march=x86-64", "ccompiler -march=x86-64-v4"])
def test_compiles_without_warnings(target: str, tmp_path: Path) -> None:
    """Also for a machine that this one is not: it is not run."""
    compile_all([mixed()], tmp_path, target, least_base())
    march = parse_targets([least_base(), target]).specialized[0].options.march[0]
    strict = ["-O3", "-Wall", "-Wextra", "-Wshadow", "-Wframe-larger-than=131072", "-Werror", f"-march={march}"]
    done = subprocess.run(
        ["gcc", *strict, "-c", "ccompiler.c", "-o", "x.o"], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.slow
def test_object_has_what_it_should_and_nothing_else(tmp_path: Path) -> None:
    output, _ = compile_all([mixed("one"), mixed("two")], tmp_path, base="llvm -mtriple=x86_64-linux-gnu")
    assert [library.level for library in output.static_libraries] == ["", "x86-64-v4"]
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"ccompiler.c", "ccompiler.o", "x86-64-v4/ccompiler.c", "ccompiler-x86-64-v4.o"}
    for library in output.static_libraries:
        (path,) = library.files
        assert set(library.symbols) == {f.symbol for group in output.groups.values() for f in group.functions}
        image = read_elf(path)
        undefined = {str(name) for name in image.undefined}
        assert undefined <= LIBC
        names = subprocess.run(["nm", "-g", "--defined-only", path], capture_output=True, text=True, check=True)
        assert {line.split()[2] for line in names.stdout.splitlines()} == set(library.symbols)
    for group in output.groups.values():
        assert (group.parameters, group.composite, group.cost) == ((), None, None)


def test_no_partitions_give_no_library(tmp_path: Path) -> None:
    output, _ = compile_all([], tmp_path)
    assert output.static_libraries == ()
    assert output.groups == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_equal_partitions_give_equal_bytes_anywhere(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "another folder"]
    for folder in folders:
        compile_all([mixed()], folder)
    for name in ("ccompiler.c", "ccompiler.o"):
        first, second = ((folder / name).read_bytes() for folder in folders)
        assert first == second
        assert str(tmp_path).encode() not in first


@pytest.mark.slow
def test_what_cannot_be_rendered_is_given_back(tmp_path: Path) -> None:
    x, y = variable("x", (4, 4)), variable("y", (3,), "int32")
    bad = partition([x, y], lambda e, x, y: e(op.take(x, y, 0)), name="bad")
    output, _ = compile_all([bad, mixed("good")], tmp_path)
    assert list(output.groups) == ["good"]
    assert list(output.given_back) == ["bad"]
    assert "take" in output.given_back["bad"]


@pytest.mark.parametrize(
    "body",
    [
        lambda e, x: e(op.add(x, relax.const(np.arange(4, dtype="f4")))),
        lambda e, x: e(op.mean(x, [1])),
        lambda e, x: (e(op.exp(x)), x),
        lambda e, x: e(op.sum(x, [0])),
    ],
    ids=["array in the graph", "other mean", "argument as result", "other sum"],
)
def test_odd_partitions_are_given_back(body: Any, tmp_path: Path) -> None:
    output, _ = compile_all([partition([variable("x", (4, 4, 4, 4))], body)], tmp_path)
    assert list(output.given_back) == ["part"]


def test_march_follows_the_base_target() -> None:
    def march(*targets: str) -> tuple[str, ...]:
        return tuple(parse_targets(targets).specialized[0].options.march)

    assert march("llvm -mtriple=x86_64-linux-gnu", "ccompiler") == ("x86-64-v3", "x86-64-v4")
    assert march("llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v4", "ccompiler") == ("x86-64-v4",)
    assert march("llvm -mtriple=aarch64-linux-gnu", "ccompiler") == ("armv8-a",)
    assert march("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72", "ccompiler") == ("cortex-a72",)
    assert march("llvm -mcpu=x86-64-v4", "ccompiler -march=x86-64-v2") == ("x86-64-v2",)
    assert march("llvm -mcpu=x86-64-v3,x86-64-v4", "ccompiler -march=x86-64-v2") == ("x86-64-v2",)
    assert march("llvm -mcpu=x86-64-v3,x86-64-v4", "ccompiler -march=haswell,znver4") == ("haswell", "znver4")
    with pytest.raises(UsageError, match=r"'march' .* is haswell,znver4, but the base Target has 1 CPU$"):
        march("llvm -mcpu=x86-64-v4", "ccompiler -march=haswell,znver4")
    assert default_march("x86_64", "generic") == "x86-64"


def test_operators_are_in_one_order() -> None:
    (target,) = parse_targets(["llvm", "ccompiler -operators=dense,elementwise"]).specialized
    assert target.options.operators == ("elementwise", "dense")
    (default,) = parse_targets(["llvm", "ccompiler"]).specialized
    assert default.options.operators == OPERATORS


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("ccompiler -operators=dens", ("operators", "dens", "dense")),
        ("ccompiler -opt_level=4", ("opt_level", "4")),
        ("ccompiler -march=x;y", ("march", "x;y")),
        ('ccompiler -header=a\\"b', ("header", "#include")),
    ],
)
def test_bad_values_are_refused_by_name(target: str, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        parse_targets(["llvm", target])
    for word in words:
        assert word in caught.value.render()


def test_cpu_that_the_compiler_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"march.*x86-64-v9") as caught:
        compile_all([mixed()], tmp_path, "ccompiler -march=x86-64-v9")
    assert "x86-64-v3" in (caught.value.hint or "")


@pytest.mark.slow
def test_good_header_is_included(tmp_path: Path) -> None:
    header = tmp_path / "limits of ours.h"
    header.write_text('#define OURS 1\n_Static_assert(OURS == 1, "first");\n')
    folder = tmp_path / "work"
    compile_all([mixed()], folder, f"ccompiler '-header={header}' -header=<stdint.h>")
    lines = (folder / "ccompiler.c").read_text().splitlines()
    assert lines[1:3] == [f'#include "{header}"', "#include <stdint.h>"]


def test_headers_are_inputs_of_the_build() -> None:
    (target,) = parse_targets(["llvm", "ccompiler -header=/opt/ours.h,<stdint.h>"]).specialized
    assert BACKEND.inputs(target) == [Path("/opt/ours.h")]
    assert target.to_manifest()["header"] == ("ours.h", "<stdint.h>")


def test_bogus_header_fails_with_the_compilers_message(tmp_path: Path) -> None:
    with pytest.raises(BackendError) as caught:
        compile_all([mixed()], tmp_path, "ccompiler -header=bogus.h")
    assert caught.value.exit_code == 5
    assert "ccompiler" in caught.value.message
    assert "bogus.h: No such file or directory" in (caught.value.detail or "")
    assert "absolute path" in (caught.value.hint or "")


def test_header_that_breaks_the_code_fails_with_the_compilers_message(tmp_path: Path) -> None:
    header = tmp_path / "broken.h"
    header.write_text("#error this header is broken\n")
    with pytest.raises(PackagerError) as caught:
        compile_all([mixed()], tmp_path / "work", f"ccompiler -header={header}")
    assert "this header is broken" in (caught.value.detail or "")


def test_cross_compiles(tmp_path: Path) -> None:
    try:
        output, _ = compile_all([mixed()], tmp_path, base="llvm -mtriple=aarch64-linux-gnu")
    except PackagerError as error:
        pytest.skip(error.message)
    ((path,),) = (library.files for library in output.static_libraries)
    assert read_elf(path).machine == "aarch64"


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "every"),
    [("-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all", 8), ("-O3 -ffast-math", 24)],
)
def test_families_in_modules_that_are_compiled_otherwise(flags: str, every: int) -> None:
    """Tests of numbers once more: no read or write beside an array, nothing undefined; numbers with -ffast-math.

    One of so many, to keep the time down: the tests of a family differ in sizes and types.
    """
    environment = {**os.environ, "CCOMPILER_TEST_FLAGS": flags, "CCOMPILER_TEST_EVERY": str(every)}
    if "address" in flags:
        libraries = ("libasan.so", "libubsan.so", "libstdc++.so.6")
        found = [
            subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
            for name in libraries
        ]
        environment |= {"LD_PRELOAD": ":".join(map(str.strip, found)), "ASAN_OPTIONS": "detect_leaks=0"}
    names = ("families", "attention", "quantized")
    tests = [str(Path(__file__).with_name(f"test_ccompiler_{name}.py")) for name in names]
    chosen = "not nan" if "fast-math" in flags else ""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests, "-k", chosen]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def test_a_target_is_written_as_on_a_command_line_with_what_is_not_a_default() -> None:
    (target,) = parse_targets(["llvm -mcpu=x86-64-v3", "ccompiler -winograd=4 -opt_level=3 -fast_math=1"]).specialized
    assert target.to_text() == "ccompiler -march=x86-64-v3 -winograd=4 -fast_math=1"
    assert parse_targets(["llvm -mcpu=x86-64-v3", target.to_text()]).specialized == (target,)
    with pytest.raises(UsageError, match="winograd"):
        parse_targets(["llvm", "ccompiler -winograd=3"])
