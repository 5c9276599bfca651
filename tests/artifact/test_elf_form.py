"""The linked file as other tools see it: what it needs, what it exports, how it is mapped and shared."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import packager

from .conftest import Build
from .models import Model
from .programs import CHECK_HEADER, INCLUDE, SOURCES, WARNINGS, execute, require

FLOOR = (2, 28)
TARGETS = {"x86_64": "llvm -mtriple=x86_64-linux-gnu", "aarch64": "llvm -mtriple=aarch64-linux-gnu"}
FORMS = [("x86_64", "embedded"), ("x86_64", "external"), ("aarch64", "embedded"), ("aarch64", "external")]


@pytest.fixture(params=[FORMS[0], *(pytest.param(form, marks=pytest.mark.slow) for form in FORMS[1:])], ids="-".join)
def bundle(request: pytest.FixtureRequest, build: Build, mlp: Model) -> Path:
    """A bundle of a model that calls the math library."""
    machine, weights = request.param
    require("readelf", "objdump")
    return build(mlp, target=TARGETS[machine], weights=weights)


def glibc_versions(bundle: Path) -> set[tuple[int, ...]]:
    versions = set(re.findall(r"GLIBC_([\d.]+)", execute(["readelf", "--version-info", "--wide", bundle])))
    return {tuple(map(int, version.split("."))) for version in versions}


def segments(bundle: Path) -> list[tuple[str, str]]:
    """Return the type and the flags of each segment."""
    lines = execute(["readelf", "--segments", "--wide", bundle]).split("Section to Segment")[0]
    return re.findall(r"^  ([A-Z_]+) +(?:0x\w+ ){5}([RWE ]{3})", lines, flags=re.M)


@pytest.mark.slow
def test_glibc_floor(bundle: Path) -> None:
    versions = glibc_versions(bundle)
    assert versions
    assert max(versions) <= FLOOR
    declared = packager.inspect(bundle).manifest.requirements.glibc
    assert declared is not None
    assert max(versions) == tuple(map(int, declared.split(".")))


@pytest.mark.slow
@pytest.mark.parametrize("machine", list(TARGETS))
def test_glibc_floor_of_double_precision_math(tmp_path: Path, machine: str) -> None:
    """exp, log and pow of double got new versions in glibc 2.29, which this machine's linker would take."""
    names = ["Exp", "Log", "Tanh", "Erf", "Sin"]
    nodes = [helper.make_node(name, ["x"], [name], name) for name in names]
    nodes += [helper.make_node("Pow", ["x", "Log"], ["p"], "Pow"), helper.make_node("Mod", ["x", "Exp"], ["m"], fmod=1)]
    nodes.append(helper.make_node("Sum", [*names, "p", "m"], ["y"], "Sum"))
    values = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, [3, 5]) for name in "xy"]
    graph = helper.make_graph(nodes, "double", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "d.onnx")
    path = packager.build(tmp_path / "d.onnx", tmp_path / "d.so", targets=[TARGETS[machine]])
    assert max(glibc_versions(path)) <= FLOOR
    symbols = execute(["readelf", "--dyn-syms", "--wide", path])
    assert {"exp", "log", "pow"} <= set(re.findall(r" (\w+)@GLIBC", symbols))
    if machine == "x86_64":
        x = np.linspace(0.2, 3, 15).reshape(3, 5)
        erf = np.vectorize(__import__("math").erf)
        wanted = np.exp(x) + np.log(x) + np.tanh(x) + erf(x) + np.sin(x) + x ** np.log(x) + np.fmod(x, np.exp(x))
        np.testing.assert_allclose(packager.load(path).run([x])["y"], wanted, rtol=1e-12)


def test_libraries(bundle: Path) -> None:
    needed = set(re.findall(r"Shared library: \[(.+)\]", execute(["readelf", "-d", bundle])))
    machine = packager.inspect(bundle).manifest.requirements.machine
    loader = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}[machine]
    assert needed == {"libc.so.6", "libm.so.6", loader}
    if machine == "x86_64":
        names = {Path(line.split()[0]).name for line in execute(["ldd", bundle]).splitlines()}
        assert names == {"linux-vdso.so.1", *needed}


