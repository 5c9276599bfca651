"""Element types and epilogues of the problems of the benchmarks fp16 and int8."""

from __future__ import annotations

from dataclasses import dataclass

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
        """The part of a problem's name."""
        parts = [f"{self.dtype}-{self.out}", *([self.activation] if self.activation != "none" else [])]
        parts += ["residual"] * self.residual + ["zero"] * (self.zero != 0) + ["bounds"] * (self.low is not None)
        return "_".join(parts + ["numbers"] * (not self.rows))


HALF = Form("float16", "float16")


def name_of(sizes: str, form: Form, family: str) -> str:
    """Return the name of a problem of these sizes; ``family`` is that of its kernels, or empty."""
    parts = [] if form == HALF else [form.name]
    return "_".join([sizes, *parts, *([family] if family else [])])
