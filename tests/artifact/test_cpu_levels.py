"""One bundle with code for several CPUs: which code a session runs, and that a bundle tells the truth about it."""

from __future__ import annotations

import ctypes
import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import packager
from packager.bundle.isa.levels import clone_symbol, code_section
from packager.bundle.manifest import Manifest
from packager.bundle.requirements import CpuLevel
from packager.bundle.section import write_manifest
from packager.deploy.load.abi import SessionOptions
from packager.deploy.verify.machine import Machine, this_machine
from packager.deploy.verify.policy import Policy
from packager.errors import UsageError

from .conftest import Build
from .models import Model
from .programs import attempt, check_host, require
from .test_targets import V3, V4, kernel_code

LEVELS = ("x86-64-v3", "x86-64-v4")
BOTH = "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3,x86-64-v4"
TARGETS = (BOTH, f"{BOTH} -compiler=ccompiler")
HERE = this_machine()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(HERE.machine != "x86_64", reason="these are Targets for x86-64"),
]
needs_v4 = pytest.mark.skipif(not set(HERE.cpu_features) >= V4, reason="this CPU has no AVX-512")


def described(name: str, features: set[str]) -> Machine:
    return Machine(1, "x86_64", "linux", "2.36", name, tuple(sorted(features)))


def manifest_of(bundle: Path) -> Manifest:
    return packager.inspect(bundle).manifest


@pytest.fixture(params=TARGETS, ids=["llvm", "ccompiler"])
def leveled(request: pytest.FixtureRequest, build: Build, digits: Model) -> Path:
    """Digits: convolutions, pooling and products, for both levels."""
    return build(digits, target=request.param)


def test_the_default_is_both(build: Build, digits: Model, leveled: Path) -> None:
    assert packager.inspect(build(digits)).manifest.targets[0]["mcpu"] == LEVELS
    assert packager.inspect(leveled).manifest.targets[0]["mcpu"] == LEVELS


def test_what_each_level_needs_is_read_back(leveled: Path) -> None:
    requirements = manifest_of(leveled).requirements
    least, best = requirements.cpu_levels
    assert (least.name, best.name) == LEVELS
    assert least.cpu_features == requirements.cpu_features
    assert {"avx", "fma"} <= set(least.cpu_features) <= V3
    assert set(least.cpu_features) < set(best.cpu_features) <= V4
    assert requirements.dispatched_features == ()


def test_every_function_has_two_forms_where_they_belong(leveled: Path) -> None:
    bundle = packager.inspect(leveled)
    for _, item in bundle.manifest.primitives():
        assert item.levels == LEVELS[1:]
        assert bundle.elf.section_of(item.symbol) == ".text"
        assert bundle.elf.section_of(clone_symbol(item.symbol, LEVELS[1])) == code_section(LEVELS[1])
    assert bundle.elf.exports == ("packager_bundle_v1",)
    assert "%zmm" not in kernel_code(leveled)


@needs_v4
def test_numbers_at_both_levels(leveled: Path, digits: Model) -> None:
    rows = digits.rows(13)
    with packager.load(leveled) as bundle:
        results = {}
        for level in LEVELS:
            with bundle.session(cpu_level=level) as session:
                assert session.cpu_level == level
                results[level] = session.run([rows])[digits.output]
                digits.check(rows, results[level])
        with bundle.session() as session:
            assert session.cpu_level == LEVELS[1]
            assert session.run([rows])[digits.output].tobytes() == results[LEVELS[1]].tobytes()
    np.testing.assert_allclose(results[LEVELS[0]], results[LEVELS[1]], rtol=1e-4, atol=1e-4)


@needs_v4
def test_sessions_of_both_levels_at_the_same_time(leveled: Path, digits: Model) -> None:
    """They share constants and the pool."""
    rows = digits.rows(32)
    with packager.load(leveled, threads=2) as bundle:
        sessions = [bundle.session(cpu_level=level) for level in LEVELS]
        wanted = [session.run([rows])[digits.output].tobytes() for session in sessions]
        for _ in range(20):
            assert [session.run([rows])[digits.output].tobytes() for session in sessions] == wanted


def test_levels_that_cannot_be_had(leveled: Path, build: Build, digits: Model) -> None:
    with packager.load(leveled) as bundle:
        with pytest.raises(UsageError, match=r"cpu_level='x86-64-v2': .* has no code for it") as caught:
            bundle.session(cpu_level="x86-64-v2")
        assert "valid levels: x86-64-v3, x86-64-v4" in (caught.value.hint or "")
    with (
        packager.load(build(digits, target="llvm -mcpu=x86-64-v3")) as bundle,
        pytest.raises(UsageError, match="cpu_level='x86-64-v4'"),
    ):
        bundle.session(cpu_level="x86-64-v4")


