"""Products of int8 and e4m3: ``problem``, ``kernels``, ``cost_model``."""
