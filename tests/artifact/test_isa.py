"""``isa.cpu_features``: what the assembler wrote is what is found, and the runtime can check every name of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from packager.bundle.elf.file import read_elf
from packager.bundle.isa import arm64, x86
from packager.bundle.isa import features as isa
from packager.bundle.isa.levels import LEVEL_FEATURES

from .models import ROOT
from .programs import attempt, execute, require

CPU_SOURCE = ROOT / "runtime_stub" / "src" / "cpu_features.c"
V4 = {"avx512bw", "avx512dq", "avx512f", "avx512vl"}

X86 = {
    "addps %xmm1, %xmm0": "",
    "cvtsi2sd %rax, %xmm0": "",
    "lock cmpxchg %eax, (%rcx)": "",
    "haddps %xmm0, %xmm1": "pni",
    "pshufb %xmm0, %xmm1": "ssse3",
    "pmaddubsw %xmm0, %xmm1": "ssse3",
    "palignr $8, %xmm0, %xmm1": "ssse3",
    "pmulld %xmm0, %xmm1": "sse4_1",
    "roundps $1, %xmm0, %xmm1": "sse4_1",
    "crc32 %eax, %ecx": "sse4_2",
    "pcmpgtq %xmm0, %xmm1": "sse4_2",
    "popcnt %eax, %ecx": "popcnt",
    "lzcnt %eax, %ecx": "abm",
    "movbe (%rax), %ecx": "movbe",
    "cmpxchg16b (%rax)": "cx16",
    "lock cmpxchg16b (%rax)": "cx16",
    "andn %eax, %ecx, %edx": "bmi1",
    "shlx %eax, %ecx, %edx": "bmi2",
    "mulx %eax, %ecx, %edx": "bmi2",
    "adcx %eax, %ecx": "adx",
    "sha256rnds2 %xmm0, %xmm1": "sha_ni",
    "aesenc %xmm0, %xmm1": "aes",
    "pclmulqdq $1, %xmm0, %xmm1": "pclmulqdq",
    "gf2p8mulb %xmm0, %xmm1": "gfni",
    "vaddps %ymm0, %ymm1, %ymm2": "avx",
    "vsqrtss %xmm0, %xmm1, %xmm2": "avx",
    "vcvtsi2ss %rax, %xmm1, %xmm2": "avx",
    "vroundps $1, %ymm0, %ymm1": "avx",
    "vpabsd %xmm0, %xmm1": "avx",
    "vpabsd %ymm0, %ymm1": "avx2",
    "vbroadcastss (%rax), %ymm1": "avx",
    "vbroadcastss %xmm0, %ymm1": "avx2",
    "vpaddd %ymm0, %ymm1, %ymm2": "avx2",
    "vpgatherdd %ymm0, (%rax,%ymm1,4), %ymm2": "avx2",
    "vfmadd231ps %ymm0, %ymm1, %ymm2": "fma",
    "vfnmsub213sd (%rax), %xmm1, %xmm2": "fma",
    "vcvtph2ps %xmm0, %ymm1": "f16c",
    "vaesenc %ymm1, %ymm2, %ymm3": "vaes",
    "vpclmulqdq $1, %ymm1, %ymm2, %ymm3": "vpclmulqdq",
    "{vex} vpdpbusd %ymm1, %ymm2, %ymm3": "avx_vnni",
    "{vex} vpdpbusd 64(%rax,%rcx,4), %ymm2, %ymm3": "avx_vnni",
    "tdpbssd %tmm0, %tmm1, %tmm2": "amx_int8",
    "tdpbf16ps %tmm0, %tmm1, %tmm2": "amx_bf16",
    "tileloadd (%rax,%rcx), %tmm0": "amx_tile",
    "kmovw %eax, %k1": "avx512f",
    "kandb %k1, %k2, %k3": "avx512dq",
    "kmovd %eax, %k1": "avx512bw",
    "vandps %zmm0, %zmm1, %zmm2": "avx512dq",
    "vandps %xmm16, %xmm1, %xmm2": "avx512dq avx512vl",
    "vaddss %xmm16, %xmm1, %xmm2": "avx512f",
    "vpaddb %ymm16, %ymm1, %ymm2": "avx512bw avx512vl",
    "vptestnmd %zmm0, %zmm1, %k1": "avx512f",
    "kunpckdq %k0, %k1, %k2": "avx512bw",
    "ktestw %k0, %k1": "avx512dq",
    "vaddps %zmm0, %zmm1, %zmm2": "avx512f",
    "vaddps %ymm16, %ymm1, %ymm2": "avx512f avx512vl",
    "vfmadd231ps (%rax){1to16}, %zmm1, %zmm2": "avx512f",
    "vpermi2w %zmm1, %zmm2, %zmm3": "avx512bw",
    "vpconflictd %zmm1, %zmm2": "avx512cd",
    "vplzcntd %zmm1, %zmm2": "avx512cd",
    "vpdpbusd %zmm1, %zmm2, %zmm3": "avx512_vnni",
    "vpdpwssds 4096(%rax), %zmm2, %zmm3": "avx512_vnni",
    "vdpbf16ps %zmm1, %zmm2, %zmm3": "avx512f avx512_bf16",
    "vcvtneps2bf16 %zmm0, %ymm1": "avx512f avx512_bf16",
    "vcvtne2ps2bf16 (%rax,%rcx,8), %zmm0, %zmm1": "avx512f avx512_bf16",
    "vaddph %zmm1, %zmm2, %zmm3": "avx512_fp16",
    "vfmadd231ph 256(%rip), %zmm2, %zmm3": "avx512_fp16",
    "vrndscaleph $3, (%rsp), %zmm3": "avx512_fp16",
    "vcmpph $1, 8(%r12), %zmm2, %k1": "avx512_fp16",
    "vpopcntd %zmm1, %zmm2": "avx512_vpopcntdq",
    "vpopcntb %zmm1, %zmm2": "avx512_bitalg",
    "vpermb %zmm1, %zmm2, %zmm3": "avx512vbmi",
    "vpermw %zmm1, %zmm2, %zmm3": "avx512bw",
    "vpcompressb %zmm0, %zmm1": "avx512_vbmi2",
    "vpshldd $1, %zmm0, %zmm1, %zmm2": "avx512_vbmi2",
    "vpmadd52luq %zmm1, %zmm2, %zmm3": "avx512ifma",
    "vgf2p8affineqb $1, %zmm1, %zmm2, %zmm3": "avx512f gfni",
    "vp2intersectd %zmm0, %zmm1, %k2": "avx512f avx512_vp2intersect",
}
AARCH64 = {
    "add x0, x1, x2": "",
    "bti c": "",
    "paciasp": "",
    "fmadd s0, s1, s2, s3": "fp",
    "fcvt s0, h1": "fp",
    "fmla v0.4s, v1.4s, v2.4s": "asimd",
    "fcvtl v0.4s, v1.4h": "asimd",
    "fadd v0.8h, v1.8h, v2.8h": "asimdhp",
    "fmla v0.8h, v1.8h, v2.h[1]": "asimdhp",
    "fadd h0, h1, h2": "fphp",
    "fcvtzs w0, h1": "fphp",
    "sdot v0.4s, v1.16b, v2.16b": "asimddp",
    "smmla v0.4s, v1.16b, v2.16b": "i8mm",
    "usdot v0.4s, v1.16b, v2.16b": "i8mm",
    "bfdot v0.4s, v1.8h, v2.8h": "bf16",
    "bfmmla v0.4s, v1.8h, v2.8h": "bf16",
    "bfcvt h0, s1": "bf16",
    "fmlal v0.4s, v1.4h, v2.4h": "asimdfhm",
    "sqrdmlah v0.4s, v1.4s, v2.4s": "asimdrdm",
    "fcmla v0.4s, v1.4s, v2.4s, #90": "fcma",
    "frint32x v0.4s, v1.4s": "frint",
    "fjcvtzs w0, d1": "jscvt",
    "casal x0, x1, [x2]": "atomics",
    "ldaddal x0, x1, [x2]": "atomics",
    "crc32b w0, w1, w2": "crc32",
    "aese v0.16b, v1.16b": "aes",
    "sha256h q0, q1, v2.4s": "sha2",
    "pmull v0.1q, v1.1d, v2.1d": "pmull",
    "ldapr x0, [x1]": "lrcpc",
    "ld1w {z0.s}, p0/z, [x0]": "sve",
    "whilelo p0.s, w1, w2": "sve",
    "fmla z0.s, p0/m, z1.s, z2.s": "sve",
    "cntw x0": "sve",
    "sdot z0.s, z1.b, z2.b": "sve",
    "smmla z0.s, z1.b, z2.b": "sve svei8mm",
    "bfdot z0.s, z1.h, z2.h": "sve svebf16",
    "sqdmlalb z0.s, z1.h, z2.h": "sve sve2",
}
ARCH = ".arch armv9-a+fp16+dotprod+i8mm+bf16+fp16fml+crypto+f32mm\n"
# The instructions that the disassembler does not always know, each followed by one that must still be read right.
SYNCHRONIZED = "vaddps %xmm0, %xmm1, %xmm2\n"


def features(assembler: str, source: str, folder: Path) -> set[str]:
    """Assemble ``source`` and return what is found in it; skip if the assembler does not know it."""
    require(assembler)
    path = folder / "code.s"
    path.write_text(f"{source}\n")
    done = attempt([assembler, path, "-o", folder / "code.o"])
    if done.returncode:
        pytest.skip(f"the assembler does not know it: {done.stderr.splitlines()[-1]}")
    return set(isa.cpu_features(folder / "code.o"))


@pytest.mark.parametrize("instruction", list(X86))
def test_x86(instruction: str, tmp_path: Path) -> None:
    assert features("as", instruction, tmp_path) == set(X86[instruction].split())
    assert features("as", f"{instruction}\n{SYNCHRONIZED * 3}", tmp_path) == {*X86[instruction].split(), "avx"}


@pytest.mark.parametrize("instruction", list(AARCH64))
def test_aarch64(instruction: str, tmp_path: Path) -> None:
    assert features("aarch64-linux-gnu-as", ARCH + instruction, tmp_path) == set(AARCH64[instruction].split())


def test_all_instructions_in_one_stream(tmp_path: Path) -> None:
    """Across the chunks in which code is read."""
    body = "\n".join(X86)
    assert features("as", f"{body}\n" * 40, tmp_path) == {name for names in X86.values() for name in names.split()}


@pytest.mark.slow
def test_aarch64_instructions_of_one_key_have_one_set_of_features() -> None:
    """Only the first of a key is looked at in detail: on the code of a real library it stands for all of them."""
    compiler = "aarch64-linux-gnu-gcc"
    require(compiler)
    path = Path(execute([compiler, "-print-file-name=libm.so.6"]).strip()).resolve()
    image, content = read_elf(path), path.read_bytes()
    text = image.sections[".text"]
    of_key: dict[object, set[str]] = {}
    count, end = 0, text.offset + text.size
    for start in range(text.offset, end, arm64.CHUNK_BYTES):
        for instruction in arm64.DETAILED.disasm(content[start : min(start + arm64.CHUNK_BYTES, end)], start):
            key = arm64.instruction_key(instruction.mnemonic, instruction.op_str, bytes(instruction.bytes))
            features = set(arm64.instruction_features(instruction))
            assert of_key.setdefault(key, features) == features, f"{instruction.mnemonic} {instruction.op_str}"
            count += 1
    assert count > 10_000
    assert len(of_key) < count / 5


def test_an_instruction_that_is_not_known(tmp_path: Path) -> None:
    """vdpphps of AVX10.2, until the disassembler knows it; of what follows nothing is lost."""
    source = f".byte 0x62, 0xf2, 0x6c, 0x48, 0x52, 0xc2\n{SYNCHRONIZED}"
    assert features("as", source, tmp_path) >= {"avx512f", "avx"}


def test_data_between_functions(tmp_path: Path) -> None:
    source = ".byte 0x06, 0x07, 0x62, 0xc4\nnop\nnop\nnop\nnop\nnop\nnop\nnop\nnop\nvaddps %xmm0, %xmm1, %xmm2"
    assert "avx" in features("as", source, tmp_path)


@pytest.mark.parametrize("tail", ["0x62", "0xc4", "0xc5", "0x62, 0xf2, 0x6d, 0x48", "0x62, 0xf5, 0x6c, 0x48, 0x58"])
def test_code_that_ends_within_an_instruction(tmp_path: Path, tail: str) -> None:
    assert features("as", f"nop\n.byte {tail}", tmp_path) <= {"avx512f"}


def known_to_the_runtime() -> dict[str, set[str]]:
    """Return the names that cpu_features.c has for each machine."""
    x86, aarch64 = CPU_SOURCE.read_text().split("#elif defined(__aarch64__)")
    return {machine: set(re.findall(r'\{"(\w+)", ', text)) for machine, text in (("x86", x86), ("aarch64", aarch64))}


def test_the_runtime_knows_every_name() -> None:
    known = known_to_the_runtime()
    emitted = set(x86.KERNEL_NAMES.values()) | {name for names in X86.values() for name in names.split()}
    assert len(known["x86"]) > 50
    assert emitted - known["x86"] == set()
    emitted = {name for _, name in (*arm64.FEATURES, *arm64.GROUPS.items())}
    emitted |= {name for names in AARCH64.values() for name in names.split()}
    assert emitted - known["aarch64"] == set()


def test_names_are_those_of_the_kernel() -> None:
    """``sse3`` is ``pni`` in /proc/cpuinfo, which is what a bundle's requirements are compared with."""
    emitted = set(x86.KERNEL_NAMES.values())
    assert "sse3" not in emitted
    assert {"pni", "ssse3", "sse4_1", "sse4_2", "popcnt", "cx16"} <= emitted & LEVEL_FEATURES["x86-64-v2"]
    assert {"avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe"} <= emitted & LEVEL_FEATURES["x86-64-v3"]
    assert emitted & LEVEL_FEATURES["x86-64-v4"] >= V4


def test_assembler_is_real(tmp_path: Path) -> None:
    """The instructions above were not skipped one and all."""
    require("as", "objdump")
    (tmp_path / "a.s").write_text("vpdpbusd %zmm1, %zmm2, %zmm3\n")
    execute(["as", tmp_path / "a.s", "-o", tmp_path / "a.o"])
    assert "vpdpbusd" in execute(["objdump", "-d", tmp_path / "a.o"])
