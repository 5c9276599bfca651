"""Pack the weights of conv2d and matmul for vector units: the output channels of one vector are contiguous.

The packing is emitted as Relax operators on the weights, so constant folding runs it at build time. The computation
reads ``[O / V, I, KH, KW, V]`` (for NHWC ``[O / V, KH, KW, I, V]``) and ``[N / V, K, V]``. Activations keep their
layout. A block annotation tells the schedule which axis the vectors run along.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax, te, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from packager.graph.dataflow import computed_from_constants, extents_of, static_shape_of
from packager.graph.identity import IdentitySet
from packager.ir.pattern_kinds import OUT_ELEMENTWISE_FUSABLE

# Vector lengths in elements, best first: two 256-bit registers of floats, or one.
VECTORS = (16, 8)
VECTOR_AXIS = "packager.vector_axis"
# The channel axis, by the layouts of data, weights and result.
_CHANNEL_AXES = {("NCHW", "OIHW", "NCHW"): 1, ("NHWC", "OHWI", "NHWC"): 3}
# The axis of the height in the layouts of an image, by those of a line.
_LINES = {"NCW": 2, "NWC": 1}


def pack_weights(module: tvm.IRModule, num_inputs: int) -> tvm.IRModule:
    """Rewrite conv2d and matmul whose weight depends on no input of ``main`` to read it packed."""
    main = module["main"]
    rewriter = _Packer(module, computed_from_constants(main, num_inputs))
    rewritten = rewriter.visit_expr(main)
    result = rewriter.builder_.get()
    result.update_func(result.get_global_var("main"), rewritten)
    return result


@mutator
class _Packer(PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: tvm.IRModule, weights: IdentitySet) -> None:
        super().__init__(module)
        self.weights = weights

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        rewrites: dict[str, Callable[[relax.Call], relax.Expr | None]] = {
            "relax.nn.conv1d": self._conv1d,
            "relax.nn.conv2d": self._conv2d,
            "relax.matmul": self._matmul,
        }
        rewrite = rewrites.get(getattr(call.op, "name", ""))
        if rewrite is None or call.args[1] not in self.weights:
            return call
        packed = rewrite(call)
        return call if packed is None else packed

    def _conv1d(self, call: relax.Call) -> relax.Expr | None:
        """Pack a convolution of lines as one of images of one line."""
        attrs, axis = call.attrs, _LINES.get(call.attrs.data_layout)
        if axis is None or attrs.out_layout != attrs.data_layout:
            return None
        data, weight = (self.builder_.emit(relax.op.expand_dims(operand, axis)) for operand in call.args)
        before, after = (int(value) for value in attrs.padding)
        image = relax.op.nn.conv2d(
            data,
            weight,
            strides=[1, int(attrs.strides[0])],
            padding=[0, before, 0, after],
            dilation=[1, int(attrs.dilation[0])],
            groups=attrs.groups,
            data_layout=_image(attrs.data_layout),
            kernel_layout=_image(attrs.kernel_layout),
            out_layout=_image(attrs.out_layout),
            out_dtype=str(call.ty.dtype),
        )
        packed = self._conv2d(self.builder_.normalize(image))
        return None if packed is None else relax.op.squeeze(self.builder_.emit(packed), [axis])

    def _conv2d(self, call: relax.Call) -> relax.Expr | None:
        data, weight = call.args
        attrs = call.attrs
        layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)
        shape = static_shape_of(weight)
        if shape is None or layouts not in _CHANNEL_AXES or attrs.groups != 1 or call.ty.dtype != data.ty.dtype:
            return None
        channel = _CHANNEL_AXES[layouts]
        out_channels, vector = shape[0], _vector(shape[0])
        if not vector:
            return None
        split = relax.op.reshape(weight, (out_channels // vector, vector, *shape[1:]))
        packed = self.builder_.emit(relax.op.permute_dims(split, [0, 2, 3, 4, 1]))
        strides, dilation = [int(v) for v in attrs.strides], [int(v) for v in attrs.dilation]
        top, left, bottom, right = (int(v) for v in attrs.padding)
        height, width = shape[2:] if channel == 1 else shape[1:3]

        def arrange(n: Any, c: Any, y: Any, x: Any) -> tuple[Any, ...]:
            return (n, c, y, x) if channel == 1 else (n, y, x, c)

        def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
            padded = topi.nn.pad(x, list(arrange(0, 0, top, left)), list(arrange(0, 0, bottom, right)), name="pad_temp")
            if not any((top, left, bottom, right)):
                padded = x
            _, _, tall, wide = padded.shape if channel == 1 else (None, None, *padded.shape[1:3])
            rows = (tall - dilation[0] * (height - 1) - 1) // strides[0] + 1
            columns = (wide - dilation[1] * (width - 1) - 1) // strides[1] + 1
            rc = te.reduce_axis((0, shape[channel]), name="rc")
            ry = te.reduce_axis((0, height), name="ry")
            rx = te.reduce_axis((0, width), name="rx")

            def product(*index: Any) -> Any:
                n, f, y, c = index if channel == 1 else (index[0], index[3], *index[1:3])
                at = arrange(n, rc, y * strides[0] + ry * dilation[0], c * strides[1] + rx * dilation[1])
                inner = (rc, ry, rx) if channel == 1 else (ry, rx, rc)
                return te.sum(padded[at] * w[(f // vector, *inner, f % vector)], axis=list(inner))

            extents = arrange(x.shape[0], out_channels, rows, columns)
            return te.compute(extents, product, name="conv2d", attrs={VECTOR_AXIS: channel})

        return self._call(compute, data, packed, "conv2d")

    def _matmul(self, call: relax.Call) -> relax.Expr | None:
        data, weight = call.args
        shape = static_shape_of(weight)
        rank = len(extents_of(data) or ())
        vector = _vector(shape[1]) if shape and len(shape) == 2 else 0
        if not shape or not vector or rank < 2 or call.ty.dtype != data.ty.dtype:
            return None
        depth, columns = shape
        split = relax.op.reshape(weight, (depth, columns // vector, vector))
        packed = self.builder_.emit(relax.op.permute_dims(split, [1, 0, 2]))

        def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
            k = te.reduce_axis((0, depth), name="k")
            return te.compute(
                (*x.shape[:-1], columns),
                lambda *i: te.sum(x(*i[:-1], k) * w[i[-1] // vector, k, i[-1] % vector], axis=k),
                name="matmul",
                attrs={VECTOR_AXIS: rank - 1},
            )

        return self._call(compute, data, packed, "matmul")

    def _call(self, compute: Any, data: relax.Expr, packed: relax.Expr, name: str) -> relax.Expr:
        return self.builder_.call_te(
            compute, data, packed, primfunc_name_hint=name, primfunc_attrs={"op_pattern": OUT_ELEMENTWISE_FUSABLE}
        )


def _vector(extent: int) -> int:
    return next((vector for vector in VECTORS if extent % vector == 0), 0) if extent else 0


def _image(layout: str) -> str:
    """Return the layout of images of one line."""
    return layout.replace("W", "HW")
