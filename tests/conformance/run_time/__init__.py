"""Models whose shapes data decide, on a GPU that is in another machine than what builds them."""
