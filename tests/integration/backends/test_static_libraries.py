"""What backends hand back, as real objects and archives: checked, reduced to what is needed, and linked together."""

from __future__ import annotations

import ctypes
import random
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from packager.bundle.elf.file import read_elf
from packager.codegen.objects import read_objects
from packager.codegen.toolchain import find_toolchain
from packager.errors import BackendError, BundleError
from packager.ir.link_plan import PreparedLibrary
from packager.ir.primitives import (
    BackendOutput,
    FunctionGroup,
    Parameter,
    PrimitiveFunction,
    StaticLibrary,
    SystemLibrary,
)
from packager.link.libraries.prepare import check_libraries
from packager.link.linker import LINK_FLAGS

MACHINES = ("x86_64", "aarch64")
COMPILERS = {"x86_64": "gcc", "aarch64": "aarch64-linux-gnu-gcc"}
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-Wall", "-Wextra", "-Werror")
HALF = "int acme_half(int x) { return x / 2; }"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The work folder of a build."""
    made = tmp_path / "work"
    made.mkdir()
    return made


def compile_file(path: Path, source: str, *flags: str, machine: str = "x86_64") -> Path:
    """Compile C (.c), C++ (.cpp) or assembly (.S) beside ``path``, the object's; ``flags`` come last."""
    suffix = next((flag[2:] for flag in flags if flag.startswith("-x")), "c")
    file = path.with_suffix({"c++": ".cpp", "assembler": ".S"}.get(suffix, ".c"))
    file.write_text(source)
    own = [flag for flag in flags if not flag.startswith("-x")]
    common = FLAGS[1:] if suffix != "c" else FLAGS
    compiler = COMPILERS[machine].replace("gcc", "g++") if suffix == "c++" else COMPILERS[machine]
    subprocess.run([compiler, *common, *own, "-c", file.name, "-o", path.name], cwd=path.parent, check=True)
    return path


def make_archive(path: Path, *objects: Path, flags: str = "rcsD") -> Path:
    subprocess.run(["ar", flags, path, *objects], check=True)
    return path


def library(files: Sequence[Path], *symbols: str, name: str = "acme", **changes: tuple[str, ...]) -> StaticLibrary:
    return replace(StaticLibrary(name, tuple(files), symbols), **changes)  # type: ignore[arg-type]


def check(folder: Path, *libraries: StaticLibrary, machine: str = "x86_64", static: bool = False,
          requires: Sequence[SystemLibrary] = ()) -> tuple[PreparedLibrary, ...]:  # fmt: skip
    output = BackendOutput("acme", libraries, requires=tuple(requires))
    return check_libraries([output], find_toolchain(machine), folder, static=static)


def refusal(folder: Path, *libraries: StaticLibrary, **options: object) -> BackendError:
    """Return the error; every one names the backend and has a hint."""
    with pytest.raises(BackendError) as caught:
        check(folder, *libraries, **options)  # type: ignore[arg-type]
    assert caught.value.message.startswith("acme: ")
    assert caught.value.hint
    assert caught.value.exit_code == 5
    return caught.value


def load(
    folder: Path, prepared: Sequence[PreparedLibrary], caller: str = "", libraries: Sequence[str] = ()
) -> ctypes.CDLL:
    """Link prepared libraries the way bundles are and load them; ``caller`` is C code of functions ``call...``."""
    entry = compile_file(folder / "entry.o", caller, "-Wno-implicit-function-declaration")
    exports = folder / "test.map"
    exports.write_text("{ global: call*; local: *; };")
    argv = ["gcc", *LINK_FLAGS, f"-Wl,--version-script={exports}", "-o", folder / "linked.so", entry]
    subprocess.run([*argv, *(library.path for library in prepared), *libraries, "-lm"], check=True)
    return ctypes.CDLL(str(folder / "linked.so"))


