"""The graph section: what calls a run makes. Nothing is executed by it: it is for reports and viewers.

``call_graph`` has the values, ``section`` reads them.
"""
