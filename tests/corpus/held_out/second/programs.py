"""Modules whose export needs run-time control flow and sizes: loops, branches, lists, masks, non-maximum suppression.

``torch.jit.script`` keeps loops and branches as such, which the exporter writes as Loop, If and sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ...case import Bounds, Model, Sizes, noise, tokens

DIMS: dict[str, Bounds] = {"batch": (1, 4), "time": (1, 12)}
SIZES: tuple[Sizes, ...] = ({"batch": 1, "time": 1}, {"batch": 2, "time": 7}, {"batch": 4, "time": 12})
TIME = {0: "batch", 1: "time"}


class Cell(nn.Module):
    """A minimal gated unit: torch's own cells cannot be exported from a script."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.gate, self.new = nn.Linear(inputs + size, size), nn.Linear(inputs + size, size)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        both = torch.cat([x, h], 1)
        gate = torch.sigmoid(self.gate(both))
        return gate * h + (1.0 - gate) * torch.tanh(self.new(both))


class Steps(nn.Module):
    """A cell that is called for each step of a loop, whose results are gathered in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = Cell(6, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(x.size(0), 8)
        found: list[torch.Tensor] = []
        for step in range(x.size(1)):
            h = self.cell(x[:, step], h)
            found.append(h)
        return torch.stack(found, 1)


class Branches(nn.Module):
    """Another path by a value of the data, and another by the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 8), nn.Linear(6, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.one(x) if bool(x.sum() > 0) else torch.relu(self.two(x)) * 2
        if x.size(0) > 1:
            y = y - y.mean(0, keepdim=True)
        return y


class Greedy(nn.Module):
    """Decode until the end token or a limit: a loop whose list of tokens grows."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.cell, self.last = nn.Embedding(16, 8), Cell(8, 8), nn.Linear(8, 16)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        token = torch.zeros(h.size(0), dtype=torch.long)
        found = token.unsqueeze(1)
        step = 0
        while step < 9 and bool((token != 3).any()):
            h = self.cell(self.embedding(token), h)
            token = self.last(h).argmax(-1)
            found = torch.cat([found, token.unsqueeze(1)], 1)
            step += 1
        return found


class Chunks(nn.Module):
    """Split a sequence into a list, change each part, and join the list from behind."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = torch.split(x, [2, 3, 1], 2)
        whole = [torch.cumsum(part, 1) * number for number, part in enumerate(parts)]
        whole.reverse()
        return self.layer(torch.cat(whole, 2))


class Noisy(nn.Module):
    """Random walks: noise in each step of a loop whose length the input says."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x[:, 0]
        for step in range(x.size(1)):
            y = 0.5 * y + torch.randn_like(y) + x[:, step]
        return y


class Diffusion(nn.Module):
    """A sampler: some steps of denoising, with fresh noise in each but the last."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(7, 16), nn.SiLU(), nn.Linear(16, 6))

    def forward(self, x: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        count = int(steps)
        for step in range(count):
            level = 1.0 - step / 8.0
            time = torch.full([x.size(0), 1], level)
            x = x - 0.2 * self.net(torch.cat([x, time], 1))
            if step < count - 1:
                x = x + 0.1 * torch.randn_like(x)
        return x


class Detections(nn.Module):
    """Boxes above a threshold: a mask as an index, and a sort by score."""

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.boxes = nn.Linear(6, 1), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.scores(x).squeeze(-1).sigmoid()
        kept = scores > 0.5
        scores, boxes = scores[kept], self.boxes(x)[kept]
        order = scores.argsort(descending=True)
        return scores[order], boxes[order]


class Routed(nn.Module):
    """A mixture of experts by index: each expert sees the rows that chose it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, 6)
        weight, chosen = self.gate(flat).softmax(-1).topk(2, -1)
        result = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            row, place = torch.where(chosen == number)
            result.index_add_(0, row, expert(flat[row]) * weight[row, place].unsqueeze(-1))
        return result.view_as(x)


class Regulator(nn.Module):
    """FastSpeech's length regulator: repeat each token by a duration that the data say."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.length, self.last = nn.Embedding(100, 8), nn.Linear(8, 1), nn.Linear(8, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(ids)
        counts = torch.clamp(torch.round(torch.exp(self.length(hidden).squeeze(-1))), 1, 4).long()
        ends = counts.cumsum(1)
        frames = torch.arange(ends[:, -1].max())
        path = (frames[None, :, None] < ends[:, None, :]) & (frames[None, :, None] >= (ends - counts)[:, None, :])
        return self.last(path.float() @ hidden)


class Pooled(nn.Module):
    """Mean over the tokens that a mask keeps, and the rows of the last of them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(100, 8), nn.Linear(16, 3)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden, weight = self.embedding(ids), mask.unsqueeze(-1).float()
        mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-6)
        at = mask.sum(1) - 1
        return self.last(torch.cat([mean, hidden[torch.arange(ids.size(0)), at]], 1))


class Squeezed(nn.Module):
    """Squeezes of axes that only a run knows to be 1: sizes that come from data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.nonzero(x.sum((1, 2)) == x.sum((1, 2)).max()).squeeze(1)
        return x[rows[:1]].squeeze(0)


class Statistics(nn.Module):
    """Histograms, quantiles and order: one-hot counts, a median, cumulative maxima."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, _ = x.sort(1)
        middle = values[:, x.size(1) // 2]
        codes = ((x.clamp(-2, 2) + 2) * 2).long()
        counts = functional.one_hot(codes, 10).sum(1)
        return middle, counts, x.cumsum(1).tanh()


def program(
    name: str,
    make: Callable[[], nn.Module],
    inputs: dict[str, torch.Tensor],
    outputs: dict[str, Any],
    scripted: bool = False,
    **options: Any,
) -> Model:
    """Return a module whose first input has a dynamic batch and time."""
    given = {"dims": DIMS, "sizes": SIZES, "axes": {next(iter(inputs)): TIME}, **options}
    exporters = ("torchscript",) if scripted else ("torchscript", "dynamo")
    return Model(
        name,
        _scripted(make) if scripted else lambda: make().eval(),
        inputs,
        outputs,
        **{"exporters": exporters, **given},
    )


def _scripted(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def scripted() -> nn.Module:
        torch.manual_seed(0)
        return torch.jit.script(make().eval())

    return scripted


SERIES = noise(2, 7, 6)
BATCH = {0: "batch"}
PROGRAMS = [
    program("scripted_steps", Steps, {"x": SERIES}, {"y": TIME}, scripted=True),
    program("scripted_steps_13", Steps, {"x": SERIES}, {"y": TIME}, scripted=True, opset=13),
    program("scripted_branches", Branches, {"x": SERIES}, {"y": TIME}, scripted=True),
    program(
        "scripted_greedy",
        Greedy,
        {"h": noise(2, 8)},
        {"tokens": {0: "batch", 1: "found"}},
        scripted=True,
        axes={"h": BATCH},
        dims={"batch": (1, 4), "state_0": (1, 16)},  # nothing in the file bounds the list of tokens
        sizes=({"batch": 1}, {"batch": 2}, {"batch": 4}),
    ),
    program("scripted_noise", Noisy, {"x": SERIES}, {"y": BATCH}, scripted=True, random=True),
    program(
        "scripted_diffusion",
        Diffusion,
        {"x": noise(2, 6), "steps": torch.tensor(5)},
        {"y": BATCH},
        scripted=True,
        random=True,
        axes={"x": BATCH},
        dims={"batch": (1, 4)},
        sizes=({"batch": 1}, {"batch": 2}, {"batch": 4}),
    ),
    program("scripted_chunks", Chunks, {"x": SERIES}, {"y": TIME}, scripted=True),
    program("chunks_11", Chunks, {"x": SERIES}, {"y": TIME}, opset=11, exporters=("torchscript",)),
    program("chunks_20", Chunks, {"x": SERIES}, {"y": TIME}, opset=20, dynamo_opset=20),
    program("detections", Detections, {"x": SERIES}, {"scores": {0: "kept"}, "boxes": {0: "kept"}}),
    program("routed", Routed, {"x": SERIES}, {"y": TIME}, exporters=("torchscript",)),
    program("routed_11", Routed, {"x": SERIES}, {"y": TIME}, exporters=("torchscript",), opset=11),
    program(
        "regulator",
        Regulator,
        {"ids": tokens(2, 7)},
        {"y": {0: "batch", 1: "frames"}},
        exporters=("torchscript",),
        dims={**DIMS, "reducemax_0": (1, 48)},
    ),
    program(
        "pooled",
        Pooled,
        {"ids": tokens(2, 7), "mask": torch.ones(2, 7, dtype=torch.long)},
        {"y": BATCH},
        axes={"ids": TIME, "mask": TIME},
        dynamo_opset=23,
    ),
    program("squeezed", Squeezed, {"x": SERIES}, {"y": {0: "time"}}, exporters=("torchscript",)),
    program("scripted_squeezed", Squeezed, {"x": SERIES}, {"y": {0: "time"}}, scripted=True),
    program("statistics", Statistics, {"x": noise(2, 7)}, {"middle": BATCH, "counts": BATCH, "sums": TIME}),
]
