"""ctypes mirror of the C ABI of ``packager.h``, and a hint for each of its statuses."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from enum import IntEnum

from packager.bundle.dtypes import BY_DLPACK
from packager.errors import RunError

CPU_DEVICES = (1, 3)  # kDLCPU, kDLCUDAHost: readable by the host
CUDA_HOST = 3
CUDA_DEVICES = (2, 13)  # kDLCUDA, kDLCUDAManaged: readable by a GPU
GRAPH_MODES = {"auto": 0, "on": 1, "off": 2}  # packager_graph_mode_t


class DLDevice(ctypes.Structure):
    _fields_ = (("device_type", c_int32), ("device_id", c_int32))


class DLDataType(ctypes.Structure):
    _fields_ = (("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16))


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device", DLDevice),
        ("ndim", c_int32),
        ("dtype", DLDataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


class TensorInfoStruct(ctypes.Structure):
    _fields_ = (
        ("name", c_char_p),
        ("dtype", DLDataType),
        ("ndim", c_int32),
        ("shape", POINTER(c_int64)),
        ("min_shape", POINTER(c_int64)),
        ("max_shape", POINTER(c_int64)),
        ("dims", POINTER(c_char_p)),
    )


class ConstantInfoStruct(ctypes.Structure):
    _fields_ = (
        ("name", c_char_p),
        ("dtype", DLDataType),
        ("ndim", c_int32),
        ("shape", POINTER(c_int64)),
    )


class SessionOptions(ctypes.Structure):
    _fields_ = (
        ("struct_size", c_uint32),
        ("device_index", c_int32),
        ("max_threads", c_int32),
        ("num_selected", c_int32),
        ("parallel_for", c_void_p),
        ("parallel_for_context", c_void_p),
        ("allocate", c_void_p),
        ("release", c_void_p),
        ("allocator_context", c_void_p),
        ("log", c_void_p),
        ("log_context", c_void_p),
        ("graph", c_int32),
        ("launch_blocking", c_int32),
        ("device_arena", c_void_p),
        ("device_arena_bytes", c_uint64),
        ("selection", POINTER(c_uint8)),
        ("cpu_level", c_char_p),
        ("library_path", c_char_p),
    )


_Tensors = POINTER(POINTER(DLTensor))
Log = ctypes.CFUNCTYPE(None, c_void_p, c_int32, c_char_p)
LOG_WARNING = 1
ProfileReport = ctypes.CFUNCTYPE(None, c_void_p, c_char_p, c_int64, c_int64)


class BundleTable(ctypes.Structure):
    _fields_ = (
        ("struct_size", c_uint32),
        ("abi_version", c_uint32),
        ("name", c_char_p),
        ("manifest", c_void_p),
        ("manifest_size", c_uint64),
        ("arena_bytes", c_uint64),
        ("constant_bytes", c_uint64),
        ("num_inputs", c_int32),
        ("num_outputs", c_int32),
        ("inputs", POINTER(TensorInfoStruct)),
        ("outputs", POINTER(TensorInfoStruct)),
        ("set_threads", ctypes.CFUNCTYPE(c_int32, c_int32)),
        ("session_create", ctypes.CFUNCTYPE(c_int32, POINTER(SessionOptions), POINTER(c_void_p))),
        ("session_run", ctypes.CFUNCTYPE(c_int32, c_void_p, _Tensors, c_int32, _Tensors, c_int32, c_void_p)),
        (
            "session_output_shape",
            ctypes.CFUNCTYPE(c_int32, c_void_p, _Tensors, c_int32, c_int32, POINTER(c_int64)),
        ),
        ("session_destroy", ctypes.CFUNCTYPE(c_int32, c_void_p)),
        ("session_error", ctypes.CFUNCTYPE(c_char_p, c_void_p)),
        ("thread_error", ctypes.CFUNCTYPE(c_char_p)),
        ("status_name", ctypes.CFUNCTYPE(c_char_p, c_int32)),
        ("num_constants", c_int32),
        ("reserved0", c_int32),
        ("constants", POINTER(ConstantInfoStruct)),
        ("session_set_constants", ctypes.CFUNCTYPE(c_int32, c_void_p, POINTER(c_char_p), _Tensors, c_int32)),
        # NULL in bundles built before CUDA support: reserved fields.
        ("session_stream", ctypes.CFUNCTYPE(c_void_p, c_void_p)),
        (
            "session_profile",
            ctypes.CFUNCTYPE(c_int32, c_void_p, _Tensors, c_int32, _Tensors, c_int32, ProfileReport, c_void_p),
        ),
        ("session_cpu_level", ctypes.CFUNCTYPE(c_char_p, c_void_p)),
        ("state_bytes", c_uint64),
        ("num_states", c_int32),
        ("reserved1", c_int32),
        ("states", POINTER(TensorInfoStruct)),
        ("session_get_state", ctypes.CFUNCTYPE(c_int32, c_void_p, c_int32, POINTER(DLTensor))),
        ("session_set_state", ctypes.CFUNCTYPE(c_int32, c_void_p, c_int32, POINTER(DLTensor))),
        ("session_reset", ctypes.CFUNCTYPE(c_int32, c_void_p)),
        ("num_entries", c_int32),
        ("reserved2", c_int32),
        ("entries", POINTER(c_void_p)),  # BundleTable**
        ("reserved", c_void_p * 2),
    )


class Status(IntEnum):
    """``packager_status_t``, without success."""

    ARGUMENT = -1
    RANK = -2
    SHAPE = -3
    DTYPE = -4
    DEVICE = -5
    LAYOUT = -6
    ALIGNMENT = -7
    OVERLAP = -8
    BUSY = -9
    MEMORY = -10
    MACHINE = -11
    WEIGHTS = -12
    THREADS = -13
    KERNEL = -14
    CONSTANT = -15
    DRIVER = -16
    GPU = -17
    LIBRARY = -18


HINTS: dict[int, str] = {
    Status.ARGUMENT: "compare the call with `packager inspect`",
    Status.RANK: "the number of dimensions must be that of `packager inspect`",
    Status.SHAPE: "the extents must be those of `packager inspect`, symbolic dims within their bounds",
    Status.DTYPE: "convert the tensor explicitly; packager never casts",
    Status.DEVICE: "copy the tensor to the device that the bundle was built for",
    Status.LAYOUT: "make the tensor contiguous first",
    Status.ALIGNMENT: "align the data to the element size, for example with .copy()",
    Status.OVERLAP: "give every output memory of its own",
    Status.BUSY: "use one session per thread",
    Status.MEMORY: "free memory, or build with smaller dims (`packager inspect` shows the arena)",
    Status.MACHINE: "`packager verify` names what the machine lacks; rebuild for its CPU and its GPU",
    Status.WEIGHTS: "put the .safetensors file that was built with the bundle beside it",
    Status.THREADS: "lower the number of threads, or raise the limit of the process",
    Status.KERNEL: "this is a bug of the backend that compiled the primitive function",
    Status.CONSTANT: "build again with --constants to give it new data",
    Status.DRIVER: "`packager machine` shows the driver and the GPUs; install a driver that is new enough",
    Status.LIBRARY: "give its folder (packager.load(..., libraries=[...]), --libraries FOLDER), or put the file beside "
    "the bundle; `packager verify` says what is missing",
    Status.GPU: "the process must be started again; launch_blocking=True tells which primitive function faulted",
}


def refuse(status: Status, message: str, hint: str | None = None) -> RunError:
    """Return the error for an argument refused before the bundle is called."""
    return RunError(message, status=status, name=f"PACKAGER_ERROR_{status.name}", hint=hint or HINTS[status])


def dtype_name(dtype: DLDataType) -> str:
    """Return the name of an element type, or a description of an unsupported one."""
    known = BY_DLPACK.get((dtype.code, dtype.bits)) if dtype.lanes == 1 else None
    return known.name if known else f"DLPack type {dtype.code}/{dtype.bits}x{dtype.lanes}"
