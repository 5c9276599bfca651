"""Lower PrimFuncs for the CPU: pack_weights (layouts), schedule (loop schedules), kernels (kernels -> C functions)."""
