"""Checks a bundle against a policy: a TOML file of limits. `default` and `hermetic` are built in."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from packager.bundle import strict_json
from packager.bundle.elf.symbols import version_key
from packager.bundle.fields import Count, CudaVersion, GlibcVersion, MachineCode, Name, Ptx, Soname, value_text
from packager.bundle.gpu.arch import arch_key
from packager.bundle.isa.levels import LEVEL_FEATURES
from packager.bundle.manifest import Manifest
from packager.deploy.verify.findings import Finding, error, warning
from packager.errors import UsageError, suggestion

_FOLDER = Path(__file__).parent / "policies"


@dataclass(frozen=True)
class Policy:
    """Limits on a bundle. Omitted keys are not checked.

    ``cpu_level`` and ``allowed_cpu_features`` are united. ``required_targets`` are Target strings; each must match a
    Target of the bundle in kind and in every attribute given. ``allowed_gpu_archs`` lists machine code (``sm_90a``) and
    PTX (``compute_80``); an empty list forbids GPU code. ``allowed_loaded_libraries`` are the sonames that sessions may
    open; ``optional_libraries`` says whether others that the bundle can do without are warned of, or refused too.
    """

    schema_version: Literal[1]
    name: Name
    description: str = ""
    allowed_libraries: tuple[Name, ...] | None = None
    allowed_loaded_libraries: tuple[Soname, ...] | None = None
    optional_libraries: Literal["refuse", "warn"] = "refuse"
    max_glibc: GlibcVersion | None = None
    cpu_level: Literal["x86-64-v1", "x86-64-v2", "x86-64-v3", "x86-64-v4"] | None = None
    allowed_cpu_features: tuple[Name, ...] | None = None
    allowed_gpu_archs: tuple[MachineCode | Ptx, ...] | None = None
    required_gpu_archs: tuple[MachineCode | Ptx, ...] = ()
    max_cuda_driver: CudaVersion | None = None
    max_file_bytes: Count | None = None
    max_arena_bytes: Count | None = None
    max_constant_bytes: Count | None = None
    required_backends: tuple[Name, ...] = ()
    forbidden_backends: tuple[Name, ...] = ()
    required_targets: tuple[Name, ...] = ()
    require_golden: bool = False
    allow_external_weights: bool = True
    allowed_licenses: tuple[Name, ...] | None = None
    require_signature: bool = False


def policy_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of policy files."""
    return strict_json.schema(Policy, "urn:packager:policy:1")


def read_policy(name_or_path: str) -> Policy:
    """Return a built-in policy by name, or read a TOML file (if the name has a dot or a slash). Raises UsageError."""
    built_in = sorted(path.stem for path in _FOLDER.glob("*.toml"))
    if name_or_path in built_in:
        path = _FOLDER / f"{name_or_path}.toml"
    elif re.fullmatch(r"[A-Za-z0-9_-]*", name_or_path) and not Path(name_or_path).is_file():
        raise UsageError(
            f"no policy {name_or_path!r}{suggestion(name_or_path, built_in)}",
            hint=f"built-in policies: {', '.join(built_in)}; or give the path of a TOML file",
        )
    else:
        path = Path(name_or_path)
    try:
        policy = strict_json.read(Policy, tomllib.loads(path.read_bytes().decode()))
        for target in policy.required_targets:
            _parse_target(target)
    except (OSError, ValueError, RecursionError) as failure:  # TOMLDecodeError, MismatchError, bad UTF-8: ValueErrors
        reason = failure.strerror if isinstance(failure, OSError) else str(failure)
        raise UsageError(
            f"cannot use the policy {path}: {reason}", hint="`packager schema policy` prints all keys"
        ) from None
    return policy


def policy_findings(manifest: Manifest, policy: Policy, *, signed: bool = False) -> Iterator[Finding]:
    """Check a bundle's manifest against a policy. Other checks compare the manifest with the file.

    ``signed``: someone whom the caller trusts has signed the bundle.
    """
    if policy.require_signature and not signed:
        yield error(
            "policy.require_signature",
            "no trusted signature was asked for",
            where="$",
            why=f"policy {policy.name!r}: require_signature",
            hint="name who is trusted: packager verify --trust FILE",
        )
    yield from _loaded_findings(manifest, policy)
    for violations in (
        _requirement_violations,
        _gpu_violations,
        _size_violations,
        _target_violations,
        _content_violations,
    ):
        for key, what, where, hint in violations(manifest, policy):
            yield error(f"policy.{key}", what, where=where, why=f"policy {policy.name!r}: {key}", hint=hint)


def _loaded_findings(manifest: Manifest, policy: Policy) -> Iterator[Finding]:
    """Check the libraries that sessions open: any of a library's sonames may be the one."""
    for index, library in enumerate(manifest.requirements.libraries):
        if sonames := _extra(library.sonames, policy.allowed_loaded_libraries):
            tolerated = library.optional and policy.optional_libraries == "warn"
            yield (warning if tolerated else error)(
                "policy.allowed_loaded_libraries",
                f"sessions open {sonames}{', and can do without' if library.optional else ''}",
                where=f"$.requirements.libraries[{index}]",
                why=f"policy {policy.name!r}: allowed_loaded_libraries",
                hint="leave out the --target that calls it, or give a policy that allows it",
            )


_Violation = tuple[str, str, str, str]  # key of the policy, what, where, hint


def _extra(found: Iterable[str], allowed: Iterable[str] | None) -> str:
    return "" if allowed is None else ", ".join(sorted(set(found) - set(allowed)))


