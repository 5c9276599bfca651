"""Bundles for aarch64: judged on this machine without running them, and run under qemu by the C host program."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import packager
from packager.deploy.verify.machine import Machine, this_machine

from .conftest import Build
from .models import Model
from .programs import attempt, check_host, execute, require

pytestmark = pytest.mark.slow

TARGET = "llvm -mtriple=aarch64-linux-gnu"
CORTEX = Machine(
    1, "aarch64", "linux", "2.28", "Cortex-A72", ("aes", "asimd", "cpuid", "crc32", "evtstrm", "fp", "pmull", "sha2")
)

Command = list[str | Path]


@pytest.mark.parametrize("weights", ["embedded", "external"])
@pytest.mark.parametrize("batch", [4, (1, 32)], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", ["digits", "mlp"])
def test_numbers(
    build: Build,
    aarch64_host: Command,
    tmp_path: Path,
    name: str,
    batch: int | tuple[int, int],
    weights: str,
    request: pytest.FixtureRequest,
) -> None:
    model: Model = request.getfixturevalue(name)
    bundle = build(model, target=TARGET, batch=batch, weights=weights)
    for count in (4, 1, 32) if batch != 4 else (4,):
        check_host(aarch64_host, bundle, model, count, tmp_path)


def test_refuses_a_batch_out_of_bounds(build: Build, aarch64_host: Command, digits: Model, tmp_path: Path) -> None:
    digits.rows(33).tofile(tmp_path / "in")
    done = attempt([*aarch64_host, build(digits, target=TARGET), tmp_path / "in", tmp_path / "out"])
    assert done.returncode == 1
    assert "PACKAGER_ERROR_SHAPE" in done.stderr


def test_moved_and_missing_weights(build: Build, aarch64_host: Command, digits: Model, tmp_path: Path) -> None:
    bundle = build(digits, target=TARGET, weights="external")
    moved = Path(shutil.copy(bundle, tmp_path / "renamed.so"))
    digits.rows(1).tofile(tmp_path / "in")
    done = attempt([*aarch64_host, moved, tmp_path / "in", tmp_path / "out"])
    assert "PACKAGER_ERROR_WEIGHTS" in done.stderr
    shutil.copy(bundle.with_suffix(".safetensors"), tmp_path / "renamed.safetensors")
    check_host(aarch64_host, moved, digits, 2, tmp_path)


def test_requirements(build: Build, digits: Model) -> None:
    """Every aarch64 CPU that Linux runs on has these two."""
    require("aarch64-linux-gnu-readelf")
    bundle = build(digits, target=TARGET)
    requirements = packager.inspect(bundle).manifest.requirements
    assert requirements.machine == "aarch64"
    assert requirements.cpu_features == ("asimd", "fp")
    assert requirements.needed == ("libc.so.6", "ld-linux-aarch64.so.1")
    header = execute(["aarch64-linux-gnu-readelf", "-h", bundle])
    assert "AArch64" in header
    assert "Advanced Micro" not in header


def test_newer_cpu(build: Build, digits: Model) -> None:
    """Code for an Armv8.2 core with SVE says what it uses."""
    bundle = build(digits, target=f"{TARGET} -mcpu=neoverse-v1")
    found = set(packager.inspect(bundle).manifest.requirements.cpu_features)
    require("aarch64-linux-gnu-objdump")
    code = execute(["aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", bundle])
    uses_sve = any(f"\t{name}" in code for name in ("ptrue", "whilelo", "cntw", "ld1w"))
    assert ("sve" in found) == uses_sve
    assert {"asimd", "fp"} <= found


def test_verify_here_and_there(build: Build, digits: Model, tmp_path: Path) -> None:
    bundle = build(digits, target=TARGET)
    if this_machine().machine != "aarch64":
        assert [item.check for item in packager.verify(bundle).findings] == ["machine.arch"]
    description = tmp_path / "cortex.json"
    description.write_text(json.dumps(CORTEX.to_json()))
    result = packager.verify(bundle, machine=description)
    assert result.ok
    assert result.findings == ()


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"glibc": "2.16"}, "machine.glibc"),
        ({"glibc": None}, "machine.glibc"),
        ({"cpu_features": ("fp",)}, "machine.cpu_features"),
        ({"machine": "x86_64"}, "machine.arch"),
        ({"os": "darwin"}, "machine.os"),
    ],
)
def test_verify_for_a_machine_that_lacks(build: Build, digits: Model, change: dict[str, object], finding: str) -> None:
    machine = dataclasses.replace(CORTEX, **change)  # type: ignore[arg-type]
    findings = packager.verify(build(digits, target=TARGET), machine=machine).findings
    assert [item.check for item in findings] == [finding]
    assert findings[0].hint


def test_load_here_is_refused(build: Build, digits: Model) -> None:
    if this_machine().machine == "aarch64":
        pytest.skip("this machine runs it")
    with pytest.raises(packager.PackagerError, match="the dynamic linker refuses") as error:
        packager.load(build(digits, target=TARGET))
    assert "verify" in (error.value.hint or "")


def test_half_precision(build: Build, half: Model, aarch64_host: Command, tmp_path: Path) -> None:
    """Code for Armv8.2 refuses an Armv8.0 CPU, where its first instruction on float16 would end the program."""
    bundle = build(half, target=f"{TARGET} -mcpu=cortex-a76")
    assert "asimdhp" in packager.inspect(bundle).manifest.requirements.cpu_features
    runner, *rest = aarch64_host
    check_host([runner, "-cpu", "cortex-a76", *rest], bundle, half, 3, tmp_path)
    half.rows(3).tofile(tmp_path / "in")
    done = attempt([runner, "-cpu", "cortex-a57", *rest, bundle, tmp_path / "in", tmp_path / "out"])
    assert done.returncode == 1, done.stderr
    assert "PACKAGER_ERROR_MACHINE" in done.stderr
    assert "asimdhp" in done.stderr
    assert [item.check for item in packager.verify(bundle, machine=CORTEX).findings] == ["machine.cpu_features"]


def test_data_movement(aarch64_host: Command, tmp_path: Path) -> None:
    """Runs, tiles that are transposed, interleaved elements, and mirrored ones."""
    text = """<ir_version: 10, opset_import: ["" : 19]> g (float[n,20,18,21] x) => (float[n,k] y) {
      d = DepthToSpace<blocksize=2>(x)  t = Transpose<perm=[0,2,3,1]>(x)  s = Transpose<perm=[0,1,3,2]>(x)
      m = Pad<mode="reflect">(x, pads)  h = Slice(x, starts, ends, axes)  r = Slice(x, begins, starts, axes)
      w = Concat<axis=3>(h, r)
      a = Flatten(d)  b = Flatten(t)  c = Flatten(s)  e = Flatten(m)  f = Flatten(w)
      y = Concat<axis=1>(a, b, c, e, f) }"""
    model = onnx.parser.parse_model(text)
    numbers = {"pads": [0, 0, 2, 3, 0, 0, 1, 2], "starts": [5], "ends": [21], "axes": [3], "begins": [0]}
    model.graph.initializer.extend(numpy_helper.from_array(np.array(v, np.int64), k) for k, v in numbers.items())
    onnx.save(model, tmp_path / "moves.onnx")
    moves = Model("moves", tmp_path / "moves.onnx", "x", "y", (20, 18, 21))
    bundle = packager.build(moves.path, tmp_path / "moves.so", targets=[TARGET, "ccompiler"], dims={"n": (1, 4)})
    taken = "+".join(str(part.composite) for _, part in packager.inspect(bundle).manifest.primitives())
    assert all(f"ccompiler.{name}" in taken for name in ("transpose", "pad", "slice", "concat"))
    for count in (1, 3):
        check_host(aarch64_host, bundle, moves, count, tmp_path)


@pytest.mark.parametrize(
    ("filters", "attributes", "taken"),
    [
        ((24, 2, 3, 3), "pads=[1,1,1,1], strides=[2,2]", "planar_conv"),
        ((8, 1, 3, 3), "pads=[1,1,1,1], group=2", "planar_conv"),
        ((2, 1, 3, 3), "pads=[1,1,1,1], group=2", "depthwise_planes"),
    ],
)
def test_convolutions_of_planes(
    filters: tuple[int, ...], attributes: str, taken: str, aarch64_host: Command, tmp_path: Path
) -> None:
    """With strides, with several filters for each channel, and depthwise."""
    shape = ",".join(map(str, filters))
    text = f"""<ir_version: 10, opset_import: ["" : 19]> g (float[n,2,22,48] x, float[{shape}] w) => (float[n,k] y) {{
      c = Conv<{attributes}>(x, w) y = Flatten(c) }}"""
    model = onnx.parser.parse_model(text)
    model.graph.input.pop()
    weights = np.random.default_rng(3).standard_normal(filters).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    onnx.save(model, tmp_path / "planes.onnx")
    planes = Model("planes", tmp_path / "planes.onnx", "x", "y", (2, 22, 48))
    bundle = packager.build(planes.path, tmp_path / "planes.so", targets=[TARGET, "ccompiler"], dims={"n": (1, 4)})
    assert any(part.symbol.endswith(taken) for _, part in packager.inspect(bundle).manifest.primitives())
    for count in (1, 3):
        check_host(aarch64_host, bundle, planes, count, tmp_path)


def test_bytes_and_halfwords(aarch64_host: Command, tmp_path: Path) -> None:
    """Quantized SiLU, a table of bytes, and maxima of bytes; then 16 bits."""
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[n,24,13,20] x) => (float[n,k] y)
    <float s = {0.03}, uint8 z = {120}, float t = {0.0039}, uint8 zero = {0}, float u = {0.0003}, uint16 v = {900}> {
      a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z) c = Sigmoid(b) d = QuantizeLinear(c, t, zero)
      e = DequantizeLinear(d, t, zero) f = Mul(e, b) g = QuantizeLinear(f, s, z) h = DequantizeLinear(g, s, z)
      p = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(h) q = Flatten(p) r = QuantizeLinear(q, u, v)
      y = DequantizeLinear(r, u, v) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "bytes.onnx")
    model = Model("bytes", tmp_path / "bytes.onnx", "x", "y", (24, 13, 20))
    work = tmp_path / "work"
    targets = [TARGET, "ccompiler"]
    bundle = packager.build(model.path, tmp_path / "bytes.so", targets=targets, dims={"n": (1, 4)}, keep_workdir=work)
    source = (work / "ccompiler" / "ccompiler.c").read_text()
    assert "pk_map_bytes(" in source
    assert "pk_maximum_u8_bytes(" in source
    for count in (1, 3):
        check_host(aarch64_host, bundle, model, count, tmp_path)
