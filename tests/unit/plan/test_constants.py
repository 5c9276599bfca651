from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.graph.array_views import reshape_tracked
from packager.ir.constants import ConstantTable, ConstantView, fixed_reason
from packager.plan.constant_views import find_view
from packager.plan.constants import ConstantBuilder


def table_of(builder: ConstantBuilder, **originals: np.ndarray) -> ConstantTable:
    return builder.build(64, originals=originals)


def test_equal_contents_share_one_place_in_slots_of_their_own() -> None:
    builder = ConstantBuilder()
    four = np.arange(4, dtype=np.float32)
    assert builder.add("a", four, ["a"]) == 0
    assert builder.add("b", four.copy(), ["b"]) == 1
    assert builder.add("a", four.copy(), ["a"]) == 0
    table = table_of(builder, a=four, b=four)
    (record,) = table.records
    assert (record.name, record.aliases, record.sources) == ("a", ("b",), ("a", "b"))
    assert (record.dtype, record.shape, record.offset, record.bytes) == ("float32", (4,), 0, 16)
    assert record.sha256 == hashlib.sha256(four.tobytes()).hexdigest()
    assert [(slot.name, slot.offset, slot.nbytes, slot.sources) for slot in table.slots] == [
        ("a", 0, 16, ("a",)),
        ("b", 0, 16, ("b",)),
    ]
    assert table.nbytes == 64


def test_the_same_bytes_of_another_type_or_shape_are_another_constant() -> None:
    builder = ConstantBuilder()
    zeros = np.zeros(4, np.float32)
    for name, array in {"a": zeros, "b": zeros.view(np.int32), "c": zeros.reshape(2, 2)}.items():
        builder.add(name, array)
    assert len(table_of(builder).records) == 3


def test_a_name_stands_for_one_content() -> None:
    builder = ConstantBuilder()
    builder.add("a", np.zeros(4))
    with pytest.raises(ValueError, match="constant 'a' has two different contents"):
        builder.add("a", np.ones(4))


def test_anonymous_constants_are_named_after_their_content() -> None:
    builder = ConstantBuilder()
    slots = [
        builder.add_anonymous(array) for array in (np.zeros((2, 3), np.int64), np.float32(1), np.zeros((2, 3), "i8"))
    ]
    assert slots == [0, 1, 0]
    names = [record.name for record in table_of(builder).records]
    assert len(names) == 2
    assert names[0].startswith("constant.int64.2x3.")
    assert names[1].startswith("constant.float32.scalar.")


def test_an_array_with_gaps_counts_by_its_values() -> None:
    builder = ConstantBuilder()
    base = np.arange(6, dtype=np.float32).reshape(2, 3)
    builder.add("a", base.T)
    builder.add("b", np.ascontiguousarray(base.T))
    table = table_of(builder)
    assert [slot.offset for slot in table.slots] == [0, 0]
    np.testing.assert_array_equal(table.arrays[0].reshape(-1), base.T.reshape(-1))


def gathered(form: ConstantView, source: np.ndarray) -> np.ndarray:
    """Read ``source`` as the runtime does."""
    flat = np.ascontiguousarray(source).reshape(-1)
    places = np.indices(form.extents).reshape(len(form.extents), -1)
    return flat[form.offset + np.array(form.strides) @ places]


