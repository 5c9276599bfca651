"""The cases: those that the onnx package generates for its operators, and the models that it carries with data."""

from __future__ import annotations

import dataclasses
import functools
import math
import pickle
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

# Inputs, by their numbers, that say which shape, axis, mode or count an operator has. Models have constants there; the
# cases have inputs. A case that packager refuses is tried again with these frozen (``packager build --freeze``).
PARAMETERS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("Reshape", "Expand", "Tile", "Squeeze", "Unsqueeze", "Split", "TopK", "CumSum", "CumProd"), (1,)),
    **dict.fromkeys(("Trilu", "CenterCropPad", "AffineGrid", "OneHot", "Upsample", "SplitToSequence"), (1,)),
    **dict.fromkeys(("ConstantOfShape", "BlackmanWindow", "HannWindow", "HammingWindow"), (0,)),
    **dict.fromkeys(("Range", "MelWeightMatrix"), (0, 1, 2, 3, 4)),
    **dict.fromkeys(("Dropout", "DFT", "Col2Im"), (1, 2)),
    **{f"Reduce{name}": (1,) for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod")},
    **{f"Reduce{name}": (1,) for name in ("Sum", "SumSquare")},
    "Slice": (1, 2, 3, 4),
    "Pad": (1, 3),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "MaxUnpool": (2,),
    "NonMaxSuppression": (2, 3, 4),
    "Loop": (0, 1),
    "SequenceAt": (1,),
    "SequenceErase": (1,),
    "SequenceInsert": (2,),
    "TensorScatter": (2,),
    "ReverseSequence": (1,),
    "CastLike": (1,),
}
# What DFT should give was computed in single precision, with errors above the cases' own absolute tolerance, 1e-7: the
# exact results, which are zero there, would be wrong.
ABSOLUTE_TOLERANCES = {"DFT": 1e-5}
RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")


@dataclass(frozen=True)
class Case:
    """A model, its inputs by name and what its outputs should be, in order.

    Of a model that draws random numbers shapes and element types are compared: ``atol`` is infinite.
    """

    name: str
    kind: str
    operator: str
    opset: int
    model: bytes
    inputs: dict[str, Any]
    outputs: tuple[Any, ...]
    rtol: float
    atol: float
    operands: tuple[str, ...] = ()  # of the node under test, as its case without expansion has them

    def save(self, folder: Path) -> None:
        """Write the model and the inputs, for processes that have no onnx."""
        (folder / "model.onnx").write_bytes(self.model)
        (folder / "inputs.pickle").write_bytes(pickle.dumps(self.inputs))


@functools.cache
def all_cases() -> tuple[Case, ...]:
    """Return all cases; what the onnx package generates first, in its order."""
    return (*_generated(), *(case for kind in KINDS[1:] for case in _carried(kind)))


def frozen_inputs(case: Case) -> tuple[str, ...]:
    """Return the names of the inputs of a case that say how its operator works."""
    names = case.operands or tuple(case.inputs)
    chosen = [names[number] for number in PARAMETERS.get(case.operator, ()) if number < len(names)]
    return tuple(name for name in chosen if name in case.inputs)


def _base(name: str) -> str:
    return name.partition("_expanded")[0]


def _generated() -> list[Case]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collected = collect_testcases(None)
    nodes = {case.name: case.model.graph.node[-1] for case in collected}
    cases = []
    for case in collected:
        node = nodes.get(_base(case.name), nodes[case.name])
        inputs, outputs = case.data_sets[0]
        made = _case(case.name, "node", node.op_type, case.model, inputs, outputs, case.rtol, case.atol)
        cases.append(dataclasses.replace(made, operands=tuple(node.input)))
    return cases


def _case(
    name: str, kind: str, operator: str, model: onnx.ModelProto, inputs: Any, outputs: Any, rtol: float, atol: float
) -> Case:
    initialized = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input]
    if len(names) != len(inputs):
        names = [name for name in names if name not in initialized]
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx", *_OTHER))
    by_name = {name: value for name, value in zip(names, inputs, strict=True) if name not in initialized}
    arrays = {name: _array(value) for name, value in by_name.items()}
    expected = tuple(_array(value) for value in outputs)
    atol = math.inf if _draws(model, arrays) else max(atol, ABSOLUTE_TOLERANCES.get(operator, 0.0))
    return Case(name, kind, operator, opset, model.SerializeToString(), arrays, expected, rtol, atol)


def _draws(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> bool:
    """Tell whether a model draws random numbers: a Dropout does in training, unless it keeps all."""
    nodes = list(model.graph.node)
    if any(node.op_type in RANDOM for node in nodes):
        return True
    trained = [node for node in nodes if node.op_type == "Dropout" and len(node.input) > 2]
    values = [[inputs.get(name, True) for name in node.input[1:3]] for node in trained]
    return any(bool(np.any(ratio)) and bool(np.any(mode)) for ratio, mode in values)


def _array(value: Any) -> Any:
    if isinstance(value, np.generic):
        return np.asarray(value)
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


_OTHER = ("ai.onnx.preview.training", "ai.onnx.ml", "ai.onnx.preview")


def _carried(kind: str) -> list[Case]:
    root = Path(onnx.__file__).parent / "backend" / "test" / "data" / kind
    cases = []
    for folder in sorted(path for path in root.iterdir() if (path / "model.onnx").exists()):
        model = onnx.load(folder / "model.onnx")
        data = folder / "test_data_set_0"
        inputs = [_read(file) for file in _numbered(data, "input")]
        outputs = [_read(file) for file in _numbered(data, "output")]
        operator = model.graph.node[-1].op_type if model.graph.node else "(none)"
        cases.append(_case(f"{kind}/{folder.name}", kind, operator, model, inputs, outputs, 1e-3, 1e-7))
    return cases


def _numbered(folder: Path, prefix: str) -> list[Path]:
    return sorted(folder.glob(f"{prefix}_*.pb"), key=lambda path: int(path.stem.rpartition("_")[2]))


def _read(file: Path) -> Any:
    tensor = onnx.TensorProto()
    try:
        tensor.ParseFromString(file.read_bytes())
        return numpy_helper.to_array(tensor)
    except Exception:  # a sequence, an optional or a string: no case that a bundle could run, and it says so by itself
        return None
