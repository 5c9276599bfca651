"""Sessions: bind tensors to a loaded bundle and run it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from ctypes import POINTER, c_char_p, c_uint8, c_void_p, pointer, sizeof
from typing import Any, NamedTuple

from packager.deploy.load import tensors
from packager.deploy.load.abi import GRAPH_MODES, DLTensor, ProfileReport, SessionOptions, Status, refuse
from packager.deploy.load.binding import (
    Call,
    Tensors,
    borrow_all,
    ordered,
    output_shapes,
    pointers,
    stream_handle,
    with_seeds,
)
from packager.deploy.load.exclusion import exclusively
from packager.deploy.load.library import EntryTable, Library
from packager.deploy.load.selection import choose
from packager.deploy.load.states import States
from packager.errors import UsageError, suggestion


class Step(NamedTuple):
    """A call of a primitive function: its start, from that of the run, and its duration."""

    symbol: str
    start_ns: int
    duration_ns: int


class Session:
    """The state of one thread that runs a bundle; use ``Bundle.session``. Closed explicitly, by ``with``, or by gc."""

    def __init__(
        self,
        library: Library,
        threads: int = 0,
        device: int = 0,
        graph: str = "auto",
        launch_blocking: bool = False,
        arena: Any = None,
        selection: Mapping[str, str] | None = None,
        cpu_level: str | None = None,
    ) -> None:
        self._handle = c_void_p()
        # Held while running, acquired without blocking: a second thread gets the same error as from the C ABI, and
        # close() cannot free the session under a run.
        self._running = threading.Lock()
        self._setting = threading.Lock()  # held while setting constants, possibly during a run
        self._library = library
        if graph not in GRAPH_MODES:
            near = suggestion(str(graph), GRAPH_MODES)
            raise UsageError(f"graph={graph!r}: expected {', '.join(GRAPH_MODES)}{near}")
        if device < 0:
            raise UsageError(f"device must not be negative, is {device}")
        if not library.on_cuda:
            given = {"device": device, "graph": graph != "auto", "launch_blocking": launch_blocking}
            given["arena"] = arena is not None
            if names := [name for name, value in given.items() if value]:
                raise UsageError(f"{', '.join(names)}: only for CUDA bundles; {library.path} has no CUDA code")
        self._device = device
        self._arena = arena
        self._arena_is_new = arena is not None
        self._kept: Call | None = None
        options = SessionOptions(
            struct_size=sizeof(SessionOptions),
            device_index=device,
            max_threads=threads,
            graph=GRAPH_MODES[graph],
            launch_blocking=launch_blocking,
            cpu_level=library.check_level(cpu_level),
        )
        if arena is not None:
            borrowed, size = tensors.borrow_memory(arena, "arena", tensors.Gpu(device, tensors.NO_SYNC))
            options.device_arena = (borrowed.tensor.data or 0) + borrowed.tensor.byte_offset
            options.device_arena_bytes = size
            self._arena = (arena, borrowed)
        if selection:
            chosen = choose(library.manifest, selection).digits()
            options.selection, options.num_selected = (c_uint8 * len(chosen))(*chosen), len(chosen)
        self._handle = library.create_session(options)
        self._stream: int | None = None
        if library.on_cuda and library.table.session_stream:
            self._stream = library.table.session_stream(self._handle)

    @property
    def closed(self) -> bool:
        """Whether the session was destroyed."""
        return not self._handle

    @property
    def cpu_level(self) -> str | None:
        """The CPU level whose code the session uses; None for a CUDA bundle, and after ``close``."""
        ask = self._library.table.session_cpu_level  # NULL in older bundles
        name: bytes | None = ask(self._handle) if ask and not self.closed else None
        return None if name is None else name.decode()

    @property
    def stream(self) -> int | None:
        """The handle of the session's own CUDA stream; None for a CPU bundle, and after ``close``."""
        return None if self.closed else self._stream

    def run(
        self, inputs: Tensors, *, outputs: Tensors | None = None, stream: Any = None, entry: str | None = None
    ) -> dict[str, Any]:
        """Run a model once and return its outputs by name: new numpy arrays, or the objects given as ``outputs``.

        ``entry`` names the model in a bundle of several (``Bundle.entries``); the default is the first.

        ``inputs`` are numpy arrays or host tensors with ``__dlpack__`` (torch and others; not copied), by name or in
        order; a seed of random numbers that is left out is drawn for each run. ``outputs``, all or none, are written in
        place: of one with run-time extents, which has the shape that ``output_shapes`` says, a view of the part that is
        written is returned. Non-contiguous inputs are copied; element types are never converted.

        A CUDA bundle also takes tensors on the session's GPU, in any mix, in place; the run waits for pending work on
        them. Without ``stream`` the run is synchronous. With a stream (a handle, a torch.cuda.Stream, a
        cupy.cuda.Stream, an object with ``__cuda_stream__``; 0 is the legacy default stream) the run is enqueued there
        and this returns at once, unless an output is in pageable host memory, as new numpy arrays are. Read the outputs
        in stream order, and keep the tensors' memory and contents until then: the session references the tensors only
        until its next run.

        Raises RunError with the status of the C ABI for tensors that do not match; UsageError after ``close``.
        """
        with self._own():
            model = self._library.entry(entry)
            call = self._call(model, inputs, outputs, stream)
            status = model.table.session_run(*call.arguments)
            self._library.check(status, self._handle)
            self._kept = None if stream is None else call
            return call.shaped(model) if model.name in self._library.with_extents else call.results

    def profile(self, inputs: Tensors, *, outputs: Tensors | None = None, entry: str | None = None) -> list[Step]:
        """Run a model once like ``run``, and return the timing of each primitive function in call order.

        In a CUDA bundle every call is timed separately, which slows down the run; on the CPU timing takes 20 ns per
        call. Raises RunError like ``run``, and for a CPU bundle built before profiling was supported.
        """
        steps: list[Step] = []

        def report(_: int | None, symbol: bytes, start: int, duration: int) -> None:
            steps.append(Step(symbol.decode(), start, duration))

        with self._own():
            if not self._library.table.session_profile:
                raise refuse(Status.ARGUMENT, "the bundle cannot measure itself", "build it again, with this packager")
            model = self._library.entry(entry)
            call = self._call(model, inputs, outputs, None)
            status = model.table.session_profile(*call.arguments[:-1], ProfileReport(report), None)
            self._library.check(status, self._handle)
        return steps

    def _call(self, model: EntryTable, inputs: Tensors, outputs: Tensors | None, stream: Any) -> Call:
        """Bind the tensors of a run to the arguments of session_run."""
        library = self._library
        gpu = handle = None
        if library.on_cuda:
            handle = None if stream is None else stream_handle(stream)
            gpu = tensors.Gpu(self._device, handle or self._stream or tensors.NO_SYNC)
        elif stream is not None:
            raise refuse(Status.ARGUMENT, "stream: only for CUDA bundles", "omit it: the run waits for its results")
        given = with_seeds(inputs, model.inputs, library.seeds(model.name))
        sources = borrow_all(ordered(given, model.inputs, "input"), model.inputs, gpu, writable=False)
        in_pointers = pointers(sources)
        infos = model.outputs
        if outputs is None:
            shapes = self._output_shapes(model, in_pointers, len(sources))
            results = [tensors.empty(info.name, info.dtype, shape) for info, shape in zip(infos, shapes, strict=True)]
        else:
            results = ordered(outputs, infos, "output")
        targets = borrow_all(results, infos, gpu, writable=True)
        if self._arena_is_new and gpu:  # wait for pending work of its library on this memory
            tensors.borrow_memory(self._arena[0], "arena", gpu)
            self._arena_is_new = False
        return Call(
            (self._handle, in_pointers, len(sources), pointers(targets), len(targets), handle),
            (sources, targets),
            {info.name: value for info, value in zip(infos, results, strict=True)},
        )

    def bind(
        self, inputs: Tensors, outputs: Tensors, stream: int | None = None, entry: str | None = None
    ) -> Callable[[], None]:
        """Return a function that runs a model with these tensors, checked and bound once, without further overhead.

        For measurements: it takes no lock, so neither the session nor the bundle may be closed meanwhile. The function
        keeps the tensors and the session alive. It raises RunError.
        """
        with self._own():
            model = self._library.entry(entry)
            call = self._call(model, inputs, outputs, stream)
        run = model.table.session_run

        def again() -> None:
            status = run(*call.arguments)
            if status:
                self._library.check(status, self._handle)

        return call.with_room(model, again) if model.name in self._library.with_extents else again

    def output_shapes(self, inputs: Tensors, *, entry: str | None = None) -> dict[str, tuple[int, ...]]:
        """Return the shapes that ``outputs`` of ``run`` must have for these inputs, the largest that a run may give.

        ``inputs`` are in host memory. Raises RunError like ``run``.
        """
        with self._own():
            model = self._library.entry(entry)
            sources = borrow_all(ordered(inputs, model.inputs, "input"), model.inputs, None, writable=False)
            shapes = self._output_shapes(model, pointers(sources), len(sources))
            return {info.name: shape for info, shape in zip(model.outputs, shapes, strict=True)}

    def _output_shapes(self, model: EntryTable, inputs: Any, count: int) -> list[tuple[int, ...]]:
        return output_shapes(model, self._handle, inputs, count, self._library.check)

    def set_constants(self, values: Mapping[str, Any]) -> None:
        """Replace constants of this session by name; None restores the bundle's data.

        ``values`` are tensors as for ``run``; their data are copied. All or nothing. May be called while the session
        runs in another thread: the next run sees all new values, the current one none.

        Raises RunError with the status of the C ABI for unknown names and values that do not match; UsageError after
        ``close``.
        """
        infos = {info.name: info for info in self._library.constants}
        borrowed: list[tensors.Borrowed | None] = []
        for name, value in values.items():
            if name in self._library.fixed_constants:
                reason = self._library.fixed_constants[name]
                raise refuse(Status.CONSTANT, f"constant {name!r} cannot be swapped: {reason}")
            if name not in infos:
                near = suggestion(str(name), infos)
                hint = "bundle.constants lists them; single numbers of the model are part of the code: build again"
                raise refuse(Status.ARGUMENT, f"there is no constant {name!r}{near}", hint)
            dtype = infos[name].dtype
            borrowed.append(None if value is None else tensors.borrow(value, name, dtype, writable=False))
        names = (c_char_p * max(len(values), 1))(*(name.encode() for name in values))
        with exclusively(self._setting, "another thread is setting constants of the session"):
            self._ensure_open()
            pointers = (POINTER(DLTensor) * max(len(values), 1))()
            for index, item in enumerate(borrowed):
                if item is not None:
                    pointers[index] = pointer(item.tensor)
            if borrowed:  # never in a bundle without the function: it lists no constants
                table = self._library.table
                self._library.check(table.session_set_constants(self._handle, names, pointers, len(borrowed)))

    @property
    def states(self) -> States:
        """The tensors that the session keeps between runs, by name; reading and writing ``states["past_k"]`` copies."""
        return States(self._library, self._own)

    def reset(self) -> None:
        """Reset all states to their initial values. Raises RunError if it is running in another thread."""
        with self._own() as (handle, _):
            if self._library.states:  # older bundles lack the function
                self._library.check(self._library.table.session_reset(handle), handle)

    @contextmanager
    def _own(self) -> Iterator[tuple[c_void_p, tensors.Gpu | None]]:
        """Lock the open session; yield its handle, and the GPU whose tensors it accepts."""
        with exclusively(self._running, "the session is running in another thread"):
            self._ensure_open()
            on_cuda = self._library.on_cuda
            yield self._handle, tensors.Gpu(self._device, self._stream or tensors.NO_SYNC) if on_cuda else None

    def close(self) -> None:
        """Destroy the session. Raises RunError if another thread is running it or setting constants."""
        with (
            exclusively(self._running, "the session is running in another thread"),
            exclusively(self._setting, "another thread is setting constants of the session"),
        ):
            if self._handle:
                self._library.destroy_session(self._handle)
                self._handle = c_void_p()
                self._kept = self._arena = None  # destroying the session waits for its work

    def _ensure_open(self) -> None:
        if not self._handle:
            self._library.ensure_open()
            raise UsageError("the session is closed", hint="create another one with bundle.session()")

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._handle and not sys.is_finalizing():
            self.close()
