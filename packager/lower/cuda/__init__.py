"""Lower PrimFuncs for CUDA: scheduled loop nests in, device functions and their launch dimensions out.

Reading order: schedule (picks a rule); the rules elementwise,
transpose, row_layout, row_reduction, short_row_reduction, column_reduction, depthwise_conv, matmul, scatter_scan;
widen_float16, fast_math (arithmetic); kernels (lowering), codegen_workarounds.
"""
