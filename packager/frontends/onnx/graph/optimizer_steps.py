"""Expands steps of training (``ai.onnx.preview.training``) into standard operators: Momentum, Adagrad, Adam.

Inputs are the rate R, the number T of the step before, then tensors, gradients and moments, each group in the order of
the tensors. Specification: https://onnx.ai/onnx/operators/onnx_aionnxpreviewtraining_Adam.html and its neighbors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx
from onnx import helper

from packager.custom_ops.domains import STANDARD_DOMAINS
from packager.errors import ModelError
from packager.frontends.onnx.graph.contrib.body import Body, NotYetError
from packager.frontends.onnx.graph.fold_constants import Constants
from packager.frontends.onnx.graph.infer_shapes import Inferred
from packager.frontends.onnx.graph.nodes import rewrite_nodes, standard_version, title_of

DOMAIN = "ai.onnx.preview.training"
OPSET = 21  # of the expansion, where the model imports no standard operators

# Returns the new tensor and its new moments, from the tensor, its gradient and its moments.
_Step = Callable[[Body, Sequence[str]], Sequence[str]]


def expand_steps(model: onnx.ModelProto, inferred: Inferred, constants: Constants) -> bool:
    """Replace the nodes of these operators; return whether there were any. Raises ModelError for wrong operands."""

    def expanded(index: int, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        if node.domain != DOMAIN or node.op_type not in STEPS:
            return None
        body = Body(node, inferred, constants, f"{title_of(node)}.{index}.", standard_version(model) or OPSET)
        groups, step = STEPS[node.op_type]
        count, rest = divmod(len(node.input) - 2, groups)
        if rest or count < 1 or len(node.output) != (groups - 1) * count:
            raise ModelError(
                f"node {title_of(node)!r} of operator {node.op_type} has {len(node.input)} inputs and "
                f"{len(node.output)} outputs, which do not fit"
            )
        try:
            results = [step(body, [body.input(2 + i + k * count) for k in range(groups)]) for i in range(count)]
        except NotYetError:
            return None
        for i, made in enumerate(results):
            for k, value in enumerate(made):
                body.nodes.append(helper.make_node("Identity", [value], [node.output[i + k * count]], title_of(node)))
        return body.nodes

    changed = rewrite_nodes(model.graph, expanded)
    if changed and not any(entry.domain in STANDARD_DOMAINS for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid("", OPSET))
    return changed


def _regularized(b: Body, x: str, gradient: str) -> str:
    """Return the gradient with that of the squared norm of the tensor."""
    share = b.flag("norm_coefficient", 0.0)
    return b("Add", b("Mul", _number(b, share), x), gradient) if share else gradient


def _rate(b: Body) -> str:
    return b("Cast", b.input(0), to=b.type_of(b.input(2)))


def _number(b: Body, value: float) -> str:
    return b.number(value, b.input(2))


def _is_first(b: Body) -> str:
    return b("Equal", b.input(1), b.number(0, b.input(1)))


def _momentum(b: Body, operands: Sequence[str]) -> list[str]:
    x, gradient, moment = operands
    alpha, g = _number(b, b.required("alpha")), _regularized(b, x, gradient)
    share = b("Where", _is_first(b), _number(b, 1.0), _number(b, b.required("beta")))
    moment = b("Add", b("Mul", alpha, moment), b("Mul", share, g))
    way = b("Add", g, b("Mul", alpha, moment)) if b.flag("mode") == "nesterov" else moment
    return [b("Sub", x, b("Mul", _rate(b), way)), moment]


def _adagrad(b: Body, operands: Sequence[str]) -> list[str]:
    x, gradient, squares = operands
    g = _regularized(b, x, gradient)
    step = b("Cast", b.input(1), to=b.type_of(x))
    rate = b("Div", _rate(b), b("Add", _number(b, 1.0), b("Mul", step, _number(b, b.flag("decay_factor", 0.0)))))
    squares = b("Add", squares, b("Mul", g, g))
    root = b("Add", b("Sqrt", squares), _number(b, b.flag("epsilon", 1e-6)))
    return [b("Sub", x, b("Div", b("Mul", rate, g), root)), squares]


def _adam(b: Body, operands: Sequence[str]) -> list[str]:
    x, gradient, moment, squares = operands
    g, alpha, beta = _regularized(b, x, gradient), b.flag("alpha", 0.9), b.flag("beta", 0.999)
    moment = b("Add", b("Mul", _number(b, alpha), moment), b("Mul", _number(b, 1 - alpha), g))
    squares = b("Add", b("Mul", _number(b, beta), squares), b("Mul", _number(b, 1 - beta), b("Mul", g, g)))
    root = b("Add", b("Sqrt", squares), _number(b, b.flag("epsilon", 1e-6)))
    step, one = b("Cast", b.input(1), to=b.type_of(x)), _number(b, 1.0)
    unbiased = b("Sqrt", b("Sub", one, b("Pow", _number(b, beta), step)))
    unbiased = b("Div", unbiased, b("Sub", one, b("Pow", _number(b, alpha), step)))
    rate = b("Where", _is_first(b), _rate(b), b("Mul", _rate(b), unbiased))
    x = b("Sub", x, b("Div", b("Mul", rate, moment), root))
    if decay := b.flag("norm_coefficient_post", 0.0):
        x = b("Mul", _number(b, 1 - decay), x)
    return [x, moment, squares]


# The groups of inputs, and the step of one tensor.
STEPS: Mapping[str, tuple[int, _Step]] = {"Momentum": (3, _momentum), "Adagrad": (3, _adagrad), "Adam": (4, _adam)}
