"""Engines of TensorRT in bundles, beside the same engines alone."""
