"""Declares the options of a build once, for ``packager.build``, the command line and ``explain``.

An option is a field of ``BuildOptions``: name, type and default, with its documentation and command-line flags as
metadata. ``pipeline.request`` checks the values.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from packager.errors import valid_names

if TYPE_CHECKING:
    from packager.codegen.timings import Timings
    from packager.frontends.dims import DimArgument
    from packager.progress import Event

StrPath = str | os.PathLike[str]
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class OptionInfo:
    """The documentation of an option, and its command-line form: ``flags`` with a value of type ``takes``.

    Without flags it is a positional argument, or, if ``takes`` is None, part of the API only. ``explained`` options
    affect the compiled code rather than the outputs, so ``packager explain`` has them too.
    """

    doc: str
    flags: tuple[str, ...]
    takes: Any = str
    metavar: str | None = None
    explained: bool = False


def option(default: Any, doc: str, *flags: str, **form: Any) -> Any:
    """Declare an option with its default; ``form`` holds further fields of ``OptionInfo``."""
    return field(default=default, metadata={"option": OptionInfo(doc, flags, **form)})


@dataclass(frozen=True)
class BuildOptions:
    """The options of a build, as given by the user."""

    model: StrPath | Sequence[StrPath] = field(
        metadata={
            "option": OptionInfo(
                ".onnx, .pt2 (torch.export) or Relax .json; several are entries of one.",
                flags=(),
                takes=list[Path],
                metavar="MODEL",
                explained=True,
            )
        }
    )
    output: StrPath | None = option(
        None, "The bundle; default: the model's name with .so.", "-o", "--output", takes=Path, metavar="OUT.so"
    )
    _: KW_ONLY
    targets: Sequence[str | Mapping[str, Any]] = option(
        (),
        "A Target, as 'llvm -mcpu=x86-64-v4'; repeatable.",
        "-t",
        "--target",
        takes=list[str],
        metavar="TARGET",
        explained=True,
    )
    dims: Mapping[str, DimArgument] | None = option(
        None,
        "Fix a symbolic dim, bound it, or list sizes, each with its code.",
        "--dim",
        takes=list[str],
        metavar="NAME=SIZE|MIN:MAX|SIZE,SIZE",
        explained=True,
    )
    name: str | None = option(None, "Name of the model; default: the file's.", "--name", metavar="NAME", explained=True)
    header: StrPath | None = option(
        None, "Also write a C header for the model.", "--header", takes=Path, metavar="OUT.h"
    )
    static: bool = option(False, "A static archive instead, with --prefix.", "--static", takes=bool)
    prefix: str | None = option(None, "Prefix of the archive's entry function.", "--prefix", metavar="NAME")
    weights: str | None = option(
        None, "Default: external above 2 GiB in an archive.", "--weights", metavar="embedded|external"
    )
    copy_libraries: bool = option(
        False, "Copy the shared libraries that it opens from here to its folder.", "--copy-libraries", takes=bool
    )
    keep_workdir: StrPath | None = option(
        None, "Keep all intermediates there.", "--keep-workdir", takes=Path, metavar="DIR"
    )
    jobs: int | None = option(None, "Parallel compilers; default: all cores.", "-j", "--jobs", takes=int, metavar="N")
    cache: bool = option(True, "Neither use nor fill the cache.", "--no-cache", takes=bool)
    shared_cache: StrPath | Sequence[StrPath] = option(
        (),
        "A cache that machines share: a folder, s3://, https://; repeatable. Default: $PACKAGER_CACHE.",
        "--cache",
        takes=list[str],
        metavar="URL",
    )
    on: str | None = option(None, "Compile CUTLASS kernels on a cluster of Ray.", "--on", metavar="ray[://HOST:PORT]")
    golden: int | StrPath | None = option(
        None, "Put a golden input/output pair into the bundle.", "--golden", metavar="SEED|FILE.npz"
    )
    op_libraries: Sequence[StrPath] = option(
        (), "Operators of your own; repeatable.", "--op-library", takes=list[Path], metavar="FILE.toml", explained=True
    )
    constants: StrPath | None = option(
        None,
        "Tensors that replace constants by name.",
        "--constants",
        takes=Path,
        metavar="FILE.safetensors|.npz",
        explained=True,
    )
    entry: str | None = option(
        None, "The function of a Relax module to build; default: main.", "--entry", metavar="NAME", explained=True
    )
    precision: str | None = option(
        None, "Let a float32 model compute in half precision.", "--precision", metavar="fp16|bf16", explained=True
    )
    cuda_home: StrPath | None = option(
        None,
        "A CUDA toolkit to use in place of the wheels.",
        "--cuda-home",
        takes=Path,
        metavar="DIR",
        explained=True,
    )
    freeze: Mapping[str, Any] | None = option(
        None,
        "An ONNX input that becomes a constant; repeatable.",
        "--freeze",
        takes=list[str],
        metavar="NAME=JSON",
        explained=True,
    )
    tuning: Sequence[StrPath] = option(
        (), "Records of packager tune; repeatable.", "--tuning", takes=list[Path], metavar="FILE.json", explained=True
    )
    place: str | StrPath = option(
        "greedy",
        "Who computes what: the first Target that can, all (to measure), as packager tune recorded, or as is shipped.",
        "--place",
        metavar="greedy|trial|FILE.json|shipped",
        explained=True,
    )
    place_device: str | None = option(
        None,
        "Of records for several devices, those for this one: its name, or a part of it.",
        "--place-device",
        metavar="NAME",
        explained=True,
    )
    place_threads: int | None = option(
        None,
        "Of records for several numbers of threads, those for this one.",
        "--place-threads",
        takes=int,
        metavar="N",
        explained=True,
    )
    alternatives: int = option(
        4,
        "Most alternatives of a part of the model in a trial, beside those of single backends and orders of Targets.",
        "--alternatives",
        takes=int,
        metavar="N",
        explained=True,
    )
    states: Mapping[str, str] | None = option(
        None,
        "Keep input IN in the session; output OUT is its next value; repeatable.",
        "--state",
        takes=list[str],
        metavar="IN=OUT",
        explained=True,
    )
    progress: Callable[[Event], None] | None = option(
        None, "Called with each stage and step as it begins, and with warnings.", takes=None
    )
    timings: Callable[[Timings], None] | None = option(
        None, "Called at the end with how long the stages and the compilers took.", takes=None
    )


def paths_of(given: StrPath | Sequence[StrPath]) -> list[Path]:
    """Return a path or a sequence of paths as a list."""
    return [Path(given)] if isinstance(given, (str, os.PathLike)) else [Path(path) for path in given]


OPTIONS: Mapping[str, OptionInfo] = {f.name: f.metadata["option"] for f in fields(BuildOptions)}


def takes_options(
    options: Callable[P, BuildOptions],
) -> Callable[[Callable[[BuildOptions], R]], Callable[P, R]]:
    """Return a decorator: a function of one ``BuildOptions`` gets its fields as parameters, with documentation."""

    def decorate(function: Callable[[BuildOptions], R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in OPTIONS:
                    raise TypeError(
                        f"{function.__name__}() got an unexpected keyword argument {name!r}: "
                        + valid_names(name, OPTIONS, "options")
                    )
            return function(options(*args, **kwargs))

        listed = "".join(f"\n        {name}: {info.doc}" for name, info in OPTIONS.items())
        call.__doc__ = f"{inspect.getdoc(function)}\n\nOptions:{listed}\n"
        call.__signature__ = inspect.signature(options)  # type: ignore[attr-defined]
        return call

    return decorate
