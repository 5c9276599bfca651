"""Linear algebra, distances and quantization of torch.export programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packager
from packager.errors import UnsupportedOperatorsError
from tests.torch_programs import check

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
F, linalg = torch.nn.functional, torch.linalg
INF = float("inf")


def test_small_matrices_are_solved(tmp_path: Path) -> None:
    def forward(a: Any, b: Any, v: Any) -> Any:
        square = a @ a.mT + torch.eye(3)
        factor = linalg.cholesky(square)
        return (
            *(linalg.det(a), *linalg.slogdet(a), torch.logdet(square), linalg.det(a * 0)),
            *(linalg.inv(a), linalg.solve(a, b), linalg.solve(a, v), linalg.solve(a, b.mT, left=False)),
            *(
                factor,
                linalg.cholesky(square, upper=True),
                torch.cholesky_solve(b, factor),
                torch.cholesky_inverse(factor),
            ),
            *(linalg.solve_triangular(square, b, upper=False), linalg.solve(a[0], v[0]), linalg.matrix_norm(a)),
            linalg.solve_triangular(square[0], b[0].mT, upper=True, left=False, unitriangular=True),
        )

    torch.manual_seed(0)
    given = (torch.randn(2, 3, 3), torch.randn(2, 3, 2), torch.randn(2, 3))
    check(forward, given, tmp_path, tolerance=2e-3)


def test_distances_and_products(tmp_path: Path) -> None:
    def forward(x: Any, y: Any, w: Any, i: Any) -> Any:
        near = [torch.cdist(x, y, p=p) for p in (0, 0.5, 1, 2, 3, INF)]
        return (
            *(*near, torch.cdist(x, y, compute_mode="use_mm_for_euclid_dist"), torch.cdist(x, y[0])),
            *(torch.pdist(y[0], 1), torch.pdist(y[0]), torch.pdist(y[0], INF), F.pairwise_distance(x, x + 1, p=1)),
            *(F.bilinear(x[0], y[0, :3], w, w[:, 0, 0]), torch.addmv(x[0, :, 0], x[0], w[0, 0], beta=0.5, alpha=2)),
            torch._int_mm(i, i.mT.contiguous()),
        )

    numbers = torch.randint(-128, 128, (32, 16), dtype=torch.int8)
    check(
        forward, (torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 4, 4), numbers), tmp_path, tolerance=1e-3
    )


def test_simulated_and_exported_quantization(tmp_path: Path) -> None:
    import torch.ao.quantization.fx._decomposed as decomposed  # registers the operators

    tensor, channel = torch.fake_quantize_per_tensor_affine, torch.fake_quantize_per_channel_affine
    integers = torch.ops.quantized_decomposed

    def forward(x: Any, scale: Any, zero: Any, weight: Any) -> Any:
        activations = (0.05, 3, -128, 127, torch.int8)
        rows = (torch.full((5,), 0.02), torch.zeros(5, dtype=torch.int64), 0, -127, 127, torch.int8)
        data = integers.dequantize_per_tensor(integers.quantize_per_tensor(x, *activations), *activations)
        return (
            *(tensor(x, 0.1, 3, 0, 255), tensor(x, scale[0], zero[0], -128, 127), tensor(x, 0.001, 3, -32768, 32767)),
            *(tensor(x.half(), 0.1, 3, 0, 15), tensor(x, 0.1, 3, 0, 15), channel(x, scale, zero, 1, -127, 127)),
            F.linear(data, integers.dequantize_per_channel(weight, *rows)),
        )

    assert decomposed is not None
    weight = torch.randint(-127, 127, (5, 6), dtype=torch.int8)
    scale, zero = torch.rand(6) * 0.1 + 0.01, torch.zeros(6, dtype=torch.int32)
    check(forward, (torch.randn(4, 6), scale, zero, weight), tmp_path, tolerance=1e-4)


@pytest.mark.parametrize(
    ("forward", "operator", "hint"),
    [
        (torch.rand_like, "rand_like.default", "random numbers"),
        (lambda x: linalg.inv(x @ x.mT), "linalg_inv_ex.default", "replace"),
        (linalg.svdvals, "_linalg_svd.default", "replace"),
        (lambda x: torch.gcd(x.int(), x.int()), "gcd.default", "replace"),
        (lambda x: torch.ops.tests_of_packager.relu(x + 1), "tests_of_packager::relu.default", "replace"),
    ],
)
def test_other_operators_are_refused_by_name(forward: Any, operator: str, hint: str, tmp_path: Path) -> None:
    """Those of other libraries too, whatever they are called."""

    @torch.library.custom_op("tests_of_packager::relu", mutates_args=())
    def relu(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    relu.register_fake(torch.empty_like)

    class Module(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return forward(x)

    program = torch.export.export(Module(), (torch.from_numpy(np.ones((40, 41), np.float32)),))
    torch.export.save(program, tmp_path / "m.pt2")
    with pytest.raises(UnsupportedOperatorsError) as raised:
        packager.build(tmp_path / "m.pt2", tmp_path / "m.so", targets=["llvm"])
    assert list(raised.value.operators) == [operator]
    assert hint in str(raised.value.hint)
