"""Choices: regions of a model that several backends, or several groups of operators, can compute.

In: ``PreparedModel`` and Targets. Out: ``PartitionedModel`` with all alternatives of each region (a trial), or with
those that were chosen.

``layouts`` (what each order of Targets takes), ``regions`` (parts of the model on which layouts differ), ``estimates``,
``cover_units`` and ``covers`` (the cheapest ways to compute a region, by bits), ``candidates`` (these for matches of
backends), ``classes`` (equal regions, and their covers), ``expand`` (``main`` with several covers of a region),
``partition``.
"""
