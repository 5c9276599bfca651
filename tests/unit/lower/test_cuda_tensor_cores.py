"""Products on tensor cores: what TVM's rules import when they are first needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# TVM parses hundreds of intrinsics, each after a look at the call stack: with source lines that takes half a minute.
SCHEDULE = """
import inspect
looked_up = []
find = inspect.getouterframes
inspect.getouterframes = lambda *arguments: looked_up.append(arguments) or find(*arguments)

import tvm
from tvm import relax
from packager.lower.cuda.schedule import schedule_cuda
from tests.stages import primfuncs_of

make = lambda x, w: relax.op.matmul(x, w, out_dtype="{result}")
(product,) = primfuncs_of("cuda", make, ((128, 128), "{dtype}"), ((128, 128), "{dtype}"))
scheduled = schedule_cuda(product, tvm.target.Target({{"kind": "cuda", "arch": "sm_90"}}))
assert "wmma" in str(scheduled)
assert inspect.stack(), "which is counted"
assert len(looked_up) == 1, len(looked_up)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "result"), [("int8", "int32"), ("float16", "float32")])
def test_intrinsics_are_imported_without_a_look_at_source_lines(dtype: str, result: str) -> None:
    argv = [sys.executable, "-c", SCHEDULE.format(dtype=dtype, result=result)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
