"""Time series, tables and recommendation."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional

from benchmarks.zoo.entry import noise, own, tokens


class Tcn(nn.Module):
    """Causal dilated convolutions (arXiv:1803.01271), six residual blocks over 400 steps."""

    def __init__(self, channels: int = 16, width: int = 64) -> None:
        super().__init__()
        self.enter = nn.Conv1d(channels, width, 1)
        self.convs = nn.ModuleList(nn.Conv1d(width, width, 3, dilation=2**i) for i in range(6))
        self.last = nn.Linear(width, 24)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        """Return [n, 24]."""
        x = self.enter(series)
        for index, conv in enumerate(self.convs):
            x = x + torch.relu(conv(functional.pad(x, (2 * 2**index, 0))))
        return self.last(x[:, :, -1])


class NBeats(nn.Module):
    """Stacked perceptrons that explain a series and its future (arXiv:1905.10437)."""

    def __init__(self, past: int = 96, future: int = 24, width: int = 256) -> None:
        super().__init__()
        self.past, self.future = past, future

        def layers() -> nn.Sequential:
            first, second = nn.Linear(past, width), nn.Linear(width, width)
            return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(width, past + future))

        self.blocks = nn.ModuleList(layers() for _ in range(6))

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        """Return [n, future]."""
        total = torch.zeros(())
        for block in self.blocks:
            back, ahead = block(series).split([self.past, self.future], 1)
            series, total = series - back, total + ahead
        return total


class DeepAr(nn.Module):
    """An LSTM of two layers that predicts mean and deviation of each step (arXiv:1704.04110)."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.last = nn.LSTM(8, 64, 2, batch_first=True), nn.Linear(64, 2)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        """Return [n, steps, 2]."""
        hidden, _ = self.net(series)
        mean, deviation = self.last(hidden).chunk(2, -1)
        return torch.cat([mean, functional.softplus(deviation)], -1)


class Patches(nn.Module):
    """A transformer over patches of each series (arXiv:2211.14730), normalized by its own mean and deviation."""

    def __init__(self, past: int = 512, future: int = 96, patch: int = 16, width: int = 128) -> None:
        super().__init__()
        self.patch, count = patch, past // patch
        self.embed, self.places = nn.Linear(patch, width), nn.Parameter(torch.randn(count, width))
        layer = nn.TransformerEncoderLayer(width, 16, 256, dropout=0.0, batch_first=True, activation="gelu")
        self.body = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(count * width, future)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        """Return [n, future, channels]; ``series`` is [n, past, channels]."""
        rows = series.transpose(1, 2)
        mean = rows.mean(2, keepdim=True)
        deviation = torch.sqrt(((rows - mean) ** 2).mean(2, keepdim=True) + 1e-5)
        patches = ((rows - mean) / deviation).unflatten(2, (-1, self.patch))
        hidden = self.body((self.embed(patches) + self.places).flatten(0, 1)).unflatten(0, rows.shape[:2])
        return (self.head(hidden.flatten(2)) * deviation + mean).transpose(1, 2)


class Gates(nn.Module):
    """Selection of variables and an LSTM as in temporal fusion transformers (arXiv:1912.09363), gates everywhere."""

    def __init__(self, variables: int = 8, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.ModuleList(nn.Linear(1, width) for _ in range(variables))
        self.weigh, self.lstm = nn.Linear(variables * width, variables), nn.LSTM(width, width, batch_first=True)
        self.attend, self.gate = nn.MultiheadAttention(width, 4, batch_first=True), nn.Linear(width, 2 * width)
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        """Return three quantiles, [n, steps, 3]."""
        parts = [embed(series[..., i : i + 1]) for i, embed in enumerate(self.embed)]
        weights = self.weigh(torch.cat(parts, -1)).softmax(-1)
        mixed = (torch.stack(parts, -1) * weights[..., None, :]).sum(-1)
        hidden = self.norm(mixed + functional.glu(self.gate(self.lstm(mixed)[0]), -1))
        return self.last(hidden + self.attend(hidden, hidden, hidden, need_weights=False)[0])


class Forecaster(nn.Module):
    """Two LSTM layers of 256 columns over a batch of 32 series, as services forecast them."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.last = nn.LSTM(32, 256, 2, batch_first=True), nn.Linear(256, 1)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        """Return [n, 1]."""
        return self.last(self.net(series)[0][:, -1])


class Dlrm(nn.Module):
    """Recommendation by products of embeddings (arXiv:1906.00091), 64 rows."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU())
        self.tables = nn.ModuleList(nn.Embedding(1000, 64) for _ in range(26))
        self.top = nn.Sequential(nn.Linear(64 + 351, 256), nn.ReLU(), nn.Linear(256, 1))
        self.register_buffer("pairs", torch.tril_indices(27, 27, -1))

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Return [n, 1]."""
        bottom = self.bottom(dense)
        rows = torch.stack([bottom, *(table(ids[:, i]) for i, table in enumerate(self.tables))], 1)
        products = (rows @ rows.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.top(torch.cat([bottom, products], 1)))


class DeepFm(nn.Module):
    """Factorization machine and perceptron (arXiv:1703.04247), 64 rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.embed = nn.Embedding(5000, 1), nn.Embedding(5000, 16)
        self.deep = nn.Sequential(nn.Linear(39 * 16, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return [n, 1]."""
        rows = self.embed(ids)
        crossed = (rows.sum(1) ** 2 - (rows**2).sum(1)).sum(1, keepdim=True) / 2
        return torch.sigmoid(self.first(ids).sum(1) + crossed + self.deep(rows.flatten(1)))


class Interest(nn.Module):
    """Deep interest network (arXiv:1706.06978): a history of 100 items weighed by their likeness to a candidate."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(5000, width)
        self.weigh = nn.Sequential(nn.Linear(4 * width, 80), nn.PReLU(), nn.Linear(80, 1))
        self.top = nn.Sequential(nn.Linear(2 * width, 200), nn.PReLU(), nn.Linear(200, 1))

    def forward(self, history: torch.Tensor, candidate: torch.Tensor) -> torch.Tensor:
        """Return [n, 1]."""
        items, wanted = self.embed(history), self.embed(candidate)
        other = wanted[:, None].expand_as(items)
        scores = self.weigh(torch.cat([items, other, items - other, items * other], -1))
        weights = scores.masked_fill((history == 0)[..., None], -1e9).softmax(1)
        return torch.sigmoid(self.top(torch.cat([(weights * items).sum(1), wanted], -1)))


class Crossed(nn.Module):
    """Cross layers of DCN (arXiv:2008.13535) and outer products of fields (arXiv:1803.05170), 64 rows."""

    def __init__(self, fields: int = 20, width: int = 16) -> None:
        super().__init__()
        self.embed, size = nn.Embedding(10000, width), fields * width
        self.layers = nn.ModuleList(nn.Linear(size, size) for _ in range(3))
        self.compress = nn.ModuleList(nn.Conv1d(fields * count, 32, 1) for count in (fields, 32))
        self.last = nn.Linear(size + 64, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return [n, 1]."""
        rows = self.embed(ids)
        flat = crossed = rows.flatten(1)
        for layer in self.layers:
            crossed = flat * layer(crossed) + crossed
        sums, hidden = [crossed], rows
        for compress in self.compress:
            outer = torch.einsum("bmd,bnd->bmnd", rows, hidden).flatten(1, 2)
            hidden = torch.relu(compress(outer))
            sums.append(hidden.sum(2))
        return self.last(torch.cat(sums, 1))


class Tabular(nn.Module):
    """A transformer over the features of a row (arXiv:2106.11959), 16 rows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(32, 64)), nn.Parameter(torch.randn(32, 64))
        layer = nn.TransformerEncoderLayer(64, 8, 256, dropout=0.0, batch_first=True, norm_first=True)
        self.body, self.last = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(64, 1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [n, 1]."""
        return self.last(self.body(rows[:, :, None] * self.weight + self.bias).mean(1))


class Splines(nn.Module):
    """A layer of a Kolmogorov-Arnold network (arXiv:2404.19756): cubic splines of each input."""

    def __init__(self, width: int, out: int, pieces: int = 8) -> None:
        super().__init__()
        self.register_buffer("knots", torch.linspace(-2.2, 2.2, pieces + 7))
        self.weight = nn.Parameter(torch.randn(out, width * (pieces + 3)) * 0.1)
        self.base = nn.Linear(width, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, out]."""
        at, knots = x[..., None], self.knots
        basis = ((at >= knots[:-1]) & (at < knots[1:])).to(x.dtype)
        for degree in range(1, 4):
            rising = (at - knots[: -degree - 1]) / (knots[degree:-1] - knots[: -degree - 1])
            falling = (knots[degree + 1 :] - at) / (knots[degree + 1 :] - knots[1:-degree])
            basis = rising * basis[..., :-1] + falling * basis[..., 1:]
        return self.base(nn.functional.silu(x)) + nn.functional.linear(basis.flatten(-2), self.weight)


def autoencoder() -> nn.Module:
    """Return an autoencoder of machine sounds, 32 rows."""
    sizes = (640, 128, 128, 128, 8, 128, 128, 128, 640)
    layers = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in itertools.pairwise(sizes[:-1])]
    return nn.Sequential(*layers, nn.Linear(128, 640))


SERIES = [
    own("tcn", "time series", Tcn, lambda: {"series": noise(1, 16, 400)}),
    own("nbeats", "time series", NBeats, lambda: {"series": noise(16, 96)}),
    own("deepar", "time series", DeepAr, lambda: {"series": noise(4, 96, 8)}),
    own("patchtst", "time series", Patches, lambda: {"series": noise(1, 512, 7)}),
    own("tft", "time series", Gates, lambda: {"series": noise(1, 168, 8)}),
    own("lstm_batch", "time series", Forecaster, lambda: {"series": noise(32, 60, 32)}),
    own("din", "recommendation", Interest, lambda: {"history": tokens(16, 100), "candidate": tokens(16)}),
    own("dcn", "recommendation", Crossed, lambda: {"ids": tokens(64, 20, below=10000)}),
    own("dlrm", "recommendation", Dlrm, lambda: {"dense": noise(64, 13), "ids": tokens(64, 26)}),
    own("deepfm", "recommendation", DeepFm, lambda: {"ids": tokens(64, 39)}),
    own("ft_transformer", "tables", Tabular, lambda: {"rows": noise(16, 32)}),
    own("autoencoder", "tables", autoencoder, lambda: {"rows": noise(32, 640)}),
    own("kan", "tables", lambda: nn.Sequential(Splines(32, 64), Splines(64, 64), Splines(64, 10)),
        lambda: {"rows": noise(32, 32)}),
]  # fmt: skip
