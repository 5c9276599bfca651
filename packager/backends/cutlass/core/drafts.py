"""Primitive functions of the cutlass backend while they are drafted: a problem's fields, and its kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from packager.backends.cutlass.core.element_types import same
from packager.backends.cutlass.core.kernel_source import KernelSource
from packager.ir.primitives import Candidates, FunctionGroup, Packing, Parameter, PrimitiveFunction

SM90A = "sm_90a"
ZEROS = "zeros"
"""The backend's constant that barriers are made zero by."""


class KernelConfig(Protocol):
    """A configuration of one of the templates."""

    @property
    def name(self) -> str:
        """A C identifier that says all that the kernel's code depends on."""

    @property
    def barrier_bytes(self) -> int:
        """How much of a problem's workspace is zero before a launch."""

    def source(self, archs: tuple[str, ...]) -> KernelSource:
        """Return the kernel's file."""


@dataclass(frozen=True)
class Choice:
    """A kernel, and the GPUs that it is for: ``arch`` 0 is any, 90 those of sm_90a."""

    kernel: KernelConfig
    arch: int = 0


@dataclass(frozen=True)
class Candidate:
    """One way to solve a problem: the first of ``choices`` that is for the GPU is launched."""

    choices: tuple[Choice, ...]

    @property
    def name(self) -> str:
        """The names of its kernels."""
        return "+".join(choice.kernel.name for choice in self.choices)


@dataclass(frozen=True)
class Ranking:
    """All kernels that solve a problem, best first, and the problem as measurements of it are kept.

    ``workspace`` is how many bytes of workspace the kernels need at most.
    """

    problem: str
    candidates: tuple[Candidate, ...]
    workspace: int = 0

    def __bool__(self) -> bool:
        """Whether each GPU of the bundle has a kernel."""
        return bool(self.candidates)


@dataclass
class FunctionDraft:
    """A primitive function: it fills in a structure of ``templates/cutlass/common/problems.h`` and launches a kernel.

    ``member`` is where the fields lie that are set from then on, as ``gemm.``.
    """

    symbol: str
    problem: str
    ranking: Ranking
    parameters: list[Parameter] = field(default_factory=list)
    scalars: list[Any] = field(default_factory=list)
    fields: list[tuple[str, str]] = field(default_factory=list)
    zeros: str = ""
    member: str = ""

    def work_in(self, workspace: int) -> None:
        """Give the problem a workspace, and what its barriers are made zero by."""
        self.pointer("workspace", Parameter("workspace", workspace, written=True))
        self.parameters.append(Parameter("constant", name=ZEROS))
        self.zeros = f"p{len(self.parameters) - 1}"

    def pointer(self, name: str, parameter: Parameter, offset: int = 0, itemsize: int = 1) -> None:
        """Let a field of the problem point to what ``parameter`` is, from ``offset`` elements on."""
        if parameter not in self.parameters:
            self.parameters.append(parameter)
        text = f"p{self.parameters.index(parameter)}"
        if offset:
            text = f"(const char *){text} + {offset * itemsize}"
        self._field(name, text)

    def set(self, name: str, *factors: Any) -> None:
        """Let an integer field be the product of these extents."""
        self._field(name, self.extent(*factors))

    def set_float(self, name: str, value: float) -> None:
        """Let a float field have this value."""
        self._field(name, f"{value!r}f")

    def _field(self, name: str, text: str) -> None:
        self.fields.append((f"{self.member}{name}", text))

    def extent(self, *factors: Any) -> str:
        """Return a product of extents as C."""
        number, symbols = 1, []
        for factor in factors:
            if isinstance(factor, int):
                number *= factor
            else:
                symbols.append(self._scalar(factor))
        return " * ".join([str(number)] * (number != 1 or not symbols) + symbols)

    def _scalar(self, expression: Any) -> str:
        for index, known in enumerate(self.scalars):
            if same(known, expression):
                return f"s{index}"
        self.scalars.append(expression)
        return f"s{len(self.scalars) - 1}"

    def function(self, shipped: Sequence[Candidate], revision: str) -> PrimitiveFunction:
        """Return what packager is told of it, with the candidates that it has in the bundle."""
        candidates = Candidates(self.ranking.problem, tuple(candidate.name for candidate in shipped), revision)
        return PrimitiveFunction(self.symbol, tuple(self.parameters), tuple(self.scalars), candidates=candidates)

    def view(self, shipped: Sequence[Candidate]) -> dict[str, Any]:
        """Return what the template renders."""
        pointers = [f"{'void *' if p.written else 'const void *'}p{index}" for index, p in enumerate(self.parameters)]
        integers = [f"int64_t s{index}" for index in range(len(self.scalars))]
        return {
            "symbol": self.symbol,
            "parameters": ", ".join(["pk_cuda_t *cuda", *pointers, *integers, "int64_t candidate"]),
            "type": self.problem,
            "fields": self.fields,
            "zeros": self.zeros,
            "candidates": [
                [
                    {"kernel": choice.kernel.name, "arch": choice.arch, "barriers": choice.kernel.barrier_bytes}
                    for choice in candidate.choices
                ]
                for candidate in shipped
            ],
        }