def _requirement_violations(manifest: Manifest, policy: Policy) -> Iterator[_Violation]:
    requirements = manifest.requirements
    if libraries := _extra(requirements.needed, policy.allowed_libraries):
        yield "allowed_libraries", f"needs {libraries}", "$.requirements.needed", "link it statically"
    if policy.max_glibc and requirements.glibc and version_key(requirements.glibc) > version_key(policy.max_glibc):
        what = f"needs glibc {requirements.glibc}, more than {policy.max_glibc}"
        yield "max_glibc", what, "$.requirements.glibc", "rebuild on an older distribution"
    if features := _extra(requirements.cpu_features, _allowed_features(policy)):
        key = "cpu_level" if policy.cpu_level else "allowed_cpu_features"
        hint = "rebuild with a --target of a lower -mcpu"
        yield key, f"uses the CPU features {features}", "$.requirements.cpu_features", hint


def _gpu_violations(manifest: Manifest, policy: Policy) -> Iterator[_Violation]:
    cuda = manifest.requirements.cuda
    codes = {*cuda.archs, *cuda.ptx} if cuda else set()
    where = "$.requirements.cuda"
    if policy.allowed_gpu_archs is not None and (extra := codes - set(policy.allowed_gpu_archs)):
        hint = "rebuild with another -arch or -ptx"
        yield "allowed_gpu_archs", f"has GPU code for {_in_order(extra)}", where, hint
    if absent := set(policy.required_gpu_archs) - codes:
        hint = "rebuild with it in -arch or -ptx"
        yield "required_gpu_archs", f"has no GPU code for {_in_order(absent)}", where, hint
    if cuda and policy.max_cuda_driver and version_key(cuda.driver) > version_key(policy.max_cuda_driver):
        what = f"needs a driver for CUDA {cuda.driver}, more than {policy.max_cuda_driver}"
        yield "max_cuda_driver", what, f"{where}.driver", "rebuild with an older CUDA toolkit, or without PTX"


def _in_order(archs: Iterable[str]) -> str:
    return ", ".join(sorted(archs, key=arch_key))


def _size_violations(manifest: Manifest, policy: Policy) -> Iterator[_Violation]:
    for key, limit, actual, where in (
        ("max_file_bytes", policy.max_file_bytes, manifest.sizes.file, "$.sizes.file"),
        ("max_arena_bytes", policy.max_arena_bytes, manifest.arena_bytes, "$.arena_bytes"),
        ("max_constant_bytes", policy.max_constant_bytes, manifest.weights.bytes, "$.weights.bytes"),
    ):
        if limit is not None and actual > limit:
            yield key, f"{actual} bytes, more than {limit}", where, "use a smaller model or dtype"


def _target_violations(manifest: Manifest, policy: Policy) -> Iterator[_Violation]:
    kinds = {backend.kind for backend in manifest.backends if backend.primitives}
    if absent := _extra(policy.required_backends, kinds):
        yield "required_backends", f"nothing compiled by {absent}", "$.backends", "add it with --target"
    if forbidden := ", ".join(sorted(kinds & set(policy.forbidden_backends))):
        yield "forbidden_backends", f"has code of {forbidden}", "$.backends", "leave out its --target"
    for wanted in policy.required_targets:
        attributes = _parse_target(wanted)
        if not any(_matches(target, attributes) for target in manifest.targets):
            yield "required_targets", f"not built for {wanted!r}", "$.targets", f'add --target "{wanted}"'


def _content_violations(manifest: Manifest, policy: Policy) -> Iterator[_Violation]:
    if policy.require_golden and manifest.golden is None:
        yield "require_golden", "has no golden pairs", "$.golden", "rebuild with --golden"
    if not policy.allow_external_weights and manifest.weights.storage == "external":
        yield "allow_external_weights", "has its weights in a second file", "$.weights", "embed them"
    if policy.allowed_licenses is not None:
        for item in manifest.licenses:
            if not _license_allowed(item.spdx, policy.allowed_licenses):
                what = f"{item.component} is under {item.spdx}"
                yield "allowed_licenses", what, "$.licenses", "replace the component, or allow its license"


def _allowed_features(policy: Policy) -> frozenset[str] | None:
    if policy.cpu_level is None and policy.allowed_cpu_features is None:
        return None
    level = LEVEL_FEATURES[policy.cpu_level] if policy.cpu_level else frozenset()
    return level | frozenset(policy.allowed_cpu_features or ())


def _license_allowed(expression: str, allowed: tuple[str, ...]) -> bool:
    """Evaluate an SPDX expression without parentheses; others must be listed verbatim."""
    if expression in allowed:
        return True
    alternatives = [alternative.split(" AND ") for alternative in expression.split(" OR ")]
    return any(all(term.strip() in allowed for term in terms) for terms in alternatives)


def _parse_target(target: str) -> dict[str, str]:
    """Parse ``kind -key=value ...`` to attributes, the kind as attribute ``kind``. Raises ValueError."""
    words = shlex.split(target)
    if not words or words[0].startswith("-"):
        raise ValueError(f"$.required_targets: {target!r} does not start with a target kind")
    attributes = {"kind": words[0]}
    for word in words[1:]:
        key, equals, value = word.removeprefix("-").partition("=")
        if not word.startswith("-") or not key or not equals:
            raise ValueError(f"$.required_targets: expected -key=value, found {word!r} in {target!r}")
        attributes[key] = value
    return attributes


def _matches(target: dict[str, Any], attributes: dict[str, str]) -> bool:
    return all(key in target and value_text(target[key]) == value for key, value in attributes.items())
