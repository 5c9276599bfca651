"""Check states on a GPU: text generation and several entries, against bundles for the CPU, and beside torch.

    python -m benchmarks.gpu.states build decoder.pt2 -o build/states
    python -m benchmarks.gpu.states run build/states -o results.json         (a GPU, torch)

``build`` makes, on a machine without a GPU, CPU and CUDA bundles of a decoder (``samples/textgen``) and of a pair of
models that share a cache. ``run`` compares their results on the GPU machine, with CUDA graphs and without, and measures
tokens per second beside the program that torch exported, run by torch on the same GPU.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import packager
from benchmarks.harness.gpu import run_each, two_commands

PROMPT = "Shall I compare thee "
STEPS = 64
ENTRIES = {"prefill": 8, "decode": 1}  # rows
PAIR = """
{name} (float[{rows},64] x, int64[{rows},1] at, float[256,64] keys) => (float[{rows},64] y, float[256,64] keys_next) {{
  k = MatMul(x, w)  keys_next = ScatterND(keys, at, k)  columns = Transpose(keys_next)
  scores = MatMul(x, columns)  p = Softmax(scores)  y = MatMul(p, keys_next)
}}"""


def build(folder: Path, decoder: Path, arch: str) -> None:
    """Build all bundles. ``decoder`` is the ``.pt2`` file of make_model.py, which has a ``.json`` file beside it."""
    import onnx

    from benchmarks.cpu.models import parsed, random

    folder.mkdir(parents=True, exist_ok=True)
    weights = {"w": random(np.random.default_rng(0), 64, 64) / 8}
    pair = [folder / f"{name}.onnx" for name in ENTRIES]
    for path in pair:
        onnx.save(parsed(PAIR.format(name=path.stem, rows=ENTRIES[path.stem]), weights), path)
    for device, targets in (("cpu", ()), ("cuda", (f"cuda -arch={arch}",))):
        packager.build(decoder, folder / f"decoder_{device}.so", targets=targets)
        packager.build(pair, folder / f"pair_{device}.so", targets=targets, states={"keys": "keys_next"})
    for suffix in (".pt2", ".json"):
        (folder / f"decoder{suffix}").write_bytes(decoder.with_suffix(suffix).read_bytes())


def run(folder: Path, output: Path) -> int:
    """Compare and measure; returns the exit status."""
    described = json.loads((folder / "decoder.json").read_text())
    prompt = [described["alphabet"].index(character) for character in PROMPT]
    wanted = _tokens(folder / "decoder_cpu.so", prompt, "auto")[0]
    print("".join(described["alphabet"][token] for token in wanted))

    def compared(generate: Callable[[], tuple[list[int], float]]) -> dict[str, Any]:
        tokens, rate = generate()
        return {"ok": tokens == wanted, "tokens_per_second": rate}

    cases: dict[str, Callable[[], dict[str, Any]]] = {}
    for graph in ("auto", "off"):
        generate = partial(_tokens, folder / "decoder_cuda.so", prompt, graph)
        cases[f"decoder, graph {graph}"] = partial(compared, generate)
        cases[f"pair, graph {graph}"] = partial(_pair, folder, graph)
    cases["decoder, torch"] = partial(compared, partial(_torch, folder / "decoder.pt2", prompt))
    return run_each("gpu_states", cases, output)


def _greedy(step: Callable[[int, int], int], prompt: list[int]) -> list[int]:
    """``step`` takes a token and its position and returns the likeliest next one."""
    tokens = list(prompt)
    for position in range(len(prompt) + STEPS - 1):
        following = step(tokens[position], position)
        if position >= len(prompt) - 1:
            tokens.append(following)
    return tokens


def _timed(generate: Callable[[], list[int]]) -> tuple[list[int], float]:
    tokens = generate()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        tokens = generate()
        times.append(time.perf_counter() - start)
    return tokens, round((len(tokens) - 1) / statistics.median(times))


def _tokens(path: Path, prompt: list[int], graph: str) -> tuple[list[int], float]:
    with packager.load(path) as bundle:
        options = {"graph": graph} if bundle.manifest.requirements.cuda else {}
        with bundle.session(**options) as session:

            def step(token: int, position: int) -> int:
                outputs = session.run({"input_ids": np.array([[token]]), "cache_position": np.array([position])})
                return int(outputs["output"][0, -1].argmax())

            def generate() -> list[int]:
                session.reset()
                return _greedy(step, prompt)

            return _timed(generate)


def _torch(program: Path, prompt: list[int]) -> tuple[list[int], float]:
    import torch
    from torch.export.passes import move_to_device_pass

    module = move_to_device_pass(torch.export.load(program), "cuda").module()
    initial = {name: value.clone() for name, value in module.named_buffers()}

    def step(token: int, position: int) -> int:
        ids, place = torch.tensor([[token]], device="cuda"), torch.tensor([position], device="cuda")
        with torch.no_grad():
            return int(module(input_ids=ids, cache_position=place)[0, -1].argmax())

    def generate() -> list[int]:
        for name, value in module.named_buffers():
            value.copy_(initial[name])
        return _greedy(step, prompt)

    return _timed(generate)


def _pair(folder: Path, graph: str) -> dict[str, Any]:
    """Run both entries in turns on both devices, read, set and reset the state; return the largest difference."""
    worst = 0.0
    rng = np.random.default_rng(1)
    with (
        packager.load(folder / "pair_cpu.so") as cpu,
        packager.load(folder / "pair_cuda.so") as gpu,
        cpu.session() as reference,
        gpu.session(graph=graph) as session,
    ):
        for number in range(12):
            entry, rows, start = ("prefill", 8, 0) if number % 6 == 0 else ("decode", 1, 7 + number % 6)
            if number == 6:
                reference.reset()
                session.reset()
            if number == 9:
                saved = np.asarray(session.states["keys"]) * 0.5
                session.states["keys"] = reference.states["keys"] = saved
            x = rng.standard_normal((rows, 64)).astype(np.float32)
            feeds = {"x": x, "at": np.arange(start, start + rows).reshape(rows, 1)}
            want, got = (s.run(feeds, entry=entry)["y"] for s in (reference, session))
            state = np.abs(np.asarray(session.states["keys"]) - np.asarray(reference.states["keys"])).max()
            worst = max(worst, float(np.abs(got - want).max()), float(state))
    return {"largest_difference": worst, "ok": worst < 1e-4}


def main() -> int:
    """Build or run what the command line asks for."""
    parser, builder, _ = two_commands(__doc__, "states")
    builder.add_argument("decoder", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "run":
        return run(arguments.folder, arguments.output)
    build(arguments.output, arguments.decoder, arguments.arch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
