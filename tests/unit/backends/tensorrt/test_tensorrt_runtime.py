"""The library that runs engines: which versions there are, and the lean runtime in a bundle."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

import packager
from packager.backends.tensorrt import backend
from packager.backends.tensorrt.library import FUNCTIONS, LIBRARIES, REFITTER, functions_of, installed_library
from packager.backends.tensorrt.library import loaded_library as declared
from packager.backends.tensorrt.options import TensorrtOptions
from packager.errors import UsageError

MODEL = """
<ir_version: 10, opset_import: ["": 21]>
net (float[4,8] x) => (float[4,8] y) { a = MatMul(x, w) y = Relu(a) }
"""


def test_what_is_opened_depends_on_what_is_known_of_the_engines() -> None:
    """Any version while an engine is pending; else the exact one, or, of the lean runtime, later ones too."""
    assert declared("tensorrt").sonames == ("libnvinfer.so.11", "libnvinfer.so.10", "libnvinfer.so.8")
    exact = declared("tensorrt", [(10, 13, 3)])
    assert (exact.sonames, exact.least, exact.chosen_with) == (("libnvinfer.so.10",), "10.13.3", "10.13.3")
    lean = declared("tensorrt_lean", [(11, 0, 0), (11, 2, 0)])
    assert (lean.sonames, lean.least, lean.chosen_with) == (("libnvinfer_lean.so.11",), "11.2.0", None)
    own = declared("tensorrt_lean", embedded=Path("lib") / "libnvinfer_lean.so.10")
    assert (own.sonames, own.embedded) == (("libnvinfer_lean.so.10",), True)


def test_functions_are_those_that_the_code_calls() -> None:
    """The lean runtime of version 8 has no refitter."""
    assert functions_of("tensorrt") == (*FUNCTIONS, REFITTER)
    assert functions_of("tensorrt_lean") == FUNCTIONS


def test_the_wheels_are_found() -> None:
    for form in ("tensorrt_rtx", "tensorrt_lean"):
        found = installed_library(form)
        assert found is not None, f"{form}: make env"
        assert found.name in LIBRARIES[form].sonames
    assert installed_library("tensorrt_lean", 9) is None


def test_only_the_lean_runtime_is_embedded(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="embed_runtime is for the lean runtime, not for tensorrt"):
        backend.BACKEND.canonical(TensorrtOptions(embed_runtime=True), None)
    lean = TensorrtOptions(library="tensorrt_lean", embed_runtime=True)
    assert backend.BACKEND.canonical(lean, None) == lean
    monkeypatch.setattr(backend, "installed_library", lambda _: None)
    with pytest.raises(UsageError, match="there is no lean runtime here to be embedded"):
        backend.BACKEND.canonical(lean, None)


@pytest.mark.slow
def test_a_bundle_with_the_lean_runtime_says_so(tmp_path: Path) -> None:
    """Its license is not packager's to give."""
    model = onnx.parser.parse_model(MODEL)
    values = [float(i) for i in range(64)]
    model.graph.initializer.append(onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, (8, 8), values))
    onnx.save(model, tmp_path / "model.onnx")
    target = "tensorrt -library=tensorrt_lean -embed_runtime=1 -engines=pending -min_partition_flops=0"
    bundle = packager.build(
        tmp_path / "model.onnx", tmp_path / "model.so", targets=["cuda -arch=sm_90a", target], cache=False
    )
    manifest = packager.inspect(bundle).manifest
    (library,) = manifest.requirements.libraries
    assert library.embedded
    assert library.optional
    assert library.sonames[0] in LIBRARIES["tensorrt_lean"].sonames
    assert "LicenseRef-NVIDIA-TensorRT" in {one.spdx for one in manifest.licenses}
    own = installed_library("tensorrt_lean")
    assert own is not None
    assert bundle.stat().st_size > own.stat().st_size
    assert not [finding for finding in packager.verify(bundle).findings if finding.check == "machine.library"]
