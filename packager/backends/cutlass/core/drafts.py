"""Builders of the backend's primitive functions: the fields of a problem, and its candidate kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from packager.backends.cutlass.core.kernel import KernelConfig
from packager.backends.cutlass.core.options import SM90A
from packager.backends.problem_calls import ProblemCall, ProblemMemory
from packager.ir.primitives import Candidates, FunctionGroup, Parameter, PrimitiveFunction

# An upper bound of a product of extents of a partition.
Most = Callable[[Sequence[Any]], int]


@dataclass(frozen=True)
class Choice:
    """A kernel and its GPUs: ``arch`` 0 is any, 90 is sm_90a; and the most ``rows`` that it is launched for, 0 any."""

    kernel: KernelConfig
    arch: int = 0
    rows: int = 0


@dataclass(frozen=True)
class Candidate:
    """One way to solve a problem: launches the first of ``choices`` that supports the GPU and the rows of the run."""

    choices: tuple[Choice, ...]

    @property
    def name(self) -> str:
        """The names of its kernels."""
        return "+".join(choice.kernel.name for choice in self.choices)


@dataclass(frozen=True)
class Ranking:
    """The candidates for a problem, best first; ``problem`` is the key of its tuning records.

    ``workspace`` is the maximum workspace of the kernels, in bytes. ``estimates`` are microseconds of each candidate,
    if the cost model knows all of them.
    """

    problem: str
    candidates: tuple[Candidate, ...]
    workspace: int = 0
    estimates: tuple[float, ...] = ()

    def __bool__(self) -> bool:
        """Whether each GPU of the bundle has a kernel."""
        return bool(self.candidates)


@dataclass(frozen=True)
class Steps:
    """How a function that launches several kernels decides at run time: ``function`` of C, given a ``type`` of these.

    ``kernels`` are its members that are the same for all candidates, ``numbers`` those that are no kernels; ``role`` is
    the member that is the candidate's kernel.
    """

    function: str
    type: str
    role: str
    kernels: tuple[tuple[str, KernelConfig], ...] = ()
    numbers: tuple[tuple[str, int], ...] = ()

    def view(self) -> dict[str, Any]:
        """Return the values of the template."""
        return {**vars(self), "kernels": [(role, kernel.name) for role, kernel in self.kernels]}


@dataclass
class FunctionDraft(ProblemCall):
    """A function that fills in a structure of ``templates/cutlass/common/problems.h`` and launches a kernel, or those
    of ``steps``. ``rows`` is the C expression of a problem's rows."""

    ranking: Ranking = field(kw_only=True)
    steps: Steps | None = None
    rows: str = "problem.m"

    def choices(self, shipped: Sequence[Candidate]) -> Iterator[Choice]:
        """Yield the kernels that it launches with the candidates that the bundle ships."""
        yield from (choice for candidate in shipped for choice in candidate.choices)
        yield from (Choice(kernel) for _, kernel in (self.steps.kernels if self.steps else ()))

    def function(self, shipped: Sequence[Candidate], revision: str) -> PrimitiveFunction:
        """Return the function with the candidates that the bundle ships."""
        candidates = Candidates(self.ranking.problem, tuple(candidate.name for candidate in shipped), revision)
        return PrimitiveFunction(self.symbol, tuple(self.parameters), tuple(self.scalars), candidates=candidates)

    def view(self, shipped: Sequence[Candidate]) -> dict[str, Any]:
        """Return the values of the template."""
        return {
            "symbol": self.symbol,
            "parameters": self.signature,
            "type": self.problem,
            "fields": self.fields,
            "steps": None if self.steps is None else self.steps.view(),
            "candidates": [[self._choice(choice) for choice in candidate.choices] for candidate in shipped],
        }

    def _choice(self, choice: Choice) -> dict[str, Any]:
        """Return the values of a case of the template, which is taken ``when`` all conditions hold."""
        gpu = [f"pk_cuda_device(cuda)->arch == {choice.arch}"] if choice.arch else []
        when = [*gpu, *([f"{self.rows} <= {choice.rows}"] if choice.rows else [])]
        return {"kernel": choice.kernel.name, "when": " && ".join(when), "counts": choice.kernel.needs_workspace}


@dataclass
class GroupDraft(ProblemMemory):
    """Builder of the functions of one partition, with their packed constants and workspaces."""

    name: str = field(kw_only=True)
    functions: list[FunctionDraft] = field(default_factory=list)

    def add(self, problem: str, ranking: Ranking, steps: Steps | None = None) -> FunctionDraft:
        """Add a function that solves a ``pk_<problem>_t``."""
        symbol = f"{self.name}_{problem}_{len(self.functions)}"
        draft = FunctionDraft(symbol, f"pk_{problem}_t", ranking=ranking, steps=steps)
        self.functions.append(draft)
        return draft

    def reserve(self, shipped: Mapping[str, Sequence[Candidate]]) -> None:
        """Add a workspace for each function with a shipped kernel that needs one; ``shipped`` is by symbol."""
        for draft in self.functions:
            if any(choice.kernel.needs_workspace for choice in draft.choices(shipped[draft.symbol])):
                workspace = self.workspace(draft.ranking.workspace)
                draft.pointer("workspace", Parameter("workspace", workspace, written=True))

    def group(self, functions: Sequence[PrimitiveFunction]) -> FunctionGroup:
        """Return the finished group."""
        return FunctionGroup(tuple(functions), workspaces=tuple(self.workspaces), packings=tuple(self.packings))


def rank(
    problem: str,
    archs: Sequence[str],
    newest: Sequence[KernelConfig],
    plain: Sequence[KernelConfig],
    time: Callable[[Any], float] | None = None,
) -> Ranking:
    """Rank the kernels of a bundle for ``archs``: ``newest`` on sm_90a, ``plain`` elsewhere; both are best first.

    Without ``newest``, sm_90a uses ``plain`` too. In a bundle for both, candidate i combines the i-th of each, or the
    last. Empty if a GPU of the bundle would have no kernel. ``time`` estimates the microseconds of a kernel; those of a
    bundle for both are of sm_90a.
    """
    choices: list[list[Choice]] = []
    if newest and SM90A in archs:
        choices.append([Choice(kernel, 90) for kernel in newest])
    if len(archs) > 1 or not choices:
        choices.append([Choice(kernel) for kernel in plain])
    if not all(choices):
        return Ranking(problem, ())
    ranks = range(max(map(len, choices)))
    candidates = tuple(Candidate(tuple(each[min(i, len(each) - 1)] for each in choices)) for i in ranks)
    estimates = () if time is None else tuple(time(candidate.choices[0].kernel) for candidate in candidates)
    return Ranking(problem, candidates, estimates=estimates)
