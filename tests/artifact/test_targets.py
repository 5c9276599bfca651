"""``-mcpu``: the code is what was asked for, the manifest says so, and a CPU without it refuses instead of crashing."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import packager
from packager.deploy.verify.machine import Machine, this_machine
from packager.deploy.verify.policy import Policy

from .conftest import Build
from .models import Model
from .programs import attempt, check_host, execute, require

V2 = {"pni", "ssse3", "sse4_1", "sse4_2", "popcnt", "cx16"}
V3 = V2 | {"avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe"}
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
LEVELS = {"x86-64": set(), "x86-64-v2": V2, "haswell": V3, "x86-64-v4": V4}
REGISTERS = {"x86-64": "xmm", "x86-64-v2": "xmm", "haswell": "ymm", "x86-64-v4": "zmm"}

pytestmark = pytest.mark.skipif(this_machine().machine != "x86_64", reason="these are Targets for x86-64")


def target(cpu: str) -> str:
    return f"llvm -mtriple=x86_64-linux-gnu -mcpu={cpu}"


def features(bundle: Path) -> set[str]:
    return set(packager.inspect(bundle).manifest.requirements.cpu_features)


def can_run(bundle: Path) -> bool:
    return features(bundle) <= set(this_machine().cpu_features)


def kernel_code(bundle: Path) -> str:
    """Disassemble the primitive functions with objdump."""
    require("objdump")
    symbols = {item.symbol for _, item in packager.inspect(bundle).manifest.primitives()}
    parts = re.split(r"^[0-9a-f]+ <([^>]+)>:$", execute(["objdump", "-d", "--no-show-raw-insn", bundle]), flags=re.M)
    code = {name: text for name, text in zip(parts[1::2], parts[2::2], strict=True) if name in symbols}
    assert set(code) == symbols
    return "".join(code.values())


@pytest.mark.slow
@pytest.mark.parametrize("cpu", list(LEVELS))
def test_code_and_features(build: Build, digits: Model, cpu: str) -> None:
    bundle = build(digits, target=target(cpu))
    code, found = kernel_code(bundle), features(bundle)
    assert found <= LEVELS[cpu]
    widest = max(set(re.findall(r"%([xyz]mm)\d", code)))
    assert widest == REGISTERS[cpu]
    assert ("avx" in found) == bool(re.search(r"\tv\w+ .*%[xy]mm", code)) == (cpu in ("haswell", "x86-64-v4"))
    assert ("fma" in found or "avx512f" in found) == ("vfmadd" in code)
    assert ("avx512f" in found) == bool(re.search(r"%zmm|%[xy]mm(1[6-9]|2\d|3[01])|%k[0-7]", code))
    assert packager.inspect(bundle).manifest.targets[0]["mcpu"] == (cpu,)


@pytest.mark.slow
@pytest.mark.parametrize("mcpu", [*map(target, LEVELS), "llvm -mtriple=aarch64-linux-gnu"])
def test_the_session_checks_what_the_manifest_declares(build: Build, mlp: Model, mcpu: str) -> None:
    """The first is found in the kernels, before the link; the second in all code, after it."""
    bundle = build(mlp, target=mcpu)
    source = (bundle.parent / "work" / "entrypoint.c").read_text()
    (names,) = re.findall(r"cpu_features\[\] = \{(.*?)\};", source, flags=re.S)
    assert set(re.findall(r'"(\w+)"', names)) == features(bundle)


@pytest.mark.slow
@pytest.mark.parametrize("cpu", list(LEVELS))
def test_numbers(build: Build, digits: Model, mlp: Model, cpu: str) -> None:
    for model in (digits, mlp):
        bundle = build(model, target=target(cpu))
        if not can_run(bundle):
            pytest.skip(f"this CPU lacks {features(bundle) - set(this_machine().cpu_features)}")
        rows = model.rows(13)
        model.check(rows, packager.load(bundle).run([rows])[model.output])


@pytest.mark.slow
@pytest.mark.parametrize("cpu", list(LEVELS))
def test_inputs_aligned_to_their_elements_only(build: Build, digits: Model, cpu: str) -> None:
    """The ABI promises no more to the code, whose widest registers are 64 bytes."""
    bundle = build(digits, target=target(cpu))
    if not can_run(bundle):
        pytest.skip("this CPU lacks features of the bundle")
    rows = digits.rows(5)
    memory, result = np.zeros(rows.size + 32, np.float32), np.zeros(5 * 10 + 32, np.float32)
    session = packager.load(bundle).session()
    expected = session.run([rows])[digits.output]
    for offset in range(1, 17, 5):
        image = memory[offset : offset + rows.size].reshape(rows.shape)
        logits = result[offset : offset + 50].reshape(5, 10)
        image[:] = rows
        session.run([image], outputs=[logits])
        assert logits.tobytes() == expected.tobytes()


@pytest.mark.slow
def test_native(build: Build, digits: Model) -> None:
    bundle = build(digits, target="llvm -mcpu=native")
    assert can_run(bundle)
    assert packager.verify(bundle).ok
    rows = digits.rows(4)
    digits.check(rows, packager.load(bundle).run([rows])[digits.output])
    if set(this_machine().cpu_features) >= V4 - V3:
        assert "%zmm" in kernel_code(bundle) or "%ymm" in kernel_code(bundle)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("built_for", "level", "accepted"),
    [
        ("x86-64", "x86-64-v1", True),
        ("x86-64-v2", "x86-64-v2", True),
        ("haswell", "x86-64-v3", True),
        ("haswell", "x86-64-v2", False),
        ("x86-64-v4", "x86-64-v4", True),
        ("x86-64-v4", "x86-64-v3", False),
    ],
)
def test_policy_levels(build: Build, digits: Model, built_for: str, level: str, accepted: bool) -> None:
    policy = Policy(1, "level", cpu_level=level)  # type: ignore[arg-type]
    found = [item.check for item in packager.verify(build(digits, target=target(built_for)), policy=policy).findings]
    assert ("policy.cpu_level" not in found) == accepted


@pytest.mark.parametrize(("cpu", "runs"), [("haswell", True), ("x86-64-v4", False)])
def test_verify_for_a_described_machine(build: Build, digits: Model, cpu: str, runs: bool) -> None:
    described = Machine(1, "x86_64", "linux", "2.28", "Haswell", tuple(sorted(V3)))
    findings = packager.verify(build(digits, target=target(cpu)), machine=described).findings
    assert [item.check for item in findings] == ([] if runs else ["machine.cpu_features"])
    assert runs or "avx512f" in findings[0].what


@pytest.mark.parametrize(
    ("built_for", "cpu", "missing"),
    [
        ("x86-64", "qemu64", None),
        ("haswell", "Haswell", None),
        ("haswell", "qemu64", "avx"),
        ("haswell", "Nehalem", "avx"),
        ("x86-64-v4", "Haswell", "avx512f"),
    ],
)
def test_on_an_emulated_cpu(
    build: Build, digits: Model, host: Path, tmp_path: Path, built_for: str, cpu: str, missing: str | None
) -> None:
    """The emulator stops a program at an instruction that its CPU lacks: the refusal comes before any of them."""
    require("qemu-x86_64")
    command = ["qemu-x86_64", "-cpu", cpu, host]
    bundle = build(digits, target=target(built_for))
    if missing is None:
        check_host(command, bundle, digits, 3, tmp_path)
        return
    digits.rows(3).tofile(tmp_path / "in")
    done = attempt([*command, bundle, tmp_path / "in", tmp_path / "out"])
    assert done.returncode == 1, done.stderr
    assert "session_create: PACKAGER_ERROR_MACHINE" in done.stderr
    assert f" {missing}" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("cpu", "feature"), [("sapphirerapids", "avx512_fp16"), ("alderlake", "f16c")])
def test_half_precision(build: Build, half: Model, cpu: str, feature: str) -> None:
    """Instructions that are newer than the disassembler are told by their encoding."""
    bundle = build(half, target=target(cpu))
    arithmetic = re.search(r"\tv(fmadd\d+|add|mul|max)ph\b", kernel_code(bundle))
    assert ("avx512_fp16" in features(bundle)) == (arithmetic is not None) == (feature == "avx512_fp16")
    assert feature in features(bundle)
    if can_run(bundle):
        rows = half.rows(3)
        half.check(rows, packager.load(bundle).run([rows])[half.output])
    described = Machine(1, "x86_64", "linux", "2.28", "Ice Lake", tuple(sorted(V4)))
    assert packager.verify(bundle, machine=described).ok == (feature == "f16c")
