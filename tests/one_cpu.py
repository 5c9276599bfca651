"""Targets of tests that are about numbers: the default ones, with the one CPU whose code would run on this machine.

The default Targets have code for two CPUs, and a machine runs one of them: a build for it alone takes half as long and
runs the same. Tests of the choice between them, and of what each makes, name their Targets themselves.
"""

from __future__ import annotations

import functools

from packager.bundle.isa.levels import LEVEL_FEATURES
from packager.deploy.verify.machine import this_machine
from packager.targets.target_list import DEFAULT_TARGETS, parse_targets


@functools.cache
def targets_here() -> tuple[str, ...]:
    """Return the default Targets for the best of their CPUs that this machine has all features of."""
    base, *others = DEFAULT_TARGETS
    least, *better = parse_targets(DEFAULT_TARGETS).host.cpus
    features = set(this_machine(gpus=False).cpu_features)
    best = [cpu for cpu in better if LEVEL_FEATURES[cpu] <= features]
    return (f"{base} -mcpu={[least, *best][-1]}", *others)
