"""QDQ to integer arithmetic: ``quantize``, ``values``, ``arithmetic``, ``products``, ``movement``, ``constants``,
``limits``, ``signedness``; ``float8``.
"""
