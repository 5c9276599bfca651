"""Takes loads that conditions choose between out of an elementwise function, so that they can be vectors.

Rotary embeddings concatenate the halves of a row, one of them negated: ``x[d] * cos[d] + (x[d - 32] if d >= 32 else
-x[d + 32]) * sin[d]``. What a condition guards is loaded element by element, unless it is a block of its own that only
moves elements: which of them is the same for all elements of a vector.
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir, sym, te, tirx
from tvm.ir import Call, TensorLoad
from tvm.s_tir import ScheduleError
from tvm_ffi import structural_map, structural_mutate

from packager.graph.identity import IdentityMap, IdentitySet, position, same_objects
from packager.graph.rewrite import nodes_of
from packager.lower.blocks import blocks, is_condition, is_movement, loads, variables

MOST = 16  # conditions


def part_conditional_loads(sch: s_tir.Schedule, width: int) -> tirx.PrimFunc:
    """Return an elementwise function of one block as several: the last computes, those before it move its operands.

    Raises ScheduleError where there is nothing to move: the conditions guard no two loads of one type, or are not the
    same for the ``width`` elements of a vector along the last axis.
    """
    (found, *several) = blocks(sch)
    block, parameters = sch.get(found), sch.mod["main"].params
    if several or not isinstance(block.body, tirx.BufferStore) or is_movement(sch, found) or not _has_few(block):
        raise ScheduleError("no single computation with few conditions")
    value = _simplified(block)
    conditions = [call for call in nodes_of(value, Call) if is_condition(call)]
    axes = [var.var for var in block.iter_vars]
    if not same_objects(block.body.indices, axes) or not block.writes[0].source.same_as(parameters[-1]):
        raise ScheduleError("the result is not written as a whole")
    own = IdentitySet(parameters)
    if any(load.source not in own for load in loads(value)):
        raise ScheduleError("an operand is no parameter")
    for condition in conditions:
        _of_vector(condition.args[0], axes[-1], width, axes[-1])
    guarded = [_choices(condition) for condition in conditions]
    moved = IdentitySet(load.source for pair in guarded for load in pair)
    made = [te.placeholder(list(p.shape), p.dtype, name=p.name) for p in parameters[:-1]]
    shape = [var.dom.extent for var in block.iter_vars]

    def on(value: Any, index: Any) -> Any:
        """Return a value at an index, of what was made in place of the parameters."""

        def load(node: Any) -> Any:
            return made[position(parameters, node.source)](*node.indices) if node.source in own else node

        places = IdentityMap(zip(axes, index, strict=True))
        placed = structural_map(value, (tirx.Var, lambda variable, *_: places.get(variable, variable)))
        return structural_map(placed, (TensorLoad, load))

    parts: list[tuple[Any, Any]] = []
    vectors = [*shape[:-1], shape[-1] // width, tirx.IntImm("int64", width)]

    def moved_to(value: Any, index: Any) -> Any:
        *outer, vector, lane = index
        if is_condition(value):
            condition = on(_of_vector(value.args[0], axes[-1], width, vector), (*outer, vector))
            return tirx.if_then_else(condition, *(moved_to(branch, index) for branch in value.args[1:]))
        return on(value, (*outer, vector * width + lane))

    def read(key: Any, value: Any, index: Any) -> Any:
        *outer, last = index
        return part(key, value)(*outer, last // width, last % width)

    def part(key: Any, value: Any) -> Any:
        known = next((made for other, made in parts if other is key), None)
        if known is None:
            known = te.compute(vectors, lambda *index: moved_to(value, index), name=f"part{len(parts)}")
            parts.append((key, known))
        return known

    def compute(*index: Any) -> Any:
        def rebuilt(node: Any) -> Any:
            if isinstance(node, TensorLoad):
                if node.source not in moved:
                    return on(node, index)
                same = next((load for load, _ in parts if isinstance(load, TensorLoad) and _equal(load, node)), node)
                return read(same, node, index)
            if is_condition(node):
                first, second = _choices(node)
                chosen = read(node, tirx.if_then_else(node.args[0], first, second), index)
                branches = (structural_map(branch, (TensorLoad, lambda _: chosen)) for branch in node.args[1:])
                return tirx.if_then_else(on(node.args[0], index), *branches)
            return node

        return on(structural_map(value, [(TensorLoad, rebuilt), (Call, rebuilt)], order="pre"), index)

    result = te.compute(shape, compute, name=parameters[-1].name)
    function = te.create_prim_func([*made, result])
    attrs = sch.mod["main"].attrs
    return function.with_attrs(dict(attrs)) if attrs else function


def simplify_conditional_loads(primfunc: tirx.PrimFunc) -> tirx.PrimFunc:
    """Simplify the indices of loads that conditions guard by what these say, in all blocks of a function.

    What carries of reshapes leave, ``(y - 3) % 28 // 7`` where y is 3 at least, TVM's simplification of sums of such
    terms gets wrong (``(y + 4) % 28 // 7 - 1``): windows that are shifted back were read before their beginning.
    """

    def simplified(block: Any) -> Any:
        if not isinstance(block.body, tirx.BufferStore) or not _has_conditions(block.body.value):
            return block
        body = tirx.BufferStore(block.body.buffer, _simplified(block), block.body.indices)
        return s_tir.SBlock(
            *(block.iter_vars, block.reads, block.writes, block.name_hint, body, block.init),
            *(block.alloc_buffers, block.match_buffers, block.annotations),
        )

    return primfunc.with_body(structural_map(primfunc.body, (s_tir.SBlock, simplified)))


def _has_few(block: Any) -> bool:
    return 0 < sum(is_condition(call) for call in nodes_of(block.body, Call)) <= MOST


def _has_conditions(value: Any) -> bool:
    return any(is_condition(call) for call in nodes_of(value, Call))


def _simplified(block: Any) -> Any:
    """Return what a block stores, the indices of loads without what their conditions exclude."""
    analyzer = sym.Analyzer()
    for variable in block.iter_vars:
        analyzer.bind(variable.var, variable.dom)

    def load(node: Any, mutator: Any) -> Any:
        return tirx.BufferLoad(node.source, [mutator.mutate(analyzer.simplify(index)) for index in node.indices])

    def choice(node: Any, mutator: Any) -> Any:
        if not is_condition(node):
            return mutator.default_mutate(node)
        branches = []
        for condition, branch in ((node.args[0], node.args[1]), (tirx.Not(node.args[0]), node.args[2])):
            with analyzer.constraint_scope(analyzer.simplify(condition)):
                branches.append(mutator.mutate(branch))
        return tirx.if_then_else(mutator.mutate(node.args[0]), *branches)

    # Each node once: a stack of as many tables as a recommender has is as many conditions within each other.
    return structural_mutate(block.body.value, [(TensorLoad, load), (Call, choice)])


def _choices(condition: Any) -> tuple[Any, Any]:
    """Return the loads that a condition guards, one of each branch."""
    branches = [loads(branch) for branch in condition.args[1:]]
    if any(is_condition(call) for branch in condition.args[1:] for call in nodes_of(branch, Call)):
        raise ScheduleError("a condition within another")
    if not all(len(found) == 1 for found in branches):
        raise ScheduleError("a branch is not made of one load")
    (first,), (second,) = branches
    if str(first.ty) != str(second.ty) or str(first.ty) == "bool":
        raise ScheduleError("branches are of several types, or of bool, which has no vectors")
    return first, second


def _of_vector(condition: Any, last: Any, width: int, vector: Any) -> Any:
    """Return a condition on the last axis as one on the number of a vector of ``width`` elements along it.

    Raises ScheduleError if it may differ within a vector.
    """
    if last not in variables(condition):
        return condition
    match condition:
        case tirx.LE(a=tirx.IntImm() as bound, b=index) if index.same_as(last) and int(bound) % width == 0:
            return tirx.LE(tirx.IntImm("int64", int(bound) // width), vector)
        case tirx.LT(a=index, b=tirx.IntImm() as bound) if index.same_as(last) and int(bound) % width == 0:
            return tirx.LT(vector, tirx.IntImm("int64", int(bound) // width))
    raise ScheduleError("a condition may differ within a vector")


def _equal(left: Any, right: Any) -> bool:
    return left.source.same_as(right.source) and same_objects(left.indices, right.indices)