def packed(array: np.ndarray) -> np.ndarray:
    rows, columns = array.shape
    return array.reshape(rows, columns // 4, 4).transpose(1, 0, 2)


def swapped(a: np.ndarray) -> np.ndarray:
    """Return a copy whose rows are in another order."""
    return reshape_tracked(a.reshape(2, a.shape[0] // 2, a.shape[1]).transpose(1, 0, 2), a.shape)


VIEWS = {
    "itself": (lambda a: a, ((96,), (1,), 0)),
    "another shape": (lambda a: a.reshape(4, 24), ((96,), (1,), 0)),
    "transposed": (lambda a: a.T, ((12, 8), (1, 12), 0)),
    "packed": (packed, ((3, 8, 4), (4, 12, 1), 0)),
    "packed after transposing": (lambda a: packed(a.T), ((2, 12, 4), (48, 1, 12), 0)),
    "axes of extent 1": (lambda a: a.T[:, None, :, None], ((12, 8), (1, 12), 0)),
    "a slice": (lambda a: a[2:4, 3:], ((2, 9), (12, 1), 27)),
    "reversed": (lambda a: a[::-1, ::2], ((8, 6), (-12, 2), 84)),
    "broadcast": (lambda a: np.broadcast_to(a[1:2], (5, 12)), ((5, 12), (0, 1), 12)),
    "one element": (lambda a: a[7:, 11:], ((1,), (1,), 95)),
    "a copy": (swapped, ((4, 2, 12), (12, 48, 1), 0)),
    "a copy of a slice, transposed": (lambda a: swapped(a[:, 4:]).T, ((8, 4, 2), (1, 12, 48), 4)),
    "packed after a copy": (lambda a: packed(swapped(a)), ((3, 4, 2, 4), (4, 12, 48, 1), 0)),
    "a copy of a copy": (lambda a: swapped(swapped(a)), ((2, 4, 12), (12, 24, 1), 0)),
    "empty": (lambda a: a[:, :0], ((0,), (1,), 0)),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("dtype", ["float32", "int8", "float64"])
def test_the_form_of_a_view(name: str, dtype: str) -> None:
    view, expected = VIEWS[name]
    source = np.arange(96).astype(dtype).reshape(8, 12)
    form = find_view(np.asarray(view(source)), "w", source)
    assert form == ConstantView("w", *expected)
    assert form is not None
    np.testing.assert_array_equal(gathered(form, source), np.asarray(view(source)).reshape(-1))


def test_no_form() -> None:
    source = np.arange(96, dtype=np.float32).reshape(8, 12)
    assert find_view(source + 0, "w", source) is None  # other memory
    assert find_view(reshape_tracked(source.T + 0, (96,)), "w", source) is None  # a copy of that
    assert find_view(reshape_tracked(source.T, (96,)) + 0, "w", source) is None  # computed from a copy
    assert (
        find_view(reshape_tracked(source.T, (96,)).reshape(32, 3).T, "w", source) is None
    )  # no strides have this order
    assert find_view(source.view(np.int32), "w", source) is None
    assert find_view(source.T, "w", source.T) is None  # the source itself is no plain array
    assert find_view(source, "w", source[1:]) is None  # starts before it
    assert find_view(source, "w", source[:4]) is None  # ends after it
    assert find_view(source.view(np.int8)[:, 1:5].view(np.float32), "w", source) is None  # between elements


def test_slots_and_the_reasons_why_a_constant_is_fixed() -> None:
    w, b, table = (np.arange(6, dtype=np.float32).reshape(2, 3) + i for i in range(3))
    positions = np.arange(2)
    builder = ConstantBuilder()
    builder.add("w", w, ["w"])
    builder.add("w.permute_dims", w.T, ["w"])
    builder.add("w+b.add", w + b, ["w", "b"])
    builder.add("table.take", table[:1], ["table", "positions"])
    builder.add("backend.lut", np.arange(7))
    constants = table_of(builder, unused=w, w=w, b=b, table=table, positions=positions)
    views = [slot.view and (slot.view.source, slot.view.extents) for slot in constants.slots]
    assert views == [("w", (6,)), ("w", (3, 2)), None, ("table", (3,)), None]
    assert [(spec.name, spec.dtype, spec.shape) for spec in constants.named] == [
        ("w", "float32", (2, 3)),
        ("b", "float32", (2, 3)),
        ("table", "float32", (2, 3)),
        ("positions", "int64", (2,)),
    ]
    assert fixed_reason(constants, "w") == "w+b.add is computed from w and b at build time"
    assert fixed_reason(constants, "table") is None
    assert fixed_reason(constants, "positions") == "table.take is computed from table and positions at build time"


def test_a_reason_stays_short() -> None:
    names = [f"n{i}" for i in range(20)]
    builder = ConstantBuilder()
    builder.add("sum", np.ones(3), names)
    reason = fixed_reason(table_of(builder, **dict.fromkeys(names, np.zeros(3))), "n3")
    assert reason == "sum is computed from n0, n1, n2, n3, n4, n5, n6 and others at build time"


ARRAYS = st.lists(
    st.tuples(st.sampled_from(["bool", "int8", "float16", "int32", "float32", "int64", "float64"]), st.integers(0, 40)),
    max_size=12,
)


@pytest.mark.parametrize("alignment", [None, 64, 256])
@given(ARRAYS)
def test_the_layout(alignment: int | None, arrays: list[tuple[str, int]]) -> None:
    builder = ConstantBuilder()
    given_arrays = []
    for index, (dtype, size) in enumerate(arrays):
        array = (np.arange(size) + index).astype(dtype)
        given_arrays.append((builder.add(f"c{index}", array), array))
    table = builder.build(alignment, originals={})
    assert [record.offset for record in table.records] == sorted(record.offset for record in table.records)
    end = 0
    for record, array in zip(table.records, table.arrays, strict=True):
        assert record.offset == end if alignment is None else record.offset % alignment == 0
        assert record.offset >= end
        assert record.offset % array.itemsize == 0
        assert record.bytes == array.nbytes
        end = record.offset + record.bytes
    assert table.nbytes >= end
    by_offset = dict(
        zip(
            (record.offset for record in table.records if record.bytes),
            (a for a in table.arrays if a.nbytes),
            strict=True,
        )
    )
    for entry, array in given_arrays:
        if array.nbytes:
            np.testing.assert_array_equal(by_offset[table.slots[entry].offset], array)


def test_large_contents_without_gaps_begin_at_lines() -> None:
    """As those of external weights on a GPU do, whatever small ones there are."""
    builder = ConstantBuilder()
    builder.add("count", np.array([3], np.int64))
    builder.add("bias", np.ones(33, np.float16))
    builder.add("w", np.ones((64, 128), np.float16))
    builder.add("scale", np.ones(1, np.float32))
    builder.add("v", np.ones((128, 64), np.float32))
    table = builder.build(None, originals={})
    assert [record.name for record in table.records] == ["v", "w", "count", "scale", "bias"]
    assert [record.offset for record in table.records] == [0, 32768, 49152, 49160, 49164]
