"""What a call of a library costs in a bundle, beside the same library called directly in a CUDA graph of its own.

    python -m benchmarks.gpu.library_calls build -o build/library_calls [--arch sm_90a]     on a machine with no GPU
    python -m benchmarks.gpu.library_calls run build/library_calls -o library_calls.json    where GPU and library are

Each model is a chain of equal layers, and is built twice, with 12 and with 24 of them: what a run costs beside its
layers cancels out in the difference. ``direct`` is the backend's C for the same problems without a bundle: it asks the
library in the same way and is captured flat into one graph by torch. Both are run in turns; ``ratio`` is at most 1.02
where calls are within 2 %. ``missing`` runs the bundles in a process that does not find the library: they say so, and
compute the same.
"""

from __future__ import annotations

import ctypes
import functools
import json
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import packager
from benchmarks.gpu.cublas import in_process, pack, unpack
from benchmarks.gpu.cublas_cases import half, periodic, save
from benchmarks.harness.gpu import described, error, header, matches, obey, two_commands
from benchmarks.harness.measure import ROOT
from packager.bundle.elf.search import find_library, installed_folders
from packager.errors import UsageError

MODULE = "benchmarks.gpu.library_calls"
LAYERS = (12, 24)
# A chain: its Target, its input, the layers that follow each other in turn, and their weights.
CHAINS: dict[str, tuple[str, str, tuple[str, ...], dict[str, tuple[int, ...]]]] = {
    "bert": (
        "cublas",
        "float16[1024,768]",
        ("a = MatMul(i, up) b = Add(a, wide) o = Relu(b)", "a = MatMul(i, down) o = Add(a, narrow)"),
        {"up": (768, 3072), "wide": (3072,), "down": (3072, 768), "narrow": (768,)},
    ),
    "rows128": ("cublas", "float16[128,2048]", ("o = MatMul(i, w)",), {"w": (2048, 2048)}),
    "rows16": ("cublas", "float16[16,2048]", ("o = MatMul(i, w)",), {"w": (2048, 2048)}),
    "groups": (
        "cudnn",
        "float16[8,128,56,56]",
        ("a = Conv<pads=[1,1,1,1], group=32>(i, w, b) o = Relu(a)",),
        {"w": (128, 4, 3, 3), "b": (128,)},
    ),
    "volume": (
        "cudnn",
        "float16[2,64,8,28,28]",
        ("a = Conv<pads=[1,1,1,1,1,1]>(i, w, b) o = Relu(a)",),
        {"w": (64, 64, 3, 3, 3), "b": (64,)},
    ),
}


def write(name: str, count: int, folder: Path) -> Path:
    """Write a chain of ``count`` layers."""
    _, given, layers, shapes = CHAINS[name]
    lines = []
    for index in range(count):
        names = {"i": f"v{index}" if index else "x", "o": f"v{index + 1}" if index + 1 < count else "y"}
        names |= {local: f"{local}{index}" for local in "ab" if local not in shapes}
        text = layers[index % len(layers)]
        for local, unique in names.items():
            text = re.sub(rf"(?<![<\w]){local}(?= =|[,)])", unique, text)
        lines.append(text)
    model = f'<ir_version: 10, opset_import: ["": 21]> {name} ({given} x) => ({given} y) {{ {" ".join(lines)} }}'
    weights = {key: half(key, periodic(shape, i, _scale(shape))) for i, (key, shape) in enumerate(shapes.items())}
    return save(model, weights, folder / f"{name}_{count}.onnx")


def _scale(shape: tuple[int, ...]) -> float:
    """Return a standard deviation of weights with which layers keep the size of numbers: zeros would be faster."""
    return float(1 / np.sqrt(np.prod(shape[1:]) if len(shape) > 2 else shape[0]))


