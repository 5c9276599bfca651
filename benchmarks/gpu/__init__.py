"""Whole models and schedules on a GPU: numbers, and times beside torch."""
