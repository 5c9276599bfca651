"""Rewrites convolutions of sequences as convolutions of images of one row, which GPU libraries have more kernels for.

Operators that follow channel by channel, poolings and paddings stay images between such convolutions; reshapes, which
move nothing, are only where others read a result. So epilogues are still found behind their convolutions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax

from packager.graph.dataflow import Dataflow, axes_of, bindings_of, computed_from_constants, operator_of, shape_of
from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.rewrite import map_operands, rebuild_main, with_main
from packager.transforms.layout.layouts import ELEMENTWISE, FIRST

# Axis 2 of an image is its height; here it is 1.
HEIGHT = 2
# The fewest channels of a group that libraries have kernels for.
GROUP = 4
POOLINGS = {"nn.max_pool1d": relax.op.nn.max_pool2d, "nn.avg_pool1d": relax.op.nn.avg_pool2d}
OF_ELEMENTS = ELEMENTWISE | {"sin", "cos"}


def convolve_lines_as_images(module: tvm.IRModule, num_inputs: int) -> tvm.IRModule:
    """Rewrite the 1-D convolutions of ``main``, transposed ones too, that have constant weights and static lengths.

    Those of groups with fewer than four channels are left, and of one channel each unless their channels lie last.
    """
    main = module["main"]
    if not any(operator_of(binding.value) in ("nn.conv1d", "nn.conv1d_transpose") for binding in bindings_of(main)):
        return module
    return _Rewriter(module, num_inputs).rewritten()


class _Rewriter:
    """``lines`` and ``images`` map original variables to their values of three and of four axes, made on demand.

    ``computed`` are the variables that are computed as images.
    """

    def __init__(self, module: tvm.IRModule, num_inputs: int) -> None:
        self.module = module
        self.main = module["main"]
        self.builder = relax.BlockBuilder()
        self.constants = computed_from_constants(self.main, num_inputs)
        self.lines: IdentityMap[Any] = IdentityMap((p, p) for p in self.main.params)
        self.images: IdentityMap[Any] = IdentityMap()
        self.computed = IdentitySet()
        self.flow = Dataflow(self.main)

    def rewritten(self) -> tvm.IRModule:
        return with_main(self.module, rebuild_main(self.builder, self.main, self._bind, self._on_lines))

    def _bind(self, binding: Any) -> None:
        value, variable = binding.value, binding.var
        image = self._as_image(value) if isinstance(value, relax.Call) and _rank(variable) == 3 else None
        if image is None:
            self.lines[variable] = self.builder.emit(self._on_lines(value), variable.name)
            return
        self.images[variable] = self.builder.emit(image, variable.name)
        self.computed.add(variable)

    def _on_lines(self, expr: Any) -> Any:
        """Return an expression with operands as the model has them."""
        if not isinstance(expr, relax.Var):
            return map_operands(expr, self._on_lines)
        if expr not in self.lines and expr in self.images:
            self.lines[expr] = self.builder.emit(relax.op.reshape(self.images[expr], expr.ty.shape))
        return self.lines.get(expr, expr)

    def _image(self, variable: Any) -> Any:
        if variable not in self.images:
            self.images[variable] = self.builder.emit(_with_row(self._on_lines(variable)))
        return self.images[variable]

    def _as_image(self, call: relax.Call) -> Any | None:
        """Return a call with a result of four axes, or None to leave it."""
        name = operator_of(call)
        if name in ("nn.conv1d", "nn.conv1d_transpose"):
            return self._convolution(call, name) if self._takes(call) else None
        fields = list(call.args[0].fields) if name == "concat" and isinstance(call.args[0], relax.Tuple) else None
        if not any(operand in self.computed for operand in fields or call.args):
            return None
        if fields is not None:
            axis = int(call.attrs.axis) % 3
            return relax.op.concat([self._image(field) for field in fields], axis if axis < HEIGHT else axis + 1)
        if name in POOLINGS:
            return self._pooling(call, POOLINGS[name])
        if name == "nn.pad":
            widths = list(map(int, call.attrs.pad_width))
            widths[2 * HEIGHT : 2 * HEIGHT] = [0, 0]
            return relax.op.nn.pad(self._image(call.args[0]), widths, call.attrs.pad_mode, call.attrs.pad_value)
        return self._elementwise(call) if name in OF_ELEMENTS else None

    def _takes(self, call: relax.Call) -> bool:
        data, weight, result = shape_of(call.args[0]), shape_of(call.args[1]), shape_of(call)
        attrs, transposed = call.attrs, operator_of(call).endswith("transpose")
        layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)
        if not data or not weight or not result or layouts != ("NCW", "IOW" if transposed else "OIW", "NCW"):
            return False
        static = all(isinstance(extent, int) and extent > 0 for extent in (*data[1:], *weight, *result[1:]))
        groups = int(attrs.groups)
        takes = groups == 1 or (not transposed and int(weight[1]) >= GROUP)
        takes = takes or (not transposed and groups == data[1] and self._lies_last(call.args[0]))
        return static and takes and call.args[1] in self.constants

    def _lies_last(self, variable: Any) -> bool:
        """Whether the channels of a line lie last before a transpose, or in the image that it is computed as.

        Otherwise a convolution of one channel each would be the only one that wants them there.
        """
        while variable is not None and variable not in self.computed:
            value = self.flow.value(variable)
            if operator_of(value) == "permute_dims":
                return axes_of(value) == (0, 2, 1)
            if operator_of(value) not in OF_ELEMENTS | {"nn.pad", "strided_slice"}:
                return False
            variable = next((operand for operand in value.args if _rank(operand) == 3), None)
        return variable is not None

    def _convolution(self, call: relax.Call, name: str) -> Any:
        attrs = call.attrs
        layout, kernel_layout = FIRST[4]
        changes: dict[str, Any] = {"data_layout": layout, "kernel_layout": kernel_layout, "out_layout": layout}
        if name.endswith("transpose"):
            changes |= {"kernel_layout": "IOHW", "output_padding": [0, *map(int, attrs.output_padding)]}
        front, back = map(int, attrs.padding)
        changes |= {"strides": [1, *map(int, attrs.strides)], "padding": [0, front, 0, back]}
        changes |= {"dilation": [1, *map(int, attrs.dilation)], "groups": int(attrs.groups)}
        convolve = relax.op.nn.conv2d_transpose if name.endswith("transpose") else relax.op.nn.conv2d
        return convolve(
            self._image(call.args[0]), self._image(call.args[1]), out_dtype=attrs.out_dtype or None, **changes
        )

    def _pooling(self, call: relax.Call, pool: Callable[..., Any]) -> Any | None:
        attrs = call.attrs
        if attrs.layout != "NCW":
            return None
        front, back = map(int, attrs.padding)
        return pool(
            self._image(call.args[0]),
            pool_size=[1, *map(int, attrs.pool_size)],
            strides=[1, *map(int, attrs.strides)],
            padding=[0, front, 0, back],
            dilation=[1, *map(int, attrs.dilation)],
            ceil_mode=attrs.ceil_mode,
            count_include_pad=attrs.count_include_pad,
            layout="NCHW",
        )

    def _elementwise(self, call: relax.Call) -> Any | None:
        operands: list[Any] = []
        for operand in call.args:
            rank = _rank(operand)
            if rank > 3 or (rank and not isinstance(operand, relax.Var)):
                return None
            if rank == 3:
                operands.append(self._image(operand))
            elif rank == 2:
                operands.append(self.builder.emit(_with_row(self._on_lines(operand))))
            else:
                operands.append(self._on_lines(operand))
        return relax.Call(call.op, operands, call.attrs, call.ty_args)


def _with_row(tensor: Any) -> Any:
    """Return [..., C, W] as [..., C, 1, W]."""
    *outer, width = tensor.ty.shape.values
    return relax.op.reshape(tensor, [*outer, 1, width])


def _rank(value: Any) -> int:
    """Return the rank of a tensor; 0 for other values."""
    ty = value.ty
    return int(ty.ndim) if isinstance(ty, relax.TensorType) else 0