def build(folder: Path, arch: str, only: str) -> None:
    """Build the bundles, and for each chain the backend's C as a library of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        for chain, (target, _, layers, _) in CHAINS.items():
            if not matches(chain, only):
                continue
            for count in LAYERS:
                path = folder / f"{chain}_{count}.so"
                packager.build(write(chain, count, work), path, targets=[f"cuda -arch={arch}", target])
                libraries = packager.inspect(path).manifest.requirements.libraries
                pack(path)
            found[chain] = {"arch": int(arch.strip("sm_af")), "calls": compile_calls(chain, arch, work, folder)}
            found[chain] |= {"libraries": [[one.symbol, list(one.sonames), list(one.functions)] for one in libraries]}
            assert len(found[chain]["calls"]) == len(layers)
            print(chain, (folder / f"{chain}_{LAYERS[-1]}.so.xz").stat().st_size, flush=True)
    (folder / "calls.json").write_text(json.dumps(found, indent=1) + "\n")


def compile_calls(chain: str, arch: str, work: Path, folder: Path) -> list[dict[str, Any]]:
    """Compile a chain's functions to ``CHAIN_direct.so``; return their symbols and parameters, in the chain's order."""
    from packager.backends.cublas import module as cublas
    from packager.backends.cudnn import module as cudnn
    from packager.backends.problem_module import C_FLAGS, include_flags
    from packager.pipeline.import_models import import_model
    from packager.pipeline.options import BuildOptions
    from packager.pipeline.request import make_build_request
    from packager.placement.place import partition
    from packager.placement.preparation import preparation_for
    from packager.transforms.prepare import prepare

    target = CHAINS[chain][0]
    options = BuildOptions(work / f"{chain}_{LAYERS[0]}.onnx", targets=(f"cuda -arch={arch}", target))
    request = make_build_request(options)
    (own,) = request.targets.specialized
    model = prepare(import_model(request), preparation_for([own]), request.targets.device)
    partitions = [one.partition for one in partition(model, [own], None).model.partitions.values()]
    if target == "cublas":
        products = [cublas.draft_partition(one, own.options) for one in partitions]
        text, calls = cublas.render_module(products), [(draft.call, draft.memory) for draft in products]
    else:
        drafts = [cudnn.draft_partition(one, own.options) for one in partitions]
        planned = cudnn.plan(drafts, own.options, work)
        views = [draft.view(planned.of(index)) for index, draft in enumerate(drafts)]
        text, calls = cudnn.render_module(views, planned.version), [(draft.call, draft.memory) for draft in drafts]
    (work / f"{chain}.c").write_text(text)
    sources = [str(work / f"{chain}.c"), str(ROOT / "benchmarks" / "c" / "direct_calls.c")]
    output = folder / f"{chain}_direct.so"
    subprocess.run(["gcc", "-shared", *C_FLAGS, *include_flags(target), *sources, "-o", str(output)], check=True)
    found = []
    for one, (call, memory) in zip(partitions, calls, strict=True):
        tensors = [*(parameter.ty for parameter in one.function.params), one.function.ret_ty]
        shapes = [tuple(int(extent) for extent in tensor.shape) for tensor in tensors]
        parameters: list[list[Any]] = []
        for parameter in call.parameters:
            if parameter.kind == "workspace":
                parameters.append(["own", int(memory.workspaces[parameter.index]), 1.0])
                continue
            packing = memory.packings[parameter.index].argument if parameter.kind == "packed" else parameter.index
            shape = shapes[packing if isinstance(packing, int) else packing[0]]
            is_own = parameter.kind == "packed" or parameter.index in one.constant_arguments
            role = "output" if parameter.written else "own" if is_own else "input"
            parameters.append([role, 2 * int(np.prod(shape)), _scale(shape)])
        found.append({"symbol": call.symbol, "parameters": parameters})
    return found


class Cuda(ctypes.Structure):
    """A ``struct pk_cuda`` of direct_calls.c."""

    _fields_ = (("stream", ctypes.c_void_p), ("arch", ctypes.c_int32), ("num_sms", ctypes.c_int32))


class Direct:
    """The functions of a chain, called without a bundle."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        import torch

        self.code = ctypes.CDLL(str(path))
        folders = installed_folders()
        for symbol, sonames, functions in facts["libraries"]:
            file = next(found for soname in sonames if (found := find_library(soname, folders)) is not None)
            library = ctypes.CDLL(str(file))
            table = ctypes.cast(ctypes.c_void_p.in_dll(self.code, symbol), ctypes.POINTER(ctypes.c_void_p))
            for index, name in enumerate(functions):
                table[index] = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        self.arch = facts["arch"]
        self.sms = torch.cuda.get_device_properties(0).multi_processor_count
        most = max(size for call in facts["calls"] for _, size, _ in call["parameters"])
        values = [_room(most, 1.0) for _ in range(2)]
        self.calls: list[tuple[str, list[Any]]] = []
        for index in range(max(LAYERS)):
            call = facts["calls"][index % len(facts["calls"])]
            places = {"input": values[index % 2], "output": values[(index + 1) % 2]}
            own = self.calls[index - len(facts["calls"])][1] if index >= len(facts["calls"]) else None
            tensors = [
                places.get(role) if role in places else own[place] if own else _room(size, scale)
                for place, (role, size, scale) in enumerate(call["parameters"])
            ]
            self.calls.append((call["symbol"], tensors))

    def enqueue(self, count: int) -> None:
        """Enqueue ``count`` layers in torch's current stream."""
        import torch

        cuda = Cuda(torch.cuda.current_stream().cuda_stream, self.arch, self.sms)
        for symbol, tensors in self.calls[:count]:
            pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
            status = getattr(self.code, symbol)(ctypes.byref(cuda), *pointers, ctypes.c_int64(0))
            if status:
                raise RuntimeError(f"{symbol}: status {status}")

    def graph(self, count: int) -> Callable[[], Any]:
        """Return the replay of ``count`` layers as one CUDA graph."""
        from benchmarks.gpu.torch_models import captured

        return captured(lambda: self.enqueue(count))


