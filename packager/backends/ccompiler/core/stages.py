"""Split a partition into stages: one loop nest each, with the elementwise operators that are fused into it.

All values of a stage are viewed as rows of one length, ``inner``. A stage is computed by runs, contiguous parts of a
row. The anchor (dense, conv2d, ...) determines the rows; operators ``after`` it are its epilogue, those ``before`` it
compute the rows that it reads (softmax and layer norm only).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from packager.backends.ccompiler.core.operations import (
    ANCHORS,
    NORMALIZE,
    ROW_ANCHORS,
    CannotRender,
    Graph,
    Operation,
    Tensor,
    Use,
)
from packager.backends.ccompiler.core.placed import Placed, Turned
from packager.backends.ccompiler.core.shapes import Extent, Shape, equal, interleaves, product
from packager.backends.ccompiler.core.statistics import Statistics, statistics_of
from packager.graph.normalize import attributes_of_call


@dataclass(frozen=True)
class Stage:
    """One loop nest. ``stored`` are the tensors that it writes, its last result last, ``placed`` one it permutes."""

    anchor: Operation | None
    before: tuple[Operation, ...]
    after: tuple[Operation, ...]
    rows: Extent
    inner: Extent
    stored: tuple[Tensor, ...]
    placed: Placed | Turned | None = None


@dataclass
class _Draft:
    anchor: Operation | None
    inner: Extent | None
    operations: list[Operation] = field(default_factory=list)
    before: list[Operation] = field(default_factory=list)

    def all(self) -> list[Operation]:
        """Return its operations in the order in which they are computed."""
        return [*self.before, *([self.anchor] if self.anchor else []), *self.operations]

    def makes(self) -> set[int]:
        """Return the tensors that it computes."""
        return {operation.result.index for operation in self.all()}


def make_stages(graph: Graph) -> list[Stage]:
    """Return the stages of a partition in an order in which they can run. Raises CannotRender."""
    drafts = _Fuser(graph).fuse()
    _take_rows(drafts)
    readers: dict[int, set[int]] = {}
    for number, draft in enumerate(drafts):
        for operation in draft.all():
            for use in operation.uses:
                readers.setdefault(use.tensor.index, set()).add(number)
    kept = {tensor.index for tensor in graph.results}
    stages = []
    for number, draft in enumerate(drafts):
        made = [operation.result for operation in draft.all()]
        stored = tuple(t for t in made if t.index in kept or readers.get(t.index, set()) - {number})
        inner = draft.inner if draft.inner is not None else _common_inner(draft.operations)
        if inner is None:
            raise CannotRender("operators of shapes that do not fit together")
        rows = _rows([operation.result.shape for operation in draft.all()], inner)
        stages.append(Stage(draft.anchor, tuple(draft.before), tuple(draft.operations), rows, inner, stored))
    return stages


class _Fuser:
    """Assigns each elementwise operator to the last stage that it reads from; those that read from none, to the stage
    that reads them."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.drafts: list[_Draft] = []
        self.first: list[_Draft] = []  # need nothing that another stage computes
        self.draft_of: dict[int, _Draft] = {}
        self.free: dict[int, Operation] = {}

    def fuse(self) -> list[_Draft]:
        for operation in self.graph.operations:
            if operation.name in ANCHORS:
                if len(operation.uses) < len(operation.operands):
                    raise CannotRender(f"{operation.name} of a number")
                self._place_free(operation)
                self._start(operation)
                continue
            producers = [self.draft_of[u.tensor.index] for u in operation.uses if u.tensor.index in self.draft_of]
            if not producers:
                self.free[operation.result.index] = operation
                continue
            target = max(producers, key=self._position)
            if not self._join(target, operation):
                self._place_free(operation)
                if not self._join(target, operation):
                    self._start(operation)
        for operation in reversed(list(self.free.values())):
            self._place(operation)
        return [*self.first, *self.drafts]

    def _position(self, draft: _Draft) -> int:
        return next((i for i, other in enumerate([*self.first, *self.drafts]) if other is draft), -1)

    def _start(self, operation: Operation, *, first: bool = False) -> None:
        anchor = operation if operation.name in ANCHORS else None
        draft = _Draft(anchor, anchor_inner(anchor) if anchor else None, [] if anchor else [operation])
        if anchor is None and _common_inner([operation]) is None:
            raise CannotRender(f"{operation.name} of a shape that is not a number of rows")
        (self.first if first else self.drafts).append(draft)
        self.draft_of[operation.result.index] = draft

    def _join(self, draft: _Draft, operation: Operation) -> bool:
        """Add an operator to a stage, with the free ones that it reads, if all of them fit."""
        if draft.anchor is not None and draft.anchor.name == "copy":
            return False  # it has no epilogue
        wanted = self._free_before(operation)
        made = draft.makes()
        for candidate in [*wanted, operation]:
            made_here = made | {other.result.index for other in wanted}
            inside = [use for use in candidate.uses if use.tensor.index in made_here]
            if any(use.shape != candidate.result.shape for use in inside):
                return False
        joined = [*draft.operations, *wanted, operation]
        if draft.inner is not None:
            if not all(_rows_fit(candidate, draft.inner) for candidate in [*wanted, operation]):
                return False
            if not any(use.tensor.index in made for use in operation.uses):
                return False
        elif _common_inner(joined) is None:
            return False
        draft.operations = joined
        for candidate in [*wanted, operation]:
            self.free.pop(candidate.result.index, None)
            self.draft_of[candidate.result.index] = draft
        return True

    def _free_before(self, operation: Operation) -> list[Operation]:
        """Return the free operators that an operator reads, directly or not, in order."""
        wanted: set[int] = set()
        pending = [use.tensor.index for use in operation.uses]
        while pending:
            index = pending.pop()
            if index in self.free and index not in wanted:
                wanted.add(index)
                pending += [use.tensor.index for use in self.free[index].uses]
        return [candidate for index, candidate in self.free.items() if index in wanted]

    def _place_free(self, operation: Operation) -> None:
        for candidate in reversed(self._free_before(operation)):
            self._place(candidate)

    def _place(self, operation: Operation) -> None:
        """Give a free operator a stage, with the free ones that it reads if all fit: one whose results they read, or a
        new one that runs first."""
        while operation.result.index in self.free:
            made = [self.draft_of[u.tensor.index] for u in operation.uses if u.tensor.index in self.draft_of]
            draft = max(made, key=self._position) if made else _Draft(None, None)
            wanted = self._free_before(operation)
            if (made or wanted) and self._join(draft, operation):
                self.first += [] if made else [draft]
            elif wanted:
                self._place_free(operation)
            else:
                del self.free[operation.result.index]
                self._start(operation, first=True)


