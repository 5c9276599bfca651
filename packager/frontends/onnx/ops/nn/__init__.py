"""Converters of neural network operators: pooling, normalization, activations, attention, recurrent nets, resize."""