def _room(nbytes: int, scale: float) -> Any:
    import torch

    return torch.randn(-(-nbytes // 2), device="cuda").mul_(scale).to(torch.float16)


def measure(chain: str, folder: Path, work: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the microseconds of a call in a bundle and of a direct one, and their ratio."""
    import torch

    from benchmarks.gpu.cublas_torch import device_inputs, device_outputs, in_turns

    stream, kept = torch.cuda.current_stream(), []
    runs: dict[str, Callable[[], Any]] = {}
    direct = Direct(folder / f"{chain}_direct.so", facts)
    for count in LAYERS:
        bundle = packager.load(unpack(folder, work, f"{chain}_{count}"))
        session = bundle.session(graph="on")
        kept += [bundle, session]
        runs[f"bundle {count}"] = session.bind(device_inputs(bundle), device_outputs(bundle), stream)
        runs[f"direct {count}"] = direct.graph(count)
    us = in_turns(runs)
    few, many = LAYERS
    call = {
        who: round((us[f"{who} {many}"]["median"] - us[f"{who} {few}"]["median"]) / (many - few), 3)
        for who in ("bundle", "direct")
    }
    return {"us": us, "us a call": call, "ratio": round(call["bundle"] / call["direct"], 4)}


def missing(path: Path) -> dict[str, Any]:
    """Return what a session says that does not find the library, and how far its results are from those with it.

    Raises UsageError where the linker finds it all the same.
    """
    with packager.load(path, libraries=[]) as bundle:
        rng = np.random.default_rng(0)
        shapes = {one.name: [int(extent) for extent in one.shape] for one in bundle.inputs}
        given = {key: rng.standard_normal(shape).astype(np.float16) for key, shape in shapes.items()}
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            without = bundle.session().run(given)
    if not said:
        raise UsageError("the linker finds the library", hint="move it away for this step")
    # What a process has open it has for good, so the library comes second.
    with packager.load(path) as bundle, bundle.session() as session:
        results = session.run(given)
    errors = [error(np.asarray(without[name]), np.asarray(results[name])) for name in results]
    return {"said": [str(one.message) for one in said], "error": round(max(errors), 6)}


def run(folder: Path, output: Path, only: str) -> None:
    """Measure everything and write it."""
    report, facts = header("library_calls"), described(folder, "calls.json")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        for chain in (one for one in CHAINS if one in facts and matches(one, only)):
            path = unpack(folder, work, f"{chain}_{LAYERS[0]}")
            calls = functools.partial(measure, chain, folder, work, facts[chain])
            for step, call in {
                "missing": functools.partial(in_process, path, MODULE, "missing"),
                "calls": calls,
            }.items():
                try:
                    report[f"{chain} {step}"] = call()
                except Exception as failure:  # one that fails must not hide the others
                    report[f"{chain} {step}"] = {"failed": f"{type(failure).__name__}: {failure}"}
                print(chain, step, json.dumps(report[f"{chain} {step}"]), flush=True)
                output.write_text(json.dumps(report, indent=1) + "\n")


def main() -> int:
    """Build, run, or run without the library."""
    parser, _, _ = two_commands(__doc__, "library_calls", "bert,groups")
    return obey(parser, build, run, missing=missing)


if __name__ == "__main__":
    sys.exit(main())
