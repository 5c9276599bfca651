"""The signature of a custom operator (types, shapes, attributes): matching it to a node, and shape inference.

Extents are of the caller's type: integers, ``tirx`` expressions, or None if unknown.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from packager.bundle import shape_expr
from packager.errors import ModelError, suggestion

AttributeValue = int | float | str | tuple[int, ...] | tuple[float, ...]
AttributeType = Literal["int", "float", "string", "ints", "floats"]
LIST_TYPES = ("ints", "floats")

_COUNT = re.compile(r"\b(numel|len)\s*\(\s*([A-Za-z_]\w*)\s*\)", re.ASCII)


@dataclass(frozen=True)
class TensorRule:
    """An input or output. ``shape`` holds integer expressions; None: any rank, or the shape of the input ``like``."""

    name: str
    dtype: str
    shape: tuple[str, ...] | None
    like: str | None = None


@dataclass(frozen=True)
class AttributeRule:
    """An attribute; required if it has no default."""

    name: str
    type: AttributeType
    default: AttributeValue | None


@dataclass(frozen=True)
class Argument:
    """One argument of the C function: a ``tensor`` or ``attribute`` by name, the ``workspace``, or a ``size`` given as
    an integer expression."""

    kind: Literal["tensor", "attribute", "workspace", "size"]
    text: str


@dataclass(frozen=True)
class Operator:
    """One implementation of an operator; those of the same name are overloads, selected by their inputs.

    Expressions may use the inputs' dims, the ``int`` attributes, ``numel(tensor)`` and ``len(attribute)``.
    """

    domain: str
    op_type: str
    since: int
    symbol: str
    signature: Literal["pointers", "dltensor"]
    returns: Literal["int32", "void"]
    inputs: tuple[TensorRule, ...]
    outputs: tuple[TensorRule, ...]
    attributes: tuple[AttributeRule, ...]
    arguments: tuple[Argument, ...]
    workspace: str | None

    @property
    def name(self) -> str:
        """``com.acme::Swish``, as used in messages, partitions and the manifest."""
        return f"{self.domain}::{self.op_type}"

    @property
    def takes(self) -> str:
        """The input types for messages: ``x float32[n, k], scale float32[k]``."""
        return ", ".join(f"{rule.name} {describe(rule.dtype, rule.shape)}" for rule in self.inputs)


@dataclass(frozen=True)
class Given:
    """The type of a node's input; ``shape`` is None if the rank is unknown."""

    dtype: str
    shape: tuple[Any, ...] | None


class NoFitError(ValueError):
    """The operator does not accept these inputs; the message says why."""


def describe(dtype: str, shape: Sequence[object] | None) -> str:
    """Return a tensor type for messages; ``...`` stands for any rank."""
    return f"{dtype}[{'...' if shape is None else ', '.join(map(str, shape))}]"


def spelled(expression: str) -> str:
    """Replace ``numel(x)`` and ``len(a)`` by the plain names under which they are evaluated."""
    return _COUNT.sub(r"\1_\2", expression)


def bind(operator: Operator, given: Sequence[Given], same: Callable[[Any, Any], bool]) -> dict[str, Any]:
    """Return the extents of the dims, and ``numel`` of the inputs, by name. Raises NoFitError.

    ``same`` tells whether two extents are provably equal.
    """
    if len(given) != len(operator.inputs):
        raise NoFitError(f"takes {len(operator.inputs)} inputs")
    extents: dict[str, Any] = {}
    for rule, actual in zip(operator.inputs, given, strict=True):
        if rule.dtype != actual.dtype:
            raise NoFitError(f"input {rule.name} must be {rule.dtype}")
        if actual.shape is not None:
            _bind_shape(rule, actual.shape, extents, same)
            extents[f"numel_{rule.name}"] = product(actual.shape)
    return extents


