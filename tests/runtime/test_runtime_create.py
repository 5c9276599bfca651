"""What a session needs besides its arguments: the CPU, the weights file beside the bundle, libpthread."""

from __future__ import annotations

import platform
import re
import shutil
from pathlib import Path

import pytest
from runtime_builder import ROOT, STUB, Builder, execute

MACHINE, WEIGHTS = "-11", "-12"
LACKS = "this CPU (or its kernel) lacks what the bundle's code uses:"
UNPRINTED = {"avx_ifma", "avx_vnni_int8", "avx_vnni_int16", "avx_ne_convert", "amx_fp16"}  # by older kernels
UNPRINTED |= {"rdseed"}  # of Zen 5, where it may fail silently (AMD-SB-7055), by newer ones
HEADER = b'{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'.ljust(120)
FILE = (120).to_bytes(8, "little") + HEADER + bytes.fromhex("0000803f 00000040 00004040 00008040")


def features_define(names: list[str]) -> str:
    return "-DFEATURES=" + "".join(f'"{name}",' for name in names)


def known_features() -> list[str]:
    """Return the names that cpu_features.c knows for the native machine and that kernels print."""
    word = r"(?:L1|L7|EXT)_\w+" if platform.machine() == "x86_64" else r"HWCAP\w+"
    names = re.findall(r'\{"(\w+)", ' + word + ",", (STUB / "src" / "cpu_features.c").read_text())
    return [name for name in names if name not in UNPRINTED]


