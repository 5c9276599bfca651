"""Assign operators to backends: the stage between preparation and lowering.

Backends are tried in the order of their Targets. Each compiles, in one call, all partitions that its patterns match
among the unassigned operators: greedily, largest first, convex only. Partitions that it gives back, or that have too
few FLOPs, are undone for the next backend, and in the end for the code generator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from packager.backends.base import Context, Foreseeing, Target
from packager.backends.registry import blamed
from packager.ir.model import PartitionedModel, PreparedModel
from packager.ir.primitives import BackendOutput, FunctionGroup, Partition
from packager.placement.check_output import check_answer
from packager.placement.placer import Answer, Placer, Verdict
from packager.placement.preparation import backend_of

Compile = Callable[[Target, Sequence[Partition]], BackendOutput]


@dataclass(frozen=True)
class Placement:
    """The partitioned model, and the verdicts on all partitions that were tried, in order."""

    model: PartitionedModel
    verdicts: tuple[Verdict, ...]


def compile_with(make_context: Callable[[Target], Context]) -> Compile:
    """Return a function that compiles partitions with a Target's backend."""

    def compile_partitions(target: Target, partitions: Sequence[Partition]) -> BackendOutput:
        backend = backend_of(target)
        with blamed(backend.kind):
            return backend.compile(partitions, target, make_context(target))

    return compile_partitions


def foresee(target: Target, partitions: Sequence[Partition]) -> BackendOutput:
    """Return what a Target's backend would compile and give back, as far as it can tell, without compiling."""
    backend = backend_of(target)
    with blamed(backend.kind):
        given_back = dict(backend.would_give_back(partitions, target)) if isinstance(backend, Foreseeing) else {}
    taken = [part.name for part in partitions if part.name not in given_back]
    return BackendOutput(backend.kind, groups=dict.fromkeys(taken, FunctionGroup((), ())), given_back=given_back)


def checked(compile_partitions: Compile) -> Answer:
    """Return ``compile_partitions`` with its answers checked. They raise BackendError."""

    def answer(target: Target, partitions: Sequence[Partition]) -> BackendOutput:
        output = compile_partitions(target, partitions)
        check_answer(target.kind, partitions, output)
        return output

    return answer


def partition(prepared: PreparedModel, targets: Sequence[Target], compile_partitions: Compile | None) -> Placement:
    """Partition a prepared model for the backends of ``targets``, in this order.

    Without ``compile_partitions`` nothing is compiled: what backends foresee to give back is undone (a dry run). Raises
    BackendError and any error of a backend.
    """
    placer = Placer(prepared)
    answer = foresee if compile_partitions is None else checked(compile_partitions)
    verdicts: list[Verdict] = []
    outputs = []
    for target in targets:
        output, judged = placer.place(target, answer)
        outputs.append(output)
        verdicts += judged
    return Placement(placer.model_of(outputs), tuple(verdicts))
