"""``python -m tests.conformance.onnx.fuzz``: damaged and altered models are refused by an error, or computed right.

Each seed takes one of the cases and alters its model: bytes, nodes, attributes, edges, shapes, types, versions. What
packager builds nevertheless is run and compared with onnxruntime, where that takes the model. A crash, a hang, an error
that is not packager's, memory above the limit, or another result is a finding.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import pickle
import random
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.conformance.onnx.cases import Case, all_cases
from tests.conformance.onnx.compare import difference
from tests.conformance.server import Server

BUILD_SECONDS = 10.0
RUN_SECONDS = 10.0
MEMORY_BYTES = 8 << 30
RTOL, ATOL = 1e-3, 1e-4
TYPES = (1, 2, 3, 5, 6, 7, 9, 10, 11, 16)


@dataclasses.dataclass(frozen=True)
class Finding:
    """What became of a seed: ``refused``, ``same`` as onnxruntime, ``alone`` (onnxruntime refuses it), or a finding:
    ``failed`` or ``differs``."""

    seed: int
    case: str
    change: str
    status: str
    message: str = ""


def mutate(model: onnx.ModelProto, rng: random.Random) -> tuple[bytes, str]:
    """Return the altered model as bytes, and the name of the change."""
    changes = (
        *(_flip_bytes, _drop_node, _repeat_node, _swap_inputs, _drop_input, _rename_edge, _change_attribute),
        *(_change_dim, _change_type, _change_opset, _change_operator, _swap_nodes, _drop_attribute, _change_rank),
    )
    change = rng.choice(changes)
    altered = onnx.ModelProto()
    altered.CopyFrom(model)
    result = change(altered, rng)
    return (result if isinstance(result, bytes) else altered.SerializeToString()), change.__name__.strip("_")


def _flip_bytes(model: onnx.ModelProto, rng: random.Random) -> bytes:
    content = bytearray(model.SerializeToString())
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(content))
        match rng.randrange(3):
            case 0:
                content[at] ^= 1 << rng.randrange(8)
            case 1:
                del content[at : at + rng.randint(1, 8)]
            case 2:
                content[at:at] = rng.randbytes(rng.randint(1, 8))
        if not content:
            break
    return bytes(content)


def _drop_node(model: onnx.ModelProto, rng: random.Random) -> None:
    if model.graph.node:
        del model.graph.node[rng.randrange(len(model.graph.node))]


def _repeat_node(model: onnx.ModelProto, rng: random.Random) -> None:
    if model.graph.node:
        model.graph.node.append(rng.choice(model.graph.node))


def _swap_nodes(model: onnx.ModelProto, rng: random.Random) -> None:
    nodes = list(model.graph.node)
    rng.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _swap_inputs(model: onnx.ModelProto, rng: random.Random) -> None:
    node = rng.choice(model.graph.node) if model.graph.node else None
    if node is not None and len(node.input) > 1:
        names = list(node.input)
        rng.shuffle(names)
        node.input[:] = names


def _drop_input(model: onnx.ModelProto, rng: random.Random) -> None:
    node = rng.choice(model.graph.node) if model.graph.node else None
    if node is not None and node.input:
        if rng.random() < 0.5:
            node.input.pop()
        else:
            node.input[rng.randrange(len(node.input))] = ""


def _rename_edge(model: onnx.ModelProto, rng: random.Random) -> None:
    names = [name for node in model.graph.node for name in (*node.input, *node.output)]
    node = rng.choice(model.graph.node) if model.graph.node else None
    if node is not None and node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice([*names, "nowhere", "\x00", "ä" * 300])


def _change_operator(model: onnx.ModelProto, rng: random.Random) -> None:
    if model.graph.node:
        rng.choice(model.graph.node).op_type = rng.choice(onnx.defs.get_all_schemas()).name


def _attributes(model: onnx.ModelProto) -> list[tuple[Any, Any]]:
    return [(node, attribute) for node in model.graph.node for attribute in node.attribute]


def _change_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    found = _attributes(model)
    if not found:
        return
    _, attribute = rng.choice(found)
    extremes = (0, -1, 1, 2, 7, 255, 2**31 - 1, -(2**31), 2**62)
    if attribute.type == onnx.AttributeProto.INT:
        attribute.i = rng.choice(extremes)
    elif attribute.type == onnx.AttributeProto.INTS and attribute.ints:
        if rng.random() < 0.7:
            attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(extremes)
        elif rng.random() < 0.5:
            attribute.ints.pop()
        else:
            attribute.ints.append(rng.choice(extremes))
    elif attribute.type == onnx.AttributeProto.FLOAT:
        attribute.f = rng.choice((0.0, -1.0, 1e30, float("nan"), float("inf")))
    elif attribute.type == onnx.AttributeProto.STRING:
        attribute.s = rng.choice((b"", b"SAME_UPPER", b"linear", b"nonsense", b"\xff\xfe"))
    else:
        attribute.type = rng.choice((1, 2, 3, 6, 7))


def _drop_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    found = _attributes(model)
    if found:
        node, attribute = rng.choice(found)
        node.attribute.remove(attribute)


def _tensors(model: onnx.ModelProto, rng: random.Random) -> Any:
    values = [*model.graph.input, *model.graph.output]
    return rng.choice(values).type.tensor_type if values else None


def _change_dim(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = _tensors(model, rng)
    if tensor is not None and tensor.shape.dim:
        tensor.shape.dim[rng.randrange(len(tensor.shape.dim))].dim_value = rng.choice((0, 1, 2, 3, 17, 2**31, -1))


def _change_rank(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = _tensors(model, rng)
    if tensor is not None:
        if tensor.shape.dim and rng.random() < 0.5:
            tensor.shape.dim.pop()
        else:
            tensor.shape.dim.add().dim_value = rng.choice((1, 3))


def _change_type(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = _tensors(model, rng)
    if tensor is not None:
        tensor.elem_type = rng.choice(TYPES)


def _change_opset(model: onnx.ModelProto, rng: random.Random) -> None:
    if model.opset_import:
        model.opset_import[0].version = rng.choice((0, 1, 6, 9, 11, 13, 18, 21, 99, 2**40))


class Fuzzer:
    """Judges seeds; ``cases`` are what is altered."""

    def __init__(self, cases: Iterable[Case]) -> None:
        self.cases = [case for case in cases if len(case.model) < 20_000]
        self.cache = tempfile.TemporaryDirectory()  # of what all cases share, the runtime
        self.builder = Server("tests.conformance.onnx.builder", BUILD_SECONDS, MEMORY_BYTES)
        self.runner = Server("tests.conformance.onnx.runner", RUN_SECONDS)
        self.reference = Server("tests.conformance.onnx.reference", RUN_SECONDS)

    def judge(self, seed: int) -> Finding:
        """Alter a case, build, run and compare."""
        rng = random.Random(seed)
        case = rng.choice(self.cases)
        content, change = mutate(onnx.ModelProto.FromString(case.model), rng)
        for _ in range(rng.choice((0, 0, 1, 2))):
            try:
                content, more = mutate(onnx.ModelProto.FromString(content), rng)
            except Exception:  # its bytes are damaged already
                break
            change += f"+{more}"
        status, message = self._judge(case, content)
        return Finding(seed, case.name, change, status, message)

    def _judge(self, case: Case, content: bytes) -> tuple[str, str]:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            dataclasses.replace(case, model=content).save(folder)
            request = {"folder": temporary, "freeze": (), "targets": ["llvm -mcpu=x86-64-v3"], "cache": self.cache.name}
            answer = self.builder.ask(request)
            if answer["status"] != "built":
                return answer["status"], answer["message"]
            answer = self.runner.ask(request)
            if answer["status"] == "unfit":  # the inputs of the case are none of the altered model
                return "alone", answer["message"]
            if answer["status"] != "ran":
                return answer["status"], answer["message"]
            made = pickle.loads((folder / "outputs.pickle").read_bytes())
            wanted = self.reference.ask(request)
            if wanted["status"] != "ran":
                return "alone", wanted["message"]
            expected = pickle.loads((folder / "expected.pickle").read_bytes())
        problem = difference(
            dataclasses.replace(case, outputs=tuple(expected), rtol=RTOL, atol=ATOL), list(made.values())
        )
        return ("differs", problem) if problem else ("same", "")

    def close(self) -> None:
        """End the processes."""
        for server in (self.builder, self.runner, self.reference):
            server.close()
        self.cache.cleanup()


def judge_seeds(seeds: Iterable[int]) -> Iterator[Finding]:
    """Yield what becomes of each seed."""
    fuzzer = Fuzzer(case for case in all_cases() if case.kind == "node" and _has_numbers(case))
    try:
        for seed in seeds:
            yield fuzzer.judge(seed)
    finally:
        fuzzer.close()


def _has_numbers(case: Case) -> bool:
    return all(isinstance(v, np.ndarray) and v.dtype.kind in "biuf" for v in (*case.inputs.values(), *case.outputs))


def main() -> None:
    """Parse the command line and judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:200", help="FIRST:LAST")
    parser.add_argument("-v", "--verbose", action="store_true")
    arguments = parser.parse_args()
    first, last = map(int, arguments.seeds.split(":"))
    counts: collections.Counter[str] = collections.Counter()
    start = time.monotonic()
    for finding in judge_seeds(range(first, last)):
        counts[finding.status] += 1
        if arguments.verbose or finding.status in ("failed", "differs"):
            print(finding.status, finding.seed, finding.case, finding.change, finding.message[:300], flush=True)
    print(f"{dict(counts)} of {last - first} seeds, {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
