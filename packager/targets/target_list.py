"""Canonicalizes Targets: the backends that compile a model, and their options.

A Target is a kind with typed attributes. *Specialized* Targets take parts of the model first, in the order given; the
*base* Target of a device compiles the rest. Each backend declares the attributes of its kind once, as a frozen
dataclass; this module converts parsed Targets to these dataclasses, with all defaults filled in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packager.backends.attributes import Value, attributes_of, has_type, quoted
from packager.backends.base import Target
from packager.backends.registry import blamed, find_backend, own_backends
from packager.errors import UsageError
from packager.targets.parsed import DEFAULT_BASE, HOST_DEVICE, Parsed, is_base, parse, read_written

if TYPE_CHECKING:
    from packager.backends.base import Unavailable

# The Targets of a build without -t (docs/adr/0022-default-targets-are-fast.md).
DEFAULT_TARGETS = ("llvm", "ccompiler")


@dataclass(frozen=True)
class TargetList:
    """The canonical Targets of a build: one base Target per device, the CPU's first, and the specialized ones.

    ``specialized`` are in order of precedence, with distinct kinds. Each of their devices has a base Target.
    """

    bases: tuple[Target, ...]
    specialized: tuple[Target, ...] = ()

    @property
    def host(self) -> Target:
        """The base Target of the CPU."""
        return self.bases[0]

    @property
    def generator(self) -> Target:
        """The base Target that compiles the rest: the GPU's if there is one, else the CPU's."""
        return self.bases[-1]

    @property
    def device(self) -> str:
        """The device of the bundle's primitive functions: ``cpu`` or ``cuda``."""
        return find_backend(self.generator.kind).device

    def require_one_device(self) -> None:
        """Raise UsageError if a specialized Target is for another device than the bundle."""
        for target in self.specialized:
            device = find_backend(target.kind).device
            if device != self.device:
                raise UsageError(
                    f"Target {target.kind!r} is for device {device!r}, but the bundle runs on device {self.device!r}",
                    hint=f"all primitive functions of a bundle run on one device: leave {target.kind!r} out, or build"
                    f" without Targets for {self.device!r}",
                )

    def base_of(self, target: Target) -> Target:
        """Return the base Target of the device of ``target``."""
        device = find_backend(target.kind).device
        return next(base for base in self.bases if find_backend(base.kind).device == device)

    def to_manifest(self) -> list[dict[str, Any]]:
        """Return the manifest's representation of all Targets, the host first."""
        return [target.to_manifest() for target in (*self.bases, *self.specialized)]

    def to_json(self) -> list[dict[str, Any]]:
        """Return all Targets, the host first; ``parse_targets`` round-trips."""
        return [target.to_json() for target in (*self.bases, *self.specialized)]


def parse_targets(given: Sequence[str | Mapping[str, Any]] | str | Mapping[str, Any]) -> TargetList:
    """Parse and canonicalize a list of Targets, or a single one; an empty list means only the host CPU.

    Does not check whether the backends are available here. Raises UsageError for an unknown kind, attribute or value
    and for contradictory Targets, and BackendError for a broken third-party backend.
    """
    texts = [given] if isinstance(given, str | Mapping) else given
    parsed = [parse(written) for text in texts for written in read_written(text)]
    specialized = [one for one in parsed if not one.is_base]
    _refuse_duplicates(specialized)
    devices = dict.fromkeys([HOST_DEVICE, *(one.device for one in parsed)])
    bases = {device: _base(device, [one for one in parsed if one.device == device]) for device in devices}
    return TargetList(
        bases=tuple(bases.values()),
        specialized=tuple(_canonical(one.kind, one.values, bases[one.device]) for one in specialized),
    )


def with_attribute(target: Target, name: str, value: Value, base: Target) -> Target:
    """Replace an attribute's value and canonicalize the Target. Raises UsageError."""
    return _canonical(target.kind, {**vars(target.options), name: value}, base)


def unavailable(target: Target) -> Unavailable | None:
    """Return why the Target's backend is unavailable here, or None. Raises BackendError."""
    with blamed(target.kind):
        return find_backend(target.kind).probe(target)


