"""Bundles that are tuned and finalized on a node of Ray which has what they run on, such as a GPU.

The bundle goes there as bytes, with its external weights, and comes back so. Neither here nor there TVM is needed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from packager.bundle.hashing import digest_of_folder
from packager.bundle.reader import inspect
from packager.bundle.staging import replacing, temporary_folder
from packager.deploy.finalize.finalizer import FinalizeResult
from packager.deploy.measure.tune import TuneResult
from packager.errors import BundleError, PackagerError, ToolchainError, UsageError
from packager.pipeline.many.ray_tasks import Answer, TaskError, Tasks, opened_tasks
from packager.progress import Event, Receiver, received, report, warn
from packager.resources import PACKAGE

ACCELERATOR = "accelerator_type:"
"""What Ray calls the resource of nodes that have a GPU of a name."""
_EVENT_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class Place:
    """Where in a cluster: its address, ``ray`` or ``ray://HOST:PORT``; any GPU or, by Ray's name, one as ``H100``."""

    cluster: str
    gpu: str = ""


def tune_on(place: Place, path: Path, *, threads: int, progress: Receiver | None = None, **options: Any) -> TuneResult:
    """Return what ``packager.deploy.measure.tune.tune`` measures on a node, which gives it ``threads`` cores.

    ``options`` are its other arguments; files they name are the node's. Raises what it raises, UsageError if there is
    no such cluster, ToolchainError if the task fails by itself.
    """
    with received(progress):
        manifest = inspect(path).manifest
        gpus = int(manifest.requirements.cuda is not None)
        answer = _run(place, _tune, path, {"threads": threads} | options, progress, cores=max(threads, 1), gpus=gpus)
    result: TuneResult = answer.result
    return dataclasses.replace(result, path=str(path))


def finalize_on(
    place: Place, path: Path, output: Path, *, progress: Receiver | None = None, **options: Any
) -> FinalizeResult:
    """Write what ``packager.deploy.finalize.finalizer.finalize`` writes on a node with a GPU, and return its result.

    ``options`` are its other arguments; files and folders they name are the node's. Raises as ``tune_on`` does.
    """
    if output.exists() and output.samefile(path):
        raise UsageError(f"{output} is the bundle itself", hint="give the copy another name: -o OUT.so")
    with received(progress):
        answer = _run(place, _finalize, path, options, progress, cores=1, gpus=1)
    with replacing(output) as staged:
        staged.write_bytes(answer.files[path.name])
    result: FinalizeResult = answer.result
    return dataclasses.replace(result, path=str(path), output=str(output))


def _run(
    place: Place,
    function: Callable[..., Answer],
    path: Path,
    options: dict[str, Any],
    progress: Receiver | None,
    *,
    cores: int,
    gpus: int,
) -> Answer:
    resources = {f"{ACCELERATOR}{place.gpu}": 0.001} if place.gpu else {}  # as Ray does it for accelerator_type
    files = _files(path)
    with opened_tasks(place.cluster) as tasks:
        board = tasks.ray.remote(_Board).options(num_cpus=0).remote()
        _tell_what_is_missing(tasks, {"CPU": cores, "GPU": gpus} | resources)

        def show() -> None:
            with contextlib.suppress(tasks.ray.exceptions.RayError):  # its node is lost, and the task runs elsewhere
                for event in tasks.ray.get(board.take.remote()):
                    if progress is not None:
                        progress(event)

        needs = {"num_cpus": cores, "num_gpus": gpus, "resources": resources, "name": f"packager {path.name}"}
        report(f"waiting for a node of {place.cluster}")
        try:
            answer: Answer = tasks.run(function, files, path.name, options, board, meanwhile=show, **needs)
        except TaskError as failure:
            raise ToolchainError(f"the cluster's task failed: {failure}") from None
        show()
    if answer.software != _software():
        warn(f"node {answer.node} has another packager: its results may be none of this one's")
    return answer


def _files(path: Path) -> dict[str, bytes]:
    """Return the bundle and its external weights, by name. Raises BundleError."""
    weights = inspect(path).manifest.weights.file
    paths = [path] if weights is None else [path, path.with_name(weights)]
    try:
        return {one.name: one.read_bytes() for one in paths}
    except OSError as failure:
        raise BundleError(f"cannot read {failure.filename}: {failure.strerror}") from None


def _tell_what_is_missing(tasks: Tasks, wanted: dict[str, float]) -> None:
    """Warn if no node has what a task needs: it waits until one joins, which a cluster that scales itself may start."""
    nodes = [node["Resources"] for node in tasks.ray.nodes() if node["Alive"]]
    if any(all(node.get(name, 0) >= count for name, count in wanted.items()) for node in nodes):
        return
    needs = " and ".join(f"{name} {count:g}" for name, count in wanted.items() if count >= 1)
    named = sorted(name.removeprefix(ACCELERATOR) for node in nodes for name in node if name.startswith(ACCELERATOR))
    of_name = "".join(f" of name {name.removeprefix(ACCELERATOR)}" for name in wanted if name.startswith(ACCELERATOR))
    warn(f"no node of the cluster has {needs}{of_name} (GPUs there: {', '.join(named) or 'none'}): waiting for one")


class _Board:
    """An actor that keeps what a task reports until it is asked."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def put(self, event: Event) -> None:
        self._events.append(event)

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        return events


def _sender(board: Any) -> Receiver:
    """Return what sends events to a board; of those that follow at once, what stays true alone."""
    last = 0.0

    def send(event: Event) -> None:
        nonlocal last
        now = time.monotonic()
        if event.lasting or now - last > _EVENT_SECONDS:
            last = now
            board.put.remote(event)

    return send


def _tune(files: dict[str, bytes], name: str, options: dict[str, Any], board: Any) -> Answer:
    """Measure. Runs on a node."""
    from packager.deploy.measure.tune import tune

    with _written(files) as folder:
        return _answer(tune(folder / name, progress=_sender(board), **options))


def _finalize(files: dict[str, bytes], name: str, options: dict[str, Any], board: Any) -> Answer:
    """Build engines. Runs on a node."""
    from packager.deploy.finalize.finalizer import finalize

    with _written(files) as folder:
        output = folder / "finalized" / name
        output.parent.mkdir()
        for weights in files.keys() - {name}:  # which the copy needs too, to be run
            (output.parent / weights).symlink_to(folder / weights)
        result = finalize(folder / name, output, progress=_sender(board), **options)
        return _answer(result, {name: output.read_bytes()})


@contextlib.contextmanager
def _written(files: dict[str, bytes]) -> Iterator[Path]:
    """Yield a folder with files, which errors name without it. If a task is cancelled the next one removes it."""
    with temporary_folder("ray") as folder:
        for name, content in files.items():
            (folder / name).write_bytes(content)
        try:
            yield folder
        except PackagerError as error:
            error.message = error.message.replace(f"{folder}/", "")
            raise


def _answer(result: Any, files: dict[str, bytes] | None = None) -> Answer:
    return Answer(result, files or {}, _software(), platform.node())


def _software() -> str:
    return digest_of_folder(PACKAGE, "*.py")
