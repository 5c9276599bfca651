"""The zoo on a GPU in half precision, beside torch."""
