"""Converters of operators on integers and on the bits of elements: shifts, powers, remainders, ``view.dtype``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import DataType, relax, te, tirx

from packager.frontends.arithmetic import bit_cast, integer_power, remainder, shift


def _shift(*, left: bool) -> Callable[[Any, Any], Any]:
    def convert(importer: Any, node: Any) -> Any:
        dtype = importer.dtype(node)
        if not dtype.startswith(("int", "uint")):
            raise ValueError(f"shifts of {dtype} are not supported")
        operands = [importer.tensor(operand, dtype) for operand in node.args]
        return shift(importer.block_builder, operands, dtype, left=left)

    return convert


def power_of_integers(importer: Any, node: Any) -> Any:
    """Raise to exponents that are not negative, for which torch has an error."""
    dtype, exponent = importer.dtype(node), node.args[1]
    largest = exponent if isinstance(exponent, int) else None
    if largest is not None and largest < 0:
        raise ValueError("powers of integers to negative exponents are not supported")
    operands = [importer.tensor(operand, dtype) for operand in node.args]
    return integer_power(importer.block_builder, operands, dtype, largest)


def _remainder(importer: Any, node: Any) -> Any:
    """Return the remainder with the sign of the divisor."""
    dtype = importer.dtype(node)
    operands = [importer.tensor(operand, dtype) for operand in node.args]
    if dtype.startswith(("int", "uint")):
        return relax.op.floor_mod(*operands)
    return remainder(importer.block_builder, operands, dtype)


def _view_as(importer: Any, node: Any) -> Any:
    """Reinterpret the bits of elements; with another size of the element the last axis has more or fewer of them."""
    source, target = (DataType(importer.dtype(each)) for each in (node.args[0], node))
    if "bool" in (str(source), str(target)):
        raise ValueError("the bits of truth values are not supported")
    data, shape = importer.tensor(node.args[0]), importer.shape(node)
    if target.bits == source.bits:
        return bit_cast(importer.block_builder, data, str(target))
    narrow, wide = (f"uint{min(source.bits, target.bits)}", f"uint{max(source.bits, target.bits)}")
    count = max(source.bits, target.bits) // min(source.bits, target.bits)

    def part(x: Any, i: Any) -> Any:
        word = tirx.reinterpret(wide, x(*i[:-1], i[-1] // count))
        shift = (i[-1] % count * target.bits).astype(wide)
        return tirx.reinterpret(str(target), (word >> shift).astype(narrow))

    def joined(x: Any, i: Any) -> Any:
        words = (tirx.reinterpret(narrow, x(*i[:-1], i[-1] * count + n)).astype(wide) for n in range(count))
        total = sum((word << tirx.const(n * source.bits, wide) for n, word in enumerate(words)), tirx.const(0, wide))
        return tirx.reinterpret(str(target), total)

    element = part if target.bits < source.bits else joined
    extents = [tirx.IntImm("int64", extent) if isinstance(extent, int) else extent for extent in shape]

    def compute(x: Any) -> Any:
        return te.compute(extents, lambda *i: element(x, i), name="bits")

    return importer.block_builder.call_te(compute, data, primfunc_name_hint="bits")


_LEFT, _RIGHT = _shift(left=True), _shift(left=False)
_KINDS = ("Tensor", "Tensor_Scalar", "Scalar_Tensor")

INTEGERS: Mapping[str, Callable[[Any, Any], Any]] = {
    **{f"bitwise_left_shift.{kind}": _LEFT for kind in _KINDS},
    **{f"bitwise_right_shift.{kind}": _RIGHT for kind in _KINDS},
    **{f"__lshift__.{kind}": _LEFT for kind in ("Tensor", "Scalar")},
    **{f"__rshift__.{kind}": _RIGHT for kind in ("Tensor", "Scalar")},
    "remainder.Tensor": _remainder,
    "remainder.Scalar": _remainder,
    "remainder.Scalar_Tensor": _remainder,
    "view.dtype": _view_as,
}
