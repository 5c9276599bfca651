"""Parameters of operators that data give, from the shapes that the file states: ``shapes`` has the pass and its rules,
``positions`` those of Slice and Pad."""
