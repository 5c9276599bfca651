"""Legalizations of packager's own operators that are the same on every device, and where weights are folded."""

from __future__ import annotations

from packager.graph import block_weights
from packager.graph.products.grouped import NAME as GROUPED
from packager.graph.products.grouped import legalize_grouped_matmul
from packager.graph.resize import NAME as RESIZE
from packager.graph.resize import legalize_resize
from packager.graph.windows.col2im import NAME as COL2IM
from packager.graph.windows.col2im import legalize_col2im

OWN_LEGALIZERS = {
    block_weights.DEQUANTIZE: block_weights.legalize_dequantize_blocks,
    block_weights.MATMUL: block_weights.legalize_block_matmul,
    GROUPED: legalize_grouped_matmul,
    RESIZE: legalize_resize,
    COL2IM: legalize_col2im,
}
