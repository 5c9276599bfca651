"""Legalize Relax operators where TVM's own legalization is missing, slow or wrong: accumulate, min_max, reshape,
float8_cast."""
