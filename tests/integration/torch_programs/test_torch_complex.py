"""Complex numbers and Fourier transforms in torch.export programs, through the whole of packager, against torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packager
from packager.errors import ModelError
from tests.one_cpu import targets_here
from tests.torch_programs import check

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
F = torch.nn.functional


def real(*numbers: Any) -> list[Any]:
    return [torch.view_as_real(z.resolve_conj()) for z in numbers]


def test_arithmetic_of_complex_numbers(tmp_path: Path) -> None:
    def forward(x: Any, y: Any) -> Any:
        a, b = torch.complex(x, y), torch.complex(y, x[0])
        return (
            *real(a * b, a / b, a + b[:, :1], y - a * 2j, a / 2, 1 / a, a * (1 + 2j), -a, x * b, x[:, :1] + b[0]),
            *real(torch.sub(a, x, alpha=2), torch.rsub(a, y, alpha=3), torch.polar(x.abs(), y)),
            *real(a.exp(), a.log(), a.sqrt(), a**2, a**-2, a.conj()),
            *real(a @ b.mH, torch.einsum("ij,kj->ik", a, b), F.linear(a, b, b[:, 0])),
            *(a.abs(), a.angle(), x.angle(), a.imag, a == b, a != b),
        )

    check(forward, (torch.randn(4, 6), torch.randn(4, 6)), tmp_path, tolerance=2e-5)


def test_complex_numbers_are_moved(tmp_path: Path) -> None:
    """The leading extent is symbolic."""

    def forward(x: Any, y: Any) -> Any:
        a, b = torch.complex(x, y), torch.complex(y, x)
        written = a.clone()
        written[:, 1:3] = b[:, :2]
        written[:, 4:] = b[:, 2:4]
        written[:, 0] = b[:, 5]
        return (
            *real(
                written,
                a.transpose(0, 1).reshape(-1)[1::2],
                torch.cat([a, b], 1),
                torch.stack([a, b]),
                a.sum(1),
                a.mean(1),
            ),
            *real(F.pad(a, (1, 2)), a[torch.tensor([0, 2])], a.chunk(2, 1)[1], a.unbind(1)[2], a.cumsum(1)),
            *real(torch.where(x > 0, a, b), a.flip(0), a.roll(1, 1), a.expand(2, -1, -1), a.repeat(2, 1), a[0, 1]),
            *real(torch.ones(2, 2, dtype=torch.complex64) * a[0, 0], x.to(torch.complex64)),
        )

    n = torch.export.Dim("n", min=3, max=9)
    others = [(torch.randn(7, 6), torch.randn(7, 6))]
    check(forward, (torch.randn(4, 6), torch.randn(4, 6)), tmp_path, ({0: n}, {0: n}), others)


def test_fourier_transforms(tmp_path: Path) -> None:
    def forward(x: Any, y: Any, image: Any) -> Any:
        z, fft = torch.complex(x, y), torch.fft
        pixels = torch.complex(image, image.flip(2))
        return (
            *real(fft.rfft(x), fft.rfft(x, n=5, norm="forward"), fft.fft(x, n=8, dim=0, norm="ortho"), fft.fft(z)),
            *real(fft.ifft(z, norm="forward"), fft.ihfft(x), fft.fft(x.double()), fft.fftshift(fft.fft(z))),
            *(fft.irfft(z), fft.irfft(z, n=7, norm="ortho"), fft.hfft(z)),
            *real(fft.rfft2(image, norm="ortho"), fft.fftn(image, dim=(1, 3)), fft.ifft2(pixels)),
            *(fft.irfft2(fft.rfft2(image), s=(8, 9)), fft.irfftn(pixels, dim=(1, 2, 3), norm="forward")),
        )

    shapes = ((4, 6), (4, 6), (2, 3, 8, 9))
    check(forward, tuple(torch.randn(*shape) for shape in shapes), tmp_path, tolerance=5e-5)


def test_short_time_fourier_transforms(tmp_path: Path) -> None:
    def forward(x: Any) -> Any:
        window = torch.hann_window(8)
        spectrum = torch.stft(x, 8, 4, window=window, return_complex=True)
        short = torch.stft(x[0], 8, win_length=6, window=torch.ones(6), onesided=False, return_complex=True)
        return (
            *real(spectrum, short),
            torch.stft(x, 8, 2, window=window, center=False, normalized=True, return_complex=True).abs(),
            torch.istft(spectrum, 8, 4, window=window, length=30),
        )

    check(forward, (torch.randn(2, 32),), tmp_path)


class Rotary(torch.nn.Module):
    """Turns queries as Llama does, by complex frequencies: a buffer, a parameter and a literal."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(16.0), 100 ** -torch.arange(0, 1, 0.25))
        self.register_buffer("frequencies", torch.polar(torch.ones_like(angles), angles))
        self.gain = torch.nn.Parameter(torch.tensor([1 + 1j, 2, 3j, 0.5]))

    def forward(self, x: Any) -> Any:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        turned = pairs * self.frequencies[: x.shape[1], None] * self.gain * torch.tensor([1j, 1, -1, 2])
        return torch.view_as_real(turned).flatten(3).type_as(x)


def test_rotary_embedding_by_complex_buffers(tmp_path: Path) -> None:
    """Buffers are overridden by complex numbers, as the program has them."""
    module, x = Rotary(), torch.randn(2, 5, 3, 8)
    dims = {1: torch.export.Dim("length", min=2, max=16)}
    torch.export.save(torch.export.export(module, (x,), dynamic_shapes=(dims,)), tmp_path / "m.pt2")
    other = torch.randn(16, 4, dtype=torch.complex64)
    np.savez(tmp_path / "other.npz", frequencies=other.numpy())
    for file in (None, tmp_path / "other.npz"):
        path = packager.build(tmp_path / "m.pt2", tmp_path / "m.so", targets=targets_here(), constants=file)
        module.frequencies = module.frequencies if file is None else other
        with packager.load(path) as bundle:
            for given in (x, torch.randn(2, 9, 3, 8)):
                (result,) = bundle(given.numpy()).values()
                np.testing.assert_allclose(result, module(given).detach().numpy(), 1e-5, 1e-5)


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (torch.fft.rfft, "output"),
        (lambda x: torch.fft.rfft(x).cosh().abs(), "cosh.default"),
        (lambda x: F.pad(torch.fft.rfft(x), (1, 1), value=1.0).abs(), "constant_pad_nd"),
    ],
)
def test_what_complex_numbers_cannot_do_is_refused(forward: Any, words: str, tmp_path: Path) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return forward(x)

    torch.export.save(torch.export.export(Module(), (torch.randn(4, 6),)), tmp_path / "m.pt2")
    with pytest.raises(ModelError, match=words) as error:
        packager.build(tmp_path / "m.pt2", tmp_path / "m.so", targets=targets_here())
    assert "view_as_real" in str(error.value.hint)
