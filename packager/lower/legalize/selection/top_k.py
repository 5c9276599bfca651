"""Lower TopK for CPUs: insertion into a sorted list of keys, or selection and a radix sort; rows in parallel.

Ties are in index order. Few results take about a comparison for each element, in vectors, since most are worse than all
of the list. Of many, the key of the last is found bit by bit, each by a comparison with all elements, in vectors; the
results are then sorted by a pass for each byte of a key. That takes as long whatever the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.graph.dataflow import same
from packager.lower.keys import key_of, key_type
from packager.lower.tir_loops import emit_rows

# Up to this number of results, insertion is as fast as sorting in whatever order the elements are; the list is on the
# stack.
MAX_INSERTED = 64
# Elements that are compared with the last of the list at once.
CHUNK = 32
# Values of a byte: the buckets of a pass of the radix sort, whose numbers are on the stack.
BUCKETS = 256


@dataclass(frozen=True)
class _Top:
    """The ``k`` best of each row of ``data``; ``index``: the type of indices while rows are sorted."""

    builder: relax.BlockBuilder
    data: Any
    k: Any
    largest: bool
    index: str

    @property
    def dtype(self) -> str:
        return str(self.data.ty.dtype)

    @property
    def key(self) -> str:
        return key_type(self.dtype)

    def key_of(self, value: Any) -> Any:
        """Return an integer that is greater the better an element is."""
        key = key_of(value, self.dtype)
        return key if self.largest else tirx.bitwise_not(key)

    @property
    def results(self) -> list[tuple[list[Any], str]]:
        shape = [self.data.ty.shape.values[0], self.k]
        return [(shape, self.dtype), (shape, "int64")]


def legalize_top_k(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``packager.top_k``."""
    index = "int32" if int(call.attrs["most"]) < 1 << 31 else "int64"
    top = _Top(builder, call.args[0], call.args[1].values[0], bool(int(call.attrs["largest"])), index)
    k = int(top.k) if isinstance(top.k, tirx.IntImm) else MAX_INSERTED + 1
    compute = _best if k == 1 else _by_insertion if k <= MAX_INSERTED else _by_radix
    return relax.Tuple(compute(top))


def _best(top: _Top) -> list[Any]:
    """Find the greatest key of a row, then where it is first: two loops that become vectors."""

    def find(buffers: Sequence[Any], given: Sequence[Sequence[Any]], row: Any) -> None:
        source, values, indices = buffers
        number = given[0][1]
        base = T.bind(row * number)
        best, place = _local(top.key), _local(top.index)
        best[0] = top.key_of(source[base])
        with T.serial(0, number) as i:
            best[0] = tirx.max(best[0], top.key_of(source[base + i]))
        last = (number - 1).astype(top.index)
        place[0] = last
        with T.serial(0, number) as i:
            is_best = top.key_of(source[base + i]) == best[0]
            place[0] = tirx.min(place[0], tirx.Select(is_best, i.astype(top.index), last))
        found = place[0].astype("int64")
        values[row] = source[base + found]
        indices[row] = found

    return emit_rows(top.builder, "top_k", [top.data], lambda x: (x.shape[0], top.results), find)


def _by_insertion(top: _Top) -> list[Any]:
    """Insert each element into a sorted list of the best ones, but chunks with none that is better than its last."""
    k = int(top.k)

    def insert_all(buffers: Sequence[Any], given: Sequence[Sequence[Any]], row: Any) -> None:
        source, values, indices = buffers
        number = given[0][1]
        base = T.bind(row * number)
        best = _List(top, k, source, base)
        with T.serial(0, tirx.min(tirx.const(k, "int64"), number)) as i:
            best.insert(i, i.astype(top.index))
        # No extent is bound: the cost model reads those of loops.
        chunks = tirx.indexdiv(tirx.max(number - k, tirx.const(0, "int64")), CHUNK)
        with T.serial(0, chunks) as chunk:
            start = T.bind(k + chunk * CHUNK)
            best.insert_chunk(start, start, CHUNK)
        rest = k + chunks * CHUNK
        left = tirx.max(number - rest, tirx.const(0, "int64"))
        if isinstance(number, tirx.IntImm) and int(number) >= CHUNK:
            best.insert_chunk(number - CHUNK, rest, left)  # looks at some elements once more
        else:
            with T.serial(0, left) as i:
                best.insert_better(rest + i)
        with T.serial(0, k) as i:
            found = best.found[i].astype("int64")
            values[row * k + i] = source[base + found]
            indices[row * k + i] = found

    return emit_rows(top.builder, "top_k", [top.data], lambda x: (x.shape[0], top.results), insert_all)


