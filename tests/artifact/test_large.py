"""Models above 2 GiB: decoders with random weights beside onnxruntime, and a tensor whose indices need 64 bits.

They need room on the disk: files of the model and of bundles in the folder of temporary files.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import packager
from packager.bundle.elf.file import read_elf
from packager.bundle.manifest import CONSTANTS_SECTION
from packager.codegen.templates import render
from packager.errors import BackendError
from packager.ir.constants import ConstantTable
from packager.link.constant_segment import append_constants
from packager.link.linker import LINK_FLAGS
from packager.plan.constants import ConstantBuilder

from .models import ROOT
from .programs import AARCH64, INCLUDE, NATIVE, WARNINGS, Machine, execute, require

TOKENS = np.array([5, 16383, 77, 0])
MOST_MEMORY = 2.0  # of a build, in sizes of the weights
MOST_LOADED = 32 << 20  # bytes that a process grows by when it loads a bundle: none of its weights
# The smaller one first: what the system says of a process begins with what its parent has had in memory.
LARGE = [("external", 2**31), ("embedded", 2**32)]
Decoder = Callable[[float], tuple[Path, int]]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder whose files do not outlive the test."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def need_disk(folder: Path, gigabytes: float) -> None:
    """Skip the test unless there is so much room."""
    free = shutil.disk_usage(folder).free / 1e9
    if free < gigabytes:
        pytest.skip(f"needs {gigabytes:.0f} GB of free disk for temporary files, there are {free:.0f}")


@pytest.fixture
def decoder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Decoder:
    """Write a decoder of so many GB; returns it and the bytes of its weights."""
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.bundle.decoder_model import shape_of, write_decoder

    def write(gigabytes: float) -> tuple[Path, int]:
        shape = shape_of(gigabytes)
        return write_decoder(folder, shape), shape.parameters * 4

    return write


def build_measured(model: Path, form: str) -> tuple[Path, int]:
    """Build in a process of its own; return the bundle, and the greatest resident set of the build in bytes."""
    from benchmarks.bundle.large_models import peak_of_build

    bundle = model.with_name(f"{form}.so")
    return bundle, peak_of_build(model, bundle, form)


def resident() -> int:
    """Return the bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def run(bundle: Path) -> np.ndarray:
    """Load a bundle and run it once; loading takes no memory for weights."""
    before = resident()
    with packager.load(bundle) as loaded:
        session = loaded.session()
        assert resident() - before < MOST_LOADED
        (logits,) = session.run({"tokens": TOKENS}).values()
        assert isinstance(logits, np.ndarray)
        return logits


