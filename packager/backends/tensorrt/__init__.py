"""The ``tensorrt`` backend: engines of NVIDIA's TensorRT for whole parts of a model, which sessions run by its library.

In: partitions of CUDA bundles. Out: one object with the engines, those that are built already, and a function for each.

``library`` (what is opened), ``module`` (engines to source to object).
"""
