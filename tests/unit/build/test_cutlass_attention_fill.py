"""What the host code of attention kernels makes of problems. In place of the driver's encoder of tensor maps is one
that writes down what it is asked for."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from packager.backends.base import Context
from packager.backends.cutlass.attention_kernels import AttentionKernel, Sm80Attention, Sm90Attention
from packager.backends.cutlass.objects import _compile_host, find_cutlass
from packager.cuda_toolkit import find_cuda_toolkit
from packager.targets import Target
from packager.toolchain import find_toolchain

pytestmark = pytest.mark.slow

ENCODER = """
#include <stdint.h>
#include <string.h>
uint64_t recorded[8][8], refused;
int32_t maps;
int32_t pk_tensor_map_encode(void *map, int32_t type, uint32_t rank, void *address, const uint64_t *extents,
                             const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int32_t interleave,
                             int32_t swizzle, int32_t promotion, int32_t fill) {
  if ((uint64_t)address == refused) return -1;
  uint64_t *to = recorded[maps++ % 8];
  to[0] = (uint64_t)address;
  for (int i = 0; i < 4; i++) to[1 + i] = extents[i];
  for (int i = 0; i < 3; i++) to[5 + i] = strides[i];
  memset(map, 1, 128);
  return 0;
}
"""
KERNELS: dict[str, AttentionKernel] = {
    "sm90": Sm90Attention("float16", 64, 128, 64, False, "keys", "tma"),
    "pingpong": Sm90Attention("bfloat16", 128, 128, 128, True, "none", "pingpong"),
    "sm80": Sm80Attention("float16", 64, 64, 64, True, True),
}

OTHER_SIZES = ({"keys": 0}, {"depth": 136, "value_depth": 136}, {"depth": 60}, {"queries": 1 << 31})


class Problem(ctypes.Structure):
    """As pk_attention_t."""

    _fields_ = (
        *[(name, ctypes.c_uint64) for name in ("q", "k", "v", "o", "bias", "lengths", "workspace")],
        *[(name, ctypes.c_int64) for name in ("batch", "heads", "queries", "keys", "depth", "value_depth")],
        *[(f"{name}_strides", ctypes.c_int64 * 3) for name in ("q", "k", "v", "o", "bias")],
        ("scale", ctypes.c_float),
    )


class Launch(ctypes.Structure):
    """As pk_cuda_launch_t."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
    )


class Built:
    """A kernel's host object, linked with the encoder."""

    def __init__(self, kernel: AttentionKernel, path: Path) -> None:
        toolkit, toolchain = find_cuda_toolkit(""), find_toolchain("x86_64")
        source = kernel.source(("sm_90a",))
        (path / "kernel.cu").write_text(source.text)
        self.object = path / "kernel.o"
        context = Context(path, toolchain, Target("llvm", {}), 1)
        _compile_host(source, path / "kernel.cu", self.object, find_cutlass(), toolkit, context)
        (path / "encoder.c").write_text(ENCODER)
        # The kernel's symbols are hidden, as the bundle's linker leaves them.
        (path / "table.c").write_text(
            f"#include <stdint.h>\nextern const uint32_t {kernel.name}_bytes, {kernel.name}_shared_bytes;\n"
            f"extern int32_t {kernel.name}_fill(const void *, const void *, void *, void *);\n"
            f"uint32_t bytes(void) {{ return {kernel.name}_bytes; }}\n"
            f"uint32_t shared_bytes(void) {{ return {kernel.name}_shared_bytes; }}\n"
            "int32_t fill(const void *device, const void *problem, void *arguments, void *launch) {\n"
            f"  return {kernel.name}_fill(device, problem, arguments, launch);\n}}\n"
        )
        library = path / "kernel.so"
        files = [path / "encoder.c", path / "table.c", self.object]
        subprocess.run([toolchain.cc, "-shared", "-fPIC", "-Wl,-z,defs", "-o", library, *files], check=True)
        self.library = ctypes.CDLL(str(library))

    def fill(self, problem: Problem, refused: int = 0) -> Launch | None:
        """Return the launch, None where the kernel does not take the problem. ``refused`` cannot have a tensor map."""
        ctypes.c_int32.in_dll(self.library, "maps").value = 0
        ctypes.c_uint64.in_dll(self.library, "refused").value = refused
        # Tensor maps lie at multiples of 64 bytes.
        memory = ctypes.create_string_buffer(self.library.bytes() + 64)
        place = ctypes.c_void_p((ctypes.addressof(memory) + 63) // 64 * 64)
        launch = Launch()
        device = (ctypes.c_int32 * 2)(90, 132)
        result = self.library.fill(device, ctypes.byref(problem), place, ctypes.byref(launch))
        assert result in (0, -1)
        return launch if result == 0 else None

    def maps(self) -> list[list[int]]:
        """Address, extents and strides of the tensor maps that were made last."""
        count = ctypes.c_int32.in_dll(self.library, "maps").value
        return [list(row) for row in (ctypes.c_uint64 * 8 * 8).in_dll(self.library, "recorded")][:count]


def fused(batch: int = 2, heads: int = 3, rows: int = 197, depth: int = 64) -> Problem:
    """Self-attention of a [batch, rows, 3, heads, depth] tensor."""
    row = 3 * heads * depth
    problem = Problem(q=4096, k=4096 + heads * depth * 2, v=4096 + heads * depth * 4, o=1 << 20, scale=depth**-0.5)
    problem.batch, problem.heads, problem.queries, problem.keys = batch, heads, rows, rows
    problem.depth = problem.value_depth = depth
    for strides in (problem.q_strides, problem.k_strides, problem.v_strides):
        strides[:] = (rows * row, row, depth)
    problem.o_strides[:] = (rows * heads * depth, heads * depth, depth)
    return problem


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Built]:
    built: dict[str, Built] = {}

    def get(name: str) -> Built:
        if name not in built:
            built[name] = Built(KERNELS[name], tmp_path_factory.mktemp(name))
        return built[name]

    return get


