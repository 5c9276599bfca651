"""Compare bundles of torch.export programs with torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packager

torch = pytest.importorskip("torch")


def check(
    forward: Any, inputs: tuple[Any, ...], folder: Path, dynamic: Any = None, others: Any = (), tolerance: float = 1e-5
) -> None:
    """Export ``forward``, build it, and compare each output with torch, for other inputs as well."""

    class Module(torch.nn.Module):
        def forward(self, *tensors: Any) -> Any:
            return forward(*tensors)

    program = torch.export.export(Module(), inputs, dynamic_shapes=None if dynamic is None else (dynamic,))
    torch.export.save(program, folder / "m.pt2")
    with packager.load(packager.build(folder / "m.pt2", folder / "m.so", targets=["llvm"])) as bundle:
        for tensors in (inputs, *others):
            feeds = {spec.name: tensor.numpy() for spec, tensor in zip(bundle.inputs, tensors, strict=True)}
            results = bundle.run(feeds).values()
            for number, (result, wanted) in enumerate(zip(results, forward(*tensors), strict=True)):
                assert result.dtype == wanted.numpy().dtype, number
                np.testing.assert_allclose(result, wanted.numpy(), tolerance, tolerance, err_msg=f"output {number}")
