"""``packager report`` and ``inspect --graph``: what is known of bundles, as one page or as a graph for other viewers.

Paths in, values out, without executing a bundle: ``subjects`` (with ``tuned``) reads what the user named,
``measurements`` their times. From these come ``flow`` (the calls as a graph, with positions by ``layout``),
``functions``, ``memory``, ``sizes`` and ``placement``; ``page`` gathers them and ``html`` writes them into
``templates/report``. ``named_graph``, ``dot`` and ``onnx_graph`` write graphs for other viewers; ``export`` chooses.
"""
