"""A step of a Llama decoder whose cache of fixed size is states, beside torch with such a cache, compiled, in a graph.

    python -m benchmarks.gpu.decoder build -o build/decoder [--only 'llama*']            packager[build,cutlass], torch
    python -m benchmarks.gpu.decoder run build/decoder -o decoder.json                   where the GPU and torch are

Shapes are those of Llama 3.2 1B with fewer layers and words (https://arxiv.org/abs/2407.21783), weights random and half
precision. ``run`` decodes ``CHECKED`` tokens and compares logits with torch in float32, then times a step at the last
position, where all of the cache is read. A share is that of the bandwidth of a copy, measured in the same run, at which
all weights and the filled cache would be read once.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import packager
from benchmarks.gpu.cublas_torch import device_outputs, in_turns
from benchmarks.gpu.quantized_weights import BYTES, Packed, pack_weights, round_weights
from benchmarks.gpu.torch_models import captured, repeat_weights
from benchmarks.harness.gpu import header, matches, obey, two_commands, worse

CHECKED = 24
TARGETS = ("cutlass -candidates=1",)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of a decoder. ``shared`` heads of keys and values; ``rows`` tokens a step; ``int4``: weights in blocks."""

    layers: int = 8
    hidden: int = 2048
    heads: int = 32
    shared: int = 8
    mlp: int = 8192
    words: int = 32000
    cache: int = 2048
    rows: int = 1
    int4: bool = False

    @property
    def depth(self) -> int:
        """Dims of a head."""
        return self.hidden // self.heads


CASES = {
    "llama_1b": Sizes(),
    "llama_1b_16_heads": Sizes(heads=16),
    "llama_1b_cache_16k": Sizes(layers=4, cache=16384),
    "llama_1b_4_rows": Sizes(rows=4),
    "llama_1b_int4": Sizes(int4=True),
}


def linear(columns: int, rows: int) -> nn.Linear:
    """Return a product without bias whose outputs have a variance of about 1."""
    made = nn.Linear(columns, rows, bias=False)
    nn.init.normal_(made.weight, std=1 / math.sqrt(columns))
    return made


class RmsNorm(nn.Module):
    """Divides rows by their root mean square, in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized rows."""
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


class Layer(nn.Module):
    """A layer whose keys and values go into caches of [1, shared, cache, depth]."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        width, shared = sizes.hidden, sizes.shared * sizes.depth
        self.before_attention, self.before_mlp = RmsNorm(width), RmsNorm(width)
        self.q, self.k, self.v, self.o = (linear(width, n) for n in (width, shared, shared, width))
        self.gate, self.up, self.down = linear(width, sizes.mlp), linear(width, sizes.mlp), linear(sizes.mlp, width)

    def forward(
        self, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor, at: Tensor, caches: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the result, and the caches with the rows of positions ``at``."""
        sizes = self.sizes
        normed = self.before_attention(x)
        q = _turned(self._heads(self.q(normed), sizes.heads), turn)
        k = _turned(self._heads(self.k(normed), sizes.shared), turn)
        v = self._heads(self.v(normed), sizes.shared)
        keys, values = (cache.index_copy(2, at, new) for cache, new in zip(caches, (k, v), strict=True))
        group = sizes.heads // sizes.shared
        mixed = functional.scaled_dot_product_attention(
            q, keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1), attn_mask=mask
        )
        x = x + self.o(mixed.transpose(1, 2).reshape(1, sizes.rows, sizes.hidden))
        normed = self.before_mlp(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed)), keys, values

    def _heads(self, x: Tensor, count: int) -> Tensor:
        return x.view(1, self.sizes.rows, count, self.sizes.depth).transpose(1, 2)


