"""``--op-library FILE.toml``: custom operators in precompiled static libraries (``docs/custom-operators.md``).

The description is read and checked here, without TVM; the ``external`` backend checks the code in the archives.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packager.custom_ops.description import read_description
from packager.custom_ops.rules import AttributeValue, Operator
from packager.errors import UsageError

CALL_PREFIX = "packager.external:"
"""Prefix of the names of extern functions that encode calls of custom operators in a Relax module."""


@dataclass(frozen=True)
class OpLibrary:
    """A library of operators: ``path`` of its description and ``archives`` of its code."""

    path: Path
    name: str
    archives: tuple[Path, ...]
    license: str
    system_libraries: tuple[str, ...]
    dispatched_features: tuple[str, ...]
    operators: tuple[Operator, ...]

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that a build depends on."""
        return (self.path, *self.archives)


def load_op_libraries(paths: Sequence[Path]) -> tuple[OpLibrary, ...]:
    """Read the descriptions of libraries. Raises UsageError, also for duplicate names."""
    libraries: dict[str, OpLibrary] = {}
    for path in paths:
        library = load_op_library(path)
        if library.name in libraries:
            raise UsageError(
                f"two operator libraries are named {library.name!r}: {libraries[library.name].path} and {path}",
                hint="give each library once, with a unique name",
            )
        libraries[library.name] = library
    return tuple(libraries.values())


def load_op_library(path: Path) -> OpLibrary:
    """Read the description of one library. Raises UsageError with the file and the key."""
    try:
        library, operators = read_description(tomllib.loads(path.read_bytes().decode()))
    except OSError as failure:
        raise UsageError(
            f"cannot use the operator library {path}: {failure.strerror}", hint="name the TOML file that describes it"
        ) from None
    except (ValueError, RecursionError) as failure:  # TOMLDecodeError, MismatchError, bad UTF-8: ValueErrors
        reason = (
            "it is not a TOML file (TOML is UTF-8 text)" if isinstance(failure, UnicodeDecodeError) else str(failure)
        )
        raise UsageError(
            f"cannot use the operator library {path}: {reason}", hint="docs/custom-operators.md shows all keys"
        ) from None
    names = (library.archive,) if isinstance(library.archive, str) else library.archive
    archives = tuple(path.parent / name for name in names)
    for archive in archives:
        if not archive.is_file():
            raise UsageError(
                f"operator library {library.name!r}: {archive} is not a file",
                hint=f"paths of archives are relative to {path}; build the library first",
            )
    return OpLibrary(
        path=path,
        name=library.name,
        archives=archives,
        license=library.license,
        system_libraries=library.system_libraries,
        dispatched_features=library.dispatched_features,
        operators=operators,
    )


def encode_call(library: OpLibrary, operator: Operator, attributes: Mapping[str, AttributeValue]) -> str:
    """Return the extern function name that encodes a call of ``operator`` in a Relax module."""
    call = {
        "name": operator.name,
        "library": library.name,
        "operator": library.operators.index(operator),
        "attributes": attributes,
    }
    return CALL_PREFIX + json.dumps(call, sort_keys=True, separators=(",", ":"))


def decode_call(
    name: str, libraries: Sequence[OpLibrary]
) -> tuple[OpLibrary, Operator, dict[str, AttributeValue]] | None:
    """Invert ``encode_call``; None for other names, and for libraries not in ``libraries``."""
    if not name.startswith(CALL_PREFIX):
        return None
    call = json.loads(name.removeprefix(CALL_PREFIX))
    for library in libraries:
        if library.name == call["library"]:
            values = {
                key: tuple(value) if isinstance(value, list) else value for key, value in call["attributes"].items()
            }
            return library, library.operators[call["operator"]], values
    return None


def called_operator(name: str) -> str:
    """Return the operator (``com.acme::Swish``) that a function name encodes; other names are returned unchanged."""
    return str(json.loads(name.removeprefix(CALL_PREFIX))["name"]) if name.startswith(CALL_PREFIX) else name
