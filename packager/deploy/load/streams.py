"""CUDA streams of other libraries, as the C ABI takes them."""

from __future__ import annotations

from typing import Any

from packager.deploy.load.abi import ARGUMENT
from packager.deploy.load.tensors import refuse

_LEGACY = 1  # CU_STREAM_LEGACY, which is also DLPack's number: NULL would mean the session's own stream
_PROTOCOL = 0  # version of __cuda_stream__


def stream_handle(stream: Any) -> int:
    """Return the handle of a stream: an integer, or an object of torch, CuPy or with ``__cuda_stream__``.

    The legacy default stream, whose handle is 0, has the handle 1 as well, which is what is returned; the per-thread
    default stream is 2. Raises RunError.
    """
    handle = stream
    if hasattr(stream, "__cuda_stream__"):  # NVIDIA's protocol: (version, handle)
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
        raise refuse(ARGUMENT, f"stream is {shown}, which is no CUDA stream", hint)
    return handle or _LEGACY
