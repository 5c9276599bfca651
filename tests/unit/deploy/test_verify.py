"""One real bundle per finding: built with the fault, sealed, and verified."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection
from sealing import HARDENED, WEIGHT, Patch, build_bundle, golden_image, unchanged

import packager
from packager.bundle import safetensors
from packager.bundle.elf.file import read_elf
from packager.bundle.manifest import DATA_SHA256, Golden, Manifest, Weights
from packager.deploy.verify.findings import VerifyResult
from packager.deploy.verify.machine import Machine, this_machine
from packager.deploy.verify.verifier import verify
from packager.errors import BundleError, UsageError

replace = dataclasses.replace


def checks(result: VerifyResult) -> set[str]:
    assert all(finding.what and finding.where and finding.why and finding.hint for finding in result.findings)
    return {finding.check for finding in result.findings if finding.severity == "error"}


def requirement(**changes: Any) -> Patch:
    return lambda manifest: replace(manifest, requirements=replace(manifest.requirements, **changes))


def size(**changes: int) -> Patch:
    return lambda manifest: replace(manifest, sizes=replace(manifest.sizes, **changes))


def primitive(symbol: str) -> Patch:
    def patch(manifest: Manifest) -> Manifest:
        (backend,) = manifest.backends
        renamed = (replace(backend.primitives[0], symbol=symbol),)
        return replace(manifest, backends=(replace(backend, primitives=renamed),))

    return patch


def without_libraries(manifest: Manifest) -> Manifest:
    return replace(manifest, backends=(replace(manifest.backends[0], static_libraries=()),))


def constant(**changes: Any) -> Patch:
    return lambda manifest: replace(manifest, constants=(replace(manifest.constants[0], **changes),))


def strip_symbols(path: Path) -> None:
    subprocess.run(["strip", "--strip-all", str(path)], check=True)


def test_good_bundle_passes_everything(good: Path) -> None:
    result = verify(good, run=True)
    assert result.ok
    assert result.findings == ()
    assert {check.name: check.status for check in result.checks} == dict.fromkeys(
        ("integrity", "elf", "manifest", "code", "policy", "machine", "run"), "passed"
    )


def test_static_archive_passes(archive: Path) -> None:
    result = verify(archive, run=True)
    assert result.ok
    assert result.findings == ()
    assert result.checks[-1].status == "skipped"


LIBM = ("-Wl,--no-as-needed", "-lm")
FAULTS: list[tuple[str, Sequence[str], Sequence[str], Patch, set[str]]] = [
    ("executable stack", (), ("-Wl,-z,execstack",), unchanged, {"elf.exec_stack"}),
    ("text relocations", ("TEXTREL",), ("-Wl,-z,notext",), unchanged, {"elf.textrel"}),
    ("extra export", ("EXTRA_EXPORT",), (), unchanged, {"elf.exports"}),
    ("declared extra export", ("EXTRA_EXPORT",), (),
     requirement(exports=("leaked", "packager_bundle_v1")), {"elf.exports"}),
    ("missing export", ("NO_ENTRY", "EXTRA_EXPORT"), ("-Wno-error",), unchanged, {"elf.exports"}),
    ("lazy binding", (), ("-Wl,-z,lazy",), unchanged, {"elf.relro"}),
    ("no relro", (), ("-Wl,-z,norelro",), unchanged, {"elf.relro"}),
    ("runpath", (), ("-Wl,-rpath,/tmp/x,--enable-new-dtags",), unchanged, {"elf.rpath"}),
    ("rpath", (), ("-Wl,-rpath,$ORIGIN,--disable-new-dtags",), unchanged, {"elf.rpath"}),
    ("undeclared library", (), LIBM, requirement(needed=("libc.so.6", "ld-linux-x86-64.so.2")),
     {"elf.needed"}),
    ("library that is not needed", (), (), requirement(needed=("libc.so.6", "ld-linux-x86-64.so.2", "libm.so.6")),
     {"elf.needed"}),
    ("filter library", (), ("-Wl,--auxiliary,libm.so.6",), unchanged, {"elf.needed"}),
    ("glibc too low declared", (), (), requirement(glibc="2.2.5"), {"elf.glibc"}),
    ("no glibc declared", (), (), requirement(glibc=None), {"elf.glibc"}),
    ("machine", (), (), requirement(machine="aarch64"), {"elf.machine", "machine.arch"}),
    ("unknown primitive", (), (), primitive("pk_absent"), {"manifest.symbols"}),
    ("undefined symbol as primitive", (), (), primitive("calloc"), {"manifest.symbols"}),
    ("data as primitive", (), (), primitive("thread_message"), {"manifest.symbols"}),
    ("exported primitive", (), (), primitive("packager_bundle_v1"), {"manifest.symbols"}),
    ("backend without libraries", (), (), without_libraries, {"manifest.libraries"}),
    ("undefined symbol of no library", ("STRANGER",), (), unchanged, {"elf.undefined"}),
    ("constructor", ("CONSTRUCTORS",), (), unchanged, {"elf.constructors"}),
    ("start files", (), ("-Wl,-init=packager_bundle_v1",), unchanged, {"elf.constructors"}),
    ("code size", (), (), size(code=1), {"manifest.code_size"}),
    ("constants size", (), (), size(constants=128), {"manifest.constants"}),
    ("constant's hash", (), (), constant(sha256="0" * 64), {"integrity.constants"}),
    ("no constants section", ("NO_CONSTANTS",), (),
     lambda m: replace(m, weights=Weights("embedded", 64, None, None)), {"manifest.constants"}),
    ("golden declared but absent", (), (),
     lambda m: replace(m, golden=Golden(1, 0.0, 0.0, 64, "0" * 64)), {"manifest.golden"}),
    ("static form declared", (), (),
     lambda m: replace(requirement(needed=(), glibc=None)(m), form="static"), {"elf.type"}),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=[fault[0] for fault in FAULTS])
def test_finding(fault: tuple[str, Sequence[str], Sequence[str], Patch, set[str]], tmp_path: Path) -> None:
    _, defines, link, patch, expected = fault
    path = build_bundle(tmp_path / "fault.so", defines=defines, link=(*HARDENED, *link), patch=patch)
    result = verify(path)
    assert not result.ok
    assert expected <= checks(result)
    assert {check.split(".")[0] for check in checks(result)} == {
        check.name for check in result.checks if check.status == "failed"
    }


def make_code_writable(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for at in range(64, 64 + 56 * content[56], 56):
        if content[at] == 1 and content[at + 4] & 1:  # PT_LOAD with PF_X
            content[at + 4] |= 2
    path.write_bytes(content)


def test_writable_code(tmp_path: Path) -> None:
    path = build_bundle(tmp_path / "fault.so", edit=make_code_writable)
    assert checks(verify(path)) == {"elf.writable_code"}


def test_only_the_fault_is_found(tmp_path: Path) -> None:
    path = build_bundle(tmp_path / "fault.so", link=(*HARDENED, "-Wl,-z,execstack"))
    assert checks(verify(path)) == {"elf.exec_stack"}


def test_an_archive_with_a_constructor(tmp_path: Path) -> None:
    path = build_bundle(tmp_path / "libfault.a", defines=("CONSTRUCTORS",))
    assert checks(verify(path)) == {"elf.constructors"}


def symbol_entry(path: Path, table: str, name: str) -> int:
    """Return the offset in the file of a symbol's entry."""
    with path.open("rb") as stream:
        section = ELFFile(stream).get_section_by_name(table)
        assert isinstance(section, SymbolTableSection)
        index = next(number for number, symbol in enumerate(section.iter_symbols()) if symbol.name == name)
        return int(section["sh_offset"]) + 24 * index


