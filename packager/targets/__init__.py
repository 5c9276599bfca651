"""Targets: what a user writes to a canonical ``TargetList``.

``parsed`` (one Target), ``target_list`` (all of them), ``availability`` (which kinds can be used here).
"""
