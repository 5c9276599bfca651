"""What cutlass/fp16.py measures, all of it in fp16: products, attentions, and the convolutions of ResNet-50."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

ITEMSIZE = 2


@dataclass(frozen=True)
class Product:
    """[m, k] times a layer's weight [n, k], and a bias; or, with a batch, [batch, m, k] times [batch, k, n]."""

    m: int
    n: int
    k: int
    batch: int = 0

    @property
    def group(self) -> str:
        """What its figures are summed up with."""
        return "bmm" if self.batch else "linear"

    @property
    def name(self) -> str:
        """How files and options name it."""
        batch = f"{self.batch}x" if self.batch else ""
        return f"{self.group}_{batch}{self.m}x{self.n}x{self.k}"

    @property
    def nbytes(self) -> int:
        """Bytes of its operands and its result."""
        return ITEMSIZE * max(1, self.batch) * (self.m * self.k + self.n * self.k + self.m * self.n)


@dataclass(frozen=True)
class Attention:
    """softmax(q k^T / sqrt(depth)) v of one tensor [batch, length, 3, heads, depth]."""

    batch: int
    heads: int
    length: int
    depth: int

    group = "attention"

    @property
    def name(self) -> str:
        """How files and options name it."""
        return f"attention_{self.batch}x{self.heads}x{self.length}x{self.depth}"

    @property
    def nbytes(self) -> int:
        """Bytes of its operands and its result."""
        return ITEMSIZE * 4 * self.batch * self.heads * self.length * self.depth


@dataclass(frozen=True)
class Conv:
    """relu(x * w + bias) of square images, NHWC, padded by half of the window."""

    batch: int
    size: int
    channels: int
    filters: int
    window: int
    stride: int

    group = "conv"

    @property
    def name(self) -> str:
        """How files and options name it."""
        stride = f"s{self.stride}" if self.stride > 1 else ""
        return f"conv_b{self.batch}_{self.size}_{self.channels}_{self.filters}_{self.window}x{self.window}{stride}"

    @property
    def padding(self) -> int:
        """Zeros around the image."""
        return self.window // 2

    @property
    def places(self) -> int:
        """Height and width of the result."""
        return (self.size + 2 * self.padding - self.window) // self.stride + 1

    @property
    def rows(self) -> int:
        """Elements of one channel of the result."""
        return self.batch * self.places**2

    @property
    def is_product(self) -> bool:
        """Whether packager takes it as a matrix product."""
        return self.window == self.stride == 1

    @property
    def nbytes(self) -> int:
        """Bytes of its operands and its result."""
        weight = self.filters * self.window**2 * self.channels
        return ITEMSIZE * (self.batch * self.size**2 * self.channels + weight + self.rows * self.filters)


Problem = Product | Attention | Conv

WIDTHS = ((768, 768), (3072, 768), (768, 3072), (4096, 4096), (11008, 4096), (4096, 11008))  # N, K
BATCHED = (
    # The two products of attention, as they are without a kernel for all of it.
    *((12, 128, 128, 64), (96, 128, 128, 64), (96, 128, 64, 128), (384, 512, 512, 64), (384, 512, 64, 512)),
    *((32, 256, 256, 256), (16, 1024, 1024, 1024), (4, 2048, 2048, 2048)),
)
# Size of the image, channels, filters, window, stride: each convolution of ResNet-50 once.
LAYERS = (
    (224, 3, 64, 7, 2),
    *((56, 64, 64, 1, 1), (56, 64, 64, 3, 1), (56, 64, 256, 1, 1), (56, 256, 64, 1, 1)),
    *((56, 256, 128, 1, 1), (56, 128, 128, 3, 2), (56, 256, 512, 1, 2)),
    *((28, 128, 512, 1, 1), (28, 512, 128, 1, 1), (28, 128, 128, 3, 1)),
    *((28, 512, 256, 1, 1), (28, 256, 256, 3, 2), (28, 512, 1024, 1, 2)),
    *((14, 256, 1024, 1, 1), (14, 1024, 256, 1, 1), (14, 256, 256, 3, 1)),
    *((14, 1024, 512, 1, 1), (14, 512, 512, 3, 2), (14, 1024, 2048, 1, 2)),
    *((7, 512, 2048, 1, 1), (7, 2048, 512, 1, 1), (7, 512, 512, 3, 1)),
)
SETS: dict[str, tuple[Problem, ...]] = {
    "gemm": (
        *(Product(m, n, k) for n, k in WIDTHS for m in (1, 16, 128, 2048, 8192)),
        *(Product(m, n, k, batch) for batch, m, n, k in BATCHED),
    ),
    "attention": (Attention(8, 12, 128, 64), Attention(32, 12, 512, 64), Attention(4, 16, 2048, 128)),
    "conv": tuple(Conv(batch, *layer) for batch in (1, 8, 32) for layer in LAYERS),
}


def select(sets: Sequence[str], only: str) -> list[Problem]:
    """Return the problems of these sets (of all, where none is named) whose names fit a pattern of ``only``.

    Patterns are the shell's, with commas between them. Raises ValueError if nothing is left.
    """
    patterns = [pattern for pattern in only.split(",") if pattern]
    found = [problem for name in sets or SETS for problem in SETS[name]]
    if patterns:
        found = [problem for problem in found if any(fnmatchcase(problem.name, pattern) for pattern in patterns)]
    if not found:
        raise ValueError(f"no problem of {', '.join(sets or SETS)} is named {only}")
    return found
