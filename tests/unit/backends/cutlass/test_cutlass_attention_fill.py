"""What the host code of attention kernels makes of problems."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable

import pytest
from cutlass_kernel_builder import HostKernel, host_builds

from packager.backends.cutlass.attention.kernels import AttentionKernel, Sm80Attention, Sm90Attention, SplitAttention

pytestmark = pytest.mark.slow

KERNELS: dict[str, AttentionKernel] = {
    "sm90": Sm90Attention("float16", 64, 128, 64, False, "keys", "tma"),
    "pingpong": Sm90Attention("bfloat16", 128, 128, 128, True, "none", "pingpong"),
    "sm80": Sm80Attention("float16", 64, 64, 64, True, True),
    "split": SplitAttention("float16", 64, False, tiled=True),
}

OTHER_SIZES = ({"keys": 0}, {"depth": 136, "value_depth": 136}, {"depth": 60}, {"queries": 1 << 31})


class Problem(ctypes.Structure):
    """As pk_attention_t."""

    _fields_ = (
        *[(name, ctypes.c_uint64) for name in ("q", "k", "v", "o", "bias", "lengths", "sinks", "workspace")],
        *[(name, ctypes.c_int64) for name in ("batch", "heads", "queries", "keys", "depth", "value_depth", "group")],
        *[(f"{name}_strides", ctypes.c_int64 * 3) for name in ("q", "k", "v", "o", "bias")],
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("counters", ctypes.c_uint64),
    )


def fused(batch: int = 2, heads: int = 3, rows: int = 197, depth: int = 64) -> Problem:
    """Self-attention of a [batch, rows, 3, heads, depth] tensor."""
    row = 3 * heads * depth
    problem = Problem(q=4096, k=4096 + heads * depth * 2, v=4096 + heads * depth * 4, o=1 << 20, scale=depth**-0.5)
    problem.batch, problem.heads, problem.queries, problem.keys = batch, heads, rows, rows
    problem.depth = problem.value_depth = depth
    problem.group = 1
    for strides in (problem.q_strides, problem.k_strides, problem.v_strides):
        strides[:] = (rows * row, row, depth)
    problem.o_strides[:] = (rows * heads * depth, heads * depth, depth)
    return problem


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], HostKernel]:
    return host_builds(KERNELS, tmp_path_factory)


@pytest.mark.sampled(3, every_value=False)
@pytest.mark.parametrize("name", KERNELS)
def test_a_host_object_needs_the_encoder_alone(build: Callable[[str], HostKernel], name: str) -> None:
    built = build(name)
    undefined = subprocess.run(["nm", "-u", built.object], check=True, capture_output=True, text=True).stdout.split()
    assert undefined in ([], ["U", "pk_tensor_map_encode"])
    sections = subprocess.run(["readelf", "-SW", built.object], check=True, capture_output=True, text=True).stdout
    assert ".init_array" not in sections
    assert ".ctors" not in sections


def test_tensor_maps_say_where_the_operands_lie(build: Callable[[str], HostKernel]) -> None:
    problem = fused()
    problem.bias = 1 << 21
    problem.bias_strides[:] = (197, 0, 0)
    launch = build("sm90").fill(problem)
    assert launch is not None
    assert list(launch.grid) == [4, 2, 3]
    assert list(launch.block) == [128, 1, 1]
    assert launch.shared_bytes == build("sm90").shared_bytes > 48 * 1024
    assert launch.flags == 1
    strides = [3 * 3 * 64 * 2, 197 * 3 * 3 * 64 * 2, 64 * 2]
    q, k, *_, o = build("sm90").maps()
    assert q == [problem.q, 64, 197, 2, 3, *strides]
    assert k == [problem.k, 64, 197, 2, 3, *strides]
    assert [problem.v, 64, 197, 2, 3, *strides] in build("sm90").maps()
    assert o == [problem.o, 64, 197, 2, 3, 3 * 64 * 2, 197 * 3 * 64 * 2, 64 * 2]


def test_tensor_maps_of_few_rows_say_where_keys_and_values_lie(build: Callable[[str], HostKernel]) -> None:
    problem = fused()
    problem.queries, problem.value_depth = 1, 32
    launch = build("split").fill(problem)
    assert launch is not None
    assert list(launch.grid)[1:] == [3, 2]
    assert list(launch.block) == [256, 1, 1]
    assert launch.shared_bytes == build("split").shared_bytes
    strides = [3 * 3 * 64 * 2, 64 * 2, 197 * 3 * 3 * 64 * 2]
    assert build("split").maps() == [[problem.k, 64, 197, 3, 2, *strides], [problem.v, 32, 197, 3, 2, *strides]]
    problem.batch = 1  # whose stride may be anything
    problem.k_strides[0] = 0
    assert build("split").fill(problem) is not None
    assert build("split").maps()[0] == [problem.k, 64, 197, 3, 1, *strides[:2], 16]


def test_a_persistent_kernel_has_a_block_for_each_multiprocessor(build: Callable[[str], HostKernel]) -> None:
    for heads, blocks in ((3, 12), (48, 132)):
        launch = build("pingpong").fill(fused(heads=heads, depth=128))
        assert launch is not None
        assert list(launch.grid) == [blocks, 1, 1]
        assert list(launch.block) == [384, 1, 1]


def test_the_other_form_has_a_block_for_each_tile_of_queries(build: Callable[[str], HostKernel]) -> None:
    problem = fused()
    problem.value_depth = 32
    launch = build("sm80").fill(problem)
    assert launch is not None
    assert list(launch.grid) == [4, 3, 2]
    assert list(launch.block) == [32, 4, 1]
    assert build("sm80").maps() == []


@pytest.mark.parametrize("name", KERNELS)
def test_nothing_is_launched_for_no_queries(build: Callable[[str], HostKernel], name: str) -> None:
    for extent in ("batch", "heads", "queries"):
        problem = fused()
        setattr(problem, extent, 0)
        launch = build(name).fill(problem)
        assert launch is not None
        assert list(launch.grid) == [0, 0, 0]


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("field", ["q", "k", "v", "o"])
def test_tensors_off_their_alignment_are_refused(build: Callable[[str], HostKernel], name: str, field: str) -> None:
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
@pytest.mark.parametrize("change", OTHER_SIZES)
def test_other_sizes_are_refused(build: Callable[[str], HostKernel], name: str, change: dict[str, int]) -> None:
    problem = fused()
    if name == "sm90":
        problem.bias = 1 << 21
    for field, value in change.items():
        setattr(problem, field, value)
    assert build(name).fill(problem) is None


def test_a_bias_must_be_of_the_kernel_s_kind(build: Callable[[str], HostKernel]) -> None:
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


@pytest.mark.parametrize(
    ("name", "field"), [*(("pingpong", field) for field in "qkvo"), *(("split", field) for field in "kv")]
)
def test_a_tensor_map_that_cannot_be_made_is_noticed(build: Callable[[str], HostKernel], name: str, field: str) -> None:
    problem = fused()
    assert build(name).fill(problem) is not None
    assert build(name).fill(problem, refused=getattr(problem, field)) is None
