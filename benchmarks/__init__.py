"""Benchmarks, each run from the root of the repository: ``python -m benchmarks.cpu.compare``."""