def test_the_runtime_refuses_a_level_too(leveled: Path) -> None:
    with packager.load(leveled) as bundle:
        table = bundle._library.table
        options = SessionOptions(struct_size=ctypes.sizeof(SessionOptions), cpu_level=b"x86-64-v5")
        handle = ctypes.c_void_p()
        assert table.session_create(ctypes.byref(options), ctypes.byref(handle)) == -1
        assert table.thread_error() == b"options: cpu_level is 'x86-64-v5', expected x86-64-v3, x86-64-v4"


def test_one_level_where_one_is_asked_for(build: Build, digits: Model) -> None:
    bundle = build(digits, target="llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3")
    requirements = manifest_of(bundle).requirements
    assert requirements.cpu_levels == (CpuLevel("x86-64-v3", requirements.cpu_features),)
    assert not [name for name in packager.inspect(bundle).elf.sections if name.startswith(".packager.code")]
    with packager.load(bundle) as loaded, loaded.session(cpu_level="x86-64-v3") as session:
        assert session.cpu_level == "x86-64-v3"


def test_three_levels(build: Build, digits: Model) -> None:
    bundle = build(digits, target="llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v4,x86-64,x86-64-v3")
    levels = manifest_of(bundle).requirements.cpu_levels
    assert [level.name for level in levels] == ["x86-64", "x86-64-v3", "x86-64-v4"]
    assert levels[0].cpu_features == ()
    assert packager.verify(bundle).ok
    rows = digits.rows(3)
    with packager.load(bundle) as loaded:
        for level in levels:
            if set(level.cpu_features) <= set(HERE.cpu_features):
                digits.check(rows, loaded.session(cpu_level=level.name).run([rows])[digits.output])


def test_an_archive(build: Build, digits: Model) -> None:
    archive = build(digits, target=BOTH, prefix="leveled")
    assert packager.verify(archive).ok
    assert code_section(LEVELS[1]) in packager.inspect(archive).elf.sections


@pytest.mark.parametrize(
    ("features", "runs", "level"),
    [
        (V4, True, "x86-64-v4"),
        (V3, True, "x86-64-v3"),
        (V3 - {"fma"}, False, None),
        (V4 - {"avx512vl"}, True, LEVELS[0]),
    ],
)
def test_verify_says_what_runs_on_a_machine(leveled: Path, features: set[str], runs: bool, level: str | None) -> None:
    result = packager.verify(leveled, machine=described("some CPU", features))
    assert result.ok == runs
    (note,) = (check.note for check in result.checks if check.name == "machine")
    assert note == "x86_64, glibc 2.36" + (f", code for {level}" if level else "")
    assert [finding.check for finding in result.findings] == ([] if runs else ["machine.cpu_features"])


def test_a_policy_is_about_what_the_bundle_needs(leveled: Path) -> None:
    def accepted(level: str) -> bool:
        return packager.verify(leveled, policy=Policy(1, "level", cpu_level=level)).ok  # type: ignore[arg-type]

    assert accepted("x86-64-v3")
    assert not accepted("x86-64-v2")
    assert packager.verify(leveled, policy=Policy(1, "targets", required_targets=(BOTH,))).ok


Change = Callable[[Manifest], Manifest]


def with_requirements(**changes: object) -> Change:
    return lambda manifest: dataclasses.replace(
        manifest, requirements=dataclasses.replace(manifest.requirements, **changes)  # type: ignore[arg-type]
    )  # fmt: skip


def swapped(manifest: Manifest) -> Manifest:
    """Say of the better level that it needs no more than the least."""
    least, best = manifest.requirements.cpu_levels
    return with_requirements(cpu_levels=(least, CpuLevel(best.name, least.cpu_features)))(manifest)


def without_levels(manifest: Manifest) -> Manifest:
    backends = tuple(
        dataclasses.replace(
            backend, primitives=tuple(dataclasses.replace(one, levels=()) for one in backend.primitives)
        )
        for backend in manifest.backends
    )
    return dataclasses.replace(with_requirements(cpu_levels=())(manifest), backends=backends)


def modest(manifest: Manifest) -> Manifest:
    """Say that every session runs on any x86-64."""
    levels = (CpuLevel(LEVELS[0], ()), manifest.requirements.cpu_levels[1])
    return with_requirements(cpu_features=(), cpu_levels=levels)(manifest)


