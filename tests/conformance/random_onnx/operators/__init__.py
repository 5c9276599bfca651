"""How each operator is written, a file per family."""
