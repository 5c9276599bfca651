"""Converts CUDA streams of other libraries to handles for the C ABI."""

from __future__ import annotations

from typing import Any

from packager.deploy.load.abi import ARGUMENT
from packager.deploy.load.tensors import refuse

_LEGACY = 1  # CU_STREAM_LEGACY, also DLPack's number; NULL means the session's own stream
_PROTOCOL = 0  # version of __cuda_stream__


def stream_handle(stream: Any) -> int:
    """Return the handle of a stream: an integer, a stream of torch or CuPy, or an object with ``__cuda_stream__``.

    The legacy default stream (handle 0) is returned as its alias 1; the per-thread default stream is 2. Raises
    RunError.
    """
    handle = stream
    if hasattr(stream, "__cuda_stream__"):  # (version, handle)
        version, handle = stream.__cuda_stream__()
        if version != _PROTOCOL:
            raise refuse(ARGUMENT, f"stream: __cuda_stream__ of version {version}, expected {_PROTOCOL}")
    elif hasattr(stream, "cuda_stream"):  # torch.cuda.Stream
        handle = stream.cuda_stream
    elif hasattr(stream, "ptr"):  # cupy.cuda.Stream
        handle = stream.ptr
    if not isinstance(handle, int) or isinstance(handle, bool) or not 0 <= handle < 1 << 64:
        shown = handle if isinstance(handle, int) else type(handle).__name__
        hint = "give its handle, a torch.cuda.Stream, a cupy.cuda.Stream, or an object with __cuda_stream__"
        raise refuse(ARGUMENT, f"stream is {shown}, which is not a CUDA stream", hint)
    return handle or _LEGACY
