"""The deploy side with the real CUDA runtime and the recording stand-in for libcuda.so.1: see loader_cases.py."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from packager.bundle.elf.file import read_elf
from packager.bundle.manifest import (
    SECTION_NAME,
    BackendRecord,
    Dim,
    Manifest,
    Model,
    Primitive,
    Sizes,
    TensorSpec,
    Weights,
)
from packager.bundle.requirements import CudaRequirements, Requirements
from packager.bundle.section import content_sha256, encode_section

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
STUB = ROOT / "runtime_stub"
CAPACITY = 4032
STRICT = ("-std=c11", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")
SECTION = f"""__attribute__((section("{SECTION_NAME}"), used, aligned(64)))
static const char manifest_section[64 + {CAPACITY}] = {{0}};"""
PRIMITIVES = tuple(Primitive(symbol, None, (symbol,), (), 1024, 4096, 2048, 1) for symbol in ("scale", "add"))
CASES = [
    "host_arrays",
    "device_arrays",
    "graphs",
    "profile",
    "arena",
    "constants",
    "faults",
    "blocking_names_the_function",
    "creation",
    "measuring",
    "commands",
]


def model_source() -> str:
    """Return c/model.c with room for a manifest in a section, as bundles have it."""
    text = (HERE / "c" / "model.c").read_text()
    for old, new in (
        ('static const char manifest[] = "{}  ";', SECTION),
        (".manifest = manifest,", ".manifest = manifest_section + 64,"),
        ("sizeof manifest - 1", str(CAPACITY)),
    ):
        assert old in text
        text = text.replace(old, new)
    return text


def describe(path: Path) -> Manifest:
    elf = read_elf(path)
    tensors = [TensorSpec(name, "float32", ("n", 4)) for name in ("x", "y", "echo")]
    return Manifest(
        schema_version=1,
        packager_version="0.1.0",
        abi_version=1,
        form="shared",
        content_sha256="0" * 64,
        model=Model("cuda", "onnx", hashlib.sha256(b"").hexdigest(), {"ai.onnx": 17}, "hand"),
        dims=(Dim("n", 0, 4096),),
        inputs=tuple(tensors[:1]),
        outputs=tuple(tensors[1:]),
        states=(),
        entries=(),
        targets=({"kind": "cuda", "arch": ("sm_90a",), "ptx": ()},),
        backends=(BackendRecord("cuda", PRIMITIVES, ()),),
        constants=(),
        weights=Weights("none", 0, None, None),
        arena_bytes=4096 * 16,
        requirements=Requirements(
            machine=elf.machine,
            os="linux",
            needed=elf.needed,
            glibc=elf.glibc,
            cpu_features=(),
            exports=("packager_bundle_v1",),
            undefined=(),
            cuda=CudaRequirements(("sm_90a",), (), "13.0"),
        ),
        sizes=Sizes(elf.file_size, elf.code_bytes, 0),
        toolchain={"cc": "gcc"},
        licenses=(),
        selection=(),
        golden=None,
    )


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda-bundle")
    (folder / "model.c").write_text(model_source())
    path = folder / "model.so"
    includes = [f"-I{STUB / name}" for name in ("include", "src", "cuda")]
    sources = [folder / "model.c", *sorted((STUB / "src").glob("*.c")), *sorted((STUB / "cuda").glob("*.c"))]
    command = ["gcc", *STRICT, "-DPK_SHARED", *includes, *sources, "-o", path, "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    section = read_elf(path).sections[SECTION_NAME]
    manifest = describe(path)
    digest = content_sha256(path, section.offset, section.size)
    text = manifest.to_json().replace(b"0" * 64, digest.encode(), 1)
    with path.open("r+b") as stream:
        stream.seek(section.offset)
        stream.write(encode_section(text, section.size))
    return path


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the recording stand-in."""
    folder = tmp_path_factory.mktemp("recorder")
    source = HERE / "recorder" / "libcuda.c"
    subprocess.run(["gcc", "-D_GNU_SOURCE", *STRICT, source, "-o", folder / "libcuda.so.1", "-lpthread"], check=True)
    return folder


def run_case(case: str, bundle: Path, driver: Path, **settings: str) -> None:
    environment = os.environ | settings | {"LD_LIBRARY_PATH": str(driver), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", HERE / "loader_cases.py", case, bundle]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("case", CASES)
def test_case(case: str, bundle: Path, driver: Path) -> None:
    run_case(case, bundle, driver)


def test_a_driver_that_is_too_old(bundle: Path, driver: Path) -> None:
    run_case("old_driver", bundle, driver, RECORDER_VERSION="12040")


def test_a_driver_without_a_gpu(bundle: Path, driver: Path) -> None:
    run_case("no_device", bundle, driver, RECORDER_DEVICES="0")
