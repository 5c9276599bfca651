"""Plans the runs of a lowered model: the flat call sequence, the arena, the constants and the shape expressions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from packager.bundle.dtypes import DTYPES
from packager.bundle.manifest import TensorSpec
from packager.errors import ModelError
from packager.graph import symbolic
from packager.graph.control_flow import is_computed, is_control_flow
from packager.graph.dataflow import called_function
from packager.graph.identity import IdentityMap
from packager.ir.call_plan import CallPlan, Operand
from packager.ir.model import CallSource, LoweredModel, ModelSignature
from packager.ir.shapes import Extent
from packager.plan.alternatives import write_to_outputs
from packager.plan.arena import allocate
from packager.plan.branches import assign_branches, digits_of_tensors
from packager.plan.buckets import gather_variants
from packager.plan.call_graph import call_graph
from packager.plan.calls import Alias, CallRecorder, PlannedCall, PlannedRead, PlannedTensor, selection_of
from packager.plan.control_flow import ControlFlow
from packager.plan.entries import PlannedCopy, PlannedEntry, Slice, StateMemory, slices
from packager.plan.loops import PlannedMark
from packager.plan.merge_launches import LaunchMerger
from packager.plan.order import Reads, order
from packager.plan.states import NextValue, place_next_values
from packager.plan.values import Values

# The most iterations whose numbers are a constant; a run stores others one by one.
MAX_COUNTS = 4096


def plan(model: LoweredModel, *, packed_constants: bool = False) -> CallPlan:
    """Flatten ``main`` into calls and copies, and allocate every intermediate tensor and workspace in one arena.

    ``packed_constants`` lays out constants without gaps, for an external safetensors file. Raises ModelError for
    outputs or intermediates with data-dependent shapes.
    """
    return _Planner(model).plan(packed_constants)


class _Planner(Values):
    def __init__(self, model: LoweredModel) -> None:
        super().__init__(model)
        self.states = StateMemory(self.constants, self.alignment)
        self.merger = LaunchMerger()
        # Of the entry that is planned:
        self.tensors: list[PlannedTensor] = []  # those in the arena
        self.calls: list[PlannedCall] = []
        self.marks: list[PlannedRead | PlannedMark] = []
        self.control_flow = self._new_control_flow()
        self.declared: dict[str, str | None] = {}  # element types of outputs that are the bytes of a narrow type

    def plan(self, packed_constants: bool) -> CallPlan:
        main = self.model.main
        self._bind_constants(main)
        entries = self.model.signature.every_entry()
        parts = slices(main, [(len(entry.inputs), len(entry.output_names)) for entry in entries])
        planned = [self._plan_entry(entry, part) for entry, part in zip(entries, parts, strict=True)]
        calls = [call for entry in planned for call in entry.calls if not call.dropped]
        functions = {call.function.symbol: call.function for call in calls}
        selection = tuple(selection_of(function) for function in functions.values() if function.candidates)
        choices = self.model.placement.choices if self.model.placement else ()
        recorder = CallRecorder(
            self.dims, {selected.symbol: number for number, selected in enumerate(selection, len(choices))}
        )
        call_plan = CallPlan(
            source=self.model.signature.source,
            entries=gather_variants([entry.finish(recorder) for entry in planned]),
            functions=tuple(functions.values()),
            primitives=tuple(recorder.primitives.values()),
            arena_bytes=max(entry.arena_bytes for entry in planned),
            constants=self.constants.build(None if packed_constants else self.alignment, originals=self.model.weights),
            selection=selection,
            placement=self.model.placement,
            states=tuple(self.states.planned.values()),
            state_bytes=self.states.nbytes,
        )
        return replace(call_plan, graph=call_graph(self, planned, call_plan))

    def _plan_entry(self, entry: ModelSignature, part: Slice) -> PlannedEntry:
        self.tensors, self.calls, self.marks = [], [], []
        self.control_flow = self._new_control_flow()
        specs, parameters = self.model.signature.inputs[part.inputs], self.model.main.params[part.inputs]
        states = {state.name: state for state in entry.states}
        results = dict(zip(self.model.signature.output_names[part.outputs], part.results, strict=True))
        computed = {extent.parameter: results.pop(extent.result) for extent in entry.extents}
        kept: dict[str, PlannedTensor] = {}
        numbers = itertools.count()
        for spec, parameter in zip(specs, parameters, strict=True):
            for extent in parameter.ty.shape.values:
                if isinstance(extent, tirx.Var):
                    self.names[extent] = extent.name
            if spec.name in computed:
                continue
            if spec.name in states:
                operand = self.states.allocate(states[spec.name], spec)
                kept[spec.name] = self._tensor(operand, parameter.ty)
                self.values[parameter] = kept[spec.name]
            else:
                self.values[parameter] = self._tensor(Operand("input", next(numbers)), parameter.ty)
        sources = iter(self.model.call_sources)
        sourced = [(b, next(sources) if is_computed(b.value) else None) for b, _ in part.bindings]
        wanted = [pair for pair, (_, needed) in zip(sourced, part.bindings, strict=True) if needed]
        shapes = {spec.name: p.ty.shape.values for spec, p in zip(specs, parameters, strict=True)}
        scalars = [*computed.values()]
        reads = Reads(entry, [shapes[name][0] for name in computed], scalars)
        # Reads wait until one is needed, and are then done together: on a GPU the host waits once for all. Where there
        # are branches, calls stay behind the condition that may leave them out.
        ordered = order(wanted, reads.needed, waves=not any(entry.branches.values()))
        for binding, source in [(None, None), *ordered, (None, None)]:
            if binding is None or reads.must_be_done(binding):
                for number in reads.take():
                    self._read_extent(number, self.values[scalars[number]])
            if binding is not None:
                self.values[binding.var] = self._evaluate(binding.value, binding.var.ty, source)
            reads.find(self.values)
        names = self.model.signature.output_names[part.outputs]
        self.declared = dict(zip(names, self.model.signature.output_dtypes[part.outputs], strict=False))
        results = {name: self._value(result) for name, result in results.items()}
        outputs, copies = self._bind_results(entry, results, kept)
        used = [*results.values(), *self.control_flow.used()]
        assign_branches(entry, self.calls, self.marks, used)
        copies = write_to_outputs(self.calls, copies)
        if self.model.device == "cuda" and not self.marks:
            self.merger.merge(self.calls, self.nbytes)
        removed = {*states, *computed}
        return PlannedEntry(
            entry=entry,
            inputs=tuple(spec for spec in specs if spec.name not in removed),
            outputs=outputs,
            calls=self.calls,
            marks=self.marks,
            copies=copies,
            lane_bytes=self._place(used),
        )

    def _new_control_flow(self) -> ControlFlow:
        return ControlFlow(
            self._value,
            self._new_tensor,
            lambda extent: symbolic.to_extent(extent, self.names),
            self._read,
            self.calls,
            self._counts,
            self._is_counted,
        )

    def _is_counted(self, trip: Extent) -> bool:
        """Tell whether a number follows from the dims, without run-time extents."""
        computed = {extent.name for entry in self.model.signature.every_entry() for extent in entry.extents}
        return not symbolic.names_of(trip) & computed

    def _counts(self, trip: Extent) -> PlannedTensor | None:
        """Return the numbers of a loop's iterations as a constant, unless there may be more than MAX_COUNTS."""
        most = symbolic.extent_interval(trip, self.dims)[1]
        if most > MAX_COUNTS:
            return None
        operand = Operand("constants", self.constants.add_anonymous(np.arange(most, dtype=np.int64)))
        return PlannedTensor(operand, (tirx.const(most, "int64"),), "int64")

    def _read_extent(self, number: int, scalar: PlannedTensor) -> None:
        count = self.control_flow.counted(scalar)
        if count is None:
            self._read(scalar).touch(len(self.calls))
        self.marks.append(PlannedRead(number, scalar, len(self.calls), count))

    def _evaluate(self, value: Any, ty: Any, source: CallSource | None) -> Any:
        callee = called_function(value)
        if callee is not None and is_computed(value):
            assert source is not None  # each call has one
            return self._call(callee, value, source)
        if is_control_flow(value):
            result, mark = self.control_flow.evaluate(value, ty)
            self.marks += [] if mark is None else [mark]
            return result
        if isinstance(value, relax.Call):  # only reshape is left after lowering: an alias with another shape
            return Alias(self._value(value.args[0]), self._tensor(None, ty))
        if isinstance(value, relax.TupleGetItem):
            return self._value(value.tuple_value)[value.index]
        if isinstance(value, relax.ShapeExpr):
            return self._shape_value(value)
        return self._value(value)

    def _call(self, callee: str, value: relax.Call, source: CallSource) -> Any:
        group = self.model.groups[callee]
        arguments = [a if tvm.ir.is_prim_expr(a) else self._value(a) for a in value.args[1].fields]
        out_types = value.ty_args if len(value.ty_args) > 1 else [value.ty_args[0]]
        is_tuple = len(out_types) > 1 or isinstance(out_types[0], relax.TupleType)
        fields = out_types[0].fields if isinstance(out_types[0], relax.TupleType) else out_types
        results = [self._new_tensor(ty) for ty in fields]
        scalars = list(value.args[2].values) if len(value.args) > 2 else []
        names = self._bind_shapes(group.parameters, [*arguments, *results, *scalars])
        pools = {
            "argument": [*arguments, *results],
            "workspace": [self._workspace(nbytes, names) for nbytes in group.workspaces],
            "packed": [self._packed(callee, packing, arguments) for packing in group.packings],
        }
        elements = self._elements(results)
        for function in group.functions:
            operands = [
                self._table(parameter.name) if parameter.kind == "constant" else pools[parameter.kind][parameter.index]
                for parameter in function.parameters
            ]
            for tensor in operands:
                self._read(tensor).touch(len(self.calls))
            self.calls.append(PlannedCall(function, group, operands, names, source, elements=elements))
        return tuple(results) if is_tuple else results[0]

    def _elements(self, results: Sequence[PlannedTensor]) -> Extent | None:
        """Return the number of elements of a call's results as far as the run determines it; None if it is never 0."""
        total: Extent = 0
        for result in results:
            extents = [symbolic.to_extent(extent, self.names) for extent in result.shape]
            varying = [extent for extent in extents if symbolic.extent_interval(extent, self.dims)[0] < 1]
            if not varying:
                return None
            total = symbolic.combine("+", total, symbolic.product(tuple(varying)))
        return total

    def _new_tensor(self, ty: Any) -> PlannedTensor:
        tensor = self._tensor(None, ty)
        self.tensors.append(tensor)
        return tensor

    def _workspace(self, nbytes: Any, names: IdentityMap[Extent]) -> PlannedTensor:
        tensor = PlannedTensor(None, (symbolic.maximum(nbytes, names, self.dims),), "uint8")
        self.tensors.append(tensor)
        return tensor

    def _bind_results(
        self, entry: ModelSignature, results: dict[str, Any], states: dict[str, PlannedTensor]
    ) -> tuple[tuple[TensorSpec, ...], list[PlannedCopy]]:
        """Let producers write directly to states and the caller's outputs where possible; else add copies.

        ``states`` are those that the entry reads. Outputs are copied before states, which may hold their source.
        """
        written = {state.output: state for state in entry.states}
        nexts, outputs, specs = [], [], []
        for name, tensor in results.items():
            spec = replace(self._spec(name, tensor), labels=entry.output_labels.get(name, ()))
            if name in written:
                state = written[name]
                before = states.get(state.name)
                if before is None:  # its previous value is not read
                    before = PlannedTensor(self.states.allocate(state, spec), tensor.shape, tensor.dtype)
                nexts.append(NextValue(before, self._read(tensor)))
            else:
                specs.append(spec)
                outputs.append((tensor, spec))
        shared = {id(following.value) for following in nexts}
        copies: list[PlannedCopy] = []
        for index, (tensor, spec) in enumerate(outputs):
            operand = Operand("output", index)
            whole = self._read(tensor)
            if whole.operand is None and id(whole) not in shared:
                whole.operand = operand
                continue
            whole.touch(len(self.calls))
            nbytes = symbolic.product((*spec.shape, DTYPES[tensor.dtype].itemsize))
            if nbytes == 0:
                continue
            copies.append(PlannedCopy(tensor, PlannedTensor(operand, (), tensor.dtype), nbytes))
        moved, buffers = place_next_values(nexts, self.calls)
        self.tensors += buffers
        copies += [PlannedCopy(source, target, self.nbytes(target)) for source, target in moved]
        return tuple(specs), copies

    def _spec(self, name: str, tensor: PlannedTensor | None) -> TensorSpec:
        if tensor is None:
            raise ModelError(f"output {name!r} is a shape with symbolic dims", hint="fix the dims with --dim")
        shape = tuple(symbolic.to_extent(extent, self.names) for extent in tensor.shape)
        if not all(symbolic.is_readable(extent) for extent in shape):
            raise ModelError(
                f"output {name!r} has an extent whose expression is too long for a manifest",
                hint="fix some of its dims with --dim, or cut the model before the output",
            )
        return TensorSpec(name, self.declared.get(name) or tensor.dtype, shape)  # type: ignore[arg-type]

    def _place(self, used: Sequence[PlannedTensor]) -> int:
        self.control_flow.finish()
        planned = [t for t in self.tensors if t.operand is None and t.moved is None and t.first is not None]
        digits = digits_of_tensors(self.calls, used)
        offsets, total = allocate([t.buffer(self.nbytes(t), digits(t)) for t in planned], self.alignment)
        for tensor, offset in zip(planned, offsets, strict=True):
            tensor.operand = Operand("arena", offset)
        return total
