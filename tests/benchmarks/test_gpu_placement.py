"""Networks that are placed on a GPU, the kernels that their trials ask for, and the parts of a trial, on a CPU."""

from __future__ import annotations

import json
import time
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("torch")
import torch

import packager
from benchmarks.gpu.placement.building import KERNELS, ask, waves
from benchmarks.gpu.placement.cases import BY_NAME, CASES, ENTRIES, Case, exported
from benchmarks.gpu.placement.networks import NETWORKS
from benchmarks.gpu.placement.parts import measure_parts
from benchmarks.gpu.placement.processes import Step, step
from benchmarks.gpu.placement.ship import measured, records_of
from benchmarks.gpu.placement.show import best_single, parts_rows, row
from benchmarks.zoo.models import instance
from benchmarks.zoo.ship_placement import join
from packager.backends.cutlass.portfolio import kernels_of, read_portfolio
from packager.bundle.tuning_records import MeasuredPlacement, make_records
from packager.pipeline.import_models import import_model
from packager.pipeline.options import BuildOptions
from packager.pipeline.place import choosing_of, revision_of
from packager.pipeline.request import make_build_request
from packager.placement.choices.partition import find_choices
from packager.placement.placer import Placer
from packager.placement.preparation import preparation_for
from packager.transforms.prepare import prepare
from tests.integration.placement.placing import parse

CHAIN = "chain (float[1,3,9,7] x) => (float[1,8,9,7] y) { a = Conv <pads = [1, 1, 1, 1]> (x, w1)  y = Relu (a) }"


def test_cases_have_names_of_their_own() -> None:
    assert len(BY_NAME) == len(CASES)
    assert {case.model for case in CASES} <= ENTRIES.keys()
    assert Case("bert_base", 8, "fp32").targets("sm_90a", "")[0] == "cuda -arch=sm_90a"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parameters", "results"),
    [("nasnet", 5.289e6, (1, 1000)), ("resnet3d_50", 46.2e6 + 2049 * 400, (1, 400)), ("gpt2", 88.988e6, (1, 128, 768))],
)
def test_networks_are_as_large_as_published(name: str, parameters: float, results: tuple[int, ...]) -> None:
    """NASNet-A (4 @ 1056) has 5.3 million; GPT-2 has 124 million, 36 of them for the tokens that are left out."""
    entry = next(entry for entry in NETWORKS if entry.name == name)
    module, inputs = instance(entry)
    assert sum(each.numel() for each in module.parameters()) == pytest.approx(parameters, rel=1e-3)
    with torch.no_grad():
        assert tuple(module.eval()(*inputs.values()).shape) == results


def test_a_trial_asks_for_kernels_that_are_compiled_once(tmp_path: Path) -> None:
    pytest.importorskip("cutlass_library")
    case = Case("dcgan", 8)
    ask(case, tmp_path, "sm_90a", "")
    found = json.loads((tmp_path / f"{case.name}.{KERNELS}").read_text())
    (tmp_path / f"other-1.{KERNELS}").write_text(json.dumps(found[:2]))
    others = [Case("other", 1), Case("missing", 1)]
    asked = [(each, Future[Step]()) for each in (case, *others)]
    for _, future in asked:
        future.set_result(Step("", 1.0, ""))
    (first, kernels), (second, none) = waves(asked, tmp_path, most=len(found))
    assert (first, second) == ([case], others)
    assert sum(map(len, none.values())) == 0
    (tmp_path / KERNELS).write_text(json.dumps(kernels))
    assert len(kernels_of(read_portfolio(str(tmp_path / KERNELS)), ("sm_90a",))) == len(found) > 0


def test_a_step_ends_when_its_time_is_over() -> None:
    start = time.monotonic()
    ended = step(["ask", "dcgan-8", "unused", "sm_90a", ""], start + 0.2)
    assert ended.why == "time was over"
    assert step(["ask"], start).why == "no time left"


@pytest.mark.slow
def test_what_is_measured_can_be_shipped(tmp_path: Path) -> None:
    """Each region of a network as its records place it, for the Targets of its trial."""
    case = Case("dcgan", 8)
    request = make_build_request(
        BuildOptions(exported(case, tmp_path), targets=case.targets("sm_90a", ""), place="trial", precision="fp16")
    )
    prepared = prepare(import_model(request), preparation_for(request.targets.specialized), "cuda")
    found = find_choices(prepared, Placer(prepared), choosing_of(request, measured=True))
    chosen = {region.problem: region.alternatives[-1].name for region in found.regions}
    placement = MeasuredPlacement(found.classes.model, revision_of(request), "a GPU", 1, chosen, 1.0, {})
    records_of(case, tmp_path).write_bytes(make_records((), [placement]).to_json())
    shipped = join([measured(case, tmp_path, "sm_90a")], request)
    assert (shipped.device, shipped.threads, shipped.targets) == ("a GPU", 1, ("cublas", "cuda", "cudnn", "cutlass"))
    assert {region.chosen for region in shipped.regions} == {*chosen.values()}


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    weights = {"w1": np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype(np.float32)}
    (folder / "chain.onnx").write_bytes(parse(CHAIN, weights).SerializeToString())
    targets = ["llvm", "ccompiler"]
    return packager.build(folder / "chain.onnx", folder / "trial.so", targets=targets, place="trial", golden=0)


def test_parts_of_a_trial(trial: Path) -> None:
    """Each alternative has a time, and no plan takes less than the rest and the fastest alternatives."""
    with packager.load(trial) as bundle:
        choices = bundle.manifest.choices
        parts = measure_parts(bundle, trial, {"x": np.ones((1, 3, 9, 7), np.float32)}, {}, "a CPU")
    assert [part["us"].keys() for part in parts["choices"]] == [{way.name for way in c.alternatives} for c in choices]
    assert min(parts["plans_us"].values()) >= parts["floor_us"] - 0.01 > parts["rest_us"] - 0.02
    names = [*parts["plans"]]
    spread = {"median": 1.0, "low": 0.9, "high": 1.1}
    found = {
        "us": {"chosen": spread, "torch": spread} | {n: spread | {"median": 2.0 + i} for i, n in enumerate(names)},
        "ratio": dict.fromkeys(("chosen", *names), spread),
        "errors": dict.fromkeys(("torch", "chosen", *names), 1e-3),
        "tune": {"choices": [{"problem": c.problem, "chosen": c.alternatives[0].name} for c in choices]},
        "parts": parts,
    }  # fmt: skip
    assert best_single(found) == names[0]
    assert row("chain", found)[:4] == ("chain", "1.0", names[0], "2.0")
    assert len([*parts_rows(found)]) == len(choices) + 1
