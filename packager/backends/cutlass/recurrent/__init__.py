"""LSTM and GRU layers, all steps in one launch: what is taken (``problem``) and ``kernels``."""
