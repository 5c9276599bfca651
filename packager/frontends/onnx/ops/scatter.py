"""ScatterElements with fewer indices than data on other axes than the scattered one, for which TVM's is wrong.

ONNX operators ScatterElements (version 18), Scatter (9).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax, te, tirx

from packager.frontends.onnx.ops.operands import Convert, Converter, extents, text

REDUCTIONS = {"none": "update", "add": "add", "mul": "mul", "max": "max", "min": "min"}


def _scatter_elements(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """Scatter into the flat data, by flat indices."""
    data, indices, updates = inputs
    shape, counts = extents(data), extents(indices)
    axis = attributes.get("axis", 0) % len(shape)
    static = all(isinstance(extent, int) for extent in (*shape, *counts))
    if not static or [*shape[:axis], *shape[axis + 1 :]] == [*counts[:axis], *counts[axis + 1 :]]:
        return convert("ScatterElements", list(inputs), attributes)

    def flat(at: Any) -> Any:
        def element(*i: Any) -> Any:
            index = at(*i).astype("int64")
            index = tirx.Select(index < 0, index + shape[axis], index)
            place = tirx.const(0, "int64")
            for number, extent in enumerate(shape):
                place = place * extent + (index if number == axis else i[number].astype("int64"))
            return place

        return te.compute(at.shape, element, name="flat_indices")

    emit = builder.emit
    places = emit(relax.op.reshape(emit(builder.call_te(flat, indices, primfunc_name_hint="flat_indices")), [-1]))
    operands = [emit(relax.op.reshape(data, [-1])), places, emit(relax.op.reshape(updates, [-1]))]
    how = REDUCTIONS[text(attributes, "reduction", "none")]
    return relax.op.reshape(emit(relax.op.scatter_elements(*operands, axis=0, reduction=how)), shape)


CONVERTERS: Mapping[str, Converter] = {"ScatterElements": _scatter_elements, "Scatter": _scatter_elements}
