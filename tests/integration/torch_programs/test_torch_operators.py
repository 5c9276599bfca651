"""Operators of torch.export programs through the whole of packager, against torch: many in one bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packager
from packager.errors import UnsupportedOperatorsError
from tests.one_cpu import targets_here
from tests.torch_programs import check

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
F = torch.nn.functional


def test_element_types_follow_torch(tmp_path: Path) -> None:
    def forward(x: Any, i: Any) -> Any:
        flags = i > 1
        return (
            torch.add(x, i, alpha=3),
            torch.rsub(x, i, alpha=2),
            i / 2,
            i // 2,
            torch.div(x, 0.7, rounding_mode="trunc"),
            torch.remainder(i, -3),
            x * flags,
            i.mean(dtype=torch.float32),
            flags.sum(-1),
            torch.where(flags, x, 2),
            i.to(torch.bool) ^ flags,
            i.clamp(min=-1),
            x.var(1),
            x.std(0, correction=0),
            x.amax(1, keepdim=True),
            x.max(1).indices,
            i.cumsum(1),
            torch.linalg.vector_norm(x, dim=1),
            (x > 0.5).any(1),
            torch.sqrt(i.abs()),
            2**x,
        )

    check(forward, (torch.randn(3, 5), torch.randint(-4, 5, (3, 5))), tmp_path)


def test_views_of_dynamic_extents(tmp_path: Path) -> None:
    def forward(x: Any, places: Any) -> Any:
        n = x.shape[0]
        return (
            x[1:, -3:].flatten(),
            x[-1],
            x.unsqueeze(1).expand(-1, 2, -1).reshape(2 * n, -1),
            torch.cat([torch.tensor([]), x, x.new_ones(2, 6)]),
            x.repeat(2, 1, 2),
            torch.arange(n, 2 * n) * 2,
            x[places],
            x[places, places + 1],
            F.pad(x, (1, -2, 0, 3), value=0.5),
            torch.stack(x.split([2, 4], 1)[::-1][:1]),
            x / n,
        )

    n = torch.export.Dim("n", min=3, max=9)
    places = torch.tensor([0, -2, 1])
    other = (torch.randn(7, 6), torch.tensor([2, -1, 0]))
    check(forward, (torch.randn(4, 6), places), tmp_path, ({0: n}, {}), (other,))


def test_attention_of_rows_that_see_nothing(tmp_path: Path) -> None:
    def forward(q: Any, k: Any, keep: Any, bias: Any) -> Any:
        grouped = F.scaled_dot_product_attention(q, k[:, :1], k[:, :1], enable_gqa=True, scale=0.3)
        return (
            F.scaled_dot_product_attention(q, k, k, attn_mask=keep),
            F.scaled_dot_product_attention(q, k, k, attn_mask=bias),
            F.scaled_dot_product_attention(q, k, k, is_causal=True),
            grouped,
        )

    keep = torch.tensor([[True, False, True, False], [False] * 4, [True] * 4])
    bias = torch.zeros(3, 4).masked_fill(~keep, -torch.inf)
    check(forward, (torch.randn(1, 2, 3, 8), torch.randn(1, 2, 4, 8), keep, bias), tmp_path)


def test_images(tmp_path: Path) -> None:
    def forward(x: Any) -> Any:
        return (
            F.interpolate(x, size=(9, 7), mode="bilinear"),
            F.interpolate(x, size=(9, 7), mode="bilinear", align_corners=True),
            F.interpolate(x, size=(11, 7), mode="nearest"),
            F.interpolate(x, size=(9, 7), mode="bicubic"),
            F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
            F.avg_pool2d(x, 3, 2, 1),
            F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            F.avg_pool2d(x, 64, ceil_mode=True),
            F.group_norm(x, 2),
            F.instance_norm(x),
        )

    check(forward, (torch.randn(2, 4, 6, 5),), tmp_path)


@pytest.mark.parametrize("tracked", [False, True], ids=["of each image", "of what was trained on"])
def test_instance_norms(tracked: bool, tmp_path: Path) -> None:
    """Of several images, with symbolic numbers of them; with running statistics it is a batch norm."""
    scale, shift, mean, variance = (torch.rand(4) + 0.5 for _ in range(4))

    def forward(x: Any) -> Any:
        running = (mean, variance) if tracked else (None, None)
        return (F.instance_norm(x, *running, scale, shift, use_input_stats=not tracked),)

    check(
        forward,
        (torch.randn(3, 4, 6, 5),),
        tmp_path,
        ({0: torch.export.Dim("n", max=8)},),
        [(torch.randn(2, 4, 6, 5),)],
    )


def test_sampling_by_grids(tmp_path: Path) -> None:
    """The grid has its coordinates last; the second image is a volume."""

    def forward(x: Any, grid: Any, volume: Any, places: Any) -> Any:
        return (
            F.grid_sample(x, grid, align_corners=False),
            F.grid_sample(x, grid, mode="bicubic", padding_mode="reflection", align_corners=True),
            F.grid_sample(volume, places, padding_mode="border", align_corners=False),
        )

    grids = (torch.rand(2, 20, 9, 2) * 3 - 1.5, torch.rand(2, 3, 4, 5, 3) * 3 - 1.5)
    check(forward, (torch.randn(2, 10, 9, 7), grids[0], torch.randn(2, 3, 4, 6, 5), grids[1]), tmp_path)


@pytest.mark.parametrize(
    ("module", "error", "words"),
    [
        (torch.nn.Dropout(), UnsupportedOperatorsError, "not supported"),
        (torch.nn.FractionalMaxPool2d(2, 3), UnsupportedOperatorsError, "not supported"),
    ],
)
def test_what_would_be_wrong_is_refused(module: Any, error: Any, words: str, tmp_path: Path) -> None:
    torch.export.save(torch.export.export(module, (torch.randn(1, 2, 5, 5),)), tmp_path / "m.pt2")
    with pytest.raises(error, match=words):
        packager.build(tmp_path / "m.pt2", tmp_path / "m.so", targets=targets_here())


def test_squares_of_half_precision_are_summed_in_float32(tmp_path: Path) -> None:
    """Of 300 they are infinite in half precision."""

    def forward(x: Any) -> Any:
        norm = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        return norm, x.var(1), x.std(0, correction=0), F.normalize(x, dim=1)

    given = 300 + 20 * torch.randn(4, 33)
    for dtype in (torch.float16, torch.float32):
        check(forward, (given.to(dtype),), tmp_path, tolerance=1e-5 if dtype is torch.float32 else 5e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_convolutions(dtype: Any, tmp_path: Path) -> None:
    """Of one to three dimensions, transposed ones too; in half precision the sums are of float32."""
    w, k, b = (torch.randn(*shape).to(dtype) for shape in ((6, 2, 3), (16, 6, 3), (4,)))
    u, v = torch.randn(6, 4, 4, 3).to(dtype), torch.randn(6, 2, 3, 2, 2).to(dtype)

    def forward(x: Any, y: Any, z: Any) -> Any:
        up = F.conv_transpose2d(y, u, b, stride=(2, 3), padding=1, output_padding=(1, 0), dilation=(1, 2))
        volume = F.conv_transpose3d(z, v, stride=2, groups=3)
        lines = F.conv1d(x, w, stride=2, padding=1, groups=3), F.conv1d(x, k, None, 2, 3, 2)
        return *lines, up, volume, F.conv_transpose1d(x, w, None, 2, 1, 1, 3)

    inputs = [torch.randn(2, 6, *extents).to(dtype) for extents in ((9,), (4, 5), (3, 2, 4))]
    check(forward, tuple(inputs), tmp_path, tolerance=1e-5 if dtype is torch.float32 else 1e-2)


@pytest.mark.parametrize("targets", [["llvm"], ["llvm", "ccompiler"]])
def test_recurrent_layers_are_loops(targets: list[str], tmp_path: Path) -> None:
    """Stacked layers of two directions, states given and returned."""
    lstm = torch.nn.LSTM(6, 5, 2, bidirectional=True, batch_first=True)
    gru, rnn = torch.nn.GRU(10, 7, bias=False), torch.nn.RNN(7, 3, nonlinearity="relu")

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.gru, self.rnn = lstm, gru, rnn

        def forward(self, x: Any, h: Any, c: Any) -> Any:
            y, (h, c) = self.lstm(x, (h, c))
            z, last = self.gru(y.transpose(0, 1))
            return y, h, c, self.rnn(z)[0], last

    net = Net().eval()
    inputs = (torch.randn(3, 9, 6), torch.randn(4, 3, 5), torch.randn(4, 3, 5))
    torch.export.save(torch.export.export(net, inputs), tmp_path / "m.pt2")
    with packager.load(packager.build(tmp_path / "m.pt2", tmp_path / "m.so", targets=targets)) as bundle:
        results = bundle(*(tensor.numpy() for tensor in inputs)).values()
        for result, wanted in zip(results, net(*inputs), strict=True):
            np.testing.assert_allclose(result, wanted.detach().numpy(), 1e-5, 1e-5)
