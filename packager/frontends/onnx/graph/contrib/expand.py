"""The pass that expands onnxruntime's operators."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from packager.custom_ops.domains import STANDARD_DOMAINS
from packager.errors import ModelError
from packager.frontends.onnx.graph.contrib import (
    activations,
    attention,
    blocks,
    cached_attention,
    normalization,
    packed_attention,
    quantized,
)
from packager.frontends.onnx.graph.contrib.body import Body, NotYetError, Rule
from packager.frontends.onnx.graph.fold_constants import Constants
from packager.frontends.onnx.graph.infer_shapes import Inferred
from packager.frontends.onnx.graph.nodes import rewrite_nodes, standard_version, title_of

DOMAIN = "com.microsoft"
FAMILIES = (activations, attention, blocks, cached_attention, normalization, packed_attention, quantized)
RULES: Mapping[str, Rule] = {name: rule for family in FAMILIES for name, rule in family.RULES.items()}
# One that onnxruntime registers in the standard domain, and weights in blocks, which are like those of MatMulNBits.
STANDARD_RULES: Mapping[str, Rule] = {
    "SimplifiedLayerNormalization": RULES["SimplifiedLayerNormalization"],
    "DequantizeLinear": blocks.dequantize_linear,
}


def expand_contributed(model: onnx.ModelProto, inferred: Inferred, constants: Constants) -> bool:
    """Replace the nodes that have a rule; return whether there were any.

    A node is kept while the types of its inputs are unknown. Raises ModelError for a use that is not supported.
    """
    opset = standard_version(model) or 1

    def expanded(index: int, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        rules = STANDARD_RULES if node.domain in STANDARD_DOMAINS else RULES if node.domain == DOMAIN else {}
        if node.op_type not in rules:
            return None
        body = Body(node, inferred, constants, f"{title_of(node)}.{index}.", opset)
        try:
            results = rules[node.op_type](body)
        except NotYetError:
            return None
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ModelError(
                f"node {title_of(node)!r} of operator {DOMAIN}::{node.op_type} cannot be imported",
                detail=str(error),
                hint="save the model at a lower optimization level, or without this operator",
            ) from error
        for name, result in zip(node.output, results, strict=False):
            if name and result:
                body.nodes.append(onnx.helper.make_node("Identity", [result], [name], name=title_of(node)))
        model.graph.value_info.extend(body.declared)
        return body.nodes

    return rewrite_nodes(model.graph, expanded)
