"""fold_weights: names, sources and views of what is computed from weights alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
from tvm import relax

from packager.graph.block_weights import BlockFormat, dequantize_blocks, dequantized, pack
from packager.ir.model import NamedArray
from packager.transforms.fold_weights import fold_weights

op = relax.op
W = np.arange(24, dtype=np.float32).reshape(4, 6)
V = W[::-1].copy()


def module_of(build: Callable[..., list[relax.Expr]], *weights: np.ndarray) -> tvm.IRModule:
    """Return a module whose main adds input x to each result of ``build``."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1,), "float32"))
    parameters = [relax.Var(f"w{i}", relax.TensorType(w.shape, w.dtype.name)) for i, w in enumerate(weights)]
    with builder.function("main", [x, *parameters], attrs={"num_input": 1}):
        with builder.dataflow():
            uses = [builder.emit(op.add(x, result)) for result in build(builder, *parameters)]
            out = builder.emit_output(relax.Tuple(uses))
        builder.emit_func_output(out)
    return builder.get()


def fold(build: Callable[..., list[relax.Expr]], **weights: NamedArray) -> dict[str, NamedArray]:
    module, folded = fold_weights(module_of(build, *(w.array for w in weights.values())), weights)
    assert len(module["main"].params) == 1 + len(folded)
    for parameter, constant in zip(module["main"].params[1:], folded.values(), strict=True):
        assert tuple(int(e) for e in parameter.ty.shape.values) == constant.array.shape
    return folded


def own(name: str, array: np.ndarray) -> NamedArray:
    return NamedArray(array, (name,))


def test_moved_elements_stay_views_under_composed_names() -> None:
    first = fold(lambda b, w: [w, b.emit(op.permute_dims(w, [1, 0]))], w=own("w", W))
    assert {name: constant.sources for name, constant in first.items()} == {"w": ("w",), "w.permute_dims": ("w",)}
    moved = first["w.permute_dims"]
    second = fold(
        lambda b, t: [b.emit(op.permute_dims(b.emit(op.reshape(t, (3, 2, 4))), [1, 0, 2]))], **{"w.permute_dims": moved}
    )
    ((name, constant),) = second.items()
    assert (name, constant.sources) == ("w.permute_dims.reshape.permute_dims", ("w",))
    np.testing.assert_array_equal(constant.array, W.T.reshape(3, 2, 4).transpose(1, 0, 2))
    assert np.shares_memory(constant.array, W)


def test_what_is_computed_names_all_that_it_comes_from() -> None:
    ((name, constant),) = fold(
        lambda b, w, v: [b.emit(op.multiply(w, v))], w=own("w", W), v=NamedArray(V, ("a", "b"))
    ).items()
    assert (name, constant.sources) == ("w+v.multiply", ("w", "a", "b"))
    np.testing.assert_array_equal(constant.array, W * V)


def test_a_shape_is_no_source() -> None:
    def build(b: relax.BlockBuilder, w: relax.Var) -> list[relax.Expr]:
        extents = b.emit(op.shape_to_tensor(b.emit(op.shape_of(w))))
        return [w, b.emit(op.multiply(b.emit(op.astype(extents, "int32")), relax.const(2, "int32")))]

    def with_integers(b: relax.BlockBuilder, w: relax.Var) -> list[relax.Expr]:
        return [op.astype(result, "float32") if index else result for index, result in enumerate(build(b, w))]

    constants = fold(with_integers, w=own("w", W))
    assert constants.pop("w").sources == ("w",)
    assert [constant.sources for constant in constants.values()] == [()]


def test_one_unknown_operator_does_not_cost_the_others_their_views() -> None:
    def build(b: relax.BlockBuilder, w: relax.Var, v: relax.Var) -> list[relax.Expr]:
        return [b.emit(op.permute_dims(w, [1, 0])), b.emit(op.exp(b.emit(op.permute_dims(v, [1, 0]))))]

    small = V / np.float32(100)
    constants = fold(build, w=own("w", W), v=own("v", small))
    assert {name: constant.sources for name, constant in constants.items()} == {
        "w.permute_dims": ("w",),
        "v.permute_dims.exp": ("v",),
    }
    assert np.shares_memory(constants["w.permute_dims"].array, W)
    np.testing.assert_allclose(constants["v.permute_dims.exp"].array, np.exp(small.T), rtol=1e-6)


def test_weights_in_blocks_may_be_read_by_an_operator_that_numpy_does_not_compute() -> None:
    form = BlockFormat(4, 16, 32, has_zeros=False)
    packed = pack(np.arange(96, dtype=np.uint8).reshape(3, 32) % 16, form)
    scales = np.full((3, 2), 0.125, np.float32)

    def build(b: relax.BlockBuilder, w: relax.Var, s: relax.Var) -> list[relax.Expr]:
        return [b.emit(op.exp(b.emit(dequantize_blocks(w, s, s, form))))]

    ((_, constant),) = fold(build, w=own("w", packed), s=own("s", scales)).items()
    np.testing.assert_allclose(constant.array, np.exp(dequantized(packed, scales, scales, form)), rtol=1e-6)


def test_names_stay_unique() -> None:
    """Also beside a constant of the model that is called as a computed one would be."""

    def build(b: relax.BlockBuilder, w: relax.Var, v: relax.Var) -> list[relax.Expr]:
        return [v, b.emit(op.permute_dims(w, [1, 0])), b.emit(op.negative(b.emit(op.permute_dims(w, [1, 0]))))]

    constants = fold(build, w=own("w", W), **{"w.permute_dims": own("w.permute_dims", V)})
    assert list(constants) == ["w.permute_dims", "w.permute_dims_2", "w.permute_dims.negative"]
    assert constants["w.permute_dims"].sources == ("w.permute_dims",)
    assert constants["w.permute_dims_2"].sources == ("w",)


def test_without_constants_nothing_happens() -> None:
    module = module_of(lambda b: [b.emit(op.ones((2,), "float32"))])
    same, constants = fold_weights(module, {})
    assert same is module
    assert constants == {}
