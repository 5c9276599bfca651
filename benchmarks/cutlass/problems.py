"""List the problems of the benchmarks fp16 and int8: products, attentions and convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.cutlass.block_products import BlockProduct
from benchmarks.cutlass.convolutions import Conv, Stem
from benchmarks.cutlass.forms import HALF, SIZES, Form, name_of
from benchmarks.harness.gpu import matches


@dataclass(frozen=True)
class Product:
    """[m, k] times weights [n, k]; or, with a batch, [batch, m, k] times [batch, k, n].

    ``family`` is that of its kernels, as packager takes them by default; ``series`` the group of its figures, if not
    that of all such products.
    """

    m: int
    n: int
    k: int
    form: Form = HALF
    family: str = ""
    batch: int = 0
    series: str = ""

    @property
    def group(self) -> str:
        """The group that its figures are summarized with; empty: its set."""
        return self.series if self.series else "" if self.form != HALF else "bmm" if self.batch else "linear"

    @property
    def name(self) -> str:
        """The name in files and options."""
        batch = f"{self.batch}x" if self.batch else ""
        return name_of(f"{self.group or 'gemm'}_{batch}{self.m}x{self.n}x{self.k}", self.form, self.family)

    @property
    def nbytes(self) -> int:
        """Bytes of operands and result."""
        operands = SIZES[self.form.dtype] * (self.m * self.k + self.n * self.k)
        return max(1, self.batch) * (operands + SIZES[self.form.out] * self.m * self.n)


@dataclass(frozen=True)
class Attention:
    """softmax(q k^T / sqrt(depth)) v.

    Of one tensor [batch, length, 3, heads, depth]; or, with ``shared`` heads of keys and values, of q [batch, heads,
    queries, depth] and of k and v [batch, shared, length, depth], as caches are. ``filled`` keys of a cache are not
    masked; 0: there is no mask. Those of the group ``tiles`` are solved by all kernels that there may be.
    """

    batch: int
    heads: int
    length: int
    depth: int
    shared: int = 0
    queries: int = 0
    causal: bool = False
    filled: int = 0
    group: str = "attention"

    form = HALF

    @property
    def rows(self) -> int:
        """Queries of a head."""
        return self.queries or self.length

    @property
    def name(self) -> str:
        """The name in files and options."""
        parts = [f"{self.group}_{self.batch}x{self.heads}x{self.length}x{self.depth}"]
        parts += [f"g{self.heads // self.shared}"] if self.shared else []
        parts += [f"q{self.queries}"] if self.queries else []
        return "_".join(parts + ["causal"] * self.causal + [f"m{self.filled}"] * bool(self.filled))

    @property
    def nbytes(self) -> int:
        """Bytes of operands and result."""
        rows = 2 * self.heads * self.rows + 2 * (self.shared or self.heads) * self.length
        return SIZES["float16"] * self.batch * rows * self.depth


Problem = Product | Attention | Conv | BlockProduct


_WIDTHS = ((768, 768), (3072, 768), (768, 3072), (4096, 4096), (11008, 4096), (4096, 11008))  # N, K
_BATCHED = (
    # The two products of attention, as they are without a kernel for all of it.
    *((12, 128, 128, 64), (96, 128, 128, 64), (96, 128, 64, 128), (384, 512, 512, 64), (384, 512, 64, 512)),
    *((32, 256, 256, 256), (16, 1024, 1024, 1024), (4, 2048, 2048, 2048)),
)
# N, K of the layers of Llama 3.2 1B with products merged, and of Llama 2 7B; bits, block and zero points.
_LAYERS_OF_LLAMA = (
    *((2048, 2048), (3072, 2048), (16384, 2048), (2048, 8192), (32000, 2048)),
    *((4096, 4096), (22016, 4096), (4096, 11008)),
)
_MANY = ((2048, 2048), (16384, 2048), (4096, 4096), (22016, 4096), (4096, 11008))
# N, K of layers of BERT, Llama 3.2 1B, Llama 2 7B and the zoo's small models, q, k and v merged, gate and up too; to
# which the cost model is fitted.
_FITTED = (
    *((384, 384), (1152, 384), (3072, 384), (384, 1536), (768, 768), (2304, 768), (3072, 768), (768, 3072)),
    *((2048, 2048), (8192, 2048), (2048, 8192)),
    *((4096, 4096), (6144, 4096), (11008, 4096), (22016, 4096), (4096, 11008)),
)
# And of other models, which it is not fitted to: BERT-large, ModernBERT, DeepFM, Llama 3, Llama 2 13B.
_HELD_OUT = (
    *((1024, 1024), (3072, 1024), (4096, 1024), (1024, 4096), (768, 1152), (1536, 384), (400, 624)),
    *((3072, 2048), (16384, 2048), (14336, 4096), (28672, 4096), (4096, 14336), (5120, 5120), (5120, 13824)),
)
# Of Whisper large, ViT-g and Qwen2 7B: measured once all was fitted.
_OTHERS = (
    *((1280, 1280), (3840, 1280), (5120, 1280), (1280, 5120), (1536, 1536), (4608, 1536), (8192, 1536), (1536, 4096)),
    *((3584, 3584), (4608, 3584), (18944, 3584), (37888, 3584), (3584, 18944)),
)
_OTHER_ROWS = ((80, 257, 1500), (128, 224, 2056), (64, 448, 1028))
_HELD_OUT_ROWS = ((64, 192, 512, 2048), (96, 256, 384), (128, 320, 1024))
_FORMATS = ((4, 64, False), (4, 32, True), (4, 128, True), (8, 32, False), (8, 128, True))
# Size of the image, channels, filters, window, stride: each convolution of ResNet-50 once.
_LAYERS = (
    (224, 3, 64, 7, 2),
    *((56, 64, 64, 1, 1), (56, 64, 64, 3, 1), (56, 64, 256, 1, 1), (56, 256, 64, 1, 1)),
    *((56, 256, 128, 1, 1), (56, 128, 128, 3, 2), (56, 256, 512, 1, 2)),
    *((28, 128, 512, 1, 1), (28, 512, 128, 1, 1), (28, 128, 128, 3, 1)),
    *((28, 512, 256, 1, 1), (28, 256, 256, 3, 2), (28, 512, 1024, 1, 2)),
    *((14, 256, 1024, 1, 1), (14, 1024, 256, 1, 1), (14, 256, 256, 3, 1)),
    *((14, 1024, 512, 1, 1), (14, 512, 512, 3, 2), (14, 1024, 2048, 1, 2)),
    *((7, 512, 2048, 1, 1), (7, 2048, 512, 1, 1), (7, 512, 512, 3, 1)),
)
PROMPT = Attention(1, 32, 2048, 128, shared=8, causal=True, group="heads")
STEP = Attention(1, 32, 2048, 64, shared=8, queries=1, group="decode")
# Batch first: Stable Diffusion's U-Net and its decoder, VGG, a U-Net of segmentation.
_WIDE = (
    *((2, 64, 320, 320, 3, 1), (2, 64, 960, 320, 3, 1), (2, 64, 320, 320, 3, 2), (2, 32, 640, 640, 3, 1)),
    *((2, 16, 1280, 1280, 3, 1), (2, 8, 1280, 1280, 3, 1), (1, 64, 512, 512, 3, 1), (1, 128, 256, 256, 3, 1)),
    *((8, 128, 64, 64, 3, 1), (8, 64, 128, 128, 3, 1), (16, 56, 256, 256, 3, 1), (16, 28, 512, 512, 3, 1)),
    *((1, 96, 160, 192, 3, 1), (4, 40, 192, 384, 5, 1), (8, 128, 32, 32, 3, 1), (16, 80, 16, 16, 3, 1)),
    # DenseNet, ESRGAN, YOLO, EfficientNet.
    *((16, 56, 128, 32, 3, 1), (16, 28, 128, 32, 3, 1), (16, 14, 128, 32, 3, 1), (8, 64, 96, 32, 3, 1)),
    *((8, 64, 160, 32, 3, 1), (16, 80, 32, 64, 3, 2), (16, 40, 48, 96, 3, 1), (16, 14, 96, 208, 3, 1)),
)
# The first layers of ResNet, VGG and MobileNet, in the form of _LAYERS.
_STEMS = ((224, 3, 64, 7, 2), (224, 3, 64, 3, 1), (224, 3, 32, 3, 2))
# Batch, image, channels, window, stride and groups: ResNeXt-50, RegNetX-800MF and RegNetY-8GF, ShuffleNet.
_GROUPS = (
    *((16, 56, 128, 3, 1, 32), (16, 56, 256, 3, 2, 32), (16, 28, 256, 3, 1, 32), (16, 14, 512, 3, 1, 32)),
    *((16, 7, 1024, 3, 1, 32), (1, 56, 128, 3, 1, 32), (1, 14, 512, 3, 1, 32), (16, 28, 128, 3, 1, 8)),
    *((16, 14, 288, 3, 1, 18), (16, 14, 896, 3, 1, 16), (16, 7, 2016, 3, 1, 9), (16, 28, 240, 1, 1, 3)),
)
FP16: dict[str, tuple[Problem, ...]] = {
    "gemm": (
        *(Product(m, n, k) for n, k in _WIDTHS for m in (1, 16, 128, 2048, 8192)),
        *(Product(m, n, k, batch=batch) for batch, m, n, k in _BATCHED),
    ),
    "rows": tuple(
        Product(m, n, k, series="rows")
        for n, k in _FITTED
        for m in ((128, 1024) if k < 768 or n < 768 else (64, 128, 256, 512, 2048))
    ),
    "rows_held_out": tuple(
        Product(m, n, k, series="rows_held_out")
        for index, (n, k) in enumerate(_HELD_OUT)
        for m in _HELD_OUT_ROWS[index % len(_HELD_OUT_ROWS)]
    ),
    "rows_of_others": tuple(
        Product(m, n, k, series="rows_of_others")
        for index, (n, k) in enumerate(_OTHERS)
        for m in _OTHER_ROWS[index % len(_OTHER_ROWS)]
    ),
    "attention": (Attention(8, 12, 128, 64), Attention(32, 12, 512, 64), Attention(4, 16, 2048, 128)),
    # Prompts of Llama, Stable Diffusion's self-attention, and other heads.
    "heads": (
        *(replace(PROMPT, length=length) for length in (128, 512, 2048)),
        *(replace(PROMPT, length=1024, depth=64, shared=shared) for shared in (1, 8)),
        *(Attention(2, 8, 4096, depth, group="heads") for depth in (32, 40, 48, 64, 80, 96, 160, 256)),
    ),
    # By more tiles than packager chooses from.
    "tiles": tuple(Attention(2, 8, 4096, depth, group="tiles") for depth in (40, 64, 80, 160, 256)),
    "decode": (
        *(replace(STEP, filled=filled) for filled in (0, 700, 2048)),
        replace(STEP, depth=128, filled=2000),
        *(replace(STEP, queries=queries) for queries in (4, 16)),
        *(replace(STEP, length=8192, depth=128, shared=shared) for shared in (1, 8, 32)),
        replace(STEP, length=65536, depth=128),
        *(replace(STEP, batch=batch, length=4096, depth=128) for batch in (8, 32)),
        replace(STEP, batch=8, heads=16, length=4096, depth=256),
        replace(STEP, batch=8, heads=12, length=1024, shared=12, queries=16),
    ),
    "blocks": (
        *(BlockProduct(m, n, k) for n, k in _LAYERS_OF_LLAMA for m in (1, 16)),
        *(BlockProduct(m, 4096, 4096, *kind) for kind in _FORMATS for m in (1, 5, 16)),
        *(BlockProduct(1, 11008, 4096, *kind) for kind in _FORMATS),
    ),
    "many_blocks": (
        *(BlockProduct(m, n, k) for n, k in _MANY for m in (17, 32, 48, 64, 96, 128, 512, 2048)),
        *(BlockProduct(m, 4096, 4096, *kind) for kind in _FORMATS[2:] for m in (32, 64, 512)),
    ),
    "block_forms": tuple(
        BlockProduct(m, 1040, 2048, bits, block, zeros)
        for m in (1, 16, 17, 32, 128, 512, 2048)
        for bits in (4, 8)
        for block in (32, 128)
        for zeros in (False, True)
    ),
    "conv": tuple(Conv(batch, *layer) for batch in (1, 8, 32) for layer in _LAYERS),
    "conv_wide": tuple(Conv(*sizes) for sizes in _WIDE),
    "groups": tuple(
        Conv(batch, size, channels, channels, window, stride, groups=groups)
        for batch, size, channels, window, stride, groups in _GROUPS
    ),
    "stem": (
        *(Stem(batch, *layer) for batch in (1, 8, 32) for layer in _STEMS),
        *(Stem(*sizes) for sizes in ((16, 80, 16, 16, 3, 1), (8, 128, 32, 32, 3, 1), (8, 112, 8, 8, 11, 1))),
    ),
}
_FP8 = Form("float8_e4m3fn", "float16", offset=False)
_UINT8 = Form("uint8", "uint8", zero=100)
_FLOAT_FORMS = (Form(out="float16", activation="gelu"), Form(out="float32", rows=False), Form(out="bfloat16"))
_SIZES = [(m, n, k) for m in (16, 128, 2048, 8192) for n, k in _WIDTHS[:4]]
INT8: dict[str, tuple[Problem, ...]] = {
    "forms": (
        Product(200, 96, 128, Form()),
        Product(200, 96, 128, Form(zero=-7, low=-7.0)),
        Product(200, 96, 128, Form(rows=False)),
        Product(200, 96, 128, Form(residual=True)),
        Product(200, 96, 128, Form(out="int32")),
        Product(3, 96, 128, Form(out="float16")),
        Product(200, 96, 128, Form(out="float16", rows=False)),
        Product(200, 96, 128, _UINT8),
        *(Product(77, n, k, Form(), "sm80") for n, k in ((96, 128), (40, 72), (20, 36), (10, 30), (7, 33))),
        Product(77, 96, 128, Form("uint8", "uint8", zero=100, residual=True), "sm80"),
        Product(77, 1000, 512, Form(out="int32"), "sm80"),
        *(Product(77, 1000, 512, form, "sm80") for form in _FLOAT_FORMS),
        Conv(2, 14, 64, 96, 3, 1, Form()),
        Conv(2, 15, 64, 96, 3, 2, Form(zero=-7, low=-7.0)),
        Conv(2, 14, 64, 96, 3, 1, _UINT8, "sm80"),
        Conv(2, 14, 64, 96, 3, 1, Form(residual=True), "sm80"),
        Conv(2, 17, 3, 20, 7, 2, Form(), "sm80"),
        Conv(2, 17, 24, 20, 3, 1, Form(out="float32"), "sm80"),
    ),
    "fp8_forms": (
        Product(200, 96, 128, _FP8),
        Product(200, 96, 128, Form("float8_e4m3fn", "float8_e4m3fn", offset=False)),
        Product(200, 96, 128, Form("float8_e4m3fn", "float16", rows=False, offset=False)),
    ),
    "gemm": tuple(Product(*sizes, Form(low=0.0)) for sizes in _SIZES),
    "fp8": tuple(Product(*sizes, _FP8) for sizes in _SIZES),
    "conv": tuple(
        Conv(batch, size, channels, channels, 3, 1, Form(low=0.0))
        for batch in (1, 32)
        for size, channels in ((56, 64), (28, 128), (14, 256), (7, 512))
    ),
}
CHECKS = ("forms", "fp8_forms", "block_forms")
"""The sets that are not timed."""


def select(
    sets: Mapping[str, Sequence[Problem]], names: Sequence[str] = (), only: str = ""
) -> list[tuple[str, Problem]]:
    """Return the problems of the named sets (default: all) whose names match ``only``, each with its set.

    Raises ValueError if nothing is left.
    """
    chosen = [(name, problem) for name in names or sets for problem in sets[name]]
    found = [entry for entry in chosen if matches(entry[1].name, only)]
    if not found:
        raise ValueError(f"no problem of {', '.join(names or sets)} matches {only!r}")
    return found
