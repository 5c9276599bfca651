"""Which GPU runs which code, and what `verify` says of CUDA bundles and machines."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from gpu_code import compile_kernel, fatbin_object
from sealing import COMPILER, HARDENED, Patch, build_bundle

from packager.backends.cudnn.devices import find_device
from packager.bundle.gpu.arch import arch_key, parse_arch
from packager.bundle.invariants import parse_manifest
from packager.bundle.manifest import Manifest
from packager.bundle.reader import read_bundle
from packager.bundle.requirements import CudaRequirements
from packager.cli.reports.bundle import inspect_tables
from packager.deploy.verify import gpus
from packager.deploy.verify.gpus import CudaDriver, Gpu, cuda_findings, describe_cuda
from packager.deploy.verify.machine import Machine, read_machine, this_machine
from packager.deploy.verify.policy import Policy, policy_findings
from packager.deploy.verify.verifier import verify
from packager.errors import BundleError, UsageError

replace = dataclasses.replace
GIB = 1 << 30
H200 = Gpu("NVIDIA H200", "sm_90", 141 * GIB)
A10 = Gpu("NVIDIA A10", "sm_86", 22 * GIB)
DRIVER = CudaDriver("13.0", "580.159.04", (H200,))
ARCHS, PTX = ("sm_80", "sm_90a"), ("compute_80",)


def cuda(archs: Sequence[str] = ARCHS, ptx: Sequence[str] = PTX, driver: str = "13.0") -> Patch:
    """Declare GPU code."""
    target: dict[str, Any] = {"kind": "cuda", "arch": tuple(archs), "ptx": tuple(ptx), "home": ""}

    def patch(manifest: Manifest) -> Manifest:
        wanted = CudaRequirements(tuple(archs), tuple(ptx), driver)
        requirements = replace(manifest.requirements, cuda=wanted)
        return replace(manifest, requirements=requirements, targets=(*manifest.targets, target))

    return patch


@pytest.fixture(scope="module")
def fatbin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_kernel(tmp_path_factory.mktemp("kernel"), ARCHS, PTX)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, fatbin: Path) -> Path:
    """A bundle with two GPU modules, right in everything but that nothing calls them."""
    folder = tmp_path_factory.mktemp("cuda")
    modules = fatbin_object(folder / "modules.o", [fatbin, fatbin])
    return build_bundle(folder / "scale.so", link=(*HARDENED, modules), patch=cuda())


@pytest.fixture
def machine(anywhere: Machine) -> Machine:
    return replace(anywhere, cuda=DRIVER)


def checks(path: Path, machine: Machine) -> dict[str, str]:
    return {finding.check: finding.what for finding in verify(path, machine=machine).findings}


@pytest.mark.parametrize(
    ("code", "devices", "others"),
    [
        ("sm_80", "80 86 89", "75 87 88 90 100"),
        ("sm_86", "86 89", "80 87 90"),
        ("sm_87", "87", "80 86 88 89 90"),
        ("sm_90", "90", "89 100"),
        ("sm_90a", "90", "80 100 120"),
        ("sm_100", "100 103", "90 101 110 120"),
        ("sm_100a", "100", "103 120"),
        ("sm_100f", "100 103", "110 120"),
        ("sm_103f", "103", "100 120"),
        ("sm_120", "120 121", "100 103"),
        ("compute_80", "80 86 87 90 100 110 121", "75"),
        ("compute_90a", "90", "89 100 120"),
        ("compute_100f", "100 103", "90 120"),
    ],
)
def test_what_runs_where(code: str, devices: str, others: str) -> None:
    arch = parse_arch(code)
    assert [version for version in devices.split() if not arch.runs_on(parse_arch(f"sm_{version}").version)] == []
    assert [version for version in others.split() if arch.runs_on(parse_arch(f"sm_{version}").version)] == []


def test_names_of_architectures() -> None:
    names = ["compute_80", "sm_100", "sm_90a", "sm_90", "compute_100f", "sm_120"]
    ordered = ["sm_90", "sm_90a", "sm_100", "sm_120", "compute_80", "compute_100f"]
    assert sorted(names, key=arch_key) == ordered
    for name in ("sm_9", "sm_90b", "SM_90", "90", "sm_1000", "sm_90a ", ""):
        with pytest.raises(ValueError, match="is not a GPU architecture"):
            parse_arch(name)


def test_a_cuda_bundle(bundle: Path, machine: Machine) -> None:
    result = verify(bundle, machine=machine)
    assert result.ok, result.findings
    notes = {check.name: check.note for check in result.checks}
    assert notes["manifest"] == "1 primitives, sizes, GPU code for sm_80, sm_90a, compute_80"
    assert notes["machine"].endswith(", CUDA 13.0 (driver 580.159.04), NVIDIA H200 (sm_90)")
    rows = [row for table in inspect_tables(read_bundle(bundle)) for row in table.rows]
    assert ("GPU code", "sm_80, sm_90a, compute_80") in rows
    assert ("NVIDIA driver", "for CUDA 13.0 or newer") in rows
    assert ("arena per session", "64 B of GPU memory") in rows


@pytest.mark.parametrize(
    ("change", "check", "what"),
    [
        (None, "machine.cuda_driver", "for CUDA 13.0 or newer, the machine has none"),
        ({"driver": "12.9"}, "machine.cuda_driver", "the machine's (580.159.04) is for 12.9"),
        ({"driver": "12.10", "driver_version": None}, "machine.cuda_driver", "the machine's is for 12.10"),
        ({"devices": ()}, "machine.gpu_arch", "sm_80, sm_90a, compute_80, the machine has no GPU"),
        ({"devices": (Gpu("Tesla T4", "sm_75", GIB),) * 2}, "machine.gpu_arch", "the machine has Tesla T4 (sm_75)"),
        ({"devices": (replace(H200, memory_bytes=100), replace(A10, memory_bytes=50))}, "machine.gpu_memory", "100 at"),
    ],
)
def test_machines_that_do_not_run_it(
    change: dict[str, Any] | None, check: str, what: str, bundle: Path, machine: Machine
) -> None:
    found = checks(bundle, replace(machine, cuda=replace(DRIVER, **change) if change is not None else None))
    assert found.keys() == {check}
    assert what in found[check]


def test_one_device_is_enough_and_others_do_not_count(bundle: Path, machine: Machine) -> None:
    old = Gpu("Tesla T4", "sm_75", 1000 * GIB)
    assert checks(bundle, replace(machine, cuda=replace(DRIVER, devices=(old, H200)))) == {}
    assert checks(bundle, replace(machine, cuda=replace(DRIVER, devices=(A10,), driver="13.1"))) == {}
    mixed = replace(DRIVER, devices=(old, replace(H200, memory_bytes=100)))
    assert checks(bundle, replace(machine, cuda=mixed)).keys() == {"machine.gpu_memory"}


def test_code_for_the_exact_architecture(bundle: Path) -> None:
    manifest = cuda(["sm_90a"], [])(read_bundle(bundle).manifest)
    assert list(cuda_findings(manifest, DRIVER)) == []
    (finding,) = cuda_findings(manifest, replace(DRIVER, devices=(Gpu("NVIDIA B200", "sm_100", GIB),)))
    assert finding.check == "machine.gpu_arch"
    assert finding.hint == 'rebuild with that architecture: --target "cuda -arch=sm_100"'


def test_bundles_without_gpu_code(good: Path, machine: Machine, tmp_path: Path) -> None:
    assert checks(good, replace(machine, cuda=None)) == {}
    copies = build_bundle(tmp_path / "copies.so", patch=with_targets(cuda([], []), archs=("sm_80",)))
    assert checks(copies, machine) == {}
    assert checks(copies, replace(machine, cuda=replace(DRIVER, devices=(A10,)))) == {}
    assert checks(copies, replace(machine, cuda=replace(DRIVER, devices=()))).keys() == {"machine.gpu_arch"}


def with_targets(patch: Patch, archs: Sequence[str]) -> Patch:
    def apply(manifest: Manifest) -> Manifest:
        patched = patch(manifest)
        targets = [{**target, "arch": tuple(archs)} if "arch" in target else target for target in patched.targets]
        return replace(patched, targets=tuple(targets))

    return apply


@pytest.mark.parametrize(
    ("archs", "ptx", "what"),
    [
        (("sm_80",), PTX, "GPU module 1 of 2 has undeclared code for sm_90a"),
        (ARCHS, (), "GPU module 1 of 2 has undeclared code for compute_80"),
        ((*ARCHS, "sm_100"), PTX, "no GPU module has code for sm_100"),
        (("sm_80", "sm_90"), PTX, "GPU module 1 of 2 has undeclared code for sm_90a"),
    ],
)
def test_other_code_than_declared(
    archs: tuple[str, ...], ptx: tuple[str, ...], what: str, fatbin: Path, tmp_path: Path, machine: Machine
) -> None:
    modules = fatbin_object(tmp_path / "modules.o", [fatbin, fatbin])
    path = build_bundle(tmp_path / "scale.so", link=(*HARDENED, modules), patch=cuda(archs, ptx))
    findings = [finding.what for finding in verify(path, machine=machine).findings]
    assert what in findings


def test_a_module_may_be_for_one_gpu_alone(fatbin: Path, tmp_path: Path, machine: Machine) -> None:
    lacking = compile_kernel(tmp_path / "lacking", ["sm_80"], PTX)
    modules = fatbin_object(tmp_path / "modules.o", [fatbin, lacking])
    path = build_bundle(tmp_path / "scale.so", link=(*HARDENED, modules), patch=cuda())
    assert checks(path, machine) == {}
    modules = fatbin_object(tmp_path / "modules.o", [lacking, lacking])
    path = build_bundle(tmp_path / "scale.so", link=(*HARDENED, modules), patch=cuda())
    assert checks(path, machine) == {"manifest.gpu_code": "no GPU module has code for sm_90a"}


def test_code_that_is_hidden_missing_damaged_or_writable(fatbin: Path, tmp_path: Path, machine: Machine) -> None:
    def build(name: str, fatbins: list[Path], patch: Patch | None, flags: str = "a") -> dict[str, str]:
        modules = fatbin_object(tmp_path / f"{name}.o", fatbins, flags)
        link = (*HARDENED, modules)
        return checks(build_bundle(tmp_path / f"{name}.so", link=link, patch=patch or (lambda same: same)), machine)

    assert build("hidden", [fatbin], None) == {"manifest.gpu_code": "the file has GPU code that is not declared"}
    assert build("missing", [], cuda()) == {"manifest.gpu_code": "GPU code for sm_80, sm_90a, compute_80 is missing"}
    damaged = tmp_path / "damaged.fatbin"
    damaged.write_bytes(fatbin.read_bytes()[:-8])
    assert "cannot be read" in build("damaged", [damaged], cuda())["manifest.gpu_code"]
    assert build("writable", [fatbin], cuda(), "aw").keys() == {"manifest.sections"}
    assert build("unmapped", [fatbin], cuda(), "").keys() == {"manifest.sections"}


def test_a_second_section(fatbin: Path, tmp_path: Path, machine: Machine) -> None:
    def add(path: Path) -> None:
        for option in (f"--add-section=.more={fatbin}", "--rename-section=.more=.nv_fatbin"):
            subprocess.run(["objcopy", option, str(path)], check=True)

    link = (*HARDENED, fatbin_object(tmp_path / "modules.o", [fatbin]))
    path = build_bundle(tmp_path / "scale.so", link=link, patch=cuda(), edit=add)
    assert checks(path, machine)["manifest.sections"] == "there are 2 sections .nv_fatbin"


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        (lambda m: replace(m, targets=(*m.targets, {"kind": "cuda", "arch": ("sm_80",)})), "cuda: is null, but"),
        (lambda m: replace(cuda()(m), targets=m.targets), "is set, but there is no Target of kind 'cuda'"),
        (with_targets(cuda(), archs=("sm_80",)), r"cuda\.archs: differs from the Target's -arch, which is sm_80"),
        (cuda(["sm_8"], []), r"cuda\.archs\[0\]: must be a GPU architecture"),
        (cuda(["sm_80", "sm_80"], []), r"cuda\.archs\[1\]: 'sm_80' is listed twice"),
        (cuda([], ["sm_80"]), r"cuda\.ptx\[0\]: must be a virtual GPU architecture"),
        (cuda(driver="13"), r"cuda\.driver: must be a version of CUDA"),
    ],
)
def test_manifests_that_contradict_themselves(patch: Patch, message: str, good: Path) -> None:
    manifest = read_bundle(good).manifest
    with pytest.raises(BundleError, match=message):
        parse_manifest(patch(manifest).to_json())


def test_a_manifest_from_before_there_were_gpus(good: Path) -> None:
    value = json.loads(read_bundle(good).manifest.to_json())
    assert value["requirements"].pop("cuda") is None
    assert parse_manifest(json.dumps(value).encode()).requirements.cuda is None


@pytest.mark.parametrize(
    ("policy", "key", "what"),
    [
        ({"allowed_gpu_archs": ("sm_80", "compute_80")}, "allowed_gpu_archs", "has GPU code for sm_90a"),
        ({"allowed_gpu_archs": ()}, "allowed_gpu_archs", "has GPU code for sm_80, sm_90a, compute_80"),
        ({"required_gpu_archs": ("sm_100", "sm_90a", "sm_90")}, "required_gpu_archs", "no GPU code for sm_90, sm_100"),
        ({"max_cuda_driver": "12.9"}, "max_cuda_driver", "CUDA 13.0, more than 12.9"),
    ],
)
def test_policies(policy: dict[str, Any], key: str, what: str, bundle: Path) -> None:
    (finding,) = policy_findings(read_bundle(bundle).manifest, Policy(1, "x", **policy))
    assert finding.check == f"policy.{key}"
    assert what in finding.what


def test_policies_that_are_met(bundle: Path, good: Path) -> None:
    policy = Policy(
        1, "x", allowed_gpu_archs=(*ARCHS, *PTX, "sm_100"), required_gpu_archs=("sm_90a",), max_cuda_driver="13.0"
    )
    assert list(policy_findings(read_bundle(bundle).manifest, policy)) == []
    (finding,) = policy_findings(read_bundle(good).manifest, policy)
    assert finding.check == "policy.required_gpu_archs"
    assert not list(policy_findings(read_bundle(good).manifest, Policy(1, "x", allowed_gpu_archs=())))


def test_machine_files(bundle: Path, machine: Machine, tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    file.write_text(json.dumps(machine.to_json()))
    assert read_machine(file) == machine
    assert verify(bundle, machine=file).ok
    value = machine.to_json()
    del value["cuda"]
    file.write_text(json.dumps(value))
    assert read_machine(file) == replace(machine, cuda=None)
    (finding,) = verify(bundle, machine=file).findings
    assert "write it again" in finding.hint
    for path, wrong in (("arch", "90"), ("memory_bytes", -1), ("name", None)):
        value = machine.to_json()
        value["cuda"]["devices"][0][path] = wrong
        file.write_text(json.dumps(value))
        with pytest.raises(UsageError, match=rf"\$\.cuda\.devices\[0\]\.{path}"):
            read_machine(file)


class StandIn:
    """Describes this machine in a process that finds a stand-in for the driver library, or none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def ask(self, devices: str = "", *, version: int = 12080, init: int = 0, old: bool = False) -> Any:
        defines = [f"-DDEVICES={devices}", f"-DVERSION={version}", f"-DINIT={init}", *(["-DOLD"] if old else [])]
        source = Path(__file__).parent / "libcuda_stand_in.c"
        flags = ["-shared", "-fPIC", "-Wall", "-Wextra", *defines]
        argv = [COMPILER or "gcc", *flags, str(source), "-o", str(self.folder / "libcuda.so.1")]
        subprocess.run(argv, check=True)
        return self.describe()

    def describe(self) -> Any:
        argv = [sys.executable, "-m", "packager", "machine", "--json"]
        environment = {**os.environ, "LD_LIBRARY_PATH": str(self.folder)}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)["cuda"]