def _bind_shape(
    rule: TensorRule, shape: tuple[Any, ...], extents: dict[str, Any], same: Callable[[Any, Any], bool]
) -> None:
    if rule.shape is None:
        return
    if len(rule.shape) != len(shape):
        raise NoFitError(f"input {rule.name} must be of rank {len(rule.shape)}")
    for axis, (wanted, extent) in enumerate(zip(rule.shape, shape, strict=True)):
        expected: Any = int(wanted) if wanted.isdigit() else extents.setdefault(wanted, extent)
        if expected is not extent and not same(expected, extent):
            known = wanted if wanted.isdigit() else f"{wanted}, which is {expected}"
            raise NoFitError(f"axis {axis} of input {rule.name} must be {known}, but is {extent}")


def product(extents: Sequence[Any]) -> Any:
    """Return the product of extents; None if one of them is None."""
    if any(extent is None for extent in extents):
        return None
    return functools.reduce(lambda a, b: a * b, extents, 1)


def output_shapes(operator: Operator, given: Sequence[Given], values: Mapping[str, Any], arithmetic: Arithmetic) -> Any:
    """Return the shapes of all outputs, None if the rank is unknown. ``values`` holds the names in expressions."""
    like = {rule.name: actual.shape for rule, actual in zip(operator.inputs, given, strict=True)}
    shapes = []
    for rule in operator.outputs:
        if rule.like is not None:
            shapes.append(like[rule.like])
        else:
            shapes.append(tuple(arithmetic.evaluate(extent, values) for extent in rule.shape or ()))
    return tuple(shapes)


def counts(operator: Operator, attributes: Mapping[str, AttributeValue]) -> dict[str, int]:
    """Return the values that attributes provide to expressions: integers by name, and ``len`` of lists."""
    values: dict[str, int] = {}
    for rule in operator.attributes:
        value = attributes[rule.name]
        if rule.type == "int":
            values[rule.name] = int(value)  # type: ignore[arg-type]
        elif rule.type in LIST_TYPES:
            values[f"len_{rule.name}"] = len(value)  # type: ignore[arg-type]
    return values


def complete_attributes(
    operator: Operator, given: Mapping[str, tuple[str, AttributeValue]], node: str
) -> dict[str, AttributeValue]:
    """Return the value of every attribute, with defaults. ``given`` are a node's: name -> (type, value).

    Raises ModelError for an unknown attribute, one of the wrong type, and a missing one.
    """
    rules = {rule.name: rule for rule in operator.attributes}
    where = f"node {node!r} of operator {operator.name}"
    for name, (kind, value) in given.items():
        if name not in rules:
            raise ModelError(
                f"{where} has the attribute {name!r}, which the library does not know{suggestion(name, rules)}",
                hint="its attributes: " + (", ".join(rules) or "none"),
            )
        if kind != rules[name].type:
            raise ModelError(
                f"attribute {name!r} of {where} is {kind} {value!r}, expected {rules[name].type}",
                hint="correct the model, or the type in the library's description",
            )
    missing = [rule.name for rule in operator.attributes if rule.default is None and rule.name not in given]
    if missing:
        raise ModelError(
            f"{where} lacks the attribute {missing[0]!r}",
            hint="set it in the model, or give it a default in the library's description",
        )
    return {
        rule.name: given[rule.name][1] if rule.name in given else rule.default  # type: ignore[misc]
        for rule in operator.attributes
    }


@dataclass(frozen=True)
class Arithmetic:
    """Evaluates expressions over extents: ``number`` converts an integer, ``operators`` are by name."""

    number: Callable[[int], Any]
    operators: Mapping[str, Callable[[Any, Any], Any]]

    def evaluate(self, expression: str, values: Mapping[str, Any]) -> Any:
        """Return the value of a checked ``shape_expr``; None if it uses an unknown extent. Raises ZeroDivisionError."""

        def name(text: str) -> Any:
            extent = values.get(text)
            return self.number(extent) if isinstance(extent, int) else extent

        def apply(operator: str, left: Any, right: Any) -> Any:
            return None if left is None or right is None else self.operators[operator](left, right)

        return shape_expr.fold(spelled(expression), self.number, name, apply)


INTEGERS = Arithmetic(int, shape_expr.OPERATORS)
