"""Matmuls and convolutions with what follows them: what libraries of such products compute in one call.

In: a ``Dataflow`` and the variable of an anchor. Out: chains (``epilogues``, with the activations that ``activations``
recognizes; ``quantized`` after 8 bits), and what a chain computes: ``matmul``, ``conv2d``, ``convolution`` of any sort.
"""
