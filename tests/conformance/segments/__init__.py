"""Models whose runs are split into CUDA graphs, on a GPU that is in another machine than what builds them."""