def test_dynamic_symbols(bundle: Path) -> None:
    symbols = [line.split() for line in execute(["readelf", "--dyn-syms", "--wide", bundle]).splitlines()]
    rows = [fields for fields in symbols if len(fields) >= 8 and fields[0].rstrip(":").isdigit()]
    visible = [fields for fields in rows if fields[4] != "LOCAL"]  # the linker adds local section symbols
    defined = [fields[7] for fields in visible if fields[6] != "UND"]
    undefined = [fields[7] for fields in visible if fields[6] == "UND"]
    assert len(undefined) > 20
    assert defined == ["packager_bundle_v1"]
    assert all("@GLIBC_" in name for name in undefined)


def test_nothing_runs_at_load(bundle: Path) -> None:
    tags = set(re.findall(r"\(([A-Z_0-9]+)\)", execute(["readelf", "-d", bundle])))
    assert not tags & {"INIT", "FINI", "INIT_ARRAY", "FINI_ARRAY", "PREINIT_ARRAY", "TEXTREL", "RPATH", "RUNPATH"}
    sections = execute(["readelf", "-S", "--wide", bundle])
    assert not re.search(r"\.(init|fini|ctors|dtors)", sections)
    assert "IFUNC" not in execute(["readelf", "-s", "--wide", bundle])


def test_hardening(bundle: Path) -> None:
    found = segments(bundle)
    assert ("GNU_STACK", "RW ") in found
    assert [kind for kind, _ in found].count("GNU_RELRO") == 1
    assert not [kind for kind, flags in found if "W" in flags and "E" in flags]
    dynamic = execute(["readelf", "-d", bundle])
    assert re.search(r"\(FLAGS_1\).*NOW", dynamic)
    notes = execute(["readelf", "-n", bundle])
    assert "Build ID" not in notes


@pytest.mark.slow
def test_constants_section(build: Build, mlp: Model) -> None:
    require("readelf")
    bundle = build(mlp, weights="embedded")
    manifest = packager.inspect(bundle).manifest
    line = next(x for x in execute(["readelf", "-S", "--wide", bundle]).splitlines() if ".packager.constants" in x)
    fields = line.split("]", 1)[1].split()
    address, offset, size, flags, alignment = (
        int(fields[2], 16),
        int(fields[3], 16),
        int(fields[4], 16),
        fields[6],
        int(fields[9]),
    )
    assert flags == "A"
    assert alignment == 64
    assert address % 64 == offset % 64 == 0
    assert size == manifest.weights.bytes
    assert all(item.offset % 64 == 0 for item in manifest.constants)


@contextmanager
def waiting(program: Path, bundle: Path) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that has run the bundle and stays."""
    command = [str(program), "wait", str(bundle), "4"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        _, _ = process.communicate()
        assert process.returncode == 0


def mapping(pid: int, name: str, offset: int) -> dict[str, int | str]:
    """Return the fields of /proc/PID/smaps, in KiB, of the mapping of a file that holds this offset."""
    for part in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{pid}/smaps").read_text(), flags=re.M)[1:]:
        head, *lines = part.splitlines()
        addresses, permissions, start, *_, path = head.split()
        low, high = (int(text, 16) for text in addresses.split("-"))
        if path.endswith(name) and int(start, 16) <= offset < int(start, 16) + high - low:
            values = {key: int(value.split()[0]) for key, value in (x.split(":", 1) for x in lines) if "kB" in value}
            return {"permissions": permissions, **values}
    raise AssertionError(f"{name} is not mapped at {offset}")


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["embedded", "external"])
def test_processes_share_the_constants(build: Build, digits: Model, tmp_path: Path, weights: str) -> None:
    """They are pages of the page cache, whatever the number of processes: read-only, never copied, never written."""
    bundle = build(digits, weights=weights)
    program = tmp_path / "soak"
    flags = ["-std=c11", "-O1", *WARNINGS, f"-I{INCLUDE}", f"-I{CHECK_HEADER}"]
    execute(["gcc", *flags, SOURCES / "soak.c", "-o", program, "-ldl", "-lpthread"])
    name, offset = bundle.name, 0
    if weights == "external":
        name = bundle.with_suffix(".safetensors").name
    else:
        line = next(x for x in execute(["readelf", "-S", "--wide", bundle]).splitlines() if ".packager.constants" in x)
        offset = int(line.split("]", 1)[1].split()[3], 16)
    with waiting(program, bundle) as first, waiting(program, bundle) as second:
        for process in (first, second):
            found = mapping(process.pid, name, offset)
            assert str(found["permissions"]).startswith("r--")
            assert found["Private_Dirty"] == found["Shared_Dirty"] == found["Anonymous"] == 0
            assert found["Shared_Clean"] >= packager.inspect(bundle).manifest.weights.bytes // 1024  # all were used
