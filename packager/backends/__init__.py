"""Backends: each compiles the partitions that it takes, or, as a code generator, the kernels that remain.

In: partitions and a Target. Out: ``BackendOutput``: static libraries, primitive functions, named constants.

``base`` (the Protocol), ``api`` (all that third parties import), ``registry`` (find one by kind), ``attributes``
(options of Targets), ``contract`` (checks of third parties'); then a folder per backend, none of which imports another.
"""
