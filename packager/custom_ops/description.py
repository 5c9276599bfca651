"""The TOML schema of a library of custom operators: keys, and checks across them."""

from __future__ import annotations

import keyword
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from packager.bundle import shape_expr, strict_json
from packager.bundle.fields import DTypeName, Identifier, Name
from packager.bundle.strict_json import MismatchError, Pattern, Range, shown
from packager.custom_ops import rules
from packager.custom_ops.domains import CONTRIB_DOMAINS, STANDARD_DOMAINS
from packager.custom_ops.rules import LIST_TYPES, Argument, AttributeRule, AttributeValue, Operator, TensorRule, spelled
from packager.errors import suggestion

# The TOML type of an attribute's default, by attribute type.
_ATTRIBUTE_FORMS: Mapping[str, Any] = {
    "int": int,
    "float": float,
    "string": str,
    "ints": tuple[int, ...],
    "floats": tuple[float, ...],
}
_RESERVED = {"workspace", "numel", "len", "min", "max"}
_LIKE = re.compile(r"like:([A-Za-z_]\w*)", re.ASCII)

LinkName = Annotated[str, Pattern(r"[A-Za-z0-9_][A-Za-z0-9_+.-]*", "a name as in -lNAME, such as m or pthread")]
Extents = tuple[str | int, ...]


