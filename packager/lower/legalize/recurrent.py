"""Lower recurrent layers to loops of the run: a step is compiled once, and repeated for as many steps as there are.

For any device. The ``ccompiler`` backend has a loop nest of its own, which is faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from packager.bundle.dtypes import HALVES
from packager.graph.control_flow import (
    LOOP_BEGIN,
    LOOP_END,
    LOOP_RESULT,
    LOOP_ROW,
    LOOP_STATE,
    ROW,
    control_flow,
    has_aligned_rows,
)
from packager.graph.dataflow import bindings_of, extents_of, operator_of
from packager.graph.recurrences.recurrent import (
    NAME,
    Recurrent,
    RecurrentOperands,
    description_of,
    operands_of_call,
)
from packager.graph.rewrite import rebuild_main, with_main
from packager.lower.legalize.recurrent_cells import Cells, Directions

_OP = relax.op
# The largest batch whose recurrent product has a schedule of its own: see lower/cuda/skinny_matmul.py.
MAX_ROWS = 8
SCALAR = relax.TensorType([], "int64")


def expand_recurrent(module: tvm.IRModule, on_gpu: bool) -> tvm.IRModule:
    """Replace each ``packager.recurrent`` of ``main`` by a loop for each direction.

    On a GPU, where kernels are short, both directions are one loop; and of a small batch the recurrent product has both
    operands contiguous along the reduction. Of halves states are float32 between the steps.
    """
    main, name = module["main"], NAME.removeprefix("relax.")
    if not any(operator_of(binding.value) == name for binding in bindings_of(main)):
        return module
    builder = relax.BlockBuilder()

    def bind(binding: Any) -> None:
        value = binding.value
        if operator_of(value) == name:
            operands, dtype = operands_of_call(value), str(value.ty.dtype)
            wide = _widened(builder, operands) if dtype in HALVES else operands
            value = _Layer(builder, description_of(value.attrs), wide, on_gpu).expand()
            value = builder.normalize(value if wide is operands else _OP.astype(builder.emit(value), dtype))
        builder.emit_normalized(relax.VarBinding(binding.var, value))

    changed = with_main(module, rebuild_main(builder, main, bind, lambda result: result))
    made = {name: function for name, function in builder.get().functions.items() if name.name_hint != "main"}
    return tvm.IRModule({**changed.functions, **made}, attrs=changed.attrs)


def _widened(builder: Any, operands: RecurrentOperands) -> RecurrentOperands:
    """Return operands in float32."""

    def widen(operand: Any) -> Any:
        halved = operand is not None and str(operand.ty.dtype) in HALVES
        return builder.emit(_OP.astype(operand, "float32")) if halved else operand

    return RecurrentOperands(**{name: widen(operand) for name, operand in vars(operands).items()})


class _Layer(Cells):
    def __init__(self, builder: Any, description: Recurrent, operands: RecurrentOperands, on_gpu: bool) -> None:
        self.operands, self.on_gpu = operands, on_gpu
        self.steps, self.batch, _ = extents_of(operands.x) or ()
        batch = int(self.batch) if isinstance(self.batch, tvm.tirx.IntImm) else MAX_ROWS + 1
        hidden = (extents_of(operands.weights) or ())[-1]
        super().__init__(builder, description, hidden, str(operands.x.ty.dtype), on_gpu and batch <= MAX_ROWS)
        self.cells = 2 if description.cell == "lstm" else 1

    def expand(self) -> Any:
        """Return the result of the layer."""
        numbers = tuple(range(self.description.directions))
        alike = len(set(self.description.activations)) == 1
        groups = [numbers] if self.on_gpu and alike else [(number,) for number in numbers]
        outputs, finals = [], []
        for group in groups:
            sequence, states = self._loop(group)
            outputs.append(sequence)
            finals.append(states)
        rows = [self._masked(self._joined(outputs))]
        for name in self.description.finals:
            state = self._joined([states["hc".index(name)] for states in finals])
            rows.append(self.emit(_OP.expand_dims(state, 0)))
        return rows[0] if len(rows) == 1 else _OP.concat(rows, axis=0)

    def _loop(self, numbers: tuple[int, ...]) -> tuple[Any, list[Any]]:
        """Return the hidden states of directions, [steps, batch, directions * hidden], and their final states.

        All states are one tensor, [cells, directions, batch, hidden], so that a kernel writes them at once. With the
        product with the recurrent weights a step has two kernels.
        """
        own = self._constants(numbers)
        start = self._stacked([self._start(number, numbers) for number in range(self.cells)])
        step, *_ = self._fields(control_flow(LOOP_BEGIN, [self._whole(1), start, _expr(self.steps)], [SCALAR]))
        state = self.emit(control_flow(LOOP_STATE, [step, _expr(0)], [start.ty]))
        states = [self._hidden(state), *(self._cell(state, number) for number in range(1, self.cells))]
        nexts = self.step(own, self._row(self._inputs(numbers), step), states)
        if self.operands.lengths is not None:
            inside = self._inside(step, numbers)
            nexts = [self.emit(_OP.where(inside, new, old)) for new, old in zip(nexts, states, strict=True)]
        following = self._stacked(nexts)
        whole = has_aligned_rows(following.ty.shape.values, self.dtype)
        scanned = following if whole else self._hidden(following)
        room = relax.TensorType([self.steps, *scanned.ty.shape.values], self.dtype)
        end = control_flow(LOOP_END, [step, self._whole(1), following, scanned], [SCALAR, room])
        count, sequence = self._fields(end)
        final = self.emit(control_flow(LOOP_RESULT, [count, state], [state.ty]))
        sequence = self.emit(control_flow(LOOP_RESULT, [count, sequence], [room]))
        if whole and self.cells > 1:
            sequence = self._at(sequence, 1, 0)
        outputs = []
        for place, number in enumerate(numbers):
            own_sequence = self._at(sequence, 1, place) if len(numbers) > 1 else sequence
            reverse = self.description.reverse[number]
            outputs.append(self.emit(_OP.flip(own_sequence, 0)) if reverse else own_sequence)
        finals = [self._cell(final, number) for number in range(self.cells)]
        places = range(len(numbers))
        joined = [self._joined([self._at(f, 0, p) for p in places]) if len(numbers) > 1 else f for f in finals]
        return self._joined(outputs), joined

    def _constants(self, numbers: tuple[int, ...]) -> Directions:
        operands = self.operands
        weights = self._of(operands.weights, numbers)
        rows = [self._of(data, numbers) for data in (operands.peepholes, operands.hidden_bias)]
        if len(numbers) > 1:
            rows = [None if row is None else self.emit(_OP.expand_dims(row, 1)) for row in rows]
        return Directions(numbers, weights, *rows)

    def _inputs(self, numbers: tuple[int, ...]) -> Any:
        """Return the inputs of the steps in the order of each direction: [steps, directions, batch, gates * hidden]."""
        found, gates = [], len(self.description.gates)
        for number in numbers:
            x = self.operands.x
            if self.description.directions > 1:
                x = self._slice(x, number * gates, gates)
            found.append(self.emit(_OP.flip(x, 0)) if self.description.reverse[number] else x)
        if len(found) == 1:
            return found[0]
        return self._joined([self.emit(_OP.expand_dims(x, 1)) for x in found], axis=1)

    def _row(self, data: Any, step: Any) -> Any:
        """Return the row of a step."""
        extents = data.ty.shape.values[1:]
        if not has_aligned_rows(extents, self.dtype):
            return self.emit(_OP.take(data, step, axis=0))
        return self.emit(control_flow(LOOP_ROW, [step, data], [relax.TensorType([*extents], self.dtype)]))

    def _start(self, cell: int, numbers: tuple[int, ...]) -> Any:
        initial = (self.operands.initial_h, self.operands.initial_c)[cell]
        if initial is not None:
            return self._of(initial, numbers)
        lead = [len(numbers)] if len(numbers) > 1 else []
        return self.emit(_OP.zeros(relax.ShapeExpr([*lead, self.batch, self.hidden]), self.dtype))

    def _stacked(self, cells: Sequence[Any]) -> Any:
        """Return the state that has these cells."""
        if len(cells) == 1:
            return cells[0]
        return self._joined([self.emit(_OP.expand_dims(cell, 0)) for cell in cells], axis=0)

    def _hidden(self, state: Any) -> Any:
        """Return h in the memory of the state."""
        if self.cells == 1:
            return state
        ty = relax.TensorType([*state.ty.shape.values[1:]], self.dtype)
        return self.emit(control_flow(ROW, [state, _expr(0)], [ty]))

    def _cell(self, state: Any, number: int) -> Any:
        return state if self.cells == 1 else self._at(state, 0, number)

    def _inside(self, step: Any, numbers: tuple[int, ...]) -> Any:
        """Return in which rows there is a step: [directions, batch, 1]."""
        lengths = self.emit(_OP.astype(self.operands.lengths, "int64"))
        found = []
        for number in numbers:
            place = step
            if self.description.reverse[number]:  # from the last step on
                last = self.emit(_OP.subtract(self._count(), self._whole(1)))
                place = self.emit(_OP.subtract(last, step))
            found.append(self.emit(_OP.expand_dims(self.emit(_OP.greater(lengths, place)), 1)))
        return self._stacked(found)

    def _masked(self, sequence: Any) -> Any:
        """Return the hidden states of all steps, zeros after the last one of a row."""
        if self.operands.lengths is None:
            return sequence
        lengths = self.emit(_OP.astype(self.operands.lengths, "int64"))
        places = self.emit(_OP.arange(0, self.steps, 1, "int64"))
        inside = self.emit(_OP.greater(lengths, self.emit(_OP.expand_dims(places, 1))))
        return self.emit(_OP.where(self.emit(_OP.expand_dims(inside, 2)), sequence, self._number(0.0)))

    def _count(self) -> Any:
        """Return the number of steps as a scalar."""
        if isinstance(self.steps, tvm.tirx.IntImm):
            return self._whole(int(self.steps))
        return self.emit(_OP.reshape(self.emit(_OP.arange(self.steps, self.steps + 1, 1, "int64")), []))

    def _fields(self, call: Any) -> list[Any]:
        result = self.emit(call)
        if not isinstance(result.ty, relax.TupleType):
            return [result]
        return [self.emit(relax.TupleGetItem(result, index)) for index in range(len(result.ty.fields))]

    def _of(self, data: Any, numbers: tuple[int, ...]) -> Any:
        """Return the part of an operand that is of directions; without the first axis if it is one."""
        if data is None or len(numbers) > 1:
            return data
        return self._at(data, 0, numbers[0])


def _expr(extent: Any) -> Any:
    return tvm.tirx.IntImm("int64", extent) if isinstance(extent, int) else extent