class _List:
    """The keys and indices of the ``k`` best elements of a row so far, on the stack."""

    def __init__(self, top: _Top, k: int, source: Any, base: Any) -> None:
        self.top, self.k, self.source, self.base = top, k, source, base
        self.keys, self.found = _local(top.key, k), _local(top.index, k)
        # Variables of one element, since TVM's simplifier expands bound ones.
        self.new, self.last = _local(top.key), _local(top.key)
        self.place, self.better = _local(top.index), _local("int32")

    def key_of(self, i: Any) -> Any:
        return self.top.key_of(self.source[self.base + i])

    def insert(self, i: Any, end: Any) -> None:
        """Insert an element from the ``end`` of the list to its start: shift worse ones to make room."""
        place, one = self.place, tirx.const(1, self.top.index)
        self.new[0] = self.key_of(i)
        place[0] = end
        before = tirx.max(place[0] - one, tirx.const(0, self.top.index))
        with T.While(tirx.all(place[0] > 0, self.new[0] > self.keys[before])):
            self.keys[place[0]] = self.keys[place[0] - one]
            self.found[place[0]] = self.found[place[0] - one]
            place[0] = place[0] - one
        self.keys[place[0]] = self.new[0]
        self.found[place[0]] = i.astype(self.top.index)
        self.last[0] = self.keys[self.k - 1]

    def insert_better(self, i: Any) -> None:
        """Insert an element if it is better than the last of a full list."""
        with T.If(self.key_of(i) > self.last[0]), T.Then():
            self.insert(i, tirx.const(self.k - 1, self.top.index))

    def insert_chunk(self, start: Any, first: Any, count: Any) -> None:
        """Insert ``count`` elements from ``first`` on, unless none of the chunk from ``start`` on is better."""
        self.better[0] = tirx.const(0, "int32")
        with T.serial(0, CHUNK) as i:
            is_better = self.key_of(start + i) > self.last[0]
            self.better[0] = self.better[0] | is_better.astype("int32")
        with T.If(self.better[0] != 0), T.Then(), T.serial(0, count) as i:
            self.insert_better(first + i)