def _take_rows(drafts: list[_Draft]) -> None:
    """Fuse the stage of the rows that softmax or layer norm reads into theirs, if nothing else reads them."""
    for draft in list(drafts):
        if draft.anchor is None or not _reads_rows(draft.anchor):
            continue
        data = draft.anchor.uses[0]
        source = next((d for d in drafts if d is not draft and data.tensor.index in d.makes()), None)
        if source is None or source.anchor is not None or draft.inner is None:
            continue
        made = source.makes()
        between = drafts[drafts.index(source) + 1 : drafts.index(draft)]
        reads = [use.tensor.index for other in between for operation in other.all() for use in operation.uses]
        reads += [use.tensor.index for operation in draft.operations for use in operation.uses]
        reads += [use.tensor.index for use in draft.anchor.uses[1:]]
        if made & set(reads) or data.shape != draft.anchor.result.shape:
            continue
        if all(_rows_fit(operation, draft.inner) for operation in source.operations):
            draft.before = source.operations
            drafts.remove(source)


def _reads_rows(anchor: Operation) -> bool:
    """Whether an anchor computes on a row at a time, in place."""
    return anchor.name in ROW_ANCHORS and (anchor.name != NORMALIZE or statistics_of_anchor(anchor).are_rows)


def statistics_of_anchor(anchor: Operation) -> Statistics:
    """Return the statistics of a normalization. Raises CannotRender."""
    found = statistics_of(anchor.result.shape, attributes_of_call(anchor.attributes))
    if found is None:
        raise CannotRender("a normalization along axes that alternate with others")
    return found


