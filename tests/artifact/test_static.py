"""``--static --prefix``: two models with equally named kernels in one program, for this machine and for aarch64."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import packager
from packager.deploy.verify.policy import Policy

from .conftest import Build
from .models import ROOT, Model
from .programs import AARCH64, NATIVE, SOURCES, WARNINGS, Machine, attempt, execute

pytestmark = pytest.mark.slow

BATCHES = (5, 3)
# -lpthread, too, before glibc 2.34.
LINK = ("-lm", "-Wl,--fatal-warnings", "-Wl,-z,text")
MACHINES = {"native": (NATIVE, "llvm"), "aarch64": (AARCH64, "llvm -mtriple=aarch64-linux-gnu")}
COMPILERS = {"c": ("cc", "-std=c99"), "c++": ("cxx", "-x", "c++", "-std=c++11")}


def archives(build: Build, first: Model, second: Model, target: str, weights: str) -> tuple[Path, Path]:
    return (
        build(first, target=target, prefix="first", weights=weights),
        build(second, target=target, prefix="second", weights=weights),
    )


def link(machine: Machine, language: str, libraries: tuple[Path, ...], folder: Path, *flags: str) -> Path:
    """Link the program with ``-lm`` and nothing else, and put external weights beside it.

    The linker warns of an executable stack, which would be that of the whole program.
    """
    compiler, *options = COMPILERS[language]
    machine.require(getattr(machine, compiler))
    program = folder / "linked"
    includes = [f"-I{library.parent}" for library in libraries]
    source = [*options, *includes, SOURCES / "linked.c", *(["-x", "none"] if language == "c++" else [])]
    execute([getattr(machine, compiler), *WARNINGS, *flags, *source, *libraries, "-o", program, *LINK])
    for library in libraries:
        weights = library.with_suffix(".safetensors")
        if weights.exists():
            shutil.copy(weights, folder)
    return program


def run(program: list[str | Path], models: tuple[Model, Model], folder: Path) -> list[np.ndarray]:
    arguments: list[Path] = []
    for model, batch in zip(models, BATCHES, strict=True):
        source = folder / f"{model.name}.in"
        model.rows(batch).tofile(source)
        arguments += [source, folder / f"{model.name}.out"]
    execute([*program, *arguments], cwd=folder.parent)
    return [np.fromfile(path, np.float32) for path in arguments[1::2]]


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.parametrize("weights", ["embedded", "external"])
@pytest.mark.parametrize("machine", list(MACHINES))
@pytest.mark.parametrize("language", list(COMPILERS))
def test_two_models_in_one_program(
    build: Build, digits: Model, twin: Model, tmp_path: Path, language: str, machine: str, weights: str
) -> None:
    tools, target = MACHINES[machine]
    tools.require(getattr(tools, COMPILERS[language][0]))
    libraries = archives(build, digits, twin, target, weights)
    program = link(tools, language, libraries, tmp_path)
    outputs = run([*tools.runner, program], (digits, twin), tmp_path)
    for model, batch, output in zip((digits, twin), BATCHES, outputs, strict=True):
        model.check(model.rows(batch), output)
        if machine == "native":  # the two forms are the same code
            shared = packager.load(build(model))
            assert output.tobytes() == shared.run([model.rows(batch)])[model.output].tobytes()


def test_kernels_have_equal_names(build: Build, digits: Model, twin: Model) -> None:
    first, second = (
        {item.symbol for _, item in packager.inspect(path).manifest.primitives()}
        for path in archives(build, digits, twin, "llvm", "embedded")
    )
    assert len(first & second) >= 6


@pytest.mark.parametrize("flags", [("-static",), ("-static-pie",), ("-no-pie",), ("-Wl,--gc-sections", "-Wl,-z,now")])
def test_kinds_of_programs(build: Build, digits: Model, twin: Model, tmp_path: Path, flags: tuple[str, ...]) -> None:
    """A statically linked program has its weights beside it too, and worker threads."""
    libraries = archives(build, digits, twin, "llvm", "external")
    program = link(NATIVE, "c", libraries, tmp_path, *flags)
    outputs = run([program], (digits, twin), tmp_path)
    for model, batch, output in zip((digits, twin), BATCHES, outputs, strict=True):
        model.check(model.rows(batch), output)


def test_math_library_is_all_that_is_needed(build: Build, mlp: Model, twin: Model, tmp_path: Path) -> None:
    libraries = archives(build, mlp, twin, "llvm", "embedded")
    assert {"tanhf", "erff", "expf"} & set(packager.inspect(libraries[0]).manifest.requirements.undefined)
    outputs = run([link(NATIVE, "c", libraries, tmp_path)], (mlp, twin), tmp_path)
    mlp.check(mlp.rows(BATCHES[0]), outputs[0])


@pytest.mark.parametrize("machine", list(MACHINES))
def test_symbols(build: Build, digits: Model, twin: Model, machine: str) -> None:
    """One global symbol is defined; those that are not are what the manifest lists, all of the C library."""
    tools, target = MACHINES[machine]
    tools.require(tools.nm)
    for library, prefix in zip(archives(build, digits, twin, target, "embedded"), ("first", "second"), strict=True):
        requirements = packager.inspect(library).manifest.requirements
        defined = execute([tools.nm, "--extern-only", "--defined-only", "--format=posix", library])
        assert [line.split()[:2] for line in defined.splitlines()[1:]] == [[f"{prefix}_bundle_v1", "T"]]
        lines = execute([tools.nm, "--undefined-only", "--format=posix", library]).splitlines()[1:]
        undefined = {line.split()[0] for line in lines}
        assert undefined == set(requirements.undefined)
        assert not [name for name in undefined if name.startswith(("TVM", "__tvm", "_Z", "pk_", "__asan"))]
        assert requirements.exports == (f"{prefix}_bundle_v1",)
        assert requirements.glibc is None
        assert requirements.needed == ()


def test_verify(build: Build, digits: Model, tmp_path: Path) -> None:
    library = build(digits, prefix="first")
    result = packager.verify(library)
    assert result.findings == ()
    outcomes = {check.name: check.status for check in result.checks}
    assert outcomes.pop("run") == "skipped"
    assert set(outcomes.values()) == {"passed"}
    strict = Policy(1, "strict", max_file_bytes=1000, required_backends=("cutlass",), require_golden=True)
    assert {finding.check for finding in packager.verify(library, policy=strict).findings} == {
        "policy.max_file_bytes",
        "policy.required_backends",
        "policy.require_golden",
    }
    image = bytearray(library.read_bytes())
    image[len(image) // 2] ^= 1
    damaged = tmp_path / "libfirst.a"
    damaged.write_bytes(image)
    with pytest.raises(packager.PackagerError):
        packager.verify(damaged)


def test_verify_finds_external_weights_missing(build: Build, digits: Model, tmp_path: Path) -> None:
    library = build(digits, prefix="first", weights="external")
    assert packager.verify(library).findings == ()
    alone = shutil.copy(library, tmp_path)
    assert [finding.check for finding in packager.verify(alone).findings] == ["integrity.weights_missing"]


def test_same_bytes_in_another_process_and_folder(build: Build, digits: Model, tmp_path: Path) -> None:
    library = build(digits, prefix="first")
    again = tmp_path / "elsewhere" / "libfirst.a"
    again.parent.mkdir()
    command = [
        sys.executable,
        "-m",
        "packager",
        "build",
        digits.path,
        "-o",
        again,
        "--dim",
        "n=1:32",
        "--keep-workdir",
        tmp_path / "work",
        "-t",
        "llvm",
    ]
    execute(
        [*command, "--static", "--prefix", "first", "--header", again.with_name("first.h")],
        cwd=tmp_path,
        PYTHONPATH=str(ROOT),
        TMPDIR=str(tmp_path),
    )
    assert again.read_bytes() == library.read_bytes()
    assert again.with_name("first.h").read_text() == library.with_name("first.h").read_text()


def test_load_refuses_an_archive(build: Build, digits: Model) -> None:
    library = build(digits, prefix="first")
    with pytest.raises(packager.PackagerError, match="static archive") as error:
        packager.load(library)
    assert error.value.hint


def test_the_same_archive_twice_clashes_by_its_one_symbol_only(build: Build, digits: Model, tmp_path: Path) -> None:
    library = build(digits, prefix="first")
    source = tmp_path / "main.c"
    source.write_text('#include "first.h"\nint main(void) { return first_bundle_v1() == 0; }\n')
    link_twice = ["-Wl,--whole-archive", library, library, "-Wl,--no-whole-archive", "-lm"]
    done = attempt(["gcc", f"-I{library.parent}", source, *link_twice, "-o", tmp_path / "main"])
    assert done.returncode != 0
    assert done.stderr.count("multiple definition of") == 1
    assert "first_bundle_v1" in done.stderr