@pytest.fixture
def stand_in(tmp_path: Path) -> StandIn:
    return StandIn(tmp_path)


@pytest.mark.slow
def test_this_machine_as_its_driver_describes_it(stand_in: StandIn) -> None:
    devices = '{"A", 9, 0, 150000000000}, {"B", 12, 1, 1}'
    described = stand_in.ask(devices)
    assert described["driver"] == "12.8"
    assert described["devices"] == [
        {"name": "A", "arch": "sm_90", "memory_bytes": 150000000000},
        {"name": "B", "arch": "sm_121", "memory_bytes": 1},
    ]
    assert stand_in.ask(devices, init=100)["devices"] == []
    assert stand_in.ask("", version=13020)["driver"] == "13.2"
    assert stand_in.ask(devices, version=0) is None
    assert stand_in.ask(devices, old=True) is None


def test_this_machine_with_a_library_that_is_none(stand_in: StandIn) -> None:
    (stand_in.folder / "libcuda.so.1").write_text("not a library")
    assert stand_in.describe() is None


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (x@y)\n", "580.95.05"),
        ("GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n", None),
    ],
)
def test_the_drivers_own_version(
    text: str, version: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "DRIVER_FACTS", tmp_path / "version")
    assert gpus.driver_version() is None
    (tmp_path / "version").write_text(text)
    assert gpus.driver_version() == version


