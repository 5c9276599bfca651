"""The activations of epilogues, compiled for the host, beside numpy in float64."""

from __future__ import annotations

import ctypes
import subprocess
from typing import Any

import numpy as np
import pytest

from packager.backends.cutlass.core.compile_kernels import find_cutlass
from packager.backends.cutlass.gemm.kernels import functor
from packager.codegen.cuda_toolkit import find_cuda_toolkit
from packager.codegen.toolchain import find_toolchain
from packager.graph.products.activations import ACTIVATIONS, FITS, _name_of
from packager.graph.products.activations import SAMPLES as KNOWN_AT
from packager.ir.activations import CLIP, ELU, LEAKY_RELU, SINE, STAR_RELU, SWISH
from packager.resources import folder

pytestmark = pytest.mark.slow

PARAMETERS = {LEAKY_RELU: [0.2], CLIP: [-1, 6], SINE: [30], SWISH: [1.702], ELU: [1.7580993, 1.050701]}
PARAMETERS[STAR_RELU] = [0.8, -0.4]
SAMPLES = np.concatenate([np.linspace(-12, 12, 4801), [-1e30, -90, -1e-4, 0, 1e-4, 90, 1e4]]).astype(np.float32)
# float32's, of results that are rounded to 16 bits, and with ``-use-fast-math``.
ACCURACIES = {"float32": (False, 4e-7, 1e-6), "float16": (False, 1e-6, 2e-5), "fast": (True, 5e-4, 5e-4)}


def name_of(kind: str) -> str:
    bits = [f"{np.float32(number).view(np.uint32):08x}" for number in PARAMETERS.get(kind, [])]
    return kind + "_".join(bits)


def expected(kind: str, x: Any) -> Any:
    numbers = PARAMETERS.get(kind, [])
    if kind == CLIP:
        return np.clip(x, *numbers)
    with np.errstate(all="ignore"):
        return FITS[kind][1](x, *numbers) if kind in FITS else ACTIVATIONS[kind](x)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Return functions ``f<index>_<accuracy>`` of arrays."""
    place = tmp_path_factory.mktemp("activations")
    text = '#include "activations.h"\n'
    for index, kind in enumerate([*ACTIVATIONS, *PARAMETERS]):
        for accuracy, (fast, *_) in ACCURACIES.items():
            name = functor(name_of(kind), "float32" if accuracy == "float32" else "float16", fast_math=fast)
            text += f'extern "C" void f{index}_{accuracy}(const float *x, float *y, int n) {{\n'
            text += f"  for (int i = 0; i < n; ++i) y[i] = {name}<float>{{}}(x[i]);\n}}\n"
    source, built = place / "activations.cpp", place / "activations.so"
    source.write_text(text, encoding="utf-8")
    headers = [
        folder("templates") / "cutlass" / "common",
        find_cutlass().root / "include",
        *find_cuda_toolkit("").include,
    ]
    flags = ["-std=c++17", "-O1", "-w", "-fPIC", "-shared", *(f"-I{header}" for header in headers)]
    subprocess.run([find_toolchain("x86_64").cc, *flags, source, "-o", built, "-lstdc++"], check=True)
    return ctypes.CDLL(str(built))


@pytest.mark.parametrize("accuracy", ACCURACIES)
@pytest.mark.parametrize("kind", [*ACTIVATIONS, *PARAMETERS])
def test_an_activation_is_as_exact_as_it_says(library: ctypes.CDLL, kind: str, accuracy: str) -> None:
    index = [*ACTIVATIONS, *PARAMETERS].index(kind)
    samples = SAMPLES[np.abs(SAMPLES) <= 100] if kind == SINE else SAMPLES
    found = np.full_like(samples, np.nan)
    pointers = [array.ctypes.data_as(ctypes.POINTER(ctypes.c_float)) for array in (samples, found)]
    library[f"f{index}_{accuracy}"](*pointers, len(samples))
    wanted = expected(kind, samples.astype(np.float64))
    _, relative, absolute = ACCURACIES[accuracy]
    scale = np.abs(samples) * PARAMETERS[SINE][0] * 6e-8 if kind == SINE else 0  # the argument is rounded
    finite = np.isfinite(wanted.astype(np.float32))
    bound = relative * np.abs(wanted) + absolute + scale
    assert (np.abs(found - wanted)[finite] <= np.broadcast_to(bound, found.shape)[finite]).all()


@pytest.mark.parametrize("factor", [2.0**-8, 1e-5, 0.01, 0.3, 1.0, 7.0])
def test_a_multiple_is_no_activation(factor: float) -> None:
    """The sine of a small one is about the same near zero."""
    assert _name_of(factor * KNOWN_AT) is None


def test_sines_of_small_multiples_are_known() -> None:
    assert _name_of(np.sin(0.25 * KNOWN_AT)) == f"{SINE}{np.float32(0.25).view(np.uint32):08x}"