@pytest.mark.parametrize("machine", MACHINES)
def test_an_object(folder: Path, machine: str) -> None:
    path = compile_file(folder / "half.o", HALF, machine=machine)
    (prepared,) = check(folder, library([path], "acme_half"), machine=machine)
    image = read_elf(prepared.path)
    assert image.machine == machine
    assert image.exports == ("acme_half",)
    assert [(file.name, file.members) for file in prepared.files] == [("half.o", ())]
    assert len(prepared.files[0].sha256) == 64


class TestLinking:
    """What becomes of good libraries."""

    def test_only_needed_members_are_linked(self, folder: Path) -> None:
        wanted = compile_file(folder / "wanted.o", "int inner(int); int acme_one(int x) { return inner(x) + 1; }")
        inner = compile_file(folder / "inner_with_a_long_file_name.o", "int inner(int x) { return 3 * x; }")
        dead = compile_file(folder / "dead.o", 'const char *dead_code(void) { return "a dead string"; }')
        path = make_archive(folder / "acme.a", dead, wanted, inner)
        (prepared,) = check(folder, library([path], "acme_one"))
        (record,) = prepared.files
        assert record.name == "acme.a"
        assert record.members == ("inner_with_a_long_file_name.o", "wanted.o")
        made = load(folder, [prepared], "int acme_one(int); int call(int x) { return acme_one(x); }")
        assert made.call(5) == 16
        for part in (prepared.path, folder / "linked.so"):
            assert b"dead" not in part.read_bytes()

    def test_unused_functions_of_an_object_are_left_out(self, folder: Path) -> None:
        source = HALF + '__attribute__((visibility("hidden"))) int hidden_one(int x) { return x; }'
        path = compile_file(folder / "half.o", source, "-ffunction-sections")
        (prepared,) = check(folder, library([path], "acme_half"))
        assert b"hidden_one" not in prepared.path.read_bytes()

    def test_archives_may_need_each_other(self, folder: Path) -> None:
        one = compile_file(
            folder / "one.o", "int two(void); int acme_one(void) { return two(); }  int base(void) { return 7; }"
        )
        two = compile_file(folder / "two.o", "int base(void); int two(void) { return base() + 1; }")
        far = compile_file(folder / "far.o", "int three(void); int acme_far(void) { return three(); }")
        three = compile_file(folder / "three.o", "int acme_one(void); int three(void) { return acme_one() * 2; }")
        first = make_archive(folder / "first.a", one, three)
        second = make_archive(folder / "second.a", two, far)
        (prepared,) = check(folder, library([first, second], "acme_far"))
        assert [record.members for record in prepared.files] == [("one.o", "three.o"), ("far.o", "two.o")]
        assert load(folder, [prepared], "int acme_far(void); int call(void) { return acme_far(); }").call() == 16

    def test_equal_private_names_do_not_clash(self, folder: Path) -> None:
        prepared = []
        libraries = []
        for number in (1, 2):
            (folder / str(number)).mkdir()
            source = f"""
            int table[4] = {{{number}}}; int common_one[2];
            int inner(void) {{ common_one[0] += {number}; return table[0] * 10 + common_one[0]; }}
            """
            inner = compile_file(folder / str(number) / "inner.o", source, "-fcommon")
            source = f"int inner(void); int acme_{number}(void) {{ return inner(); }}"
            outer = compile_file(folder / str(number) / "outer.o", source)
            path = make_archive(folder / str(number) / "acme.a", inner, outer)
            libraries.append(library([path], f"acme_{number}", name=f"lib{number}"))
        prepared = check(folder, *libraries)
        made = load(folder, prepared, "int acme_1(void), acme_2(void); int call(void)"
                    "{ acme_1(); acme_2(); return acme_1() * 1000 + acme_2(); }")  # fmt: skip
        assert made.call() == (10 + 2) * 1000 + (20 + 4)
        assert read_elf(folder / "linked.so").exports == ("call",)

    def test_comdat_groups_of_one_name_stay_apart(self, folder: Path) -> None:
        """Two C++ libraries with an inline function of equal name and other content, and a static table of it."""
        libraries = []
        for number in (1, 2):
            source = f"""
            template <int N> struct Table {{ static int calls; static int next() {{ return calls += {number}; }} }};
            template <int N> int Table<N>::calls = {number} * 100;
            inline int shared_name(int x) {{ static int total = 0; return total += x * {number}; }}
            extern "C" int acme_{number}(int x) {{ return shared_name(x) + Table<3>::next(); }}
            """
            path = compile_file(folder / f"cpp{number}.o", source, "-xc++", "-fno-inline")
            assert b".group" in path.read_bytes()
            libraries.append(library([path], f"acme_{number}", name=f"lib{number}"))
        prepared = check(folder, *libraries)
        made = load(folder, prepared, "int acme_1(int), acme_2(int);"
                    "int call(int x) { acme_1(x); acme_2(x); return acme_1(x) * 10000 + acme_2(x); }")  # fmt: skip
        assert made.call(5) == (10 + 102) * 10000 + (20 + 204)

    def test_weak_and_hidden_definitions(self, folder: Path) -> None:
        source = """
        __attribute__((weak)) int weak_one(void) { return 1; }
        __attribute__((visibility("hidden"))) int acme_hidden(void) { return weak_one(); }
        __attribute__((weak)) int acme_weak(void) { return 5; }
        """
        path = compile_file(folder / "weak.o", source)
        strong = compile_file(
            folder / "strong.o", '__attribute__((visibility("hidden"))) int weak_one(void) { return 9; }'
        )
        prepared = check(folder, library([path, strong], "acme_hidden", "acme_weak"))
        made = load(folder, prepared, "int acme_hidden(void), acme_weak(void);"
                    "int call(void) { return acme_hidden() * 10 + acme_weak(); }")  # fmt: skip
        assert made.call() == 95

    def test_functions_that_are_chosen_at_load(self, folder: Path) -> None:
        """IFUNC: the compiler's clones ask the CPU themselves, so that their features are no requirements."""
        source = """
        __attribute__((target_clones("avx512f", "avx2", "default"))) int inner(const float *x, int n);
        int inner(const float *x, int n) { float s = 0; for (int i = 0; i < n; i++) s += x[i]; return (int)s; }
        int acme_sum(int n) { float x[64]; for (int i = 0; i < 64; i++) x[i] = i; return inner(x, n); }
        """
        path = make_archive(folder / "acme.a", compile_file(folder / "clones.o", source, "-O3", "-ffast-math"))
        (plain,) = check(folder, library([path], "acme_sum"))
        assert {"avx", "avx512f"} <= set(plain.cpu_features)
        dispatched = ("avx", "avx2", "avx512f", "avx512dq", "avx512vl", "avx512bw")
        (prepared,) = check(folder, library([path], "acme_sum", dispatched_features=dispatched))
        assert prepared.cpu_features == ()
        assert prepared.uses_libgcc
        made = load(folder, [prepared], "int acme_sum(int); int call(int n) { return acme_sum(n); }")
        assert made.call(10) == 45

    def test_versions_of_the_math_library(self, folder: Path) -> None:
        path = compile_file(
            folder / "math.o", "#include <math.h>\ndouble acme_exp(double x) { return exp(x) + pow(x, x); }"
        )
        for static, expected in ((False, {"exp@GLIBC_2.2.5", "pow@GLIBC_2.2.5"}), (True, {"exp", "pow"})):
            (prepared,) = check(folder, library([path], "acme_exp"), static=static)
            assert set(read_elf(prepared.path).undefined) - {"_GLOBAL_OFFSET_TABLE_"} == expected

    def test_no_constructor_of_libgcc(self, folder: Path) -> None:
        """Code that asks the CPU by the compiler's means: libgcc would do the asking at load."""
        source = 'int acme_asks(void) { __builtin_cpu_init(); return __builtin_cpu_supports("sse2") != 0; }'
        (prepared,) = check(folder, library([compile_file(folder / "asks.o", source)], "acme_asks"))
        assert prepared.uses_libgcc

    def test_a_library_of_the_system(self, folder: Path) -> None:
        source = """
        #include <stdexcept>
        #include <string>
        extern "C" int acme_throws(int x) {
          try { if (x > 3) throw std::runtime_error("large"); } catch (const std::exception &e) { return e.what()[0]; }
          return 0;
        }
        """
        path = compile_file(folder / "throws.o", source, "-xc++")
        error = refusal(folder, library([path], "acme_throws"))
        assert re.search(r"acme needs _Z\w+, .* \(in throws.o\)", error.message)
        needed = SystemLibrary("stdc++", "libstdc++.so.6")
        prepared = check(folder, library([path], "acme_throws"), requires=[needed])
        made = load(folder, prepared, "int acme_throws(int); int call(int x) { return acme_throws(x); }", ["-lstdc++"])
        assert made.call(7) == ord("l")
        assert made.call(1) == 0

    def test_equal_bytes(self, tmp_path: Path) -> None:
        """The names of folders and files are not in what is linked."""
        contents = []
        for name in ("one", "a-quite-different-folder"):
            place = tmp_path / name
            place.mkdir()
            source = "static int own(int x) { return x + 1; } int acme_half(int x) { return own(x); }"
            path = compile_file(place / f"{name}.o", source, "-g", "-fno-inline")
            made = make_archive(place / "acme.a", path)
            contents.append(check(place, library([made], "acme_half"))[0].path.read_bytes())
        assert contents[0] == contents[1]