def _turned(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Return heads with rotary embeddings (https://arxiv.org/abs/2104.09864)."""
    first, second = x.chunk(2, -1)
    return x * turn[0] + torch.cat((-second, first), -1) * turn[1]


class Decoder(nn.Module):
    """Tokens [1, rows] at positions [rows] and the caches of all layers to logits and the next caches."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.words = nn.Embedding(sizes.words, sizes.hidden)
        self.layers = nn.ModuleList([Layer(sizes) for _ in range(sizes.layers)])
        self.norm, self.logits = RmsNorm(sizes.hidden), linear(sizes.hidden, sizes.words)
        steps = torch.arange(0, sizes.depth, 2) / sizes.depth
        angles = torch.arange(sizes.cache)[:, None] * 500000.0**-steps
        angles = torch.cat((angles, angles), -1)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.register_buffer("places", torch.arange(sizes.cache))

    def forward(self, tokens: Tensor, at: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        """Return [1, rows, words] and the caches."""
        x = self.words(tokens)
        turn = (self.cos[at], self.sin[at])
        later = (self.places[None] > at[:, None])[None, None]
        mask = torch.zeros(later.shape, dtype=x.dtype, device=x.device).masked_fill(later, -math.inf)
        following: list[Tensor] = []
        for index, layer in enumerate(self.layers):
            x, *made = layer(x, turn, mask, at, caches[2 * index : 2 * index + 2])
            following += made
        return self.logits(self.norm(x)), *following

    def caches(self, **kind: Any) -> list[Tensor]:
        """Return caches of zeros."""
        shape = (1, self.sizes.shared, self.sizes.cache, self.sizes.depth)
        return [torch.zeros(shape, **kind) for _ in range(2 * self.sizes.layers)]


def decoder(name: str, **changes: Any) -> tuple[Decoder, dict[str, Packed]]:
    """Return a case with changed sizes in half precision, always the same; and its weights of int4, as it has them."""
    torch.manual_seed(0)
    module = Decoder(dataclasses.replace(CASES[name], **changes)).eval()
    repeat_weights(module)
    module.half()
    return module, round_weights(module) if module.sizes.int4 else {}


def export(name: str, path: Path, **changes: Any) -> dict[str, str]:
    """Write a case as ONNX; return its states."""
    module, weights = decoder(name, **changes)
    count = 2 * module.sizes.layers
    names, following = [f"cache_{i}" for i in range(count)], [f"next_{i}" for i in range(count)]
    rows = module.sizes.rows
    given = (torch.zeros(1, rows, dtype=torch.int64), torch.arange(rows), *module.caches(dtype=torch.float16))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            *(module, given, str(path)),
            input_names=["tokens", "at", *names],
            output_names=["logits", *following],
            opset_version=17,
            dynamo=False,
        )
    if weights:
        pack_weights(path, weights)
    return dict(zip(names, following, strict=True))


def build(folder: Path, arch: str, only: str) -> None:
    """Build the bundles."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in CASES:
        if matches(name, only):
            path = folder / f"{name}.onnx"
            states = export(name, path)
            targets = (f"cuda -arch={arch}", *TARGETS)
            packager.build(path, path.with_suffix(".so"), targets=targets, states=states)
            path.unlink()
            print("built", name, flush=True)


def copy_bandwidth() -> float:
    """Return bytes in a second, read and written, of a copy of 1 GiB."""
    first = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    second = torch.empty_like(first)
    return 2 * first.numel() / (in_turns({"copy": lambda: second.copy_(first)})["copy"]["median"] * 1e-6)


@torch.no_grad()
def measure(name: str, path: Path, bandwidth: float) -> dict[str, Any]:
    """Return errors of logits, and the times of a step."""
    module, _ = decoder(name)
    sizes = module.sizes
    exactly, half = decoder(name)[0].float().cuda(), module.cuda()
    device = {"device": "cuda"}
    tokens = torch.randint(sizes.words, (CHECKED, 1, sizes.rows), **device)
    given = {"tokens": tokens[0].clone(), "at": torch.zeros(sizes.rows, dtype=torch.int64, **device)}
    exact, own = exactly.caches(dtype=torch.float32, **device), half.caches(dtype=torch.float16, **device)
    errors = {"packager": 0.0, "torch": 0.0}
    stream = torch.cuda.current_stream()
    with packager.load(path) as bundle, bundle.session(graph="on") as session:
        outputs = device_outputs(bundle)
        run = session.bind(given, outputs, stream)
        for step in range(CHECKED):
            given["tokens"].copy_(tokens[step])
            given["at"].copy_(torch.arange(sizes.rows, **device) + step * sizes.rows)
            run()
            want, *exact = exactly(given["tokens"], given["at"], *exact)
            got, *own = half(given["tokens"], given["at"], *own)
            for engine, logits in (("packager", outputs["logits"]), ("torch", got)):
                difference = float((logits.float() - want).abs().max() / want.abs().max())
                errors[engine] = worse(errors[engine], difference)
        del exactly, exact
        given["at"].copy_(torch.arange(sizes.rows, **device) + sizes.cache - sizes.rows)
        ways = {"packager": run, "torch": captured(_step(half, given, own, compiled=False))}
        ways["torch.compile"] = captured(_step(half, given, own, compiled=True))
        times = in_turns(ways)
    weights = sum(p.numel() for p in half.parameters()) - half.words.weight.numel()
    nbytes = (BYTES if sizes.int4 else 2) * weights + 2 * (2 * sizes.layers * sizes.shared * sizes.cache * sizes.depth)
    found = {way: time["median"] for way, time in times.items()}
    shares = {way: round(nbytes / bandwidth / (us * 1e-6), 3) for way, us in found.items()}
    ahead = round(min(us for way, us in found.items() if way != "packager") / found["packager"], 3)
    return {"errors": errors, "us": found, "share_of_copy": shares, "ahead": ahead, "megabytes": nbytes / 1e6}


def _step(module: Decoder, given: dict[str, Tensor], caches: list[Tensor], *, compiled: bool) -> Any:
    """Return a step of torch, which changes its caches in place where it is compiled."""

    def step(tokens: Tensor, at: Tensor, kept: list[Tensor]) -> Tensor:
        logits, *following = module(tokens, at, *kept)
        for cache, new in zip(kept, following, strict=True):
            cache.copy_(new)
        return logits

    step = torch.compile(step, dynamic=False) if compiled else step
    return lambda: step(given["tokens"], given["at"], caches)


def profile(path: Path) -> list[tuple[str, float]]:
    """Return the functions of a step and their us, without graphs."""
    with packager.load(path) as bundle, bundle.session(graph="off") as session:
        feeds = {t.name: torch.zeros(tuple(t.shape), dtype=torch.int64).numpy() for t in bundle.inputs}
        session.run(feeds)
        steps = min((session.profile(feeds) for _ in range(3)), key=lambda each: sum(s.duration_ns for s in each))
    times: dict[str, float] = {}
    for step in steps:
        times[step.symbol] = times.get(step.symbol, 0.0) + step.duration_ns / 1e3
    return [(symbol, round(us, 1)) for symbol, us in sorted(times.items(), key=lambda item: -item[1])[:14]]


def run(folder: Path, output: Path, only: str) -> None:
    """Measure what is built."""
    bandwidth = copy_bandwidth()
    report = header("gpu_decoder") | {"copy_gb_per_s": round(bandwidth / 1e9), "cases": {}}
    print(f"a copy: {bandwidth / 1e9:.0f} GB/s", flush=True)
    for name in CASES:
        path = folder / f"{name}.so"
        if path.exists() and matches(name, only):
            try:
                found = measure(name, path, bandwidth) | {"functions": profile(path)}
            except Exception as failure:  # one that fails must not hide the others
                found = {"failed": f"{type(failure).__name__}: {str(failure)[-600:]}"}
            report["cases"][name] = found
            print(name, json.dumps(found), flush=True)
            output.write_text(json.dumps(report, indent=1) + "\n")
            torch.cuda.empty_cache()


def main() -> int:
    """Build or run."""
    parser, _, _ = two_commands(__doc__, "gpu_decoder", "llama*")
    return obey(parser, build, run)


if __name__ == "__main__":
    sys.exit(main())
