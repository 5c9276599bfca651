"""Placement by measurement on a GPU: whole networks with all Targets, tuned, beside single backends and torch.

``networks`` and ``cases`` (with batches and Targets), ``building``, ``measuring``, ``parts`` (what regions take
with each alternative), ``show`` (tables), ``ship`` (to packager's devices), ``processes``; ``__main__`` is the command.
"""