@dataclass
class GroupDraft:
    """The functions of one partition, in order, with their packed constants and workspaces."""

    name: str
    functions: list[FunctionDraft] = field(default_factory=list)
    packings: list[Packing] = field(default_factory=list)
    workspaces: list[Any] = field(default_factory=list)

    def add(self, problem: str, ranking: Ranking) -> FunctionDraft:
        """Return a new function."""
        draft = FunctionDraft(f"{self.name}_{problem}_{len(self.functions)}", f"pk_{problem}_t", ranking)
        self.functions.append(draft)
        return draft

    def reserve(self, shipped: Callable[[FunctionDraft], Sequence[Candidate]]) -> None:
        """Give a workspace to each function of whose candidates in the bundle one needs it."""
        for draft in self.functions:
            kernels = [choice.kernel for candidate in shipped(draft) for choice in candidate.choices]
            if any(kernel.barrier_bytes for kernel in kernels):
                draft.work_in(self.workspace(draft.ranking.workspace))

    def packed(self, packing: Packing) -> Parameter:
        """Return the parameter that is a packed constant."""
        self.packings.append(packing)
        return Parameter("packed", len(self.packings) - 1)

    def workspace(self, nbytes: Any) -> int:
        """Return the number of a new workspace."""
        self.workspaces.append(nbytes)
        return len(self.workspaces) - 1

    def group(self, functions: Sequence[PrimitiveFunction]) -> FunctionGroup:
        """Return what packager is told of it."""
        return FunctionGroup(
            tuple(functions),
            workspaces=tuple(self.workspaces),
            packings=tuple(self.packings),
        )


def rank(problem: str, archs: Sequence[str], newest: Sequence[KernelConfig], plain: Sequence[KernelConfig]) -> Ranking:
    """Return the ranking for a bundle of these architectures: ``newest`` on sm_90a, ``plain`` elsewhere, best first.

    Without ``newest`` a GPU of sm_90a takes ``plain``, too. Where a bundle is for both, candidate number i is the i-th
    of each, or the last. Empty if a GPU of the bundle would have none.
    """
    choices: list[list[Choice]] = []
    if newest and SM90A in archs:
        choices.append([Choice(kernel, 90) for kernel in newest])
    if len(archs) > 1 or not choices:
        choices.append([Choice(kernel) for kernel in plain])
    if not all(choices):
        return Ranking(problem, ())
    count = max(map(len, choices))
    return Ranking(
        problem,
        tuple(Candidate(tuple(ranked[min(i, len(ranked) - 1)] for ranked in choices)) for i in range(count)),
    )