def reference(model: Path) -> np.ndarray:
    """Run a decoder in onnxruntime, which maps its weights."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"tokens": TOKENS})
    return np.asarray(logits)


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.slow
@pytest.mark.parametrize(("form", "least"), LARGE)
def test_a_large_decoder(form: str, least: int, decoder: Decoder, folder: Path) -> None:
    """Among the offsets above 4 GiB of a bundle are those above 2 GiB, too."""
    need_disk(folder, 3.5 * least / 1e9)
    model, nbytes = decoder(1.02 * least / 1e9)
    assert nbytes > least
    bundle, peak = build_measured(model, form)
    assert peak < MOST_MEMORY * nbytes
    manifest = packager.inspect(bundle).manifest
    assert manifest.weights.storage == form
    assert manifest.weights.bytes >= nbytes
    np.testing.assert_allclose(run(bundle), reference(model), rtol=1e-4, atol=1e-3)
    assert packager.verify(bundle).ok


@dataclass(frozen=True)
class Table:
    """A model that gives rows of a tensor of more than 2**31 elements: which rows are asked for, and what they are."""

    path: Path
    rows: np.ndarray
    expected: np.ndarray


@pytest.fixture
def table(folder: Path) -> Table:
    """Its file is a hole, but for a few rows: it takes no room on the disk."""
    count, columns = (1 << 21) + 5, 1024
    rows = np.array([0, count - 1, count - 3, 1 << 20])
    contents = (np.arange(columns) * (rows[:, None] % 251 + 1) % 256).astype(np.uint8)
    with (folder / "table.data").open("wb") as file:
        file.truncate(count * columns)
        for row, content in zip(rows, contents, strict=True):
            file.seek(int(row) * columns)
            file.write(content.tobytes())
    tensor = TensorProto(name="table", data_type=TensorProto.UINT8, dims=[count, columns], data_location=1)
    tensor.external_data.add(key="location", value="table.data")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "rows"], ["taken"])],
        "table",
        [helper.make_tensor_value_info("rows", TensorProto.INT64, [len(rows)])],
        [helper.make_tensor_value_info("taken", TensorProto.UINT8, [len(rows), columns])],
        [tensor],
    )
    path = folder / "table.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return Table(path, rows, contents)


@pytest.mark.slow
def test_a_tensor_with_more_than_2_to_the_31_elements(table: Table, folder: Path) -> None:
    need_disk(folder, 5)
    with packager.load(packager.build(table.path, folder / "table.so")) as loaded:
        np.testing.assert_array_equal(loaded.run({"rows": table.rows})["taken"], table.expected)


@pytest.mark.slow
def test_a_tensor_with_more_than_2_to_the_31_elements_on_aarch64(table: Table, folder: Path) -> None:
    need_disk(folder, 5)
    AARCH64.require()
    bundle = packager.build(table.path, folder / "table.so", targets=["llvm -mtriple=aarch64-linux-gnu"])
    source = Path(__file__).parent / "c" / "table.c"
    execute([AARCH64.cc, "-std=c11", "-O1", *WARNINGS, f"-I{INCLUDE}", source, "-o", folder / "host", "-ldl"])
    argv = [*AARCH64.runner, folder / "host", bundle]
    done = subprocess.run(argv, input=table.rows.tobytes(), capture_output=True, check=True)
    assert done.stdout == table.expected.tobytes()


def link_with(tools: Machine, source: str, folder: Path) -> Path:
    """Link an assembly file as a bundle is linked, with room for constants."""
    require(tools.cc)
    (folder / "a.S").write_text(source + f'\n.section {CONSTANTS_SECTION},"a",%progbits\n.zero 64\n')
    (folder / "constants.ld").write_text(render("entrypoint/constants.ld.j2", section=CONSTANTS_SECTION))
    flags = [flag for flag in LINK_FLAGS if "gc-sections" not in flag]
    argv = [tools.cc, *flags, "-nostdlib", "-Wl,-T,constants.ld", "a.S", "-o", "a.so"]
    subprocess.run(argv, cwd=folder, check=True)
    return folder / "a.so"


def table_of(array: np.ndarray) -> ConstantTable:
    builder = ConstantBuilder()
    builder.add("w", array)
    return builder.build(64, originals={})


EVERYTHING = """
.data; .quad 1; .bss; .zero 100; .section .rodata,"a"; .quad 2; .text; nop
.section own,"aw"; .quad 3; .section own_zero,"aw",%nobits; .zero 9999; .section own_constants,"a"; .quad 4
"""


@pytest.mark.parametrize("tools", [NATIVE, AARCH64], ids=["native", "aarch64"])
@pytest.mark.parametrize("code", ["", EVERYTHING], ids=["empty", "everything"])
def test_constants_lie_behind_everything_else(tools: Machine, code: str, tmp_path: Path) -> None:
    linked = link_with(tools, code, tmp_path)
    before = read_elf(linked)
    array = np.arange(100_003, dtype=np.int32).reshape(1, -1).T
    append_constants(linked, table_of(array))
    image = read_elf(linked)
    constants = image.sections[CONSTANTS_SECTION]
    assert all(section.address <= constants.address for section in image.sections.values())
    assert constants.size == array.nbytes + -array.nbytes % 64
    assert linked.read_bytes()[constants.offset :] == array.tobytes() + bytes(-array.nbytes % 64)
    segments = subprocess.run(["readelf", "-lW", linked], capture_output=True, text=True, check=True)
    assert not segments.stderr
    (segment,) = (line.split() for line in segments.stdout.splitlines() if f"{constants.address:#018x}" in line)
    assert segment[0] == "LOAD"
    assert segment[6:-1] == ["R"]
    assert [int(field, 16) for field in (segment[1], *segment[4:6])] == [
        constants.offset,
        constants.size,
        constants.size,
    ]
    assert (constants.offset - constants.address) % int(segment[-1], 16) == 0
    others = {name: section for name, section in image.sections.items() if name != CONSTANTS_SECTION}
    assert others == {name: section for name, section in before.sections.items() if name != CONSTANTS_SECTION}


def test_a_section_behind_the_constants_is_refused(tmp_path: Path) -> None:
    linked = link_with(NATIVE, '.section .lbss,"awl",@nobits; .zero 8', tmp_path)
    content = linked.read_bytes()
    with pytest.raises(BackendError, match=r"the linker places \.lbss after the constants") as caught:
        append_constants(linked, table_of(np.zeros(100)))
    assert ".bss" in (caught.value.hint or "")
    assert linked.read_bytes() == content