def renamed(manifest: Manifest) -> Manifest:
    least, best = manifest.requirements.cpu_levels
    backends = tuple(
        dataclasses.replace(
            backend, primitives=tuple(dataclasses.replace(one, levels=("znver4",)) for one in backend.primitives)
        )
        for backend in manifest.backends
    )
    levels = (least, CpuLevel("znver4", best.cpu_features))
    return dataclasses.replace(with_requirements(cpu_levels=levels)(manifest), backends=backends)


@pytest.mark.parametrize(
    ("change", "checks"),
    [
        (swapped, ["code.cpu_features"]),
        (modest, ["code.cpu_features"]),
        (without_levels, ["manifest.cpu_levels"]),
        (renamed, ["manifest.symbols", "manifest.cpu_levels"]),
    ],
)
def test_a_bundle_with_a_wrong_manifest(leveled: Path, tmp_path: Path, change: Change, checks: list[str]) -> None:
    copy = Path(shutil.copy(leveled, tmp_path / "copy.so"))
    before = packager.inspect(copy)
    write_manifest(copy, change(before.manifest), before.section.offset, before.section.size)
    assert [finding.check for finding in packager.verify(copy).findings] == checks


def test_an_instruction_that_lies_in_the_wrong_code(leveled: Path, tmp_path: Path) -> None:
    """The first instruction of a function that every session runs becomes one of AVX-512."""
    copy = Path(shutil.copy(leveled, tmp_path / "copy.so"))
    before = packager.inspect(copy)
    _, item = next(before.manifest.primitives())
    text, symbol = before.elf.sections[".text"], before.elf.symbols[item.symbol]
    with copy.open("r+b") as file:
        file.seek(text.offset + symbol.value - _address(copy, ".text"))
        file.write(bytes.fromhex("62f17c4858c0"))  # vaddps zmm0, zmm0, zmm0
    write_manifest(copy, before.manifest, before.section.offset, before.section.size)
    (finding,) = packager.verify(copy).findings
    assert finding.check == "code.cpu_features"
    assert "code that every session runs uses avx512f, which" in finding.what


def _address(path: Path, name: str) -> int:
    from packager.bundle.elf.tables import read_sections
    from packager.bundle.elf.window import open_window

    with open_window(path) as window:
        table = read_sections(window)
        return next(row[3] for row, one in zip(table.headers, table.sections, strict=True) if one.name == name)


def test_verify_without_a_disassembler(leveled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packager.deploy.verify.verifier.can_read_code", lambda: False)
    result = packager.verify(leveled)
    assert result.ok
    (check,) = (check for check in result.checks if check.name == "code")
    assert check.status == "skipped"
    assert "capstone" in check.note


def test_levels_are_part_of_equal_bytes(digits: Model, leveled: Path, tmp_path: Path) -> None:
    again = packager.build(
        digits.path, tmp_path / "again.so", targets=packager.inspect(leveled).manifest.targets, dims={"n": (1, 32)},
        jobs=2, keep_workdir=tmp_path / "work",
    )  # fmt: skip
    assert again.read_bytes() == leveled.read_bytes()


@pytest.mark.parametrize(("cpu", "message"), [("Haswell", None), ("Skylake-Server", None), ("Nehalem", " avx")])
def test_on_an_emulated_cpu(
    leveled: Path, digits: Model, host: Path, tmp_path: Path, cpu: str, message: str | None
) -> None:
    """The emulator has no AVX-512 and stops a program at such an instruction, whatever its CPU is called."""
    require("qemu-x86_64")
    command = ["qemu-x86_64", "-cpu", cpu, host]
    if message is None:
        check_host(command, leveled, digits, 3, tmp_path)
        return
    digits.rows(3).tofile(tmp_path / "in")
    done = attempt([*command, leveled, tmp_path / "in", tmp_path / "out"])
    assert done.returncode == 1
    assert "PACKAGER_ERROR_MACHINE" in done.stderr
    assert message in done.stderr


def test_aarch64_has_one_level_and_can_have_more(build: Build, digits: Model) -> None:
    one = build(digits, target="llvm -mtriple=aarch64-linux-gnu")
    assert [level.name for level in manifest_of(one).requirements.cpu_levels] == ["generic"]
    two = build(digits, target="llvm -mtriple=aarch64-linux-gnu -mcpu=generic,neoverse-v1")
    levels = manifest_of(two).requirements.cpu_levels
    assert [level.name for level in levels] == ["generic", "neoverse-v1"]
    assert "sve" in levels[1].cpu_features
    assert "sve" not in levels[0].cpu_features
    assert packager.verify(two, machine=Machine(1, "aarch64", "linux", "2.36", "", levels[0].cpu_features)).ok