def require_available(targets: TargetList) -> None:
    """Raise UsageError, with an installation hint, unless all backends are available here."""
    for target in (*targets.bases, *targets.specialized):
        if reason := unavailable(target):
            raise UsageError(f"Target {target.kind!r} cannot be used: {reason.reason}", hint=reason.hint)


def _refuse_duplicates(specialized: Sequence[Parsed]) -> None:
    for one in specialized:
        same = [other.text for other in specialized if other.kind == one.kind]
        if len(same) > 1:
            raise UsageError(
                f"{len(same)} Targets of kind {one.kind!r} were given: {', '.join(same)}",
                hint=f"give one {one.kind} Target, with all attributes",
            )


def _base(device: str, parsed: Sequence[Parsed]) -> Target:
    """Return the base Target of a device: as given, or derived from its specialized Targets."""
    given = [one for one in parsed if one.is_base]
    if len(given) > 1:
        raise _two_bases(device, given)
    claims = [one for one in parsed if one.base_kind]
    kind = next((one.kind for one in given), claims[0].base_kind if claims else None)
    if kind is None and device != HOST_DEVICE:
        raise _no_base(device, parsed[0])
    kind = kind or DEFAULT_BASE[HOST_DEVICE]
    for claim in claims:
        if claim.base_kind != kind:
            raise UsageError(
                f"{claim.text} specializes {claim.base_kind!r}, but the Target of device {device!r} is {kind!r}",
                hint=f"write '{kind} -compiler={claim.kind}', or '{claim.kind}' alone",
            )
    values = dict(given[0].values) if given else {}
    for claim in [] if given else claims:
        values = {**claim.base_values, **values}
    base = _canonical(kind, values, None)
    for claim in claims:
        _refuse_contradiction(base, _canonical(kind, {**values, **claim.base_values}, None), claim)
    return base


def _refuse_contradiction(base: Target, claimed: Target, claim: Parsed) -> None:
    for name in claim.base_values:
        ours, theirs = getattr(base.options, name), getattr(claimed.options, name)
        if ours != theirs:
            raise UsageError(
                f"attribute {name!r} of Target {base.kind!r} is {quoted(ours)}, but {quoted(theirs)} in {claim.text}",
                hint=f"all backends of a device share its Target; write -{name} once, in the {base.kind} Target",
            )


def _two_bases(device: str, given: Sequence[Parsed]) -> UsageError:
    """Return the error for several base Targets of one device: different kinds, duplicates, or contradictory."""
    kinds = list(dict.fromkeys(one.kind for one in given))
    if len(kinds) > 1:
        return UsageError(
            f"Targets {kinds[0]!r} and {kinds[1]!r} are both base Targets for device {device!r}",
            hint="give one of them",
        )
    kind = kinds[0]
    what = f"{len(given)} Targets of kind {kind!r}"
    hint = f"give one {kind} Target; it compiles for one machine"
    first, *others = (_canonical(kind, one.values, None) for one in given)
    for other in others:
        for name in attributes_of(type(first.options)):
            values = getattr(first.options, name), getattr(other.options, name)
            if values[0] != values[1]:
                return UsageError(
                    f"{what} contradict each other: attribute {name!r} is {quoted(values[0])} and {quoted(values[1])}",
                    hint=hint,
                )
    return UsageError(f"{what} were given, which mean the same: {', '.join(one.text for one in given)}", hint=hint)


def _no_base(device: str, specialized: Parsed) -> UsageError:
    fitting = [found.kind for found in own_backends() if is_base(found) and found.device == device]
    return UsageError(
        f"Target {specialized.kind!r} is for device {device!r}, but no base Target for that device is given",
        hint=f"add -t {' or -t '.join(fitting)}" if fitting else f"no installed backend generates code for {device!r}",
    )


def _canonical(kind: str, values: Mapping[str, Value], base: Target | None) -> Target:
    backend = find_backend(kind)
    with blamed(kind):
        options = backend.canonical(backend.options(**values), base)
        if type(options) is not backend.options:
            raise TypeError(f"canonical() returned {options!r}, expected {backend.options.__name__}")
        for name, attribute in attributes_of(backend.options).items():
            if not has_type(getattr(options, name), attribute.type):
                raise TypeError(f"canonical() set {name!r} to {getattr(options, name)!r}, expected {attribute.type}")
    return Target(kind, options)
