"""The zoo on a GPU in half precision, beside the best that torch does: numbers, times, and where they go.

    python -m benchmarks.gpu.zoo build -o build/gpu_zoo [--jobs 2] [--home FOLDER]     packager[build,cutlass], no GPU
    python -m benchmarks.gpu.zoo run build/gpu_zoo -o gpu_zoo.json [--compile]         where the GPU and torch are

Cases are a model and a batch, ``convnext_tiny-16``. Both engines run with CUDA graphs, in turns, with tensors on the
device; torch has its fused attention where transformers gives it no mask, and for images also channels last.
Errors are relative to the greatest output, from float64. ``--only`` takes patterns of CASE/FORM, ``vit*/mixed``,
with forms of ``cases.FORMS``. Decoders of ``benchmarks.zoo.unseen`` have no ONNX file without onnxscript:
``cutlass_pt2`` is from torch.export.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.gpu.zoo.building import build, build_one
from benchmarks.gpu.zoo.cases import Case
from benchmarks.gpu.zoo.measuring import run
from benchmarks.harness.gpu import two_commands


def main() -> int:
    """Build or run."""
    if sys.argv[1:2] == ["one"]:
        model, batch, form, folder, arch, home, jobs = sys.argv[2:]
        build_one(Case(model, int(batch), form), Path(folder), arch, home, int(jobs))
        return 0
    parser, builder, runner = two_commands(__doc__, "gpu_zoo", "vit*/mixed")
    builder.add_argument("--jobs", type=int, default=2, help="builds at a time")
    builder.add_argument("--home", default="", help="folder of a CUDA toolkit; default: the wheels of packager[cuda]")
    runner.add_argument("--compile", action="store_true", help="torch.compile, too")
    runner.add_argument(
        "--autotune", action="store_true", help="torch.compile in mode max-autotune, too: minutes a model"
    )
    runner.add_argument("--profile", action="store_true", help="times of functions, too")
    given = parser.parse_args()
    if given.command == "build":
        build(given.output, given.arch, given.home, given.only, given.jobs)
    else:
        wanted = {"compiled": given.compile, "autotuned": given.autotune, "profiled": given.profile}
        run(given.folder, given.output, given.only, **wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
