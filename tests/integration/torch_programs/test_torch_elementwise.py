"""Elementwise operators of torch.export programs: promoted types, edge cases, half precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.torch_programs import check

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
F = torch.nn.functional
INF, NAN = float("inf"), float("nan")


def test_activations_with_their_parameters(tmp_path: Path) -> None:
    def forward(x: Any) -> Any:
        return (
            F.elu(x, 2.0),
            F.celu(x, 0.5),
            F.selu(x),
            torch.ops.aten.elu(x, 1.5, 2.0, 0.5),
            F.rrelu(x, 0.2, 0.6),
            F.leaky_relu(x, 0.3),
            F.hardtanh(x, -0.5, 0.7),
            F.softplus(x, 2, 1),
            F.softshrink(x, 0.3),
            F.threshold(x, 0.1, 2.0),
            F.logsigmoid(x),
        )

    x = torch.randn(3, 7) * 3
    check(
        lambda x: (*forward(x), F.elu(x.half(), 0.5), F.selu(x.half()), F.softplus(x.half())),
        (x,),
        tmp_path,
        tolerance=3e-3,
    )


def test_quotients_and_remainders(tmp_path: Path) -> None:
    """Floats are divided as Python divides them: 1.0 // 0.1 is 9."""

    def forward(x: Any, y: Any, i: Any) -> Any:
        j = i + 20
        return (
            *(x // 0.1, x // -0.1, x // 2, torch.floor_divide(x, y)),
            *(x % 0.1, x % -2, torch.remainder(x, INF), torch.remainder(x, y), torch.fmod(x, y)),
            *(i // -3, i // 0.3, i % 3, i % -3, torch.fmod(i, -4), torch.fmod(i, j), torch.remainder(i, 1.5)),
            *(torch.div(i, 2, rounding_mode="trunc"), torch.div(i, -j, rounding_mode="trunc")),
        )

    x = torch.tensor([1.0, 0.3, -0.7, 0, 5])
    check(forward, (x, torch.tensor([0.1, 0.1, 0.3, -2, -0.5]), torch.tensor([-9, -1, 0, 4, 7])), tmp_path)


def test_integers_and_bits(tmp_path: Path) -> None:
    def forward(i: Any, x: Any, flags: Any) -> Any:
        small = i.to(torch.uint8)
        return (
            *(i << 2, i >> 1, i >> 70, i.int() << 40, small >> 2, i << i.abs(), torch.bitwise_left_shift(1, i.abs())),
            *(i & 3, i.__and__(5), i | 1, i.__xor__(3), ~i, i**3, i**0, i.abs() ** (i.abs() % 5)),
            *(flags == flags.mT, flags != flags.mT, flags < flags.mT),
            *(flags * flags.mT, flags + flags.mT, torch.maximum(flags, flags.mT), torch.minimum(flags, flags.mT)),
            *(x.view(torch.int32), x.view(torch.uint8), x.view(torch.float64), x.half().view(torch.int16)),
            x.view(torch.uint8).view(torch.int16),
        )

    flags = torch.tensor([[True, False, True]] * 3)
    check(forward, (torch.randint(-9, 9, (4, 6)), torch.randn(4, 6), flags), tmp_path)


def test_signs_and_unordered_numbers(tmp_path: Path) -> None:
    def forward(x: Any, y: Any, i: Any) -> Any:
        return (
            *(torch.signbit(x), torch.copysign(x, y), torch.copysign(x, -0.0), torch.copysign(i, y), torch.angle(x)),
            *(torch.fmin(x, y), torch.fmax(x, y), torch.fmax(i, 2 - i), torch.angle(i)),
            *(torch.hypot(x, y), torch.hypot(x.half(), y.half()), torch.hypot(x.double(), y)),
            *(torch.logaddexp(x, y), torch.logaddexp2(x, y), torch.logaddexp(x.half(), y.half())),
            *(~(x > 0), torch.logical_not(x <= 0), ~torch.isfinite(x), ~torch.isnan(x), x == x, ~(x == x), x != x),  # noqa: PLR0124  (of NaN)
            *(*torch.frexp(x), *torch.frexp(x.half()), *torch.frexp(x.double()), torch.ldexp(x, i)),
        )

    x = torch.tensor([3.0, NAN, -0.0, 1e30, INF, -INF, -2.5, 1e-40])
    y = torch.tensor([NAN, 2.0, 0.0, 1e30, INF, -INF, 4.0, -1.0])
    check(forward, (x, y, torch.arange(8) - 3), tmp_path, tolerance=2e-3)


def test_special_functions(tmp_path: Path) -> None:
    special = torch.special

    def forward(x: Any, i: Any) -> Any:
        return (
            *(torch.lgamma(x), torch.digamma(x), torch.polygamma(1, x), torch.polygamma(2, x), torch.lgamma(i)),
            *(torch.erfinv(x / 31), torch.erfc(x), special.erfcx(x), special.ndtri(x.sigmoid()), special.log_ndtr(x)),
            *(
                torch.i0(x),
                special.i1(x),
                special.i0e(x),
                special.i1e(x),
                special.entr(x),
                torch.exp2(x),
                torch.exp2(i),
            ),
            *(i.log2(), i.log10(), i.log1p(), i.expm1(), i.reciprocal(), torch.atan2(i, x)),
            torch.lgamma(x.half()),
        )

    x = torch.tensor([0.1, 2.3, -1.7, 6.2, 30.0, -7.25, 0.999])
    check(forward, (x, torch.arange(1, 8)), tmp_path, tolerance=2e-5)
