"""Many builds. In: a file of models, Targets and dims. Out: a bundle of each, or why there is none.

Read ``matrix`` (the file, and all of its builds), ``process`` (one build, on this machine), ``ray_tasks`` (functions on
a cluster), ``ray_builds`` (builds there), ``ray_calls`` (parts of one build), ``ray_bundles`` (bundles to measure).
"""
