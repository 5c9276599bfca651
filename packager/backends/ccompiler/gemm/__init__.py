"""GEMM and convolution as GEMM: ``tiles`` (register tiles), ``blocks`` (cache blocking), ``loop_nest``, ``windows``,
(convolution windows read in place, without im2col).
"""
