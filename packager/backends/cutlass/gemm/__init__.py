"""Matrix products: ``problem``, ``tiles`` (the portfolio), ``kernels``, ``cost_model`` (ranks tiles without a GPU)."""
