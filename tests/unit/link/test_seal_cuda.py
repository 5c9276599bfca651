"""What sealing asks of the GPU code in a linked file; the files are in tests/cuda."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from packager.bundle.gpu.fatbin import Fatbin
from packager.bundle.manifest import Model, Weights
from packager.bundle.requirements import CudaRequirements
from packager.errors import BackendError
from packager.ir.call_plan import CallPlan, EntryPlan
from packager.ir.constants import ConstantTable
from packager.ir.link_plan import CudaCode, LinkPlan
from packager.ir.primitives import PrimitiveFunction
from packager.link.seal import cuda_requirements, manifest_room

SOURCE = Model("model", "onnx", "ab" * 32, {}, None)
HOST = {"kind": "llvm", "mcpu": "x86-64-v3", "mtriple": "x86_64-linux-gnu"}
GPU = {"kind": "cuda", "arch": ("sm_80", "sm_90a"), "ptx": ("compute_80",), "home": ""}
WHOLE = Fatbin(("sm_80", "sm_90a"), ("compute_80",))


def plan(*targets: dict[str, object], driver: int | None = 13000, functions: int = 1) -> LinkPlan:
    call_plan = CallPlan(
        source=SOURCE,
        entries=(EntryPlan("model", SOURCE, (), (), (), ()),),
        functions=(PrimitiveFunction("pk_f", ()),) * functions,
        primitives=(),
        arena_bytes=0,
        constants=ConstantTable((), (), 0, (), ()),
    )
    return LinkPlan(
        plan=call_plan,
        backends=(),
        libraries=(),
        runtime=(Path("runtime.o"),),
        targets=targets,
        machine="x86_64",
        entry_symbol="packager_bundle_v1",
        static=False,
        weights=Weights("none", 0, None, None),
        weights_file=None,
        toolchain={"nvcc": "13.0.88"},
        manifest_room=0,
        cuda=None if driver is None else CudaCode(driver, "sm_80, sm_90a, compute_80"),
    )


def test_what_was_read_back_is_required() -> None:
    wanted = CudaRequirements(("sm_80", "sm_90a"), ("compute_80",), "13.0")
    assert cuda_requirements((WHOLE, WHOLE), plan(HOST, GPU)) == wanted
    assert cuda_requirements((WHOLE,), plan(HOST, GPU, driver=13020)) == replace(wanted, driver="13.2")
    assert cuda_requirements((WHOLE,), plan(HOST, GPU, driver=12090)) == replace(wanted, driver="12.9")


def test_modules_may_be_for_one_gpu_alone() -> None:
    alone = replace(WHOLE, archs=("sm_90a",), ptx=())
    assert cuda_requirements((WHOLE, alone), plan(HOST, GPU)) == cuda_requirements((WHOLE,), plan(HOST, GPU))


def test_bundles_without_kernels() -> None:
    assert cuda_requirements((), plan(HOST, driver=None)) is None
    assert cuda_requirements((), plan(HOST, GPU, functions=0)) == CudaRequirements((), (), "13.0")


@pytest.mark.parametrize(
    ("fatbins", "link_plan", "message"),
    [
        ((), plan(HOST, GPU), "the linked file has no GPU code"),
        ((WHOLE,), plan(HOST, driver=None), "has GPU code in .nv_fatbin, but the build has no Target of kind 'cuda'"),
        ((replace(WHOLE, archs=("sm_80",)),) * 2, plan(HOST, GPU), "no GPU module has machine code for sm_90a"),
        ((replace(WHOLE, ptx=()),), plan(HOST, GPU), "no GPU module has PTX for compute_80"),
        ((WHOLE,), plan(HOST, {**GPU, "ptx": ()}), "has PTX for compute_80, which is not requested"),
        (
            (WHOLE, replace(WHOLE, archs=("sm_80", "sm_90"))),
            plan(HOST, GPU),
            "GPU module 2 of 2 has machine code for sm_90, which is not requested",
        ),
    ],
)
def test_other_code_than_planned(fatbins: tuple[Fatbin, ...], link_plan: LinkPlan, message: str) -> None:
    with pytest.raises(BackendError) as caught:
        cuda_requirements(fatbins, link_plan)
    assert message in caught.value.message


def test_the_manifest_has_room_for_the_architectures() -> None:
    many = {**GPU, "arch": tuple(f"sm_{number}" for number in range(100, 999))}
    assert manifest_room(plan(HOST, many)) >= manifest_room(plan(HOST, GPU)) + 2 * 899 * len('"sm_100",') - 64