def write(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as stream:
        stream.seek(offset)
        stream.write(data)


def make_data_of_it(path: Path) -> None:
    write(path, symbol_entry(path, ".symtab", "pk_scale") + 4, b"\x01")  # a local object


def move_to_data(path: Path) -> None:
    names = list(read_elf(path).sections)
    write(path, symbol_entry(path, ".symtab", "pk_scale") + 6, names.index(".packager.constants").to_bytes(2, "little"))


def make_undefined(path: Path) -> None:
    write(path, symbol_entry(path, ".symtab", "pk_scale") + 6, b"\0\0")


def export_function(path: Path) -> None:
    """Of an archive's object: the entry becomes a name of the program."""
    with path.open("rb") as stream:
        start = stream.read().index(b"\x7fELF")
    content = path.read_bytes()
    with (path.parent / "member.o").open("wb") as stream:
        stream.write(content[start:])
    at = start + symbol_entry(path.parent / "member.o", ".symtab", "pk_scale")
    write(path, at + 4, bytes([1 << 4 | 2]))


def forget_version(path: Path) -> None:
    """Let an undefined symbol bind to whatever has its name."""
    section = read_elf(path).sections[".gnu.version"]
    index = (symbol_entry(path, ".dynsym", "calloc") - read_elf(path).sections[".dynsym"].offset) // 24
    write(path, section.offset + 2 * index, b"\x01\0")


def version_of_another_library(path: Path) -> None:
    image = read_elf(path)
    names, needs = image.sections[".dynstr"], image.sections[".gnu.version_r"]
    content = path.read_bytes()
    elsewhere = content.index(b"packager_bundle_v1\0", names.offset) - names.offset
    write(path, needs.offset + 4, elsewhere.to_bytes(4, "little"))


@pytest.mark.parametrize(
    ("edit", "check", "what"),
    [
        (make_data_of_it, "manifest.symbols", "not executable code: pk_scale"),
        (move_to_data, "manifest.symbols", "not executable code: pk_scale"),
        (make_undefined, "manifest.symbols", "missing from the file: pk_scale"),
        (forget_version, "elf.undefined", "no needed library provides: calloc"),
        (version_of_another_library, "elf.undefined", "symbol versions of packager_bundle_v1"),
    ],
)
def test_symbol_tables_that_were_edited(edit: Callable[[Path], None], check: str, what: str, tmp_path: Path) -> None:
    result = verify(build_bundle(tmp_path / "fault.so", edit=edit))
    assert checks(result) == {check}
    assert any(what in finding.what for finding in result.findings)


def test_an_archive_that_exports_a_function(tmp_path: Path) -> None:
    result = verify(build_bundle(tmp_path / "libfault.a", edit=export_function))
    assert checks(result) == {"elf.exports", "manifest.symbols"}
    assert any(finding.what == "primitive functions that are exported: pk_scale" for finding in result.findings)


def test_a_library_without_versions_may_be_needed(tmp_path: Path) -> None:
    source = tmp_path / "stranger.c"
    source.write_text("int stranger(void) { return 1; }")
    library = tmp_path / "libstranger.so"
    subprocess.run(
        ["gcc", "-shared", "-nostdlib", str(source), "-o", str(library), "-Wl,-soname,libx.so.1"], check=True
    )
    path = build_bundle(
        tmp_path / "fault.so", defines=("STRANGER",), link=(*HARDENED, "-Wl,--no-as-needed", str(library))
    )
    assert "libx.so.1" in read_elf(path).needed
    assert checks(verify(path)) == {"policy.allowed_libraries"}


def test_stripped_bundle(tmp_path: Path) -> None:
    path = build_bundle(tmp_path / "fault.so", edit=strip_symbols)
    assert checks(verify(path)) == {"manifest.symbols"}


def test_a_constructor_does_not_run(tmp_path: Path) -> None:
    path = build_bundle(tmp_path / "fault.so", defines=("CONSTRUCTORS",))
    assert checks(verify(path)) == {"elf.constructors"}
    script = (
        "import ctypes, sys; from packager import verify; verify(sys.argv[1]);"
        "getenv = ctypes.CDLL(None).getenv; getenv.restype = ctypes.c_char_p;"
        "assert getenv(b'PACKAGER_TEST_CONSTRUCTOR') is None; ctypes.CDLL(sys.argv[1]);"
        "assert getenv(b'PACKAGER_TEST_CONSTRUCTOR') == b'ran'"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, env=environment())


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}


