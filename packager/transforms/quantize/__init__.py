"""QDQ to integer arithmetic: ``quantize``, ``rewrite``, ``values``, ``emitter``, ``products``, ``arithmetic``,
``constants``, ``limits``; ``float8``.
"""
