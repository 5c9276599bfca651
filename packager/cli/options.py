"""Creates the options of a build for typer from the list in ``packager.pipeline.options``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import typer

from packager.pipeline.options import OPTIONS, BuildOptions, OptionInfo


def with_build_options(command: Callable[..., None], *, explained: bool = False) -> Callable[..., None]:
    """Return the command with the options of a build, or the explained ones, in place of its ``options``.

    Its other parameters come after them.
    """
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    shown = {name: info for name, info in OPTIONS.items() if info.takes is not None and info.explained >= explained}

    @functools.wraps(command)
    def run(**given: Any) -> None:
        values = {name: _read(name, given[name]) for name in shown if _is_given(given[name])}
        command(BuildOptions(**values), **{parameter.name: given[parameter.name] for parameter in own})

    parameters = [*_parameters(shown), *own]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameters(shown: Mapping[str, OptionInfo]) -> Iterator[inspect.Parameter]:
    """Yield the parameters for typer; the default is None, or False for flags."""
    for name, info in shown.items():
        parameter = functools.partial(inspect.Parameter, name, inspect.Parameter.KEYWORD_ONLY)
        if not info.flags:
            yield parameter(annotation=Annotated[info.takes, typer.Argument(metavar=info.metavar, help=info.doc)])
            continue
        declared = typer.Option(*info.flags, metavar=info.metavar, help=info.doc)
        if info.takes is bool:
            yield parameter(default=False, annotation=Annotated[bool, declared])
        else:
            yield parameter(default=None, annotation=Annotated[info.takes | None, declared])


def _is_given(value: Any) -> bool:
    return value is not None and value is not False and value != []


def _read(name: str, value: Any) -> Any:
    """Return the value of an option for the API, given the command line's. Raises UsageError."""
    if name == "dims":
        from packager.frontends.dims import parse_dims

        return parse_dims(value)
    if name == "freeze":
        from packager.frontends.freeze import parse_frozen

        return parse_frozen(value)
    if name == "states":
        from packager.graph.states import parse_states

        return parse_states(value)
    return not value if name == "cache" else value
