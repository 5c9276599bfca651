"""The deploy side: reads, verifies, loads and runs bundles with no TVM and no compiler."""
