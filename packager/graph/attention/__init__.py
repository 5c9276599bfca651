"""Match attention, whichever way it is written: ``match``, ``core`` (q k^T, softmax, p v), ``heads``, ``masks``, ``sinks``."""
