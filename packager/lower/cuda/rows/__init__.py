"""Schedules of reductions along rows, and of normalizations and softmax, which read a row several times."""
