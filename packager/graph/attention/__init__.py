"""Match attention, whichever way it is written: q k^T (``core``, ``heads``, ``masks``, ``sinks``), softmax, p v."""
