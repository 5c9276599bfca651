"""Placement by measurement on a GPU: networks built with all Targets, tuned there, beside single backends and torch.

    python -m benchmarks.gpu.placement build -o build/placement --jobs 8 --home FOLDER    no GPU; 16 cores: 7 minutes
    python -m benchmarks.gpu.placement run build/placement -o placement.json [--compile]  where the GPU and torch are
    python -m benchmarks.gpu.placement build -o build/placement --what alone              bundles of single backends
    python -m benchmarks.gpu.placement build -o build/placement --what placed             bundles that records make
    python -m benchmarks.gpu.placement run build/placement -o linked.json --linked        these in turns
    python -m benchmarks.gpu.placement.show placement.json [--parts]                      tables

``run`` writes after each network, and leaves out those that its file has times of. Errors are relative to the greatest
output, from float64. ``show --parts`` says what each region takes with each alternative, and what no placement changes.
"""

from __future__ import annotations

import os
import sys

from benchmarks.gpu.placement import building
from benchmarks.harness.gpu import two_commands


def main() -> int:
    """Build or run."""
    if sys.argv[1:2] and sys.argv[1] in ("ask", "kernels", "one"):
        building.do_step(sys.argv[1:])
        return 0
    if sys.argv[1:2] and sys.argv[1] in ("tuned", "linked"):
        from benchmarks.gpu.placement import measuring

        measuring.do_step(sys.argv[1:])
        return 0
    parser, builder, runner = two_commands(__doc__, "placement", "bert*,dcgan-8")
    builder.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2), help="builds at a time")
    builder.add_argument("--home", default="", help="folder of a CUDA toolkit; default: the wheels of packager[cuda]")
    builder.add_argument("--seconds", type=float, default=420, help="what has no time left is not built; default: 420")
    runner.add_argument("--seconds", type=float, default=20, help="of each tune; default: 20")
    runner.add_argument("--compile", action="store_true", help="torch.compile, too")
    runner.add_argument("--linked", action="store_true", help="bundles of records and of single backends; no tune")
    builder.add_argument("--pack", action="store_true", help="compress bundles, to carry them; run unpacks them")
    builder.add_argument("--what", choices=("trial", "alone", "placed"), default="trial", help="default: trial")
    given = parser.parse_args()
    if given.command == "build":
        building.build(
            given.output, given.arch, given.home, given.only,
            what=given.what, jobs=given.jobs, seconds=given.seconds, packed=given.pack,
        )  # fmt: skip
        return 0
    from benchmarks.gpu.placement import measuring  # needs a GPU's torch, and no TVM

    measuring.run(
        given.folder, given.output, given.only,
        seconds=given.seconds, compiled=given.compile, linked=given.linked,
    )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
