"""Libraries of one backend for several CPUs, as real objects: what becomes of them, and which are refused."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from packager.bundle.elf.file import read_elf
from packager.bundle.isa.levels import clone_symbol
from packager.codegen.toolchain import find_toolchain
from packager.errors import BackendError
from packager.ir.link_plan import PreparedLibrary
from packager.ir.primitives import BackendOutput, StaticLibrary
from packager.link.libraries.cpu_levels import cpu_levels
from packager.link.libraries.prepare import check_libraries
from packager.link.linker import LINK_FLAGS

CPUS = ("x86-64", "x86-64-v3", "x86-64-v4")
SOURCE = """
static float helper(float x) { return x * 3 + BIAS; }
__attribute__((visibility("hidden"))) int acme_scale(const float *x, float *y) {
  for (int i = 0; i < 64; ++i) y[i] = helper(x[i]);
  return BIAS;
}
__attribute__((visibility("hidden"))) int acme_two(void) { return acme_scale((float[64]){0}, (float[64]){0}) + 1; }
"""
SYMBOLS = ("acme_scale", "acme_two")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    return made


def form(folder: Path, cpu: str, *, level: str | None = None, bias: int = 1, symbols: Sequence[str] = SYMBOLS,
         features: tuple[str, ...] = (), name: str = "") -> StaticLibrary:  # fmt: skip
    """Compile for a CPU. The object has the name of its file in it: one name for all, as for a backend's."""
    place = folder / (name or f"for-{cpu}-{bias}")
    place.mkdir()
    (place / "scale.c").write_text(SOURCE)
    flags = ["-O2", "-ftree-vectorize", "-fPIC", f"-march={cpu}", f"-DBIAS={bias}", "-mprefer-vector-width=512"]
    subprocess.run(["gcc", *flags, "-c", "scale.c", "-o", "scale.o"], cwd=place, check=True)
    level = cpu if level is None else level
    return StaticLibrary(f"scale for {cpu}", (place / "scale.o",), tuple(symbols), features, level=level)


def check(folder: Path, *libraries: StaticLibrary, cpus: Sequence[str] = CPUS) -> tuple[PreparedLibrary, ...]:
    output = BackendOutput("acme", libraries)
    return check_libraries([output], find_toolchain("x86_64"), folder, cpus=cpus)


def refusal(folder: Path, *libraries: StaticLibrary, cpus: Sequence[str] = CPUS) -> str:
    with pytest.raises(BackendError) as caught:
        check(folder, *libraries, cpus=cpus)
    assert caught.value.message.startswith("acme: ")
    assert caught.value.hint
    return caught.value.message


def test_forms_have_names_and_sections_of_their_own(folder: Path) -> None:
    prepared = check(folder, form(folder, "x86-64", bias=1), form(folder, "x86-64-v4", bias=7))
    assert [library.level for library in prepared] == ["", "x86-64-v4"]
    assert [read_elf(library.path).exports for library in prepared] == [
        ("acme_scale", "acme_two"),
        ("acme_scale__x86_64_v4", "acme_two__x86_64_v4"),
    ]
    levels = cpu_levels(prepared, CPUS)
    assert [level.name for level in levels] == ["x86-64", "x86-64-v4"]
    assert levels[0].cpu_features == ()
    assert "avx512f" in levels[1].cpu_features


