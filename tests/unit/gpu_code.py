"""Real fatbins, compiled with the wheels of packager[cuda], and objects that hold them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from sealing import COMPILER

from packager.codegen.cuda_toolkit import compile_fatbin, find_cuda_toolkit

KERNEL = 'extern "C" __global__ void k(float *x) { x[threadIdx.x] *= 2.0f; }\n'


def compile_kernel(
    folder: Path, archs: Sequence[str], ptx: Sequence[str] = (), *, flags: Sequence[str] = (), code: str = KERNEL
) -> Path:
    """Return a fatbin of one small kernel."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "kernel.cu"
    source.write_text(code)
    output = folder / "kernel.fatbin"
    compile_fatbin(find_cuda_toolkit(""), source, output, archs, ptx, flags, COMPILER or "gcc")
    return output


def fatbin_object(path: Path, fatbins: Sequence[Path], flags: str = "a") -> str:
    """Assemble an object with fatbins in their section, aligned as the code generator does; return its path."""
    images = "".join(f'.balign 64\n.incbin "{fatbin}"\n' for fatbin in fatbins)
    source = path.with_suffix(".S")
    source.write_text(f'.section .nv_fatbin,"{flags}",@progbits\n{images}.section .note.GNU-stack,"",@progbits\n')
    subprocess.run([COMPILER or "gcc", "-c", str(source), "-o", str(path)], check=True)
    return str(path)
