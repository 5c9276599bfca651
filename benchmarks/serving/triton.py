"""The Triton backend under load, driven by a program in place of the server, beside the bare session.

    python -m benchmarks.serving.triton --seconds 60

Instances run batches at the same time, single requests and those that share runs; then requests run one by one, in
turns with a bare session and with the calls of the server's API alone, which are the server's own work here.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.cpu.models import make
from benchmarks.harness.measure import ROOT, finish
from benchmarks.harness.turns import Model
from benchmarks.serving.figures import Latency, Load, make_report, parser_of

FLAGS = ("-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'runtime_stub' / 'include'}")
HANDED_ON_US = 1.0
"""What the backend may take above session and server: its request and response as objects."""
TYPES = {"float32": "FP32", "int64": "INT64"}


def main() -> int:
    """Measure and report."""
    parser = parser_of("serving_triton", "The Triton backend under load.", rounds=40)
    parser.add_argument("--instances", type=int, default=2, help="default: 2")
    arguments = parser.parse_args()
    workdir: Path = arguments.workdir
    workdir.mkdir(parents=True, exist_ok=True)
    programs = compile_programs(workdir)
    found = {}
    for name in arguments.models:
        model = make(name, 1, workdir / "models")
        folder = _repository(model, workdir)
        numbers = (arguments.instances, arguments.seconds, arguments.rounds)
        argv = [*programs, folder, *numbers]
        done = subprocess.run(
            [*map(str, argv)], input=_batches(model, folder), capture_output=True, text=True, check=True
        )
        found[name] = _read(done.stdout, arguments.seconds)
    title = f"The Triton backend, {arguments.instances} instances, {arguments.seconds:g} s of load"
    note = "By a program in place of the server; its own work is that of the calls of its API."
    return finish(make_report(title, found, HANDED_ON_US, note), arguments)


def compile_programs(workdir: Path) -> tuple[Path, Path]:
    """Return the program in place of the server, and the backend."""
    include = f"-I{ROOT / 'tests' / 'samples' / 'triton' / 'include'}"
    load, backend = workdir / "triton-load", workdir / "libtriton_packager.so"
    source = ROOT / "benchmarks" / "serving" / "load.cpp"
    subprocess.run(["g++", *FLAGS, include, source, "-rdynamic", "-o", load, "-ldl", "-lpthread"], check=True)
    source = ROOT / "samples" / "triton" / "backend.cpp"
    subprocess.run(["g++", *FLAGS, include, "-shared", "-fPIC", source, "-o", backend, "-ldl"], check=True)
    return load, backend


def _repository(model: Model, workdir: Path) -> Path:
    """Return the folder of a model as the server has it."""
    import packager

    folder = workdir / "repository" / model.name
    (folder / "1").mkdir(parents=True, exist_ok=True)
    packager.build(model.path, folder / "1" / "model.so")
    return folder


def _batches(model: Model, folder: Path) -> str:
    """Return a batch of one request and one of four, as lines."""
    words = []
    for index, (name, array) in enumerate(model.inputs.items()):
        path = folder / f"{index}.bin"
        array.tofile(path)
        words.append(f"{name}:{TYPES[array.dtype.name]}:{','.join(map(str, array.shape))}:{path}")
    request = " ".join(["*", "1", *words])
    return "\n".join([request, "", *[request] * 4])


def _read(text: str, seconds: float) -> tuple[Load, Latency]:
    lines = [line.split() for line in text.splitlines()]
    resident = [int(words[1]) / 1024 for words in lines if words[0] == "rss"]
    ((_, responses, different, failed),) = (words for words in lines if words[0] == "responses")
    rounds = [(int(a) / 1e3, int(b) / 1e3, int(c) / 1e3) for word, a, b, c in filter(_is_round, lines)]
    return Load(seconds, int(responses), int(different) + int(failed), resident), Latency.of(rounds)


def _is_round(words: list[str]) -> bool:
    return words[0] == "round"


if __name__ == "__main__":
    sys.exit(main())
