"""Logarithms of sums of exponentials: what Sinkhorn's iterations and conditional random fields consist of."""
