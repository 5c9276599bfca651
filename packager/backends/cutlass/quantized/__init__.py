"""Products of int8 and e4m3: ``problem``, ``epilogues``, ``kernels``, ``cost_model``."""
