"""Render the elementwise operators of a stage as C statements on a run: elements from ``start`` on of row ``row``."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

import numpy as np

from packager.backends.ccompiler.core.expressions import CTYPES, expression, literal
from packager.backends.ccompiler.core.operand_rows import c_row, c_sum, operand_offset
from packager.backends.ccompiler.core.operations import CannotRender, Literal, Operation, Tensor, Use
from packager.backends.ccompiler.core.placed import Placed, Turned
from packager.backends.ccompiler.core.shapes import Extent, Shape

# A function of bytes: ``numbers`` are its results for 0 to 255, all bytes unsigned.
TABLE = "table"
NARROW = ("int8", "uint8", "int16", "uint16")


@dataclass(frozen=True)
class Lookup:
    """A loop with ``body`` that stores bytes in ``array``, elements of C type ``stored``, which ``table`` replaces."""

    array: str
    stored: str
    table: str
    body: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """Declarations before the loop over ``j``, and the statements in it.

    ``widened`` and ``narrowed`` are the pointers to float16: elements are converted many at a time, which is what CPUs
    have instructions for, to and from arrays named as the pointers with an ``f`` before them. ``mapped`` are pointers
    to bytes that are replaced by those of a table after the loop, and the names of the tables; ``before`` are loops
    before it, each of the bytes of an array that a table replaces then.
    """

    pointers: tuple[str, ...]
    body: tuple[str, ...]
    widened: tuple[str, ...]
    narrowed: tuple[str, ...]
    mapped: tuple[tuple[str, str], ...] = ()
    before: tuple[Lookup, ...] = ()


def make_program(
    operations: Sequence[Operation],
    *,
    inner: Extent,
    given: Sequence[tuple[Tensor, str]],
    stored: Sequence[Tensor],
    pointer_of: Callable[[Tensor, bool], str],
    last: tuple[Use, str] | None = None,
    placed: Placed | Turned | None = None,
) -> Program:
    """Return the statements that compute ``operations``, and store the results among ``stored``.

    ``given`` are tensors with C expressions of their values; they are stored too if among ``stored``. ``pointer_of``
    returns the pointer to a tensor, which is written or not. ``last`` is an operand to read at the end, and the C
    expression to assign it to. What is ``placed`` is stored where it goes. Raises CannotRender.
    """
    wanted = {tensor.index for tensor in stored}
    kept = wanted if last is None else wanted | {last[0].tensor.index}
    read = {use.tensor.index for operation in operations for use in operation.uses}
    used = read | (kept - wanted)
    writer = _Writer(inner, pointer_of, _only_converted(operations) - kept, used, placed)
    others = [operation for operation in operations if operation.name != TABLE]
    first = [operation for operation in operations if operation.name == TABLE and operation.result.index in read]
    final = [
        operation for operation in operations if operation.name == TABLE and operation.result.index in wanted - read
    ]
    for table in first:
        writer.look_up_before(table, _needed(others, [table.uses[0].tensor]), given)
    writer.begin(given)
    for tensor in (*(tensor for tensor, _ in given), *(table.result for table in first)):
        if tensor.index in wanted:
            writer.store(tensor)
    needed = [*stored, *(table.uses[0].tensor for table in final), *([last[0].tensor] if last else [])]
    for operation in _needed(others, needed):
        writer.compute(operation)
        if operation.result.index in wanted:
            writer.store(operation.result)
    for table in final:
        writer.look_up(table)
    if last is not None:
        writer.body.append(f"{last[1]} = {writer.value(last[0], last[0].shape)};")
    conversions = tuple(writer.widened), tuple(writer.narrowed)
    return Program(
        tuple(writer.pointers), tuple(writer.body), *conversions, tuple(writer.mapped), tuple(writer.lookups)
    )


def _needed(operations: Sequence[Operation], tensors: Sequence[Tensor]) -> list[Operation]:
    """Return the operators that compute tensors, in order."""
    wanted = {tensor.index for tensor in tensors}
    found: list[Operation] = []
    for operation in reversed(operations):
        if operation.result.index in wanted:
            found.insert(0, operation)
            wanted |= {use.tensor.index for use in operation.uses}
    return found


def _only_converted(operations: Sequence[Operation]) -> set[int]:
    """Return the results of float32 ``round`` that are only converted to int32."""
    found = {op.result.index for op in operations if op.name == "round" and op.result.dtype == "float32"}
    for operation in operations:
        if operation.name != "astype" or operation.result.dtype != "int32":
            found -= {use.tensor.index for use in operation.uses}
    return found


class _Writer:
    def __init__(
        self,
        inner: Extent,
        pointer_of: Callable[[Tensor, bool], str],
        only_converted: Set[int],
        used: Set[int],
        placed: Placed | Turned | None,
    ) -> None:
        self.inner = inner
        self.placed = placed
        self.only_converted = only_converted
        self.used = used  # what something other than its storage reads
        self.values: dict[int, str] = {}
        self.pointer_of = pointer_of
        self.pointers: dict[str, None] = {}
        self.loads: dict[tuple[str, str], str] = {}
        self.body: list[str] = []
        self.widened: list[str] = []
        self.narrowed: list[str] = []
        self.mapped: list[tuple[str, str]] = []
        self.lookups: list[Lookup] = []
        self.given: dict[int, str] = {}
        self.found: dict[int, str] = {}  # bytes of tables that a loop before has looked up
        self.read: set[str] = set()  # what the loop has loaded
        self.ranges: dict[int, tuple[float, float]] = {}  # of values that have been clipped
        self.wider: dict[int, str] = {}  # the int32 that a narrower value is equal to

    def begin(self, given: Sequence[tuple[Tensor, str]]) -> None:
        """Begin a loop, which knows no values but those given, and what tables have for those of loops before."""
        self.body, self.values, self.ranges, self.wider, self.read = [], dict(self.found), {}, {}, set()
        self.given = {tensor.index: text for tensor, text in given}

    def compute(self, operation: Operation) -> None:
        """Append the statement of an operator."""
        operands, dtypes = [], []
        partner = next((use.tensor.dtype for use in operation.uses), operation.result.dtype)
        for operand in operation.operands:
            if isinstance(operand, Literal):
                operands.append(literal(operand.value, operand.dtype))
                dtypes.append(operand.dtype)
            else:
                operands.append(self.value(operand, operation.result.shape))
                dtypes.append(operand.tensor.dtype)
        result = operation.result
        if result.index in self.only_converted:  # rounded where it is converted, in one instruction
            self.values[result.index] = f"pk_nearest({operands[0]})"
            return
        if operation.name == "astype":
            dtypes[0] = self._cast(operation, operands, dtypes[0])
        elif operation.name == "clip":
            self.ranges[result.index] = (operation.numbers[0], operation.numbers[1])
        if operation.name == "clip" and CTYPES[result.dtype].is_float:
            self.define(result, self._clip(result, operands[0], operation.numbers))
            return
        text = expression(
            operation.name, operands, dtypes or [partner], result.dtype, operation.attributes, operation.numbers
        )
        if text is None:
            raise CannotRender(f"{operation.name} of {', '.join(dtypes)}")
        if result.dtype == "float16" and result.index not in self.used:
            text = text.removeprefix("pk_round_half")  # what stores it rounds
        self.define(result, text)

    def _clip(self, result: Tensor, operand: str, numbers: Sequence[float]) -> str:
        """Return the expression of a clip of floats.

        GCC 12 computes what follows of bounds that it knows, and selects by masks.
        """
        ctype, names = CTYPES[result.dtype], (f"l{result.index}", f"h{result.index}")
        for name, number in zip(names, numbers, strict=True):
            bound = literal(number, result.dtype)
            self.pointers[f"const {ctype.value} {name} = pk_unknown_{ctype.suffix}({bound});"] = None
        return f"pk_clip_{ctype.suffix}({', '.join((operand, *names))})"

    def _cast(self, operation: Operation, operands: list[str], dtype: str) -> str:
        """Replace the operand of a cast by its value before a lossless narrowing; return its type.

        GCC 12 does not vectorize narrowing followed by widening.
        """
        source = operation.operands[0]
        if not isinstance(source, Use):
            return dtype
        if source.tensor.index in self.wider:
            operands[0] = self.wider[source.tensor.index]
            return "int32"
        if dtype == "int32" and operation.result.dtype in NARROW and source.tensor.index in self.ranges:
            low, high = self.ranges[source.tensor.index]
            limits = np.iinfo(operation.result.dtype)
            if limits.min <= low and high <= limits.max:
                self.wider[operation.result.index] = operands[0]
        return dtype

    def define(self, tensor: Tensor, text: str) -> None:
        """Append the declaration of a value, which is computed once."""
        name = f"v{tensor.index}"
        self.body.append(f"const {CTYPES[tensor.dtype].value} {name} = {text};")
        self.values[tensor.index] = name

    def store(self, tensor: Tensor) -> None:
        """Append the statement that writes a value to its tensor."""
        name, value = f"o{tensor.index}", self.value(Use(tensor, tensor.shape), tensor.shape)
        is_placed = self.placed is not None and self.placed.source.index == tensor.index
        memory = self.pointer_of(self.placed.target if self.placed and is_placed else tensor, True)
        place = c_sum(memory, c_row("row", self.inner), "start")
        place = self.placed.pointer(memory) if self.placed and is_placed else place
        ctype = CTYPES[tensor.dtype].stored
        self.pointers[f"{ctype} *{name} = {place};"] = None
        place = f"{name}[j]"
        if tensor.dtype == "float16":
            self.narrowed.append(name)
            place = f"f{name}[j - from]"
        self.body.append(f"{place} = {value};")

    def look_up(self, table: Operation) -> None:
        """Store the byte that a table's result depends on in its place, where the table replaces it."""
        self.values[table.result.index] = self.value(table.uses[0], table.result.shape)
        self.store(table.result)
        self.mapped.append((f"o{table.result.index}", self._table(table)))

    def look_up_before(
        self, table: Operation, operations: Sequence[Operation], given: Sequence[tuple[Tensor, str]]
    ) -> None:
        """Append a loop that computes the bytes that a table's result depends on by ``operations``."""
        self.begin(given)
        for operation in operations:
            self.compute(operation)
        array = f"b{table.result.index}"
        self.body.append(f"{array}[j - from] = {self.value(table.uses[0], table.result.shape)};")
        stored = CTYPES[table.result.dtype].stored
        self.lookups.append(Lookup(array, stored, self._table(table), tuple(self.body)))
        self.found[table.result.index] = f"{array}[j - from]"

    def _table(self, table: Operation) -> str:
        name = f"t{table.result.index}"
        self.pointers[f"static const uint8_t {name}[256] = {{{', '.join(map(str, table.numbers))}}};"] = None
        return name

    def value(self, use: Use, shape: Shape) -> str:
        """Return the value of an operand of an operator with a result of ``shape``; load it first if necessary."""
        if use.tensor.index in self.given:
            self.define(use.tensor, self.given.pop(use.tensor.index))
        if use.tensor.index in self.values:
            return self.values[use.tensor.index]
        offset, index = operand_offset(use, shape, self.inner)
        memory = self.pointer_of(use.tensor, False)
        key = (memory, f"{offset}[{index}]")
        name = self.loads.setdefault(key, f"x{len(self.loads)}")
        if name not in self.read:
            self.read.add(name)
            ctype = CTYPES[use.tensor.dtype]
            self.pointers[f"const {ctype.stored} *{name} = {c_sum(memory, offset)};"] = None
            text = f"{name}[{index}]"
            if use.tensor.dtype == "float16" and index == "j":
                self.widened += [] if name in self.widened else [name]
                text = f"f{name}[j - from]"
            elif use.tensor.dtype == "float16":
                text = f"pk_widen({text})"
            self.body.append(f"const {ctype.value} u{name} = {text};")
        return f"u{name}"