class TestRefusals:
    """A backend that lies fails the build with its name, the symbol and the file."""

    def test_a_symbol_that_is_not_there(self, folder: Path) -> None:
        path = compile_file(folder / "half.o", HALF)
        error = refusal(folder, library([path], "acme_half", "acme_double"))
        assert error.message == "acme: acme provides acme_double, but half.o does not define it"
        archive = make_archive(folder / "acme.a", path)
        assert "acme.a does not define it" in refusal(folder, library([archive], "acme_double")).message

    def test_a_leaked_name(self, folder: Path) -> None:
        path = compile_file(folder / "half.o", HALF + "int leaked(void) { return 1; } int leaked_data = 3;")
        error = refusal(folder, library([path], "acme_half"))
        assert "half.o defines leaked, leaked_data, which acme does not provide" in error.message
        check(folder, library([make_archive(folder / "acme.a", path)], "acme_half"))

    def test_a_common_symbol_leaks_too(self, folder: Path) -> None:
        path = compile_file(folder / "half.o", HALF + "int tentative[3];", "-fcommon")
        assert "defines tentative" in refusal(folder, library([path], "acme_half")).message

    def test_an_undefined_symbol(self, folder: Path) -> None:
        path = compile_file(folder / "half.o", "int foo(int); int acme_half(int x) { return foo(x); }")
        other = compile_file(folder / "other.o", "int unused(void) { return 1; }")
        archive = make_archive(folder / "acme.a", other, path)
        error = refusal(folder, library([archive], "acme_half"))
        assert "acme needs foo (in acme.a(half.o))" in error.message

    @pytest.mark.parametrize("name", ["atexit", "_ZGVbN4v_cosf", "weak_thing"])
    def test_a_function_that_no_bundle_can_have(self, folder: Path, name: str) -> None:
        source = (
            f"__attribute__((weak)) int {name}(void (*)(void)); int acme_half(void) {{ return {name} && {name}(0); }}"
        )
        assert f"needs {name}" in refusal(folder, library([compile_file(folder / "x.o", source)], "acme_half")).message

    def test_an_undefined_symbol_of_a_dead_member_does_not_matter(self, folder: Path) -> None:
        dead = compile_file(folder / "dead.o", "int foo(int); int dead(int x) { return foo(x); }")
        path = compile_file(folder / "half.o", HALF)
        check(folder, library([make_archive(folder / "acme.a", dead, path)], "acme_half"))

    @pytest.mark.parametrize(
        ("flags", "source", "fault"),
        [
            (("-fno-pic", "-mcmodel=medium"), "static int t[9] = {1}; int acme_half(int x) { return t[x]; }", ".text"),
            (("-fno-pic",), "int acme_half(int x) { switch (x) { case 0: return 5; case 1: return 99; case 2: return 7;"
             "case 3: return 42; case 4: return -4; case 5: return 12; } return __builtin_abs(x) + 3; }", ""),
            (("-fno-pic",), 'static const char *const t[] = {"a", "b"}; int acme_half(int x) { return *t[x]; }', ""),
            (("-fpie", "-ftls-model=local-exec"), "static __thread int t; int acme_half(int x) { return t += x; }",
             "thread-local"),
            (("-fno-pic",), "#include <stdio.h>\nint acme_half(int x) { return x + (stderr != 0); }", "another file"),
        ],
        ids=["absolute", "table", "pointers", "thread-local", "data of the C library"],
    )  # fmt: skip
    def test_code_that_is_not_position_independent(
        self, folder: Path, flags: Sequence[str], source: str, fault: str
    ) -> None:
        path = compile_file(folder / "half.o", source, *flags)
        archive = make_archive(folder / "acme.a", compile_file(folder / "fine.o", "int fine(void) { return 1; }"), path)
        error = refusal(folder, library([archive], "acme_half"))
        assert "acme.a(half.o) is not position-independent" in error.message
        assert error.hint == "compile it with -fPIC"
        assert fault in (error.detail or "")

    def test_text_relocations(self, folder: Path) -> None:
        source = ".text\n.globl acme_half\n.type acme_half, @function\nacme_half: ret\n.quad acme_half\n"
        path = compile_file(folder / "half.o", source + '.section .note.GNU-stack,"",@progbits\n', "-xassembler")
        error = refusal(folder, library([path], "acme_half"))
        assert "relocation in read-only memory" in (error.detail or "")

    def test_data_in_place_of_a_function(self, folder: Path) -> None:
        path = compile_file(folder / "data.o", "int acme_half = 4;")
        assert "acme_half, which is not a function in data.o" in refusal(folder, library([path], "acme_half")).message

    def test_assembly_without_a_type(self, folder: Path) -> None:
        path = compile_file(folder / "half.o", ".text\n.globl acme_half\nacme_half: ret\n", "-xassembler")
        assert "needs .type acme_half, @function" in (refusal(folder, library([path], "acme_half")).hint or "")

    @pytest.mark.parametrize("visibility", ["protected", "internal"])
    def test_odd_visibility(self, folder: Path, visibility: str) -> None:
        path = compile_file(folder / "half.o", f'__attribute__((visibility("{visibility}"))) {HALF}')
        assert f"acme_half has {visibility} visibility" in refusal(folder, library([path], "acme_half")).message

    def test_an_executable_stack(self, folder: Path) -> None:
        source = """
        static __attribute__((noinline)) int apply(int (*f)(int)) { return f(1); }
        int acme_half(int x) { int add(int y) { return x + y; } return apply(add); }
        """
        path = compile_file(folder / "half.o", source)
        assert "half.o requires an executable stack" in refusal(folder, library([path], "acme_half")).message

    def test_constructors(self, folder: Path) -> None:
        source = """
        static int state; int ready(void);
        int ready(void) { return state; }
        __attribute__((constructor)) static void boot(void) { state = 3; }
        __attribute__((constructor(205))) static void early(void) { state += 3; }
        __attribute__((destructor)) void leave(void);
        void leave(void) { state = 0; }
        """
        inner = compile_file(folder / "inner.o", source)
        outer = compile_file(folder / "outer.o", "int ready(void); int acme_half(void) { return 50 + ready(); }")
        path = make_archive(folder / "acme.a", inner, outer)
        error = refusal(folder, library([path], "acme_half"))
        assert re.search(r"acme.a\(inner.o\) runs (boot|early|leave) at load or unload", error.message)
        some = refusal(folder, library([path], "acme_half", unneeded_constructors=("boot", "early")))
        assert "runs leave" in some.message
        prepared = check(folder, library([path], "acme_half", unneeded_constructors=("boot", "early", "leave")))
        image = read_elf(prepared[0].path)
        assert (image.init_entries, image.fini_entries) == (0, 0)
        assert load(folder, prepared, "int acme_half(void); int call(void) { return acme_half(); }").call() == 50

    def test_constructors_of_dead_members_do_not_matter(self, folder: Path) -> None:
        dead = compile_file(folder / "dead.o", "__attribute__((constructor)) void boot(void); void boot(void) {}")
        path = make_archive(folder / "acme.a", dead, compile_file(folder / "half.o", HALF))
        check(folder, library([path], "acme_half"))

    def test_global_objects_of_cpp(self, folder: Path) -> None:
        source = 'struct T { int n; T(); }; T::T() : n(4) {} static T t; extern "C" int acme_half() { return t.n; }'
        path = make_archive(folder / "acme.a", compile_file(folder / "t.o", source, "-xc++"))
        assert "runs _GLOBAL__sub_I_" in refusal(folder, library([path], "acme_half")).message

    def test_another_machine(self, folder: Path) -> None:
        path = compile_file(folder / "half.o", HALF, machine="aarch64")
        assert "half.o is for aarch64, not x86_64" in refusal(folder, library([path], "acme_half")).message
        archive = make_archive(folder / "acme.a", compile_file(folder / "fine.o", "int fine(void) { return 1; }"), path)
        assert "for aarch64" in refusal(folder, library([archive], "acme_half")).message

    def test_position_of_aarch64_code(self, folder: Path) -> None:
        source = "#include <stdio.h>\nint acme_half(int x) { return x + (stderr != 0); }"
        path = compile_file(folder / "half.o", source, "-fno-pic", machine="aarch64")
        error = refusal(folder, library([path], "acme_half"), machine="aarch64")
        assert "not position-independent" in error.message
        check(folder, library([compile_file(path, source, machine="aarch64")], "acme_half"), machine="aarch64")

    def test_two_definitions_in_one_library(self, folder: Path) -> None:
        hidden = '__attribute__((visibility("hidden"))) int twice(void) { return 1; }'
        files = [compile_file(folder / "one.o", HALF + hidden), compile_file(folder / "two.o", hidden)]
        error = refusal(folder, library(files, "acme_half"))
        assert "multiple definition of `twice'" in (error.detail or "")

    def test_intermediate_code(self, folder: Path) -> None:
        path = compile_file(folder / "half.o", HALF, "-flto", "-fno-fat-lto-objects")
        assert refusal(folder, library([path], "acme_half")).hint == "compile without -flto"
        check(folder, library([compile_file(path, HALF, "-flto", "-ffat-lto-objects")], "acme_half"))

    @pytest.mark.parametrize(
        ("content", "what"),
        [
            (b"", "half.o: not an ELF file"),
            (b"int f(void);", "half.o: not an ELF file"),
            (b"!<arch>\n", "half.o: the archive is empty"),
            (b"!<thin>\n", "half.o: a thin archive"),
            (b"!<arch>\n" + b"x" * 70, "half.o: damaged archive"),
        ],
    )
    def test_files_that_are_no_objects(self, folder: Path, content: bytes, what: str) -> None:
        (folder / "half.o").write_bytes(content)
        assert what in refusal(folder, library([folder / "half.o"], "acme_half")).message

    def test_a_linked_library(self, folder: Path) -> None:
        path = compile_file(folder / "half.o", HALF)
        subprocess.run(["gcc", "-shared", path, "-o", folder / "half.so"], check=True)
        assert (
            "half.so: not an object file but shared"
            in refusal(folder, library([folder / "half.so"], "acme_half")).message
        )

    @pytest.mark.parametrize("size", [20, 64, 300, 700])
    def test_a_file_that_is_cut_short(self, folder: Path, size: int) -> None:
        path = compile_file(folder / "half.o", HALF)
        path.write_bytes(path.read_bytes()[:size])
        refusal(folder, library([path], "acme_half"))

    @pytest.mark.slow
    def test_damaged_objects_are_bundle_errors(self, folder: Path) -> None:
        """Whatever stands in the tables of an object: read_objects raises BundleError or reads it."""
        source = "int helper(int); static int (*const t[])(int) = {helper}; int acme_half(int x) { return t[0](x); }"
        path = compile_file(folder / "half.o", source)
        content = path.read_bytes()
        headers = int.from_bytes(content[40:48], "little")
        generator = random.Random(0)
        survived = 0
        for _ in range(3000):
            damaged = bytearray(content)
            for _ in range(generator.choice((1, 2, 8))):
                spot = generator.choice([generator.randrange(64), generator.randrange(headers, len(content)),
                                         generator.randrange(64, headers)])  # fmt: skip
                damaged[spot] = generator.choice((0, 1, 0x7F, 0xFF, generator.randrange(256)))
            path.write_bytes(damaged)
            try:
                for object_file in read_objects(path):
                    assert list(object_file.constructors()) is not None
                    assert object_file.machine not in MACHINES or list(object_file.position_faults()) is not None
            except BundleError:
                continue
            survived += 1
        assert 0 < survived < 3000

    def test_a_missing_file(self, folder: Path) -> None:
        assert "there is no file" in refusal(folder, library([folder / "absent.o"], "acme_half")).message

    def test_names_of_the_c_library(self, folder: Path) -> None:
        path = compile_file(folder / "malloc.o", "#include <stdlib.h>\nvoid *malloc(size_t n) { (void)n; return 0; }")
        assert "provides malloc, a name of the C library" in refusal(folder, library([path], "malloc")).message

    def test_no_symbols(self, folder: Path) -> None:
        assert "provides no symbol" in refusal(folder, library([compile_file(folder / "half.o", HALF)])).message

    def test_requirements(self, folder: Path) -> None:
        half = library([compile_file(folder / "half.o", HALF)], "acme_half")
        absent = refusal(folder, half, requires=[SystemLibrary("acme_absent", "libacme_absent.so.1")])
        assert "libacme_absent.so.1" in absent.message
        assert "cannot find -lacme_absent" in (absent.detail or "")
        wrong = refusal(folder, half, requires=[SystemLibrary("stdc++", "libstdc++.so.5")])
        assert "requires libstdc++.so.5, but -lstdc++ finds" in wrong.message
        check(folder, half, requires=[SystemLibrary("pthread", "libpthread.so.0")])


class TestOwners:
    """Which backend provides what."""

    def test_one_symbol_of_two_backends(self, folder: Path) -> None:
        half = library([compile_file(folder / "half.o", HALF)], "acme_half", name="halves")
        outputs = [BackendOutput("acme", (half,)), BackendOutput("other", (half,))]
        with pytest.raises(BackendError, match="other: halves provides acme_half, which acme has in halves"):
            check_libraries(outputs, find_toolchain("x86_64"), folder)

    def test_a_function_that_another_backend_provides(self, folder: Path) -> None:
        half = library([compile_file(folder / "half.o", HALF)], "acme_half")
        function = PrimitiveFunction("acme_half", (Parameter("argument"),))
        group = FunctionGroup((function,), ())
        good = BackendOutput("acme", (half,), groups={"p0": group})
        assert check_libraries([good], find_toolchain("x86_64"), folder)
        outputs = [BackendOutput("acme", (half,)), BackendOutput("other", groups={"p0": group})]
        with pytest.raises(
            BackendError, match="other: p0 is computed by acme_half, which none of its libraries provides"
        ):
            check_libraries(outputs, find_toolchain("x86_64"), folder)
