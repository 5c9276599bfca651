"""Types of the manifest's fields, with their allowed values (``docs/bundle-format.md``)."""

from __future__ import annotations

from typing import Annotated, Literal

from packager.bundle.strict_json import Pattern, Range

Name = Annotated[str, Pattern(r"[^\x00]+", "a non-empty string without zero characters")]
Identifier = Annotated[str, Pattern(r"[A-Za-z_][A-Za-z0-9_]*", "a C identifier")]
Symbol = Annotated[str, Pattern(r"[A-Za-z_.$][A-Za-z0-9_.$@]*", "a linker symbol")]
Sha256 = Annotated[str, Pattern(r"[0-9a-f]{64}", "64 lower-case hex digits")]
GlibcVersion = Annotated[str, Pattern(r"[0-9]{1,4}(\.[0-9]{1,4}){1,2}", "a version such as 2.28")]
CudaVersion = Annotated[str, Pattern(r"[0-9]{1,3}\.[0-9]{1,2}", "a version of CUDA such as 13.0")]
MachineCode = Annotated[str, Pattern(r"sm_[0-9]{2,3}[af]?", "a GPU architecture such as sm_90a")]
Ptx = Annotated[str, Pattern(r"compute_[0-9]{2,3}[af]?", "a virtual GPU architecture such as compute_80")]
LevelName = Annotated[str, Pattern(r"[A-Za-z0-9_.+-]+", "a CPU's name such as x86-64-v3")]
FileName = Annotated[str, Pattern(r"(?!\.{1,2}$)[^/\x00]+", "a file name without a folder")]
Soname = Annotated[str, Pattern(r"lib[A-Za-z0-9_.+-]*\.so(\.[0-9]+)*", "a soname such as libm.so.6")]
LibraryVersion = Annotated[str, Pattern(r"[0-9]{1,9}(\.[0-9]{1,9}){0,2}", "a version such as 12.3.1")]
Count = Annotated[int, Range(0, 2**63 - 1)]
DTypeName = Literal[
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "bfloat16",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn",
    "int4", "uint4", "int2", "uint2",
]  # fmt: skip
TargetValue = str | bool | int | float | tuple[str, ...]


def value_text(value: TargetValue) -> str:
    """Return the value of a Target's attribute in command-line syntax."""
    if isinstance(value, tuple):
        return ",".join(value)
    return str(int(value)) if isinstance(value, bool) else str(value)