def test_golden_section_that_is_not_the_declared_one(tmp_path: Path) -> None:
    def patch(manifest: Manifest) -> Manifest:
        assert manifest.golden
        return replace(manifest, golden=replace(manifest.golden, sha256="0" * 64))

    path = build_bundle(tmp_path / "fault.so", golden=golden_image(), patch=patch)
    result = verify(path, run=True)
    assert checks(result) == {"integrity.golden"}
    assert result.checks[-1].status == "skipped"


@pytest.mark.parametrize(
    ("defines", "timeout", "check", "message"),
    [
        (("CRASH",), 60, "run.crash", "killed by signal 11"),
        (("HANG",), 3, "run.timeout", "not done after 3 s"),
        (("WRONG",), 60, "run.golden", r"case 0: output 'y': 1 of 2 elements differ; at \[0, 0\] 1.0 instead of 0.0"),
        (("REFUSE",), 60, "run.refused", "the CPU lacks avx1024"),
        (("ABI=2",), 60, "run.refused", "ABI version 2"),
    ],
)
def test_run(defines: Sequence[str], timeout: float, check: str, message: str, tmp_path: Path) -> None:
    path = build_bundle(tmp_path / "fault.so", defines=defines, golden=golden_image())
    assert verify(path).ok, "nothing is executed without run"
    result = verify(path, run=True, timeout=timeout)
    assert checks(result) == {check}
    assert re.search(message, result.findings[0].what)