@dataclass(frozen=True)
class LibraryTable:
    """The table ``[library]``."""

    name: Annotated[str, Pattern(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", "a name of letters, digits, '_', '.' and '-'")]
    archive: Name | tuple[Name, ...]
    license: Name
    system_libraries: tuple[LinkName, ...] = ()
    dispatched_features: tuple[Name, ...] = ()


@dataclass(frozen=True)
class _InputTable:
    name: Identifier
    dtype: DTypeName
    shape: Extents | None = None


@dataclass(frozen=True)
class _OutputTable:
    name: Identifier
    dtype: DTypeName
    shape: Extents | str


@dataclass(frozen=True)
class _AttributeTable:
    type: rules.AttributeType
    default: bool | int | float | str | tuple[int, ...] | tuple[float, ...] | None = None


@dataclass(frozen=True)
class _OperatorTable:
    domain: str
    op_type: Identifier
    symbol: Identifier
    signature: Literal["pointers", "dltensor"]
    inputs: tuple[_InputTable, ...]
    outputs: tuple[_OutputTable, ...]
    attributes: dict[str, _AttributeTable]
    arguments: tuple[Name, ...] | None = None
    returns: Literal["int32", "void"] = "int32"
    since: Annotated[int, Range(1, 2**31 - 1)] = 1
    workspace: str | int | None = None


@dataclass(frozen=True)
class _Description:
    library: LibraryTable
    operator: tuple[_OperatorTable, ...]


def read_description(document: dict[str, Any]) -> tuple[LibraryTable, tuple[Operator, ...]]:
    """Return the library table and the operators of a parsed description. Raises MismatchError."""
    description = strict_json.read(_Description, _with_defaults(document))
    operators = tuple(_operator(table, f"$.operator[{i}]") for i, table in enumerate(description.operator))
    _refuse_repeated(operators)
    return description.library, operators


def _with_defaults(document: dict[str, Any]) -> dict[str, Any]:
    """Add optional tables whose default is not a plain value."""
    operators = document.get("operator")
    for table in operators if isinstance(operators, list) else ():
        if isinstance(table, dict):
            table.setdefault("attributes", {})
    return document


def _operator(table: _OperatorTable, place: str) -> Operator:
    """Return an operator whose names and expressions are checked. Raises MismatchError."""
    if table.domain in STANDARD_DOMAINS or table.op_type in CONTRIB_DOMAINS.get(table.domain, ()):
        raise MismatchError(
            f"{place}.domain",
            f"{table.domain or 'ai.onnx'}::{table.op_type} cannot come from a library: packager compiles it",
        )
    attributes = tuple(_attribute(name, entry, f"{place}.attributes") for name, entry in table.attributes.items())
    inputs = tuple(
        TensorRule(entry.name, entry.dtype, None if entry.shape is None else tuple(map(str, entry.shape)))
        for entry in table.inputs
    )
    scope = _Scope(place, inputs, tuple(entry.name for entry in table.outputs), attributes)
    outputs = tuple(_output(entry, scope) for entry in table.outputs)
    if not inputs or not outputs:
        raise MismatchError(place, "an operator has at least one input and one output")
    workspace = None if table.workspace is None else str(table.workspace)
    if workspace is not None:
        scope.check_expression(workspace, "workspace", with_outputs=True)
    return Operator(
        domain=table.domain,
        op_type=table.op_type,
        since=table.since,
        symbol=table.symbol,
        signature=table.signature,
        returns=table.returns,
        inputs=inputs,
        outputs=outputs,
        attributes=attributes,
        arguments=scope.arguments(table, has_workspace=workspace is not None),
        workspace=workspace,
    )


def _attribute(name: str, table: _AttributeTable, place: str) -> AttributeRule:
    if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) is None:
        raise MismatchError(place, f"{shown(name)} is not an identifier")
    default: AttributeValue | None = None
    if table.default is not None:
        raw = list(table.default) if isinstance(table.default, tuple) else table.default
        where = f"{place}.{name}.default"
        value: Any = strict_json.read(_ATTRIBUTE_FORMS[table.type], raw, where)
        if table.type == "float":
            value = _as_float32(value, where)
        elif table.type == "floats":
            value = tuple(_as_float32(item, where) for item in value)
        default = value
    return AttributeRule(name, table.type, default)


def _as_float32(value: float, place: str) -> float:
    """Round to float32, ONNX's attribute type, so that a default equals the same value given by a model."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        raise MismatchError(place, f"{value} is too large for float32") from None


def _output(table: _OutputTable, scope: _Scope) -> TensorRule:
    place = f"outputs ({table.name})"
    if isinstance(table.shape, str):
        match = _LIKE.fullmatch(table.shape)
        if match is None or match[1] not in {rule.name for rule in scope.inputs}:
            raise MismatchError(
                f"{scope.place}.{place}", f"shape {shown(table.shape)} is neither a list nor like:INPUT"
            )
        return TensorRule(table.name, table.dtype, None, match[1])
    extents = tuple(map(str, table.shape))
    for extent in extents:
        scope.check_expression(extent, place, with_outputs=False)
    return TensorRule(table.name, table.dtype, extents)


class _Scope:
    """The names that an operator's expressions may use. Raises MismatchError for clashes."""

    def __init__(
        self, place: str, inputs: tuple[TensorRule, ...], outputs: tuple[str, ...], attributes: Sequence[AttributeRule]
    ) -> None:
        self.place = place
        self.inputs = inputs
        self.tensors = (*(rule.name for rule in inputs), *outputs)
        self.attributes = {rule.name: rule.type for rule in attributes}
        extents = [extent for rule in inputs for extent in rule.shape or ()]
        self.dims = tuple(dict.fromkeys(extent for extent in extents if not extent.isdigit()))
        for dim in self.dims:
            if re.fullmatch(r"[A-Za-z_]\w*", dim, re.ASCII) is None:
                raise MismatchError(f"{place}.inputs", f"the extent {shown(dim)} is neither a number nor a name")
        seen = set(_RESERVED)
        for name in (*self.tensors, *self.dims, *self.attributes):
            # Expressions are written as in Python, where keywords are not names.
            unusable = keyword.iskeyword(name) and self.attributes.get(name, "int") == "int"
            if name in seen or unusable or name.startswith(("numel_", "len_")):
                raise MismatchError(place, f"the name {name!r} is used twice or reserved")
            seen.add(name)

    def check_expression(self, text: str, where: str, *, with_outputs: bool) -> None:
        tensors = self.tensors if with_outputs else tuple(rule.name for rule in self.inputs)
        known = {*self.dims, *(name for name, kind in self.attributes.items() if kind == "int")}
        known |= {f"numel_{name}" for name in tensors}
        known |= {f"len_{name}" for name, kind in self.attributes.items() if kind in LIST_TYPES}
        try:
            used = shape_expr.names(spelled(text))
        except shape_expr.ShapeExpressionError as error:
            raise MismatchError(f"{self.place}.{where}", str(error)) from None
        if re.search(r"\b0\d", text):
            raise MismatchError(f"{self.place}.{where}", f"a number in {shown(text)} starts with 0")
        for name in sorted(used - known):
            raise MismatchError(
                f"{self.place}.{where}",
                f"{shown(text)} uses {name!r}, which is neither a dim of an input nor an int attribute"
                f"{suggestion(name, known)}",
            )

    def arguments(self, table: _OperatorTable, *, has_workspace: bool) -> tuple[Argument, ...]:
        texts = table.arguments
        if texts is None:
            if table.signature == "pointers":
                raise MismatchError(self.place, "the signature 'pointers' needs 'arguments', in the C function's order")
            lists = [
                (name, f"len({name})") if kind in LIST_TYPES else (name,) for name, kind in self.attributes.items()
            ]
            texts = (*self.tensors, *(text for names in lists for text in names), *(["workspace"] * has_workspace))
        result = tuple(self._argument(text, has_workspace=has_workspace) for text in texts)
        for name in self.tensors:
            if Argument("tensor", name) not in result:
                raise MismatchError(f"{self.place}.arguments", f"lacks the tensor {name!r}")
        if has_workspace and Argument("workspace", "workspace") not in result:
            raise MismatchError(f"{self.place}.arguments", "lacks the workspace")
        return result

    def _argument(self, text: str, *, has_workspace: bool) -> Argument:
        if text in self.tensors:
            return Argument("tensor", text)
        if text == "workspace" and has_workspace:
            return Argument("workspace", text)
        if self.attributes.get(text, "int") != "int":
            return Argument("attribute", text)
        self.check_expression(text, "arguments", with_outputs=True)
        return Argument("size", text)


def _refuse_repeated(operators: Sequence[Operator]) -> None:
    seen: set[tuple[Any, ...]] = set()
    for index, operator in enumerate(operators):
        key = (operator.name, operator.since, tuple((rule.dtype, rule.shape) for rule in operator.inputs))
        if key in seen:
            raise MismatchError(f"$.operator[{index}]", f"{operator.name} ({operator.takes}) is described twice")
        seen.add(key)
