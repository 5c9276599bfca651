"""``explain``: predict a build: unsupported operators, the placement on backends, and why operators are left over.

Runs the stages import, prepare, partition and lower of ``packager.pipeline.build`` without compiling.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from packager.errors import ModelError, UnboundedDimsError
from packager.pipeline.import_models import import_model
from packager.pipeline.options import BuildOptions
from packager.pipeline.request import Request, make_build_request
from packager.progress import report
from packager.targets.availability import require_build_packages
from packager.targets.target_list import require_available

if TYPE_CHECKING:
    from packager.bundle.manifest import RunPart, RunTimeExtent, TensorSpec
    from packager.ir.model import ImportedModel, LoweredModel, PreparedModel
    from packager.placement.place import Placement

# The assumed bounds of a dim without bounds.
ASSUMED_BOUNDS = (1, 8)


@dataclass(frozen=True)
class Refusal:
    """An error that a build would raise: message, detail by line, and hint."""

    message: str
    detail: tuple[str, ...]
    hint: str | None


@dataclass(frozen=True)
class Leftover:
    """An operator left to the code generator, the number of its calls, and why each backend does not take it."""

    operator: str
    count: int
    reasons: Mapping[str, str]


@dataclass(frozen=True)
class ExplainedRegion:
    """A class of equal regions: how many there are, its alternatives by name, which of them are linked, and what
    decided on the first of these: ``greedy``, ``measured``, or where it was measured."""

    problem: str
    count: int
    alternatives: tuple[str, ...]
    linked: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class ExplainedChoices:
    """What a trial would measure: matches by backend, the layouts that orders of Targets make, and the regions."""

    matches: Mapping[str, int]
    layouts: tuple[str, ...]
    regions: tuple[ExplainedRegion, ...]


@dataclass(frozen=True)
class Explanation:
    """The predicted build of a model. ``constant_bytes`` is the size of its constants.

    ``targets`` are written as on a command line, with what is not a default. ``assumed`` holds bounds for dims without
    bounds in the request; ``extents`` are what a run reads from data, and ``parts`` says, by model, into which CUDA
    graphs that splits a run. After a ``refusal``, results of later stages are empty.
    """

    model: str
    format: str
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[str, ...] = ()
    assumed: Mapping[str, tuple[int, int]] | None = None
    extents: tuple[RunTimeExtent, ...] = ()
    on_cuda: bool = False
    constants: int = 0
    constant_bytes: int = 0
    operators: Mapping[str, int] | None = None
    targets: tuple[str, ...] = ()
    table: Mapping[str, Any] | None = None
    leftovers: tuple[Leftover, ...] = ()
    parts: Mapping[str, tuple[RunPart, ...]] = field(default_factory=dict)
    choices: ExplainedChoices | None = None
    refusal: Refusal | None = None


def explain(options: BuildOptions, *, candidates: bool = False) -> Explanation:
    """Predict a build with these options; compile and write nothing.

    With ``candidates`` also say what a trial would measure. A ModelError becomes the ``refusal`` of the result. Raises
    UsageError for wrong arguments.
    """
    require_build_packages()
    request = make_build_request(options)
    require_available(request.targets)
    report("importing the model")
    assumed: dict[str, tuple[int, int]] = {}
    try:
        try:
            imported = import_model(request)
        except UnboundedDimsError as error:
            assumed = dict.fromkeys(error.dims, ASSUMED_BOUNDS)
            request = make_build_request(dataclasses.replace(options, dims={**(options.dims or {}), **assumed}))
            imported = import_model(request)
    except ModelError as error:
        form = request.model.suffix.lstrip(".")
        return Explanation(request.model.name, form, assumed=assumed, refusal=_refusal(error))
    return _explain(request, imported, assumed, candidates)


def _explain(
    request: Request, imported: ImportedModel, assumed: Mapping[str, tuple[int, int]], candidates: bool
) -> Explanation:
    from packager.lower.lowering import lower
    from packager.pipeline.place import place
    from packager.placement.preparation import preparation_for
    from packager.placement.table import partition_table
    from packager.transforms.prepare import prepare

    table: Mapping[str, Any] | None = None
    leftovers: tuple[Leftover, ...] = ()
    parts: Mapping[str, tuple[RunPart, ...]] = {}
    refusal: Refusal | None = None
    choices: ExplainedChoices | None = None
    try:
        specialized, device = request.targets.specialized, request.targets.device
        report("preparing the model")
        prepared = prepare(imported, preparation_for(specialized), device)
        report("partitioning")
        placement = place(request, prepared)
        table = partition_table(placement, request.targets.generator.kind)
        leftovers = _leftovers(request, placement, table["rest"]) if request.place != "trial" else ()
        choices = _choices(request, prepared) if candidates else None
        report("lowering")
        parts = _parts(lower(placement.model, device), device)
    except ModelError as error:
        refusal = _refusal(error)
    constants = imported.own_constants().values()
    extents = imported.signature.extents
    parameters, results = {extent.parameter for extent in extents}, {extent.result for extent in extents}
    return Explanation(
        model=imported.signature.source.name,
        format=imported.signature.source.format,
        inputs=tuple(spec for spec in imported.signature.inputs if spec.name not in parameters),
        outputs=tuple(name for name in imported.signature.output_names if name not in results),
        assumed=assumed,
        extents=extents,
        on_cuda=request.targets.device == "cuda",
        constants=len(constants),
        constant_bytes=sum(array.nbytes for array in constants),
        operators=_operators(imported),
        targets=tuple(target.to_text() for target in (request.targets.generator, *request.targets.specialized)),
        table=table,
        leftovers=leftovers,
        parts=parts,
        choices=choices,
        refusal=refusal,
    )


def _choices(request: Request, prepared: PreparedModel) -> ExplainedChoices:
    from packager.pipeline.place import choose_for, choosing_of, decide
    from packager.placement.choices.partition import find_choices
    from packager.placement.placer import Placer

    origin = Placer(prepared)
    found = find_choices(prepared, origin, choosing_of(request, measured=True))
    chosen = choose_for(request)(found.classes.model, found.regions)
    decisions = decide(request, found.classes.model, found.regions)
    return ExplainedChoices(
        matches={kind: len(matches) for kind, matches in origin.candidates.items()},
        layouts=tuple(layout.name for layout in found.layouts),
        regions=tuple(
            ExplainedRegion(
                region.problem,
                len(region.regions),
                tuple(way.name for way in region.alternatives),
                tuple(region.alternatives[number].name for number in numbers),
                decision.source,
            )
            for region, numbers, decision in zip(found.regions, chosen, decisions, strict=True)
        ),
    )


def _parts(lowered: LoweredModel, device: str) -> dict[str, tuple[RunPart, ...]]:
    """Return how runs on a GPU are split into CUDA graphs, by model or variant; of those that are."""
    from packager.bundle.buckets import variant_label
    from packager.graph.control_flow import LOOP_BEGIN
    from packager.graph.dataflow import bindings_of, called_function
    from packager.link.segments import parts_of
    from packager.plan.planner import plan

    loops = any(called_function(binding.value) == LOOP_BEGIN for binding in bindings_of(lowered.main))
    if device != "cuda" or not (loops or lowered.signature.extents):
        return {}
    runs = [run for entry in plan(lowered).entries for run in entry.runs()]
    found = {variant_label(run.name, run.sizes): parts_of(run) for run in runs}
    return {name: parts for name, parts in found.items() if parts}


def _operators(imported: ImportedModel) -> dict[str, int]:
    """Count the operators of the imported graph, the most frequent first."""
    from packager.placement.table import operators_of

    return dict(operators_of(imported.module["main"]).most_common())


def _leftovers(request: Request, placement: Placement, rest: Mapping[str, int]) -> tuple[Leftover, ...]:
    from packager.placement.match import root_operators
    from packager.placement.preparation import backend_of

    roots = {t.kind: root_operators(backend_of(t).patterns(t)) for t in request.targets.specialized}
    undone: dict[tuple[str, str], str] = {}
    for verdict in placement.verdicts:
        if verdict.reason is not None:
            names = (operator for composite in verdict.partition.composites for operator in composite.ops)
            undone.update(((verdict.backend, name), verdict.reason) for name in names)
    return tuple(
        Leftover(
            operator,
            count,
            {
                kind: _reason(operator, names, undone.get((kind, operator)), recorded=request.place != "greedy")
                for kind, names in roots.items()
            },
        )
        for operator, count in Counter(rest).most_common()
    )


def _reason(operator: str, names: set[str | None], undone: str | None, *, recorded: bool) -> str:
    if undone is not None:
        return f"takes this operator, but not in such partitions: {undone}"
    if operator in names and recorded:
        return (
            "takes this operator, but not where the records leave it to others, nor with any shapes, types or neighbors"
        )
    if operator in names:
        return "takes this operator, but not with these shapes, types, attributes or neighbors"
    return "has no pattern that ends with this operator"


def _refusal(error: ModelError) -> Refusal:
    return Refusal(error.message, tuple((error.detail or "").splitlines()), error.hint)
