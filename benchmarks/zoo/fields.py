"""Functions of places: implicit images and scenes, and the flow between two images."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from benchmarks.zoo.entry import Inputs, noise, own


class Sine(nn.Module):
    """A layer of SIREN (arXiv:2006.09661)."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, out]."""
        return torch.sin(30 * self.linear(x))


def siren() -> nn.Module:
    """Return an image as a function of places."""
    return nn.Sequential(Sine(2, 128), Sine(128, 128), Sine(128, 128), nn.Linear(128, 3))


class Nerf(nn.Module):
    """A scene as a function of places along rays (arXiv:2003.08934), without directions, half as deep."""

    def __init__(self, width: int = 128, waves: int = 10) -> None:
        super().__init__()
        self.register_buffer("waves", 2.0 ** torch.arange(waves))
        features = 3 * (1 + 2 * waves)
        hidden = [nn.Linear(features, width), nn.ReLU()]
        hidden += [layer for _ in range(3) for layer in (nn.Linear(width, width), nn.ReLU())]
        self.first = nn.Sequential(*hidden)
        self.last = nn.Sequential(nn.Linear(width + features, width), nn.ReLU(), nn.Linear(width, 4))

    def forward(self, places: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        """Return the colors of rays: [rays, 3], of places [rays, samples, 3] and steps between them."""
        angles = (places[..., None] * self.waves).flatten(-2)
        encoded = torch.cat([places, angles.sin(), angles.cos()], -1)
        result = self.last(torch.cat([self.first(encoded), encoded], -1))
        opacity = 1 - torch.exp(-torch.relu(result[..., 3]) * steps)
        passed = torch.exp(torch.cumsum(torch.log(1 - opacity + 1e-6), 1)) / (1 - opacity + 1e-6)
        return ((opacity * passed)[..., None] * torch.sigmoid(result[..., :3])).sum(1)


class Flow(nn.Module):
    """One level of PWC-Net (arXiv:1709.02371): correlation, warping, and correlation once more."""

    def __init__(self, reach: int = 4) -> None:
        super().__init__()
        self.reach = reach
        layers = [nn.Conv2d(3, 32, 3, 2, 1), nn.LeakyReLU(0.1), nn.Conv2d(32, 64, 3, 2, 1), nn.LeakyReLU(0.1)]
        self.features = nn.Sequential(*layers)
        costs = (2 * reach + 1) ** 2
        self.estimate = nn.Sequential(
            nn.Conv2d(costs + 64, 96, 3, padding=1), nn.LeakyReLU(0.1), nn.Conv2d(96, 2, 3, padding=1)
        )

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Return [n, 2, h / 4, w / 4]."""
        a, b = self.features(first), self.features(second)
        flow = self.estimate(torch.cat([self.costs(a, b), a], 1))
        ys, xs = (torch.linspace(-1, 1, extent, dtype=a.dtype, device=a.device) for extent in a.shape[2:])
        grid = torch.stack([xs.expand(len(ys), -1), ys[:, None].expand(-1, len(xs))], -1)[None]
        warped = functional.grid_sample(b, grid + flow.permute(0, 2, 3, 1) * 0.05, align_corners=True)
        return flow + self.estimate(torch.cat([self.costs(a, warped), a], 1))

    def costs(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Return the correlations of each place with those around it."""
        height, width = a.shape[2:]
        reach, steps = self.reach, range(2 * self.reach + 1)
        padded = functional.pad(b, (reach,) * 4)
        return torch.stack([(a * padded[:, :, i : i + height, j : j + width]).mean(1) for i in steps for j in steps], 1)


class Update(nn.Module):
    """An update of RAFT (arXiv:2003.12039): products of all pixels, read around a flow, and two recurrent steps."""

    def __init__(self, width: int = 64, reach: int = 3) -> None:
        super().__init__()
        side = 2 * reach + 1
        self.motion, self.last = nn.Conv2d(2 * side**2, width, 1), nn.Conv2d(width, 2, 3, padding=1)
        self.gates = nn.ModuleList(
            nn.Conv2d(width * 5 // 2, width, kernel, padding=padding)
            for kernel, padding in (((1, 5), (0, 2)), ((5, 1), (2, 0)))
            for _ in range(3)
        )
        steps = torch.arange(-reach, reach + 1.0)
        self.register_buffer("around", torch.stack(torch.meshgrid(steps, steps, indexing="xy"), -1)[None])

    def forward(
        self, first: torch.Tensor, second: torch.Tensor, hidden: torch.Tensor, context: torch.Tensor, at: torch.Tensor
    ) -> torch.Tensor:
        """Return [n, 2, h, w]; ``at`` is where each pixel went, [n, 2, h, w]."""
        n, channels, height, width = first.shape
        products = first.flatten(2).transpose(1, 2) @ second.flatten(2) * channels**-0.5
        volume, found = products.reshape(-1, 1, height, width), []
        whole = torch.tensor([2 / (width - 1), 2 / (height - 1)], dtype=at.dtype, device=at.device)
        for level in range(2):
            places = (at.permute(0, 2, 3, 1).reshape(-1, 1, 1, 2) / 2**level + self.around) * whole - 1
            read = functional.grid_sample(volume, places.to(volume.dtype), align_corners=True)
            found.append(read.view(n, height, width, -1).permute(0, 3, 1, 2))
            volume = functional.avg_pool2d(volume, 2)
        motion = torch.cat([context, torch.relu(self.motion(torch.cat(found, 1)))], 1)
        for step in (self.gates[:3], self.gates[3:]):
            update, reset = (torch.sigmoid(gate(torch.cat([hidden, motion], 1))) for gate in step[:2])
            new = torch.tanh(step[2](torch.cat([reset * hidden, motion], 1)))
            hidden = (1 - update) * hidden + update * new
        return self.last(hidden)


def _flow() -> Inputs:
    images = {name: noise(1, 64, 24, 32) for name in ("first", "second", "hidden")}
    return images | {"context": noise(1, 32, 24, 32), "at": torch.rand(1, 2, 24, 32) * 20}


def _rays() -> Inputs:
    return {"places": torch.rand(64, 32, 3), "steps": torch.rand(64, 32)}


FIELDS = [
    own("siren", "fields", siren, lambda: {"places": torch.rand(1024, 2)}),
    own("nerf", "fields", Nerf, _rays),
    own("pwcnet", "flow", Flow, lambda: {"first": noise(1, 3, 96, 128), "second": noise(1, 3, 96, 128)}),
    own("raft", "flow", Update, _flow),
]
