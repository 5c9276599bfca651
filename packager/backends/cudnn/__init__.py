"""The ``cudnn`` backend: convolutions of all sorts with their epilogues, by NVIDIA's cuDNN, which sessions open.

In: partitions of CUDA bundles. Out: one object that states each problem, and the library's plans for it, chosen where
the bundle is built, with no GPU.

``backend``, ``options``, ``devices`` (GPUs that plans are chosen for), ``patterns`` (what it takes), ``problem`` (what
a match is), ``library`` (what is opened), ``planner`` (asks the library for plans), ``module`` (partitions to source
to object).
"""
