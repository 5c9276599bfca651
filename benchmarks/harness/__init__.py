"""Measure and report: samples, thresholds, tables, processes that take turns, the peak of a CPU core."""
