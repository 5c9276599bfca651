"""Portfolios of kernels: what is written is read back, and names the kernels that builds ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tvm")

import numpy as np
import onnx
import onnx.helper

from packager.backends.cutlass.attention.kernels import AttentionForm, SplitAttention, split_kernels
from packager.backends.cutlass.core.kernel import KernelConfig
from packager.backends.cutlass.module import kernels_for
from packager.backends.cutlass.portfolio import GROUPS, kernels_of, of_json, of_type, read_portfolio, to_json
from packager.bundle.dtypes import PRECISIONS
from packager.errors import UsageError
from packager.pipeline.import_models import import_model
from packager.pipeline.options import BuildOptions
from packager.pipeline.place import place
from packager.pipeline.request import make_build_request
from packager.placement.preparation import preparation_for
from packager.transforms.prepare import prepare


def test_configurations_are_read_as_they_were_written() -> None:
    portfolio = read_portfolio("default")
    assert all(portfolio.values())
    for configs in portfolio.values():
        assert [of_json(to_json(config)) for config in configs] == list(configs)
        names = [config.name for config in configs]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("group", GROUPS)
def test_each_kernel_has_a_source(group: str) -> None:
    archs = ("sm_80",) if group == "plain" else ("sm_90a",)
    for config in read_portfolio("default")[group]:
        source = config.source(archs)
        assert config.name in source.text
        other = of_type(config, "bfloat16")
        assert other.name != config.name
        assert "float16" not in repr(other).replace("bfloat16", "")
        assert other.name in other.source(archs).text


def test_bundles_for_several_gpus_have_kernels_of_each() -> None:
    portfolio = read_portfolio("default")
    hopper = [(config, ("sm_90a",)) for config in portfolio["hopper"]]
    assert kernels_of(portfolio, ("sm_90a",))[: len(hopper)] == hopper
    assert kernels_of(portfolio, ("sm_80",)) == [(config, ("sm_80",)) for config in portfolio["plain"]]
    both = kernels_of(portfolio, ("sm_80", "sm_90a"))
    assert both[: len(hopper)] == hopper
    assert {archs for _, archs in both[len(hopper) :]} == {("sm_80", "sm_90a")}


def asked(folder: Path, target: str, arch: str, precision: str) -> list[tuple[KernelConfig, int]]:
    """Return the kernels that two layers of a transformer's MLP ask for in half precision."""
    rng = np.random.default_rng(0)
    weights = {"up": (768, 3072), "down": (3072, 768), "b": (3072,)}
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("MatMul", ["x", "up"], ["u"]),
            onnx.helper.make_node("Add", ["u", "b"], ["s"]),
            onnx.helper.make_node("Gelu", ["s"], ["g"]),
            onnx.helper.make_node("MatMul", ["g", "down"], ["y"]),
        ],
        "mlp",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (1, 128, 768))],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (1, 128, 768))],
        [
            onnx.numpy_helper.from_array(rng.standard_normal(shape).astype("float32"), name)
            for name, shape in weights.items()
        ],
    )
    path = folder / "mlp.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9), path)
    request = make_build_request(BuildOptions(path, targets=[f"cuda -arch={arch}", target], precision=precision))
    targets = request.targets.specialized
    placement = place(request, prepare(import_model(request), preparation_for(targets), "cuda"))
    return kernels_for([verdict.partition for verdict in placement.verdicts if not verdict.reason], targets[0])


@pytest.mark.parametrize(("arch", "precision"), [("sm_90a", "fp16"), ("sm_90a", "bf16"), ("sm_80", "fp16")])
def test_the_default_has_what_common_layers_ask_for(tmp_path: Path, arch: str, precision: str) -> None:
    """It fails if cost models or templates have changed since the file was made: benchmarks.cutlass.portfolio."""
    kernels = kernels_of(read_portfolio("default"), (arch,), PRECISIONS[precision])
    found = asked(tmp_path, "cutlass -candidates=1", arch, precision)
    assert len(found) >= 2
    assert [config.name for config, _ in found if (config, (arch,)) not in kernels] == []


@pytest.mark.parametrize(("group", "tiled"), [("hopper", True), ("plain", False)])
def test_the_default_has_the_attention_of_decoders(group: str, tiled: bool) -> None:
    forms = [AttentionForm("float16", depth, depth, causal=False, alignment=8) for depth in (64, 128)]
    wanted = {kernel for form in forms for kernel in split_kernels(form, tiled=tiled)}
    assert wanted <= {kernel for kernel in read_portfolio("default")[group] if isinstance(kernel, SplitAttention)}


def test_clusters_are_of_tiled_kernels() -> None:
    with pytest.raises(ValueError, match="clusters are of tiled kernels"):
        SplitAttention("float16", 64, False, cluster=8)


def test_what_is_no_portfolio_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the portfolio odd"):
        read_portfolio("odd")
    rows = '{"type": "FewRowsGemm", "rows": 4, "dtype": "float16", "out": "float16"}'
    entries = ('{"type": "os.system"}', rows)
    for content in ("[", "{}", *(f'{{"hopper": [{entry}], "besides": [], "plain": []}}' for entry in entries)):
        (tmp_path / "odd.json").write_text(content)
        with pytest.raises(UsageError, match="cannot read the portfolio"):
            read_portfolio(str(tmp_path / "odd.json"))
