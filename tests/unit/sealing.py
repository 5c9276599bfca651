"""Builds real bundles from bundle.c with the C compiler and seals them, so that the deploy side has real input."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from packager.bundle import safetensors
from packager.bundle.elf.file import read_elf
from packager.bundle.golden import GoldenCase, encode_golden
from packager.bundle.manifest import (
    CONSTANTS_SECTION,
    SECTION_NAME,
    BackendRecord,
    Constant,
    Dim,
    Golden,
    License,
    Manifest,
    Model,
    Primitive,
    Sizes,
    StaticLibrary,
    TensorSpec,
    Weights,
)
from packager.bundle.requirements import Requirements
from packager.bundle.section import content_sha256, encode_section

SOURCE = Path(__file__).parent / "bundle.c"
INCLUDE = Path(__file__).parents[2] / "runtime_stub" / "include"
COMPILER = shutil.which("gcc") or shutil.which("cc")
CAPACITY = 4032
HARDENED = (
    "-nostartfiles",
    "-Wl,-z,defs,-z,now,-z,relro,-z,noexecstack,--build-id=none",
    "-Wl,--hash-style=gnu",
)
SCALE = Primitive("pk_scale", None, ("multiply",), ("Mul_0",), 8, 96, 32, 1)
WEIGHT = np.array([2.0] + [0.0] * 15, np.float32)

Patch = Callable[[Manifest], Manifest]


def unchanged(manifest: Manifest) -> Manifest:
    return manifest


def compile_bundle(path: Path, *, defines: Sequence[str] = (), link: Sequence[str] = HARDENED) -> None:
    assert COMPILER, "the tests of the deploy side need a C compiler"
    common = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-fPIC", f"-I{INCLUDE}"]
    flags = [*common, f"-DCAPACITY={CAPACITY}", *(f"-D{define}" for define in defines)]
    if path.suffix == ".a":
        objects = path.with_suffix(".o")
        subprocess.run([COMPILER, *flags, "-c", str(SOURCE), "-o", str(objects)], check=True)
        path.unlink(missing_ok=True)
        subprocess.run(["ar", "rcsD", str(path), str(objects)], check=True)
        return
    subprocess.run([COMPILER, *flags, "-shared", str(SOURCE), "-o", str(path), *link], check=True)


def golden_image(cases: int = 2) -> bytes:
    inputs = [np.arange(2 * n, dtype=np.float32).reshape(n, 2) for n in range(1, cases + 1)]
    return encode_golden([GoldenCase({"x": x}, {"y": 2 * x}) for x in inputs])


def describe(path: Path, golden: bytes | None, weights: Weights | None) -> Manifest:
    """Return the manifest of a compiled bundle, from facts that were read back."""
    elf = read_elf(path)
    static = elf.type == "relocatable"
    constants = elf.sections.get(CONSTANTS_SECTION)
    size = constants.size if constants else 0
    entry = Constant("scale", (), ("scale",), "float32", (16,), 0, 64, hashlib.sha256(WEIGHT.tobytes()).hexdigest())
    return Manifest(
        schema_version=1,
        packager_version="0.1.0",
        abi_version=1,
        form="static" if static else "shared",
        content_sha256="0" * 64,
        model=Model("scale", "onnx", "ab" * 32, {"ai.onnx": 17}, "hand"),
        dims=(Dim("n", 1, 4),),
        inputs=(TensorSpec("x", "float32", ("n", 2)),),
        outputs=(TensorSpec("y", "float32", ("n", 2)),),
        states=(),
        entries=(),
        targets=({"kind": "llvm", "mcpu": "x86-64-v3", "mtriple": "x86_64-linux-gnu"},),
        backends=(BackendRecord("llvm", (SCALE,), (StaticLibrary("scale.o", "cd" * 32, ()),)),),
        constants=(entry,) if size or weights else (),
        weights=weights or Weights("embedded" if size else "none", size, None, None),
        arena_bytes=64,
        requirements=Requirements(
            elf.machine,
            "linux",
            elf.needed,
            elf.glibc,
            ("sse2",) if elf.machine == "x86_64" else (),
            ("scale_bundle_v1" if static else "packager_bundle_v1",),
            elf.imports,
        ),
        sizes=Sizes(elf.file_size, elf.code_bytes, size),
        toolchain={"cc": "gcc"},
        licenses=(License("packager runtime", "Apache-2.0"),),
        selection=(),
        golden=Golden(golden_count(golden), 1e-4, 1e-5, len(golden), hashlib.sha256(golden).hexdigest())
        if golden
        else None,
    )


def golden_count(image: bytes) -> int:
    return len({name.split(".")[0] for name in safetensors.decode(image)})


def seal(path: Path, manifest: Manifest) -> None:
    section = read_elf(path).sections[SECTION_NAME]
    digest = content_sha256(path, section.offset, section.size)
    text = dataclasses.replace(manifest, content_sha256=digest).to_json()
    write_section(path, encode_section(text, section.size))


def write_section(path: Path, content: bytes) -> None:
    section = read_elf(path).sections[SECTION_NAME]
    assert len(content) == section.size
    with path.open("r+b") as stream:
        stream.seek(section.offset)
        stream.write(content)


def build_bundle(
    path: Path,
    *,
    defines: Sequence[str] = (),
    link: Sequence[str] = HARDENED,
    golden: bytes | None = None,
    graph: bytes | None = None,
    weights: Weights | None = None,
    patch: Patch = unchanged,
    edit: Callable[[Path], None] | None = None,
) -> Path:
    """Compile a variant, describe it, apply ``patch`` to the description, and seal it."""
    if golden is not None:
        image = path.with_suffix(".golden")
        image.write_bytes(golden)
        defines = [*defines, f'GOLDEN="{image}"']
    if graph is not None:
        text = path.with_suffix(".graph")
        text.write_bytes(graph)
        defines = [*defines, f'GRAPH="{text}"']
    if path.suffix == ".a":
        defines = [*defines, "ENTRY=scale_bundle_v1"]
    compile_bundle(path, defines=defines, link=link)
    if edit:
        edit(path)
    seal(path, patch(describe(path, golden, weights)))
    return path
