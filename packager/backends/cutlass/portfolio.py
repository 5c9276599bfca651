"""Portfolios: lists of kernels that builds commonly need, to be compiled once and shared by a cache.

A file of ``portfolios`` lists configurations, the most wanted first, apart for what Hopper's own templates make
(``hopper``), what else a bundle for sm_90a alone needs (``besides``), and what bundles for other GPUs need (``plain``).
``python -m benchmarks.cutlass.portfolio`` makes it from what models ask for.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packager.backends.base import Context
from packager.backends.cutlass.attention.kernels import Sm80Attention, Sm90Attention, SplitAttention, WarpAttention
from packager.backends.cutlass.conv.kernels import ConvConfig
from packager.backends.cutlass.core.compile_kernels import KernelObject, compile_kernels, find_cutlass
from packager.backends.cutlass.core.kernel import KernelConfig
from packager.backends.cutlass.core.options import SM90A, CutlassOptions
from packager.backends.cutlass.gemm.block_weights import BlockRowsGemm, DequantizeBlocks
from packager.backends.cutlass.gemm.few_rows import FewRowsGemm
from packager.backends.cutlass.gemm.grouped import GroupedGemm
from packager.backends.cutlass.gemm.kernels import GemmConfig
from packager.backends.cutlass.gemm.tilings import Sm80Tile, Sm90Tile
from packager.backends.cutlass.quantized.kernels import QuantizedConfig
from packager.backends.cutlass.recurrent.kernels import RecurrentKernel
from packager.bundle.dtypes import HALVES
from packager.codegen.cuda_toolkit import find_cuda_toolkit
from packager.errors import UsageError, valid_names

FOLDER = Path(__file__).parent / "portfolios"
GROUPS = ("hopper", "besides", "plain")
_TYPES: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        *(GemmConfig, FewRowsGemm, GroupedGemm, BlockRowsGemm, DequantizeBlocks, ConvConfig, QuantizedConfig),
        *(Sm80Attention, Sm90Attention, SplitAttention, WarpAttention, RecurrentKernel, Sm80Tile, Sm90Tile),
    )
}
Portfolio = dict[str, tuple[KernelConfig, ...]]


def group_of(kernel_arch: int, bundle_arch: str) -> str:
    """Return the group of a kernel, for sm_90a (90) or any GPU (0), in a bundle for one architecture."""
    if bundle_arch != SM90A:
        return "plain"
    return "hopper" if kernel_arch else "besides"


def to_json(config: Any) -> dict[str, Any]:
    """Return a configuration as JSON: its type, and the fields that are not defaults."""
    fields: dict[str, Any] = {"type": type(config).__name__}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if value != field.default:
            fields[field.name] = to_json(value) if dataclasses.is_dataclass(value) else value
    return fields


def of_json(value: Any) -> Any:
    """Return the configuration that ``to_json`` has written."""
    if isinstance(value, dict):
        return _TYPES[value["type"]](**{name: of_json(item) for name, item in value.items() if name != "type"})
    return tuple(value) if isinstance(value, list) else value


def read_portfolio(name: str) -> Portfolio:
    """Return a portfolio by its name, or from a file. Raises UsageError."""
    known = sorted(path.stem for path in FOLDER.glob("*.json"))
    path = FOLDER / f"{name}.json" if name in known else Path(name)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {group: tuple(of_json(config) for config in content[group]) for group in GROUPS}
    except (OSError, ValueError, TypeError, KeyError) as failure:
        reason = failure.strerror if isinstance(failure, OSError) else f"{type(failure).__name__}: {failure}"
        raise UsageError(
            f"cannot read the portfolio {name}: {reason}",
            hint=f"give the name of one, or a JSON file of its form; {valid_names(name, known, 'names')}",
        ) from None


def of_type(config: Any, dtype: str) -> Any:
    """Return a configuration with another half-precision type."""
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    changed = {
        name: of_type(value, dtype) if dataclasses.is_dataclass(value) else dtype
        for name, value in fields.items()
        if dataclasses.is_dataclass(value) or value in HALVES
    }
    return dataclasses.replace(config, **changed)


def kernels_of(
    portfolio: Portfolio, archs: tuple[str, ...], dtype: str = "float16"
) -> list[tuple[KernelConfig, tuple[str, ...]]]:
    """Return the kernels for bundles of these architectures, and what each is compiled for, the most wanted first.

    Half precision is ``dtype``: models ask for the same tiles with either.
    """
    portfolio = {group: tuple(of_type(config, dtype) for config in configs) for group, configs in portfolio.items()}
    hopper = [(config, (SM90A,)) for config in portfolio["hopper"] if SM90A in archs]
    besides = portfolio["besides"] if SM90A in archs else ()
    plain = portfolio["plain"] if archs != (SM90A,) else ()
    return [*hopper, *((config, archs) for config in dict.fromkeys((*besides, *plain)))]


def compile_portfolio(
    kernels: Sequence[tuple[KernelConfig, tuple[str, ...]]], context: Context, options: CutlassOptions
) -> list[KernelObject]:
    """Compile kernels as builds do, under the same keys. Raises ToolchainError."""
    toolkit = find_cuda_toolkit(context.base.options.home)
    sources = [(config.source(archs), 0) for config, archs in kernels]
    return compile_kernels(sources, find_cutlass(), toolkit, context, options)
