"""Render the elementwise operators of a stage as C statements on a run: elements from ``start`` on of row ``row``."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

import numpy as np

from packager.backends.ccompiler.core.expressions import CTYPES, expression, literal
from packager.backends.ccompiler.core.operations import CannotRender, Literal, Operation, Tensor, Use
from packager.backends.ccompiler.core.placed import Placed, Turned
from packager.backends.ccompiler.core.shapes import Extent, Shape, c_text, equal, product
from packager.backends.ccompiler.core.stages import is_full, mask_of, split_rows

NARROW = ("int8", "uint8", "int16", "uint16")


@dataclass(frozen=True)
class Program:
    """Declarations before the loop over ``j``, and the statements in it.

    ``widened`` and ``narrowed`` are the pointers to float16: elements are converted many at a time, which is what CPUs
    have instructions for, to and from arrays named as the pointers with an ``f`` before them.
    """

    pointers: tuple[str, ...]
    body: tuple[str, ...]
    widened: tuple[str, ...]
    narrowed: tuple[str, ...]


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
    others = wanted if last is None else wanted | {last[0].tensor.index}
    writer = _Writer(inner, pointer_of, _only_converted(operations) - others, placed)
    for tensor, text in given:
        writer.define(tensor, text)
        if tensor.index in wanted:
            writer.store(tensor)
    for operation in operations:
        writer.compute(operation)
        if operation.result.index in wanted:
            writer.store(operation.result)
    if last is not None:
        writer.body.append(f"{last[1]} = {writer.value(last[0], last[0].shape)};")
    return Program(tuple(writer.pointers), tuple(writer.body), tuple(writer.widened), tuple(writer.narrowed))


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
        placed: Placed | Turned | None,
    ) -> None:
        self.inner = inner
        self.placed = placed
        self.only_converted = only_converted
        self.values: dict[int, str] = {}
        self.pointer_of = pointer_of
        self.pointers: dict[str, None] = {}
        self.loads: dict[tuple[str, str], str] = {}
        self.body: list[str] = []
        self.widened: list[str] = []
        self.narrowed: list[str] = []
        self.ranges: dict[int, tuple[float, float]] = {}  # of values that have been clipped
        self.wider: dict[int, str] = {}  # the int32 that a narrower value is equal to

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
        name = f"o{tensor.index}"
        is_placed = self.placed is not None and self.placed.source.index == tensor.index
        memory = self.pointer_of(self.placed.target if self.placed and is_placed else tensor, True)
        place = _sum(memory, _row("row", self.inner), "start")
        place = self.placed.pointer(memory) if self.placed and is_placed else place
        ctype = CTYPES[tensor.dtype].stored
        self.pointers[f"{ctype} *{name} = {place};"] = None
        place = f"{name}[j]"
        if tensor.dtype == "float16":
            self.narrowed.append(name)
            place = f"f{name}[j - from]"
        self.body.append(f"{place} = {self.values[tensor.index]};")

    def value(self, use: Use, shape: Shape) -> str:
        """Return the value of an operand of an operator with a result of ``shape``; load it first if necessary."""
        if use.tensor.index in self.values:
            return self.values[use.tensor.index]
        offset, index = operand_offset(use, shape, self.inner)
        memory = self.pointer_of(use.tensor, False)
        key = (memory, f"{offset}[{index}]")
        if key not in self.loads:
            name = f"x{len(self.loads)}"
            self.loads[key] = name
            ctype = CTYPES[use.tensor.dtype]
            self.pointers[f"const {ctype.stored} *{name} = {_sum(memory, offset)};"] = None
            text = f"{name}[{index}]"
            if use.tensor.dtype == "float16" and index == "j":
                self.widened.append(name)
                text = f"f{name}[j - from]"
            elif use.tensor.dtype == "float16":
                text = f"pk_widen({text})"
            self.body.append(f"const {ctype.value} u{name} = {text};")
        return f"u{self.loads[key]}"


def operand_offset(use: Use, shape: Shape, inner: Extent) -> tuple[str, str]:
    """Return where the run of an operand of an operator with a result of ``shape`` starts, and the index in the run.

    Both are C expressions, the first over ``row`` and ``start``; the index is ``j``, or ``0`` for one element per row.
    """
    if is_full(use, shape):
        return _sum(_row("row", inner), "start"), "j"
    axis = split_rows(shape, inner)
    if axis is None:
        raise CannotRender(f"an operand of shape {tuple(use.shape)} for rows of {inner}")
    mask = mask_of(use, shape)
    along = any(has and not equal(extent, 1) for has, extent in zip(mask[axis:], shape[axis:], strict=True))
    rows = _row_index(mask[:axis], Shape(shape[:axis]))
    offset = _row(rows, inner if along else 1) if rows else ""
    return _sum(offset, "start" if along else ""), "j" if along else "0"


def _row_index(mask: Sequence[bool], shape: Shape) -> str:
    """Return C for the row that a broadcast operand reads for ``row`` of ``shape``; '' if it has only one."""
    axes = [axis for axis in range(len(shape)) if not equal(shape[axis], 1)]
    if not any(mask[axis] for axis in axes):
        return ""
    if all(mask[axis] for axis in axes):
        return "row"
    terms = []
    stride: Extent = 1
    position = len(axes)
    while position > 0:
        stop = position
        while position > 0 and mask[axes[position - 1]] == mask[axes[stop - 1]]:
            position -= 1
        extent = product(shape[axis] for axis in axes[position:stop])
        if mask[axes[stop - 1]]:
            after = product(shape[axis] for axis in axes[stop:])
            index = "row" if equal(after, 1) else f"row / {c_text(after)}"
            index = f"({index})" if position == 0 else f"({index} % {c_text(extent)})"
            terms.append(_row(index, stride))
            stride = product((stride, extent))
    return terms[0] if len(terms) == 1 else "(" + " + ".join(reversed(terms)) + ")"


def _row(index: str, length: Extent) -> str:
    return index if equal(length, 1) else f"{index} * {c_text(length)}"


def _sum(*terms: str) -> str:
    return " + ".join(term for term in terms if term) or "0"