def kernel_features() -> set[str]:
    """Return the names that the kernel prints for this machine."""
    (first, *_) = re.findall(r"^(?:flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    present = set(first.split())
    return present | ({"sse3"} if "pni" in present else set())


def test_features_agree_with_the_kernel(plain: Builder) -> None:
    names, present = known_features(), kernel_features()
    here = [name for name in names if name in present]
    missing = [name for name in names if name not in present]
    assert here
    assert missing
    plain.run("create", "works", plain.bundle("here", "-DMODEL_DYNAMIC", features_define(here)), "")
    bundle = plain.bundle("missing", "-DMODEL_DYNAMIC", features_define([*here, *missing]))
    plain.run("create", "refused", bundle, MACHINE, f"{LACKS} {' '.join(missing)}")


def test_all_missing_features_are_named(plain: Builder) -> None:
    base = min(set(known_features()) & kernel_features())
    bundle = plain.bundle("future", "-DMODEL_DYNAMIC", features_define(["avx9999", base, "sve77"]))
    plain.run("create", "refused", bundle, MACHINE, f"{LACKS} avx9999 sve77")


def test_features_on_aarch64(builder: Builder) -> None:
    if builder.flavor.name != "aarch64":
        pytest.skip("the native machine has a test of its own")
    works = builder.bundle("arm", "-DMODEL_DYNAMIC", features_define(["fp", "asimd", "atomics"]))
    builder.run("create", "works", works, "")
    foreign = builder.bundle("foreign", "-DMODEL_DYNAMIC", features_define(["asimd", "avx2"]))
    builder.run("create", "refused", foreign, MACHINE, f"{LACKS} avx2")


@pytest.fixture
def leveled(builder: Builder) -> Path:
    """A bundle with levels, the better of which this machine has."""
    has = "asimd" if builder.flavor.name == "aarch64" else min(set(known_features()) & kernel_features())
    return builder.bundle("leveled", "-DMODEL_STATIC", f'-DBETTER="{has}",')


@pytest.mark.slow
def test_the_best_level_that_the_machine_has(builder: Builder, leveled: Path) -> None:
    builder.run("create", "levels", leveled)


@pytest.mark.parametrize(
    ("wanted", "status", "message"),
    [
        ("best", MACHINE, "this CPU (or its kernel) lacks what the code for best uses: avx9999"),
        ("worst", "-1", "options: cpu_level is 'worst', expected least, better, best"),
        ("", "-1", "options: cpu_level is '', expected least, better, best"),
    ],
)
def test_a_level_that_cannot_be_had(builder: Builder, leveled: Path, wanted: str, status: str, message: str) -> None:
    builder.run("create", "no_level", leveled, wanted, status, message)


def test_a_bundle_without_levels(builder: Builder) -> None:
    bundle = builder.bundle("plain", "-DMODEL_STATIC")
    message = "options: cpu_level is 'better', expected NULL for a bundle without CPU levels"
    builder.run("create", "no_level", bundle, "better", "-1", message)


@pytest.fixture
def external(builder: Builder, tmp_path: Path) -> Path:
    """A bundle in a folder of its own, whose weights are to stand beside it in w.safetensors."""
    header = builder.folder / "weights_header.inc"
    header.write_text(",".join(str(byte) for byte in FILE[:-16]))
    bundle = builder.bundle("external", "-DMODEL_DYNAMIC", '-DWEIGHTS_FILE="w.safetensors"')
    return Path(shutil.copy(bundle, tmp_path / "external.so"))


def test_external_weights(builder: Builder, external: Path) -> None:
    external.with_name("w.safetensors").write_bytes(FILE)
    builder.run("create", "works", external, "w.safetensors")


def test_external_weights_missing(builder: Builder, external: Path) -> None:
    path = external.with_name("w.safetensors")
    message = f"external weights '{path}' cannot be opened: No such file or directory"
    builder.run("create", "refused", external, WEIGHTS, message)


def test_external_weights_of_another_size(builder: Builder, external: Path) -> None:
    path = external.with_name("w.safetensors")
    for content in (FILE[:-1], FILE + b"x", b""):
        path.write_bytes(content)
        message = f"external weights '{path}': the file has {len(content)} bytes, expected 144"
        builder.run("create", "refused", external, WEIGHTS, message)


def test_external_weights_of_another_bundle(builder: Builder, external: Path) -> None:
    path = external.with_name("w.safetensors")
    for position in (0, 10, 127):
        content = bytearray(FILE)
        content[position] ^= 1
        path.write_bytes(content)
        message = f"external weights '{path}': the header differs from byte {position} on: not the file of this bundle"
        builder.run("create", "refused", external, WEIGHTS, message)


def test_workers_that_do_not_start(builder: Builder, external: Path) -> None:
    if not builder.flavor.plain:
        pytest.skip("the program replaces pthread_create, which sanitizers do too")
    external.with_name("w.safetensors").write_bytes(FILE)
    builder.run("exhausted", external, "w.safetensors")


def test_without_pthread(builder: Builder, tmp_path: Path) -> None:
    """Rename the import in a real bundle: it resolves to NULL, as in a program of old glibc without -lpthread."""
    image = builder.dynamic.read_bytes()
    assert image.count(b"\0pthread_create\0") >= 1
    bundle = tmp_path / "no_pthread.so"
    bundle.write_bytes(image.replace(b"\0pthread_create\0", b"\0pthread_absent\0"))
    builder.run("create", "no_pthread", bundle)


def symbol_versions(bundle: Path) -> dict[str, str]:
    """Return the undefined dynamic symbols of a bundle and the versions that they ask for."""
    lines = execute(["objdump", "-T", bundle]).splitlines()
    undefined = [line.split() for line in lines if "*UND*" in line]
    return {fields[-1]: fields[-2].strip("()") for fields in undefined}


def test_symbols(plain: Builder) -> None:
    """Nothing newer than glibc 2.28, no libpthread, no constructor besides the C runtime's own."""
    versions = symbol_versions(plain.dynamic)
    assert versions["pthread_create"] in ("GLIBC_2.2.5", "GLIBC_2.17")
    numbered = {name: version for name, version in versions.items() if version.startswith("GLIBC_")}
    newest = max(tuple(int(part) for part in version[6:].split(".")) for version in numbered.values())
    assert newest <= (2, 28), numbered
    dynamic = execute(["readelf", "-d", plain.dynamic])
    needed = {line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "(NEEDED)" in line}
    assert needed <= {"libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


@pytest.mark.slow
def test_objects_have_no_constructors(builder: Builder) -> None:
    if builder.flavor.name not in ("plain", "aarch64"):
        pytest.skip("sanitizers add constructors")
    for shared in (True, False):
        for path in builder.runtime(shared):
            sections = execute(["readelf", "-SW", path])
            assert ".init_array" not in sections
            assert ".ctors" not in sections
            symbols = execute(["readelf", "-sW", path])
            assert "__aarch64_" not in symbols, "outlined atomics bring a constructor of libgcc"


def archive(builder: Builder, folder: Path, prefix: str, *defines: str) -> Path:
    """Make the static form: one relocatable object in which only the entry is global."""
    model, linked = folder / f"{prefix}_model.o", folder / f"{prefix}.o"
    flags = ["-O2", "-fPIC", "-fvisibility=hidden", "-DMODEL_DYNAMIC", f"-DENTRY={prefix}_bundle_v1", *defines]
    builder.compile("-std=c11", *flags, f"-I{builder.folder}", "-c", ROOT / "tests/runtime/c/model.c", "-o", model)
    builder.compile("-r", "-nostdlib", model, *builder.runtime(False), "-o", linked)
    objcopy = "aarch64-linux-gnu-objcopy" if builder.flavor.name == "aarch64" else "objcopy"
    execute([objcopy, f"--keep-global-symbol={prefix}_bundle_v1", linked])
    library = folder / f"lib{prefix}.a"
    execute(["ar", "rcs", library, linked])
    return library


@pytest.mark.slow
def test_archives(builder: Builder, tmp_path: Path) -> None:
    (builder.folder / "weights_header.inc").write_text(",".join(str(byte) for byte in FILE[:-16]))
    libraries = [
        archive(builder, tmp_path, "one", '-DWEIGHTS_FILE="w.safetensors"'),
        archive(builder, tmp_path, "two"),
    ]
    program = tmp_path / "program"
    source = ROOT / "tests/runtime/c/archive.c"
    builder.compile("-std=c11", "-Wall", "-Wextra", "-Werror", source, *libraries, "-o", program, "-lpthread", "-ldl")
    (tmp_path / "w.safetensors").write_bytes(FILE)
    execute([*builder.flavor.runner, program])