@pytest.mark.parametrize("name", KERNELS)
def test_a_host_object_needs_the_encoder_alone(build: Callable[[str], Built], name: str) -> None:
    built = build(name)
    undefined = subprocess.run(["nm", "-u", built.object], check=True, capture_output=True, text=True).stdout.split()
    assert undefined in ([], ["U", "pk_tensor_map_encode"])
    sections = subprocess.run(["readelf", "-SW", built.object], check=True, capture_output=True, text=True).stdout
    assert ".init_array" not in sections
    assert ".ctors" not in sections


def test_tensor_maps_say_where_the_operands_lie(build: Callable[[str], Built]) -> None:
    problem = fused()
    problem.bias = 1 << 21
    problem.bias_strides[:] = (197, 0, 0)
    launch = build("sm90").fill(problem)
    assert launch is not None
    assert list(launch.grid) == [4, 2, 3]
    assert list(launch.block) == [128, 1, 1]
    assert launch.shared_bytes == build("sm90").library.shared_bytes() > 48 * 1024
    assert launch.flags == 1
    strides = [3 * 3 * 64 * 2, 197 * 3 * 3 * 64 * 2, 64 * 2]
    q, k, *_, o = build("sm90").maps()
    assert q == [problem.q, 64, 197, 2, 3, *strides]
    assert k == [problem.k, 64, 197, 2, 3, *strides]
    assert [problem.v, 64, 197, 2, 3, *strides] in build("sm90").maps()
    assert o == [problem.o, 64, 197, 2, 3, 3 * 64 * 2, 197 * 3 * 64 * 2, 64 * 2]


def test_a_persistent_kernel_has_a_block_for_each_multiprocessor(build: Callable[[str], Built]) -> None:
    for heads, blocks in ((3, 12), (48, 132)):
        launch = build("pingpong").fill(fused(heads=heads, depth=128))
        assert launch is not None
        assert list(launch.grid) == [blocks, 1, 1]
        assert list(launch.block) == [384, 1, 1]


def test_the_other_form_has_a_block_for_each_tile_of_queries(build: Callable[[str], Built]) -> None:
    problem = fused()
    problem.value_depth = 32
    launch = build("sm80").fill(problem)
    assert launch is not None
    assert list(launch.grid) == [4, 3, 2]
    assert list(launch.block) == [32, 4, 1]
    assert build("sm80").maps() == []


@pytest.mark.parametrize("name", KERNELS)
def test_nothing_is_launched_for_no_queries(build: Callable[[str], Built], name: str) -> None:
    for extent in ("batch", "heads", "queries"):
        problem = fused()
        setattr(problem, extent, 0)
        launch = build(name).fill(problem)
        assert launch is not None
        assert list(launch.grid) == [0, 0, 0]


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("field", ["q", "k", "v", "o"])
def test_tensors_off_their_alignment_are_refused(build: Callable[[str], Built], name: str, field: str) -> None:
    problem = fused()
    if name == "sm90":
        problem.bias = 1 << 21
    assert build(name).fill(problem) is not None
    setattr(problem, field, getattr(problem, field) + 8)
    assert build(name).fill(problem) is None
    setattr(problem, field, getattr(problem, field) - 8)
    getattr(problem, f"{field}_strides")[1] += 4
    assert build(name).fill(problem) is None


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(
    "change", [{"keys": 0}, {"depth": 136, "value_depth": 136}, {"depth": 60}, {"queries": 1 << 31}]
)
def test_other_sizes_are_refused(build: Callable[[str], Built], name: str, change: dict[str, int]) -> None:
    problem = fused()
    if name == "sm90":
        problem.bias = 1 << 21
    for field, value in change.items():
        setattr(problem, field, value)
    assert build(name).fill(problem) is None


def test_a_bias_must_be_of_the_kernel_s_kind(build: Callable[[str], Built]) -> None:
    problem = fused()
    assert build("sm90").fill(problem) is None
    assert build("pingpong").fill(problem) is not None
    problem.bias = 1 << 21
    assert build("sm90").fill(problem) is not None
    assert build("pingpong").fill(problem) is None
    problem.bias_strides[2] = 197
    assert build("sm90").fill(problem) is None
    assert build("sm80").fill(problem) is None
    problem.bias_strides[2] = 200
    assert build("sm80").fill(problem) is not None


@pytest.mark.parametrize("field", ["q", "k", "v", "o"])
def test_a_tensor_map_that_cannot_be_made_is_noticed(build: Callable[[str], Built], field: str) -> None:
    problem = fused()
    assert build("pingpong").fill(problem) is not None
    assert build("pingpong").fill(problem, refused=getattr(problem, field)) is None
