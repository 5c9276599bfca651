"""``--freeze``: turn inputs of an ONNX model into constants, so that what depends on them is folded at build time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from packager.errors import UsageError, suggestion

if TYPE_CHECKING:
    import onnx
    from numpy.typing import ArrayLike

    from packager.bundle.arrays import Array

HINT = "write --freeze NAME=VALUE, the value as JSON: shape=[2,3], axis=1"


def parse_frozen(texts: Sequence[str]) -> dict[str, Any]:
    """Parse ``NAME=JSON`` texts into values by input. Raises UsageError."""
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"--freeze {text!r} cannot be read", hint=HINT)
        if name in values:
            raise UsageError(f"--freeze {name} is given twice")
        try:
            values[name] = json.loads(value)
        except ValueError as error:
            raise UsageError(f"--freeze {text!r} cannot be read: {error}", hint=HINT) from None
    return values


def frozen_arrays(values: Mapping[str, ArrayLike]) -> dict[str, Array]:
    """Convert the values to arrays. Raises UsageError if that fails, such as for rows of unequal length."""
    if not values:
        return {}
    import numpy as np

    arrays = {}
    for name, value in values.items():
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise UsageError(f"--freeze {name}: not an array: {error}", hint=HINT) from None
        if array.dtype.kind not in "biufV":
            raise UsageError(f"--freeze {name}: {value!r} is not a number or list of numbers", hint=HINT)
        arrays[name] = array
    return arrays


def freeze_inputs(graph: onnx.GraphProto, frozen: Mapping[str, Array]) -> None:
    """Replace the inputs in ``frozen`` by initializers.

    Raises UsageError for a name that is not an input, for a wrong shape, and for a value out of range of the element
    type.
    """
    import numpy as np
    import onnx

    inputs = {value.name: value for value in graph.input}
    for name, array in frozen.items():
        if name not in inputs:
            raise UsageError(
                f"--freeze {name}: the model has no such input{suggestion(name, set(inputs))}",
                hint=f"its inputs: {', '.join(inputs)}",
            )
        kind = inputs[name].type.tensor_type
        if inputs[name].type.WhichOneof("value") != "tensor_type":
            raise UsageError(f"--freeze {name}: the input is not a tensor")
        _check_shape(name, array, kind)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        with np.errstate(all="ignore"):
            cast = array.astype(dtype)
            exact = array.dtype == dtype or np.array_equal(cast.astype(array.dtype), array, equal_nan=False)
        if not exact and (dtype.kind in "biu" or dtype.name.startswith(("int", "uint"))):
            raise UsageError(
                f"--freeze {name}: {array.tolist()} cannot be represented as {dtype.name}, the input's type"
            )
        graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(cast, order="C"), name))
    remaining = [value for value in graph.input if value.name not in frozen]
    del graph.input[:]
    graph.input.extend(remaining)


def _check_shape(name: str, array: Array, kind: Any) -> None:
    if not kind.HasField("shape"):
        return
    extents = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in kind.shape.dim]
    pairs = zip(array.shape, extents, strict=False)
    if array.ndim != len(extents) or any(isinstance(want, int) and have != want for have, want in pairs):
        wanted = ", ".join(map(str, extents))
        raise UsageError(f"--freeze {name}: the value has shape {list(array.shape)}, the input [{wanted}]", hint=HINT)