def _by_radix(top: _Top) -> list[Any]:
    """Select the best, in the order of their indices, and sort these by a byte of the keys at a time, the lowest first,
    each pass stable."""
    k, bits, unsigned = top.k, _bits(top.key), f"uint{_bits(top.key)}"
    # The best comes first: bits of keys are inverted, but for the sign, whose order is the other one.
    flip = tirx.const((1 << bits) - 1 >> (0 if top.key.startswith("u") else 1), unsigned)

    def sort_all(buffers: Sequence[Any], given: Sequence[Sequence[Any]], row: Any) -> None:
        source, values, indices, keys, *orders = buffers
        number = given[0][1]
        base = T.bind(row * number)
        wanted = tirx.min(k, number)
        with T.serial(0, number) as i:
            keys[base + i] = top.key_of(source[base + i])
        if same(k, number):
            with T.serial(0, number) as i:
                orders[1][base + i] = i.astype(top.index)
        else:
            _select(top, keys, orders[1], base, number, wanted)
        starts, total = _local(top.index, BUCKETS), _local(top.index)
        one = tirx.const(1, top.index)

        def bucket(i: Any, number_of_byte: int) -> Any:
            shifted = (tirx.reinterpret(unsigned, keys[base + i]) ^ flip) >> tirx.const(8 * number_of_byte, unsigned)
            return (shifted & tirx.const(BUCKETS - 1, unsigned)).astype("int64")

        for number_of_byte in range(bits // 8):
            before, after = orders[(number_of_byte + 1) % 2], orders[number_of_byte % 2]
            with T.serial(0, BUCKETS) as i:
                starts[i] = tirx.const(0, top.index)
            with T.serial(0, wanted) as i:
                here = T.bind(bucket(before[base + i].astype("int64"), number_of_byte))
                starts[here] = starts[here] + one
            total[0] = tirx.const(0, top.index)
            with T.serial(0, BUCKETS) as i:
                total[0] = total[0] + starts[i]
                starts[i] = total[0] - starts[i]
            with T.serial(0, wanted) as i:
                chosen = T.bind(before[base + i].astype("int64"))
                here = T.bind(bucket(chosen, number_of_byte))
                after[base + starts[here].astype("int64")] = chosen.astype(top.index)
                starts[here] = starts[here] + one
        ordered = orders[(bits // 8 + 1) % 2]
        with T.serial(0, k) as i:
            chosen = T.bind(ordered[base + tirx.min(i, number - 1)].astype("int64"))
            values[row * k + i] = source[base + chosen]
            indices[row * k + i] = chosen

    def shapes(x: Any) -> tuple[Any, list[tuple[list[Any], str]]]:
        rows = list(x.shape)
        return rows[0], [*top.results, (rows, top.key), (rows, top.index), (rows, top.index)]

    return emit_rows(top.builder, "top_k", [top.data], shapes, sort_all)[:2]


def _select(top: _Top, keys: Any, chosen: Any, base: Any, number: Any, wanted: Any) -> None:
    """Write the indices of the ``wanted`` greatest keys of a row, of equal ones the first, in order."""
    bits, unsigned = _bits(top.key), f"uint{_bits(top.key)}"
    sign = tirx.const(0 if top.key.startswith("u") else 1 << (bits - 1), unsigned)
    least, bit = _local(unsigned), _local(unsigned)  # of the keys that are taken, as unsigned numbers of their order
    count, place = _local(top.index), _local(top.index)
    some, zero = wanted.astype(top.index), tirx.const(0, top.index)
    least[0] = tirx.const(0, unsigned)
    bit[0] = tirx.const(1 << (bits - 1), unsigned)
    count[0] = number.astype(top.index)
    with T.While(tirx.all(bit[0] != tirx.const(0, unsigned), count[0] != some)):
        higher = T.bind(least[0] | bit[0])
        limit = T.bind(tirx.reinterpret(top.key, higher ^ sign))
        count[0] = zero
        with T.serial(0, number) as i:
            count[0] = count[0] + (keys[base + i] >= limit).astype(top.index)
        with T.If(count[0] >= some), T.Then():
            least[0] = higher
        bit[0] = bit[0] >> tirx.const(1, unsigned)
    limit = T.bind(tirx.reinterpret(top.key, least[0] ^ sign))
    count[0] = some  # how many are equal to the last
    with T.serial(0, number) as i:
        count[0] = count[0] - (keys[base + i] > limit).astype(top.index)
    place[0] = zero
    with T.serial(0, number) as i:
        equal = T.bind(tirx.all(keys[base + i] == limit, count[0] > zero).astype(top.index))
        chosen[base + place[0].astype("int64")] = i.astype(top.index)
        place[0] = place[0] + (keys[base + i] > limit).astype(top.index) + equal
        count[0] = count[0] - equal


def _local(dtype: str, extent: int = 1) -> Any:
    """Return a buffer on the stack."""
    return T.buffer_proxy(T.alloc_buffer((extent,), dtype, scope="local", layout=None))


def _bits(dtype: str) -> int:
    return int(dtype.lstrip("uint"))
