"""Plan: calls and memory.

In: ``LoweredModel``. Out: ``CallPlan``. ``planner``, ``calls``, ``arena``, ``constants`` with
``constant_views``, ``states`` with ``in_place``, ``entries``, ``buckets``, ``call_graph``.
"""
