"""What cutlass/int8.py measures and checks: products and convolutions of 8 bits, and what becomes of their sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

SIZES = {"int8": 1, "uint8": 1, "float8_e4m3fn": 1, "float16": 2, "bfloat16": 2, "int32": 4, "float32": 4}


@dataclass(frozen=True)
class Form:
    """Types of data and result, and the epilogue. ``rows`` says whether offset, scale and bias are vectors."""

    dtype: str = "int8"
    out: str = "int8"
    activation: str = "none"
    residual: bool = False
    zero: int = 0
    low: float | None = None
    rows: bool = True
    offset: bool = True

    @property
    def name(self) -> str:
        """How files and options name it."""
        parts = [f"{self.dtype}-{self.out}", *([self.activation] if self.activation != "none" else [])]
        parts += ["residual"] * self.residual + ["zero"] * (self.zero != 0) + ["bounds"] * (self.low is not None)
        return "_".join(parts + ["numbers"] * (not self.rows))


@dataclass(frozen=True)
class Product:
    """[m, k] times weights [n, k]; ``family`` is that of its kernels, as packager takes them by default."""

    m: int
    n: int
    k: int
    form: Form
    family: str = ""

    @property
    def name(self) -> str:
        """How files and options name it."""
        return "_".join([f"gemm_{self.m}x{self.n}x{self.k}", self.form.name, *([self.family] if self.family else [])])

    @property
    def nbytes(self) -> int:
        """Bytes of its operands and its result."""
        return self.m * self.k + self.n * self.k + SIZES[self.form.out] * self.m * self.n


@dataclass(frozen=True)
class Conv:
    """A convolution of square images, NHWC, padded by half of the window."""

    batch: int
    size: int
    channels: int
    filters: int
    window: int
    stride: int
    form: Form
    family: str = ""

    @property
    def name(self) -> str:
        """How files and options name it."""
        sizes = f"conv_b{self.batch}_{self.size}_{self.channels}_{self.filters}_{self.window}x{self.window}"
        stride = f"s{self.stride}" if self.stride > 1 else ""
        return "_".join([sizes + stride, self.form.name, *([self.family] if self.family else [])])

    @property
    def padding(self) -> int:
        """Rows and columns of zeros on each side."""
        return self.window // 2

    @property
    def places(self) -> int:
        """Rows and columns of the result."""
        return (self.size + 2 * self.padding - self.window) // self.stride + 1

    @property
    def nbytes(self) -> int:
        """Bytes of its operands and its result."""
        image = self.batch * self.size**2 * self.channels
        result = SIZES[self.form.out] * self.batch * self.places**2 * self.filters
        return image + self.filters * self.window**2 * self.channels + result


Problem = Product | Conv
_WIDTHS = ((768, 768), (3072, 768), (768, 3072), (4096, 4096))
_ROWS = (16, 128, 2048, 8192)
_FP8 = Form("float8_e4m3fn", "float16", offset=False)
_FLOAT_FORMS = (Form(out="float16", activation="gelu"), Form(out="float32", rows=False), Form(out="bfloat16"))
SETS: dict[str, tuple[Problem, ...]] = {
    "forms": (
        Product(200, 96, 128, Form()),
        Product(200, 96, 128, Form(zero=-7, low=-7.0)),
        Product(200, 96, 128, Form(rows=False)),
        Product(200, 96, 128, Form(residual=True)),
        Product(200, 96, 128, Form(out="int32")),
        Product(3, 96, 128, Form(out="float16")),
        Product(200, 96, 128, Form(out="float16", rows=False)),
        Product(200, 96, 128, Form("uint8", "uint8", zero=100)),
        *(Product(77, n, k, Form(), "sm80") for n, k in ((96, 128), (40, 72), (20, 36), (10, 30), (7, 33))),
        Product(77, 96, 128, Form("uint8", "uint8", zero=100, residual=True), "sm80"),
        Product(77, 1000, 512, Form(out="int32"), "sm80"),
        *(Product(77, 1000, 512, form, "sm80") for form in _FLOAT_FORMS),
        Conv(2, 14, 64, 96, 3, 1, Form()),
        Conv(2, 15, 64, 96, 3, 2, Form(zero=-7, low=-7.0)),
        Conv(2, 14, 64, 96, 3, 1, Form("uint8", "uint8", zero=100), "sm80"),
        Conv(2, 14, 64, 96, 3, 1, Form(residual=True), "sm80"),
        Conv(2, 17, 3, 20, 7, 2, Form(), "sm80"),
        Conv(2, 17, 24, 20, 3, 1, Form(out="float32"), "sm80"),
    ),
    "fp8_forms": (
        Product(200, 96, 128, _FP8),
        Product(200, 96, 128, Form("float8_e4m3fn", "float8_e4m3fn", offset=False)),
        Product(200, 96, 128, Form("float8_e4m3fn", "float16", rows=False, offset=False)),
    ),
    "gemm": tuple(Product(m, n, k, Form(low=0.0)) for m in _ROWS for n, k in _WIDTHS),
    "fp8": tuple(Product(m, n, k, _FP8) for m in _ROWS for n, k in _WIDTHS),
    "conv": tuple(
        Conv(batch, size, channels, channels, 3, 1, Form(low=0.0))
        for batch in (1, 32)
        for size, channels in ((56, 64), (28, 128), (14, 256), (7, 512))
    ),
}
CHECKS = ("forms", "fp8_forms")
"""The sets that are not timed."""


def select(names: Sequence[str], only: str) -> list[tuple[str, Problem]]:
    """Return the problems of sets, all of them by default, whose names match patterns, with their sets.

    Raises ValueError where nothing is left.
    """
    patterns = only.split(",") if only else ["*"]
    chosen = [(name, problem) for name in (names or SETS) for problem in SETS[name]]
    found = [entry for entry in chosen if any(fnmatchcase(entry[1].name, pattern) for pattern in patterns)]
    if not found:
        raise ValueError(f"no problem matches {only!r}")
    return found
