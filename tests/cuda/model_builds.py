"""Builds whole models and reads the bundles back, by packager and by NVIDIA's own reader."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import packager
from packager.bundle.manifest import Manifest, Primitive


def build_and_compare(model: Path, bundle: Path, **options: Any) -> Manifest:
    """Build for sm_90a, all for the GPU; the manifest and cuobjdump must tell of the same architectures and kernels."""
    start = time.perf_counter()
    packager.build(model, bundle, targets="cuda -arch=sm_90a", **options)
    print(f"{model.name}: built in {time.perf_counter() - start:.1f} s")
    manifest = packager.inspect(bundle).manifest
    assert manifest.requirements.cuda is not None
    assert manifest.requirements.cuda.archs == ("sm_90a",)
    assert manifest.requirements.cuda.ptx == ()
    assert not [name for name in manifest.requirements.needed if "cuda" in name]
    assert {kind for kind, _ in manifest.primitives()} == {"cuda"}
    assert set(re.findall(r"\.(sm_\w+)\.cubin$", cuobjdump("--list-elf", bundle), re.MULTILINE)) == {"sm_90a"}
    kernels = re.findall(r"^ Function (\w+):", cuobjdump("--dump-resource-usage", bundle), re.MULTILINE)
    assert sorted(kernels) == sorted(primitive.symbol for _, primitive in manifest.primitives())
    return manifest


def cuobjdump(*arguments: str | Path) -> str:
    """Return what the tool of the wheel prints."""
    files = importlib.metadata.files("nvidia-cuda-cuobjdump") or []
    (tool,) = [str(file.locate()) for file in files if file.name == "cuobjdump"]
    return subprocess.run([tool, *arguments], capture_output=True, text=True, check=True).stdout


def having(manifest: Manifest, op: str) -> list[Primitive]:
    """Return the primitive functions that an operator is part of."""
    return [primitive for _, primitive in manifest.primitives() if op in primitive.ops]


def calls(manifest: Manifest, op: str) -> int:
    """Return how many primitive functions with an operator a run calls."""
    return sum(primitive.calls for primitive in having(manifest, op))
