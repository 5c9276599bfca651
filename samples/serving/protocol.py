"""Tensors of the Open Inference Protocol (KServe's version 2, in JSON) as numpy arrays, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import packager

NAMES = {"bool": "BOOL", "float16": "FP16", "float32": "FP32", "float64": "FP64"} | {
    f"{sign}int{bits}": f"{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
DTYPES = {datatype: np.dtype(name) for name, datatype in NAMES.items()}


class BadRequestError(Exception):
    """What is wrong with a request, for the client that sent it."""


def read_inputs(body: Any) -> dict[str, NDArray[Any]]:
    """Return the arrays of an inference request by name. Raises BadRequestError."""
    if not isinstance(body, dict) or not isinstance(body.get("inputs"), list):
        raise BadRequestError('a request is an object with "inputs", a list of tensors')
    arrays: dict[str, NDArray[Any]] = {}
    for tensor in body["inputs"]:
        name, array = _read_tensor(tensor)
        if name in arrays:
            raise BadRequestError(f"input {name!r} is given twice")
        arrays[name] = array
    return arrays


def _read_tensor(tensor: Any) -> tuple[str, NDArray[Any]]:
    if not isinstance(tensor, dict) or not isinstance(name := tensor.get("name"), str):
        raise BadRequestError('a tensor is an object with "name", "datatype", "shape" and "data"')
    dtype = DTYPES.get(tensor.get("datatype", ""))
    if dtype is None:
        raise BadRequestError(f"datatype of {name!r} is {tensor.get('datatype')!r}; valid ones: {', '.join(DTYPES)}")
    shape = tensor.get("shape")
    if not isinstance(shape, list) or not all(type(extent) is int and extent >= 0 for extent in shape):
        raise BadRequestError(f"shape of {name!r} is {shape!r}, not a list of extents")
    try:
        return name, np.array(tensor.get("data"), dtype).reshape(shape)  # data may be nested or flat
    except (ValueError, TypeError, OverflowError) as error:
        raise BadRequestError(f"data of {name!r}: {error}") from None


def write_outputs(model: str, request_id: str | None, outputs: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """Return the body of an inference response."""
    tensors = [
        {"name": name, "datatype": NAMES[array.dtype.name], "shape": list(array.shape), "data": array.ravel().tolist()}
        for name, array in outputs.items()
    ]
    return {"model_name": model, "outputs": tensors} | ({} if request_id is None else {"id": request_id})


def metadata(bundle: packager.Bundle) -> dict[str, Any]:
    """Return the description of a bundle's model; symbolic dims are -1."""

    def describe(tensors: Any) -> list[dict[str, Any]]:
        return [
            {
                "name": info.name,
                "datatype": NAMES[info.dtype],
                "shape": [extent if isinstance(extent, int) else -1 for extent in info.shape],
            }
            for info in tensors
        ]

    return {
        "name": bundle.manifest.model.name,
        "platform": "packager",
        "versions": [],
        "inputs": describe(bundle.inputs),
        "outputs": describe(bundle.outputs),
    }