def test_linked_together(folder: Path) -> None:
    """Calls between functions of a form stay in it, and its code lies apart from what every session runs."""
    prepared = check(folder, *(form(folder, cpu, bias=bias) for bias, cpu in enumerate(CPUS, start=1)))
    names = [clone_symbol("acme_two", level) for level in ("", *CPUS[1:])]
    declarations = "".join(f'__attribute__((visibility("hidden"))) int {name}(void);\n' for name in names)
    (folder / "entry.c").write_text(
        declarations + f"int (*const forms[])(void) = {{ {', '.join(names)} }};\n"
        "int call(int number) { return forms[number](); }\n"
    )
    subprocess.run(["gcc", "-O2", "-fPIC", "-c", "entry.c"], cwd=folder, check=True)
    (folder / "test.map").write_text("{ global: call; local: *; };")
    link = ["gcc", *LINK_FLAGS, "-Wl,--version-script=test.map", "-o", "linked.so", "entry.o"]
    subprocess.run([*link, *(str(library.path) for library in prepared)], cwd=folder, check=True)
    image = read_elf(folder / "linked.so")
    assert [image.section_of(name) for name in names] == [
        ".text", ".packager.code.x86-64-v3", ".packager.code.x86-64-v4",
    ]  # fmt: skip
    driver = "import ctypes, sys; print(*[ctypes.CDLL('./linked.so').call(i) for i in range(1)])"
    done = subprocess.run(["python3", "-c", driver], cwd=folder, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["2"]


def test_the_first_cpu_is_the_least_level(folder: Path) -> None:
    prepared = check(folder, form(folder, "x86-64"), form(folder, "x86-64-v3", bias=2))
    assert [library.level for library in prepared] == ["", "x86-64-v3"]
    assert prepared[0].defined == SYMBOLS


def test_any_order(folder: Path) -> None:
    libraries = [form(folder, cpu, bias=bias) for bias, cpu in enumerate(CPUS)]
    assert [library.level for library in check(folder, *reversed(libraries))] == ["", *CPUS[1:]]


def test_equal_code_is_linked_once(folder: Path) -> None:
    """Compiled for one CPU, whatever level it is for: as of functions that no better CPU helps."""
    least = form(folder, "x86-64", name="a")
    same = form(folder, "x86-64", level="x86-64-v3", name="b")
    again = form(folder, "x86-64", level="x86-64-v4", name="c")
    other = form(folder, "x86-64", level="x86-64-v4", name="d", bias=9)
    assert [library.level for library in check(folder, least, same, again)] == [""]
    assert [library.level for library in check(folder, least, same, other)] == ["", "x86-64-v4"]


def test_some_functions_have_one_form(folder: Path) -> None:
    (folder / "one").mkdir()
    (folder / "one" / "one.c").write_text('__attribute__((visibility("hidden"))) int acme_one(void) { return 1; }')
    subprocess.run(["gcc", "-fPIC", "-c", "one.c"], cwd=folder / "one", check=True)
    one = StaticLibrary("one", (folder / "one" / "one.o",), ("acme_one",))
    prepared = check(folder, one, form(folder, "x86-64"), form(folder, "x86-64-v3", bias=2))
    assert [library.defined for library in prepared] == [
        ("acme_one",), SYMBOLS, ("acme_scale__x86_64_v3", "acme_two__x86_64_v3"),
    ]  # fmt: skip


class TestRefusals:
    """What cannot be linked, or would run where it cannot."""

    def test_a_level_that_the_target_does_not_name(self, folder: Path) -> None:
        libraries = form(folder, "x86-64"), form(folder, "x86-64-v2")
        assert "is for 'x86-64-v2', which is not one of the Target's CPUs" in refusal(folder, *libraries)

    def test_a_level_of_a_cuda_bundle(self, folder: Path) -> None:
        libraries = form(folder, "x86-64", level=""), form(folder, "x86-64-v3")
        assert "is for 'x86-64-v3'" in refusal(folder, *libraries, cpus=())

    def test_a_function_for_a_better_cpu_alone(self, folder: Path) -> None:
        lonely = form(folder, "x86-64-v4", bias=3)
        assert "provides acme_scale for x86-64-v4 only" in refusal(folder, lonely)

    def test_one_form_twice(self, folder: Path) -> None:
        libraries = [form(folder, "x86-64"), *(form(folder, "x86-64-v3", bias=bias) for bias in (2, 3))]
        assert "provides acme_scale, which acme has in scale for x86-64-v3" in refusal(folder, *libraries)

    def test_code_of_a_level_that_asks_the_cpu_too(self, folder: Path) -> None:
        libraries = form(folder, "x86-64"), form(folder, "x86-64-v3", bias=2, features=("avx2",))
        assert "has dispatched_features" in refusal(folder, *libraries)


def test_code_that_asks_the_cpu_lies_apart(folder: Path) -> None:
    (prepared,) = check(folder, form(folder, "x86-64-v3", level="", features=("avx", "avx2", "fma")))
    assert prepared.cpu_features == ()
    assert read_elf(prepared.path).section_of("acme_scale") == ".packager.dispatched"
