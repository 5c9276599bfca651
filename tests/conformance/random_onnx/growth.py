"""A model while it grows: typed values, each with what onnxruntime computes for it, and the nodes that make them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.conformance.random_onnx.registry import WRITERS, schema
from tests.conformance.random_onnx.session import CARRIED, RejectedError, evaluate, onnx_type
from tests.conformance.random_onnx.values import COARSE, EXACT, FLOATS, few_bits, is_defined, numbers, tame

__all__ = ["Growth", "RejectedError", "Value"]
T = TypeVar("T")
MOVES = ("movement", "indexing")
MAX_ELEMENTS = 3000
EXTENTS = (1, 1, 2, 2, 3, 3, 4, 5, 6, 7)


@dataclass(frozen=True)
class Value:
    """A tensor of the model; ``exact`` if rounding played no part in it, so that a step or a tie may follow."""

    name: str
    dtype: str
    array: np.ndarray[Any, Any]
    exact: bool
    constant: bool = False
    coarse: float = 0.0  # what it may be off by, for the types that it came through

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents."""
        return self.array.shape

    @property
    def rank(self) -> int:
        """The number of its axes."""
        return self.array.ndim


class Growth:
    """What is there of a model, and how it gets more. ``special``: its inputs have NaN, infinities, extremes."""

    def __init__(self, rng: np.random.Generator, opset: int, special: bool) -> None:
        self.rng, self.opset, self.special = rng, opset, special
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[Value] = []
        self.values: list[Value] = []  # what a node may take
        self.count = 0

    # Drawing.

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return bool(self.rng.random() < probability)

    def choose(self, choices: Sequence[T]) -> T:
        """Return one of them."""
        return choices[int(self.rng.integers(len(choices)))]

    def integer(self, least: int, greatest: int) -> int:
        """Return an integer between these, both included."""
        return int(self.rng.integers(least, greatest + 1))

    def real(self, least: float, greatest: float) -> float:
        """Return a multiple of 1/8 between these."""
        return self.integer(int(least * 8), int(greatest * 8)) / 8

    def extents(self, rank: int) -> tuple[int, ...]:
        """Return a shape; few have an extent of 0."""
        shape = [self.choose(EXTENTS) for _ in range(rank)]
        while np.prod(shape) > MAX_ELEMENTS // 4:
            shape[int(np.argmax(shape))] //= 2
        if rank and self.chance(0.04):
            shape[self.integer(0, rank - 1)] = 0
        return tuple(shape)

    def axis(self, rank: int, negative: bool = True) -> int:
        """Return an axis, counted from behind at times."""
        found = self.integer(0, rank - 1)
        return found - rank if negative and self.chance(0.4) else found

    # What operators take.

    def version(self, operator: str) -> int:
        """Return the operator set that defined the operator's form last."""
        found = schema(operator, self.opset)
        if found is None:
            raise RejectedError(operator)
        return int(found.since_version)

    def types(self, operator: str, index: int = 0) -> list[str]:
        """Return the element types that an input of an operator may have, sorted."""
        found = schema(operator, self.opset)
        if found is None:
            raise RejectedError(operator)
        taken = found.inputs[min(index, len(found.inputs) - 1)].types
        return sorted(filter(None, map(onnx_type, taken)))

    def dtype(self, types: Iterable[str]) -> str:
        """Return one of these element types, float32 more often than others."""
        chosen = list(types)
        if not chosen:
            raise RejectedError("no element type")
        return "float32" if "float32" in chosen and self.chance(0.4) else self.choose(chosen)

    def value(
        self,
        types: Iterable[str],
        rank: tuple[int, int] = (0, 6),
        shape: tuple[int, ...] | None = None,
        exact: bool = False,
        where: Callable[[np.ndarray[Any, Any]], bool] | None = None,
        make: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]] | None = None,
        reuse: float = 0.75,
    ) -> Value:
        """Return a value that fits, one that is there or a new one; ``make`` gives new ones what ``where`` requires."""
        types = list(types)
        fits = [
            v
            for v in self.values
            if v.dtype in types
            and (v.shape == shape if shape is not None else rank[0] <= v.rank <= rank[1])
            and (v.exact or not exact)
            and (where is None or where(v.array))
        ]
        if fits and self.chance(reuse):
            return fits[-1] if self.chance(0.4) else self.choose(fits)
        dtype = self.dtype(types)
        if shape is None:
            low, high = max(rank[0], 0), min(rank[1], 6)
            shape = self.extents(min(high, max(low, self.choose((0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 6)))))
        array = numbers(self.rng, dtype, shape, exact or self.chance(0.6), self.special)
        if make is not None:
            array = np.asarray(make(array)).astype(array.dtype)
        if where is not None and not where(array):
            raise RejectedError("no value fits")
        return self.fresh(array, dtype)

    def fresh(self, array: np.ndarray[Any, Any], dtype: str = "", constant: float = 0.3) -> Value:
        """Return a new value: an input of the model, or a constant."""
        dtype = dtype or array.dtype.name
        if dtype in CARRIED:
            base = self.fresh(array.astype(np.float32), "float32", constant)
            return self.node("Cast", [base], to=CARRIED[dtype])[0]
        if self.chance(constant):
            return self.constant(array)
        found = Value(self._name("x"), dtype, array, few_bits(array, dtype))
        self.inputs.append(found)
        self.values.append(found)
        return found

    def constant(self, array: np.ndarray[Any, Any] | Sequence[int], shared: bool = True) -> Value:
        """Return a constant in one of the forms that models have."""
        array = np.asarray(array, np.int64) if not isinstance(array, (np.ndarray, np.generic)) else np.asarray(array)
        name = self._name("c")
        found = Value(name, array.dtype.name, array, few_bits(array, array.dtype.name), constant=True)
        form = self.choose(("initializer", "initializer", "node", "short", "identity"))
        if form == "short" and not self._short(found):
            form = "node"
        if form == "node":
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array)))
        elif form == "initializer":
            self.initializers.append(numpy_helper.from_array(array, name))
        elif form == "identity":
            self.initializers.append(numpy_helper.from_array(array, name + "_i"))
            self.nodes.append(helper.make_node("Identity", [name + "_i"], [name]))
        if shared:
            self.values.append(found)
        return found

    def parameter(self, *values: int) -> Value:
        """Return a constant vector of int64 that no other node takes."""
        return self.constant(np.array(values, np.int64), shared=False)

    def scalar(self, value: float, dtype: str = "int64") -> Value:
        """Return a constant without axes that no other node takes."""
        return self.constant(np.asarray(value, dtype), shared=False)

    def _short(self, value: Value) -> bool:
        """Write a Constant by value_int and its like, where the operator set and the value allow it."""
        kind = {"int64": "int", "float32": "float"}.get(value.dtype)
        if self.opset < 12 or kind is None or value.rank > 1 or not value.array.size:
            return False
        attribute = {f"value_{kind}" + "s" * value.rank: value.array.tolist()}
        self.nodes.append(helper.make_node("Constant", [], [value.name], **attribute))
        return True

    def _name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def node(
        self,
        operator: str,
        inputs: Sequence[Value | None],
        outputs: Sequence[bool] = (True,),
        steps: bool = False,
        **attributes: Any,
    ) -> list[Value]:
        """Append a node with these outputs (False: left empty) and return them; ``steps``: it must have exact inputs.

        Raises ``RejectedError`` if onnxruntime does not compute it, or if what it computes leads nowhere.
        """
        given = [value for value in inputs if value is not None]
        exact = all(value.exact for value in given)
        if steps and not exact:
            raise RejectedError("a step after rounding")
        if not all(is_defined(operator, value.array) for value in given):
            raise RejectedError(f"{operator}: values that it says nothing about")
        names = [self._name("v") if made else "" for made in outputs]
        taken = [value.name if value is not None else "" for value in inputs]
        while taken and not taken[-1]:
            taken.pop()
        name = "shared" if self.chance(0.1) else self.choose((f"{operator}_{self.count}", ""))
        attributes = {key: value for key, value in attributes.items() if value is not None}
        node = helper.make_node(operator, taken, names, name=name, **attributes)
        made = []
        for out, (dtype, array) in zip(filter(None, names), evaluate(node, given, self.opset), strict=True):
            if not is_defined(operator, array, result=True):
                raise RejectedError(f"{operator}: beyond the type")
            if array.size > MAX_ELEMENTS or array.ndim > 6 or (not self.special and not tame(array, dtype)):
                raise RejectedError(f"{operator}: too large")
            # A short type has few bits by itself: what rounding left of others is no exact number.
            whole = dtype not in COARSE or operator in EXACT or WRITERS[operator].__module__.endswith(MOVES)
            still = dtype not in FLOATS or (few_bits(array, dtype) and whole)
            coarse = max([COARSE.get(dtype, 0.0), *(value.coarse for value in given)])
            made.append(Value(out, dtype, array, exact and still, coarse=coarse))
        self.nodes.append(node)
        self.values += made
        return made
