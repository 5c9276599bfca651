"""``TfIdfVectorizer`` of integers: counts the n-grams of a table in each row.

ONNX operator TfIdfVectorizer (version 9). Tables of strings are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import te, tirx

from packager.frontends.onnx.ops.operands import Convert, Converter, dtype_of, static_extents, tensor_constant, text


def _grams(attributes: Mapping[str, Any]) -> list[tuple[tuple[int, ...], int]]:
    """Return the n-grams to count, each with its output column."""
    pool, starts = list(attributes["pool_int64s"]), list(attributes["ngram_counts"])
    found, number = [], 0
    for size, (begin, end) in enumerate(zip(starts, [*starts[1:], len(pool)], strict=True), 1):
        for at in range(begin, end - size + 1, size):
            if attributes["min_gram_length"] <= size <= attributes["max_gram_length"]:
                found.append((tuple(pool[at : at + size]), attributes["ngram_indexes"][number]))
            number += 1
    return found


def _vectorize(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    data, dtype = inputs[0], dtype_of(inputs[0])
    if "pool_int64s" not in attributes or dtype not in ("int32", "int64"):
        raise ValueError("TfIdfVectorizer of strings")
    shape, grams = static_extents(data, "the input of TfIdfVectorizer"), _grams(attributes)
    length, rows = shape[-1], shape[:-1]
    columns = max(attributes["ngram_indexes"]) + 1
    skips = attributes["max_skip_count"] + 1
    longest = max((len(gram) for gram, _ in grams), default=1)
    table = np.zeros((max(len(grams), 1), longest), np.int64)
    sizes, owners = np.zeros(len(table), np.int64), np.full(len(table), -1, np.int64)
    for number, (gram, column) in enumerate(grams):
        table[number, : len(gram)], sizes[number], owners[number] = gram, len(gram), column
    mode = text(attributes, "mode", "TF")
    weights = np.ones(columns, np.float32)
    given = attributes.get("weights", ())
    if mode != "TF" and len(given):
        weights = np.asarray(given, np.float32)[:columns]
    constants = [tensor_constant(array) for array in (table, sizes, owners, weights)]

    def compute(x: Any, pool: Any, size: Any, owner: Any, weight: Any) -> Any:
        gram, skip = te.reduce_axis((0, len(table)), name="gram"), te.reduce_axis((0, skips), name="skip")
        start = te.reduce_axis((0, length), name="start")

        def count(*i: Any) -> Any:
            row, column = i[:-1], i[-1]
            # A unigram has no gaps: count it for one skip only.
            fits = [owner[gram] == column.astype("int64"), tirx.any(size[gram] > 1, skip == 0)]
            for item in range(longest):
                at = start + item * (skip + 1)
                inside = x(*row, tirx.min(at, length - 1)).astype("int64") == pool[gram, item]
                fits.append(tirx.any(item >= size[gram], tirx.all(at < length, inside)))
            return te.sum(
                tirx.Select(tirx.all(*fits), tirx.const(1.0, "float32"), tirx.const(0.0, "float32")),
                axis=[gram, skip, start],
            )

        total = te.compute((*rows, columns), count, name="gram_counts")

        def scale(*i: Any) -> Any:
            number = total(*i)
            if mode == "IDF":
                number = tirx.Select(
                    number > tirx.const(0.0, "float32"), tirx.const(1.0, "float32"), tirx.const(0.0, "float32")
                )
            return number * weight(i[-1])

        return te.compute(total.shape, scale, name="tf_idf")

    return builder.call_te(compute, data, *constants, primfunc_name_hint="tf_idf")


CONVERTERS: Mapping[str, Converter] = {"TfIdfVectorizer": _vectorize}
