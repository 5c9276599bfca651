"""Nets that iterate: routing, slots, integration, couplings, an inverse, the farthest points."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from benchmarks.zoo.entry import noise, own


class Capsules(nn.Module):
    """Capsules (arXiv:1710.09829): capsules of 8 numbers of an image's places, routed by agreement to ten of 16."""

    def __init__(self, classes: int = 10, rounds: int = 3) -> None:
        super().__init__()
        self.rounds = rounds
        self.enter, self.primary = nn.Conv2d(1, 256, 9), nn.Conv2d(256, 256, 9, 2)
        self.weights = nn.Parameter(torch.randn(1152, classes, 8, 16) * 0.05)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the lengths [n, classes]."""
        x = self.primary(functional.relu(self.enter(x)))
        votes = torch.einsum("nip,icpq->nicq", squash(x.reshape(len(x), 8, -1).transpose(1, 2)), self.weights)
        logits = torch.zeros_like(votes[..., 0])
        for _ in range(self.rounds):
            found = squash((logits.softmax(2)[..., None] * votes).sum(1))
            logits = logits + (votes * found[:, None]).sum(-1)
        return found.square().sum(-1).sqrt()


def squash(x: torch.Tensor) -> torch.Tensor:
    """Scale vectors of the last axis to lengths below 1."""
    squares = x.square().sum(-1, keepdim=True)
    return x * (squares / (1 + squares) * (squares + 1e-7).rsqrt())


class Slots(nn.Module):
    """Slot attention (arXiv:2006.15055): slots compete for pixels, and a GRU cell updates them, three times."""

    def __init__(self, width: int = 64, slots: int = 8, rounds: int = 3) -> None:
        super().__init__()
        self.rounds, self.scale = rounds, width**-0.5
        self.slots = nn.Parameter(torch.randn(1, slots, width))
        self.k, self.v, self.q = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.inputs, self.before, self.after = (nn.LayerNorm(width) for _ in range(3))
        self.cell = nn.GRUCell(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the slots [n, slots, width]."""
        x = self.inputs(x)
        k, v = self.k(x), self.v(x)
        slots = self.slots.expand(len(x), -1, -1)
        for _ in range(self.rounds):
            weights = (self.q(self.before(slots)) @ k.transpose(1, 2) * self.scale).softmax(1) + 1e-8
            updates = weights / weights.sum(-1, keepdim=True) @ v
            slots = self.cell(updates.flatten(0, 1), slots.flatten(0, 1)).view_as(slots)
            slots = slots + self.mlp(self.after(slots))
        return slots


class Integrated(nn.Module):
    """A neural ODE (arXiv:1806.07366): an MLP integrated over eight steps of Runge and Kutta's fourth order."""

    def __init__(self, width: int = 64, steps: int = 8) -> None:
        super().__init__()
        self.steps = steps
        first, second, third = nn.Linear(width, 128), nn.Linear(128, 128), nn.Linear(128, width)
        self.slope = nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), third)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, width] at time 1."""
        h = 1 / self.steps
        for _ in range(self.steps):
            a = self.slope(x)
            b = self.slope(x + h / 2 * a)
            c = self.slope(x + h / 2 * b)
            d = self.slope(x + h * c)
            x = x + h / 6 * (a + 2 * b + 2 * c + d)
        return x


class Couplings(nn.Module):
    """RealNVP (arXiv:1605.08803): affine couplings of alternating halves, and the logarithm of the determinant."""

    def __init__(self, width: int = 64, layers: int = 8) -> None:
        super().__init__()
        half = width // 2
        nets = (nn.Sequential(nn.Linear(half, 256), nn.ReLU(), nn.Linear(256, width)) for _ in range(layers))
        self.nets = nn.ModuleList(nets)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, width + 1]: the image, then the logarithm."""
        left, right = x.chunk(2, -1)
        total = torch.zeros_like(x[:, :1])
        for net in self.nets:
            scale, shift = net(left).chunk(2, -1)
            scale = scale.tanh()
            left, right = right * scale.exp() + shift, left
            total = total + scale.sum(-1, keepdim=True)
        return torch.cat([left, right, total], -1)


class Nystrom(nn.Module):
    """A layer of Nystromformer (arXiv:2102.03902): softmaxes through landmarks, and an iterated inverse of theirs."""

    def __init__(self, width: int = 256, heads: int = 4, landmarks: int = 64) -> None:
        super().__init__()
        self.heads, self.landmarks = heads, landmarks
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.local = nn.Conv2d(heads, heads, (33, 1), padding=(16, 0), groups=heads, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, length, width]."""
        n, length, width = x.shape
        depth = width // self.heads
        q, k, v = self.qkv(self.norm(x)).view(n, length, 3, self.heads, depth).permute(2, 0, 3, 1, 4)
        q = q * depth**-0.5
        few_q, few_k = (each.unflatten(2, (self.landmarks, -1)).mean(3) for each in (q, k))
        first = (q @ few_k.transpose(2, 3)).softmax(-1)
        middle = (few_q @ few_k.transpose(2, 3)).softmax(-1)
        last = (few_q @ k.transpose(2, 3)).softmax(-1)
        one = torch.eye(self.landmarks, dtype=x.dtype, device=x.device)
        inverse = middle.transpose(2, 3) / middle.sum(2).amax((1, 2), keepdim=True)[..., None]
        for _ in range(6):
            product = middle @ inverse
            inverse = 0.25 * inverse @ (13 * one - product @ (15 * one - product @ (7 * one - product)))
        mixed = first @ inverse @ (last @ v) + self.local(v)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


class Abstraction(nn.Module):
    """A level of PointNet++ (arXiv:1706.02413): 32 farthest points, the 16 nearest of each, an MLP and a maximum."""

    def __init__(self, points: int = 32, near: int = 16) -> None:
        super().__init__()
        self.points, self.near = points, near
        first, second, third = nn.Linear(6, 64), nn.Linear(64, 64), nn.Linear(64, 128)
        self.mlp = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third, nn.ReLU())
        self.last = nn.Linear(128, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, 40]."""
        n = len(x)
        far = torch.full_like(x[..., 0], 1e4)
        at = torch.zeros(n, 1, dtype=torch.int64, device=x.device)
        centers = []
        for _ in range(self.points):
            centers.append(x.gather(1, at[..., None].expand(-1, -1, 3)))
            far = torch.minimum(far, (x - centers[-1]).square().sum(-1))
            at = far.argmax(-1, keepdim=True)
        center = torch.cat(centers, 1)
        distances = (center[:, :, None] - x[:, None]).square().sum(-1)
        index = distances.topk(self.near, largest=False)[1].flatten(1)
        near = x.gather(1, index[..., None].expand(-1, -1, 3)).view(n, self.points, self.near, 3)
        wide = center[:, :, None].expand_as(near)
        return self.last(self.mlp(torch.cat([near - wide, wide], -1)).amax((1, 2)))


ITERATIONS = [
    own("capsules", "iterations", Capsules, lambda: {"x": noise(1, 1, 28, 28)}),
    own("slot_attention", "iterations", Slots, lambda: {"x": noise(1, 1024, 64)}),
    own("neural_ode", "iterations", Integrated, lambda: {"x": noise(32, 64)}),
    own("real_nvp", "iterations", Couplings, lambda: {"x": noise(32, 64)}),
    own("nystromformer", "iterations", Nystrom, lambda: {"x": noise(1, 1024, 256)}),
    own("set_abstraction", "iterations", Abstraction, lambda: {"x": noise(1, 1024, 3)}),
]