def _rows(shapes: list[Shape], inner: Extent) -> Extent:
    for shape in shapes:
        axis = split_rows(shape, inner)
        if axis is not None:
            return product(shape[:axis])
    raise CannotRender(f"no shape with rows of {inner}")


def anchor_inner(anchor: Operation) -> Extent:
    """Return the length of the rows that an anchor makes."""
    shape = anchor.result.shape
    match anchor.name:
        case "concat":
            return product(shape[int(anchor.attributes.axis) % len(shape) :])
        case "permute_dims" if interleaves(anchor.uses[0].shape, anchor.attributes.axes):
            return product(shape[-2:])
        case "nn.layer_norm":
            return product(shape[-len(anchor.attributes.axes) :])
        case "row_dots":
            return anchor.uses[1].shape[-2]
        case "packager.normalize":
            return statistics_of_anchor(anchor).inner
        case "nn.softmax" | "nn.log_softmax":
            return shape[int(anchor.attributes.axis) % len(shape)]
        case "attention":
            return anchor.attributes.value_depth * (anchor.attributes.heads if anchor.attributes.out.head else 1)
    return shape[-1]


def mask_of(use: Use, shape: Shape) -> tuple[bool, ...]:
    """Return for each axis of ``shape`` whether an operand has it, without broadcasting.

    Raises CannotRender for shapes that do not broadcast.
    """
    missing = len(shape) - len(use.shape)
    if missing < 0:
        raise CannotRender(f"an operand of shape {tuple(use.shape)} for a result of shape {tuple(shape)}")
    mask = [False] * missing
    for mine, whole in zip(use.shape, shape[missing:], strict=True):
        if not equal(mine, whole) and not equal(mine, 1):
            raise CannotRender(f"an operand of shape {tuple(use.shape)} for a result of shape {tuple(shape)}")
        mask.append(equal(mine, whole))
    return tuple(mask)


def is_full(use: Use, shape: Shape) -> bool:
    """Whether an operand has an element for every element of a result."""
    return all(has or equal(extent, 1) for has, extent in zip(mask_of(use, shape), shape, strict=True))


def split_rows(shape: Shape, inner: Extent) -> int | None:
    """Return the number of leading axes, so that the others have ``inner`` elements; None if there is none."""
    for axis in range(len(shape), -1, -1):
        if equal(product(shape[axis:]), inner):
            while axis > 0 and equal(shape[axis - 1], 1):
                axis -= 1  # noqa: PLW2901  # axes of extent 1 belong to both: an operand may lack them
            return axis
    return None


def _rows_fit(operation: Operation, inner: Extent) -> bool:
    """Whether all operands are broadcast along a whole row of this length, or not at all."""
    shape = operation.result.shape
    broadcast = [use for use in operation.uses if not is_full(use, shape)]
    if not broadcast:
        return True
    axis = split_rows(shape, inner)
    return axis is not None and all(_is_uniform(use, shape, axis) for use in broadcast)


def _is_uniform(use: Use, shape: Shape, axis: int) -> bool:
    mask, extents = mask_of(use, shape)[axis:], shape[axis:]
    return len({has for has, extent in zip(mask, extents, strict=True) if not equal(extent, 1)}) <= 1


def _common_inner(operations: list[Operation]) -> Extent | None:
    """Return the longest rows that all operators support, or None."""
    shape = operations[-1].result.shape
    for operation in operations:
        uses = [use for use in operation.uses if not is_full(use, operation.result.shape)]
        if uses:
            shape = operation.result.shape
            break
    for axis in range(len(shape) + 1):
        inner = product(shape[axis:])
        if all(_rows_fit(operation, inner) for operation in operations):
            return inner
    return None