def test_code_that_the_manifest_does_not_describe(tmp_path: Path) -> None:
    """Its tables are read in the file, and again when it is loaded."""
    path = build_bundle(tmp_path / "fault.so", defines=("ARENA=128",))
    (found,) = verify(path).findings
    assert (found.check, found.what) == ("elf.loading", "the arena has 128 bytes, 64 in the manifest")
    with pytest.raises(BundleError, match="manifest does not describe the code"):
        packager.load(path)


def test_golden_pairs_that_lack_a_tensor(tmp_path: Path) -> None:
    image = safetensors.encode({"0.input.x": np.ones((1, 2), np.float32)})
    path = build_bundle(tmp_path / "fault.so", golden=image)
    result = verify(path, run=True)
    assert checks(result) == {"run.refused"}
    assert "lacks the tensor '0.output.y'" in result.findings[0].what


def external(path: Path, name: str = "scale") -> Weights:
    tensors = {name: WEIGHT}
    image = safetensors.encode(tensors, {DATA_SHA256: safetensors.data_sha256(tensors)})
    path.write_bytes(image)
    return Weights("external", 64, path.name, hashlib.sha256(image).hexdigest())


def flip(offset: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[offset] ^= 1
        path.write_bytes(content)

    return damage


@pytest.mark.parametrize(
    ("damage", "check"),
    [
        (Path.unlink, "integrity.weights_missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "integrity.weights_size"),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), "integrity.weights_size"),
        (lambda path: path.write_bytes(b""), "integrity.weights_header"),
        (lambda path: (path.unlink(), path.mkdir()), "integrity.weights_header"),
        (flip(9), "integrity.weights_header"),
        (flip(-1), "integrity.weights_data"),
        (lambda path: external(path, "other"), "integrity.weights_header"),
        (lambda path: path.write_bytes(path.read_bytes().replace(b"} ", b" }")), "integrity.weights_data"),
    ],
)
def test_external_weights(damage: Callable[[Path], Any], check: str, tmp_path: Path) -> None:
    file = tmp_path / "scale.safetensors"
    path = build_bundle(tmp_path / "scale.so", defines=("NO_CONSTANTS",), weights=external(file))
    assert verify(path).ok
    assert checks(verify(path, policy="hermetic")) == {"policy.allow_external_weights", "policy.require_golden"}
    damage(file)
    assert check in checks(verify(path))


def test_machines(good: Path, tmp_path: Path) -> None:
    path = build_bundle(tmp_path / "avx.so", patch=requirement(cpu_features=("avx2", "fma", "sse2")))
    machine = Machine(1, this_machine().machine, "linux", "2.36", "a CPU", ("avx2", "fma", "sse2"))
    assert verify(path, machine=machine).ok
    cases = {
        "machine.cpu_features": replace(machine, cpu_features=("sse2",)),
        "machine.glibc": replace(machine, glibc="2.2"),
        "machine.arch": replace(machine, machine="riscv64"),
        "machine.os": replace(machine, os="freebsd"),
    }
    for check, described in cases.items():
        result = verify(path, machine=described)
        assert checks(result) == {check}
    assert "avx2, fma" in verify(path, machine=cases["machine.cpu_features"]).findings[0].what
    musl = verify(path, machine=replace(machine, glibc=None))
    assert "the machine has none" in musl.findings[0].what
    file = tmp_path / "machine.json"
    file.write_text(json.dumps(machine.to_json()))
    assert verify(path, machine=file).ok
    assert verify(path, machine=str(file)).ok
    assert verify(good, machine=None).ok
    file.write_text(json.dumps(machine.to_json() | {"schema_version": 2}))
    with pytest.raises(UsageError, match=r"does not describe a machine: \$\.schema_version"):
        verify(path, machine=file)
    with pytest.raises(UsageError, match="cannot read"):
        verify(path, machine=tmp_path / "absent.json")


def test_result_as_json(tmp_path: Path) -> None:
    path = build_bundle(tmp_path / "fault.so", link=(*HARDENED, "-Wl,-z,execstack"))
    value = json.loads(json.dumps(verify(path).to_json()))
    assert value["schema_version"] == 1
    assert value["ok"] is False
    assert value["findings"][0].keys() == {"check", "severity", "what", "where", "why", "hint"}
