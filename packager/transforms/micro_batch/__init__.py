"""Compute a batch in parts: ``micro_batch``, ``rules`` (which axes are batches), ``cost``."""
