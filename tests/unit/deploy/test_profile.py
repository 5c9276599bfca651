"""Profiles of CPU bundles: what they are held against, and how `packager bench` tells them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from capstone import CS_ARCH_ARM64, CS_ARCH_X86, CS_MODE_64, CS_MODE_ARM, Cs
from sealing import build_bundle
from typer.testing import CliRunner

import packager
from packager.bundle.manifest import Manifest
from packager.cli.main import app
from packager.deploy.load.session import Step
from packager.deploy.measure import cpu_peak, profile
from packager.deploy.measure.bench import bench
from packager.deploy.measure.cpu_peak import MachineCode, fma_loop, measure_peak

X = np.array([[1.0, 2.0], [3.0, -4.0]], np.float32)
LOOPS = {
    "avx512": ("x86_64", {"avx512f", "avx", "fma"}, "vfmadd231ps", "zmm", 16),
    "avx2": ("x86_64", {"avx", "avx2", "fma"}, "vfmadd231ps", "ymm", 8),
    "neon": ("aarch64", {"asimd"}, "fmla", ".4s", 4),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_bundle(tmp_path_factory.mktemp("profile") / "scale.so", defines=("PROFILE",))


@pytest.fixture(autouse=True)
def small_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_peak, "_COPY_BYTES", 1 << 20)


def loop_of(name: str) -> MachineCode:
    machine, features, *_ = LOOPS[name]
    found = fma_loop(machine, frozenset(features))
    assert found is not None
    return found


@pytest.mark.parametrize("name", LOOPS)
def test_the_loop_of_multiply_adds(name: str) -> None:
    machine, _, mnemonic, vector, lanes = LOOPS[name]
    found = loop_of(name)
    disassembler = Cs(CS_ARCH_X86, CS_MODE_64) if machine == "x86_64" else Cs(CS_ARCH_ARM64, CS_MODE_ARM)
    code = list(disassembler.disasm(found.code, 0))
    assert sum(instruction.size for instruction in code) == len(found.code)
    products = [instruction for instruction in code if instruction.mnemonic == mnemonic]
    assert len(products) * lanes * 2 == found.flops_per_round
    operands = [instruction.op_str.split(", ") for instruction in products]
    assert all(vector in text for words in operands for text in words)
    targets, factors = {words[0] for words in operands}, {text for words in operands for text in words[1:]}
    assert len(targets) >= 12
    assert len(factors) == 2
    assert not targets & factors
    (branch,) = [instruction for instruction in code if instruction.mnemonic in ("jne", "b.ne")]
    assert int(branch.op_str.removeprefix("#"), 16) == products[0].address
    assert code[-1].mnemonic == "ret"


def test_other_machines_have_no_loop() -> None:
    assert fma_loop("x86_64", frozenset({"avx", "avx2"})) is None
    assert fma_loop("riscv64", frozenset()) is None


@pytest.mark.parametrize("threads", [1, 2])
def test_peak(threads: int) -> None:
    found = measure_peak(threads)
    assert found.threads == threads
    assert found.flops_per_second is None or found.flops_per_second > 1e8
    assert found.copy_bytes_per_second > 1e7


def test_a_session_is_profiled(path: Path) -> None:
    with packager.load(path) as bundle, bundle.session() as session:
        assert session.profile([X]) == [("pk_scale", 1000, 4000), ("copy", 6000, 1000)]


def test_bench(path: Path) -> None:
    found = bench(path, runs=3, warmup=0, profile=True).profile
    assert found is not None
    assert found.runs == 3
    assert found.total_us == 5
    scale, copy = found.primitives
    assert (scale.symbol, scale.us, scale.gb_per_second) == ("pk_scale", 4.0, pytest.approx(128 / 4000))
    assert scale.of_floor is not None
    assert copy.of_floor is None
    given = bench(path, runs=1, warmup=0, profile=True, peak_tflops=1e-9).profile
    assert given is not None
    assert given.peak_tflops == 1e-9
    assert given.primitives[0].of_floor == pytest.approx(8 / 1e3 / 4e-6)
    assert bench(path, runs=1, warmup=0).profile is None


def test_of_a_partition_the_last_function_has_the_rates(path: Path) -> None:
    with packager.load(path) as bundle:
        manifest = bundle.manifest
    whole = replace(manifest.backends[0].primitives[0], composite="c.scale", nodes=("n0",))
    first = replace(whole, symbol="pk_first", flops=0, bytes_read=0, bytes_written=0)
    other = replace(first, symbol="pk_other", nodes=("n1",))

    def of(*primitives: object) -> Manifest:
        return replace(manifest, backends=(replace(manifest.backends[0], primitives=primitives),))

    steps = [Step("pk_first", 0, 30), Step("pk_scale", 30, 10), Step("pk_other", 40, 5)]
    found = profile.summarize(of(first, whole, other), [steps], copy_bytes_per_second=128e9, peak_tflops=None)
    times = {item.symbol: item for item in found.primitives}
    assert times["pk_scale"].us == 0.01
    assert times["pk_scale"].gb_per_second == pytest.approx(128 / 40)
    assert times["pk_scale"].gflops_per_second == pytest.approx(8 / 40)
    assert times["pk_scale"].of_floor == pytest.approx(1 / 40)
    assert (times["pk_first"].us, times["pk_first"].backend, times["pk_first"].of_floor) == (0.03, "llvm", None)
    assert times["pk_other"].gb_per_second == 0
    assert sum(item.share for item in found.primitives) == pytest.approx(1)


def test_command(path: Path, tmp_path: Path) -> None:
    written, trace = tmp_path / "profile.json", tmp_path / "trace.json"
    result = CliRunner().invoke(
        app, ["bench", str(path), "--runs", "2", "--profile-json", str(written), "--trace", str(trace)]
    )
    assert result.exit_code == 0, result.output
    assert "Primitives by time (2 of 2), 5.0 us in all; the floor: copies at" in result.stdout
    assert json.loads(written.read_text())["schema_version"] == 1
    events = json.loads(trace.read_text())["traceEvents"]
    assert [event["name"] for event in events] == ["process_name", "thread_name", "pk_scale", "copy"]
    assert events[1]["args"] == {"name": "CPU"}