def test_the_driver_is_not_asked_for_bundles_of_the_cpu() -> None:
    assert this_machine(gpus=False).cuda is None
    assert this_machine(gpus=False).machine == platform.machine()


def test_descriptions_for_people() -> None:
    assert describe_cuda(None) == "no NVIDIA driver"
    assert describe_cuda(CudaDriver("12.8", None, ())) == "CUDA 12.8, no GPU"
    assert describe_cuda(replace(DRIVER, devices=(H200, H200))) == (
        "CUDA 13.0 (driver 580.159.04), NVIDIA H200 (sm_90)"
    )


GPU_SCRIPT = """
import json
from packager.deploy.verify.gpu_description import describe_gpu
print(json.dumps(describe_gpu(0)))
"""
ANY_DRIVER = """
#include <stddef.h>
#include <string.h>
int cuInit(unsigned flags) { return (int)flags; }
int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
int cuDeviceGet(int *device, int index) { return *device = index, index; }
int cuDeviceGetName(char *name, int bytes, int device) { return strncpy(name, "Any", (size_t)bytes), device; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { return *bytes = (size_t)3 << 32, device; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  return *value = attribute == 75 ? 8 : attribute == 76 ? 6 : attribute * 10, device;
}
"""


def test_a_gpu_is_described_as_cudnn_does(tmp_path: Path) -> None:
    """With the same numbers as the descriptions that packager has, by those of CUdevice_attribute."""
    (tmp_path / "driver.c").write_text(ANY_DRIVER)
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", tmp_path / "driver.c", "-o", library], check=True)
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
    argv = [sys.executable, "-c", GPU_SCRIPT]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    described = json.loads(done.stdout)
    own = json.loads(find_device("H100").path.read_text())
    assert described.keys() == own.keys()
    assert [described[key] for key in ("deviceVer", "multiProcessorCount", "l2CacheSize")] == [860, 160, 380]
    assert described["maxGridSize"] == [50, 60, 70]
