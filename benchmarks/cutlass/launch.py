"""Launch kernels that cutlass/build.py has made, by CUDA's driver API; the problems that they are given.

Needs neither packager nor torch. Structures are those of cutlass/common/problems.h, packager_cuda.h and cuda.h.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cutlass.convolutions import Conv, Stem
from packager.backends.cutlass.conv.groups import group_width, part_channels

ALIGNMENT = 128  # of arguments, some of which begin with tensor maps
PROGRAMMATIC = 1  # PK_CUDA_PROGRAMMATIC
MAX_DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_...
PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_...

_Pair = ctypes.c_int64 * 2
_Strides = ctypes.c_int64 * 3
_Extent = ctypes.c_uint32 * 3


class GemmProblem(ctypes.Structure):
    """As pk_gemm_t."""

    _fields_ = (
        *[(name, ctypes.c_uint64) for name in ("a", "b", "bias", "c", "d", "workspace")],
        *[(name, ctypes.c_int64) for name in ("m", "n", "k", "batch", "lda", "ldb", "ldc", "ldd")],
        *[(f"batch_{name}", ctypes.c_int64) for name in "abcd"],
        ("alpha", ctypes.c_float),
        ("beta", ctypes.c_float),
        ("counters", ctypes.c_uint64),
    )


class BlockGemmProblem(ctypes.Structure):
    """As pk_block_gemm_t."""

    _fields_ = (
        *(("gemm", GemmProblem), ("scales", ctypes.c_uint64), ("zeros", ctypes.c_uint64), ("block", ctypes.c_int64)),
        *(("floats", ctypes.c_uint64), ("slice", ctypes.c_int64)),
    )


class DequantizeProblem(ctypes.Structure):
    """As pk_dequantize_t."""

    _fields_ = (
        *[(name, ctypes.c_uint64) for name in ("b", "scales", "zeros", "d")],
        *[(name, ctypes.c_int64) for name in ("first", "n", "k", "block")],
    )


class AttentionProblem(ctypes.Structure):
    """As pk_attention_t."""

    _fields_ = (
        *[(name, ctypes.c_uint64) for name in ("q", "k", "v", "o", "bias", "lengths", "sinks", "workspace")],
        *[(name, ctypes.c_int64) for name in ("batch", "heads", "queries", "keys", "depth", "value_depth", "group")],
        *[(f"{name}_strides", _Strides) for name in ("q", "k", "v", "o", "bias")],
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("counters", ctypes.c_uint64),
    )


class ConvProblem(ctypes.Structure):
    """As pk_conv_t."""

    _fields_ = (
        *[(name, ctypes.c_uint64) for name in ("x", "w", "bias", "residual", "y", "workspace")],
        *[(name, ctypes.c_int64) for name in ("batch", "height", "width", "channels", "filters")],
        *[(name, ctypes.c_int64) for name in ("out_height", "out_width")],
        *[(name, _Pair) for name in ("window", "padding", "stride", "dilation")],
        *[(name, ctypes.c_int64) for name in ("groups", "part")],
    )


class Scales(ctypes.Structure):
    """As pk_scales_t."""

    _fields_ = (
        *[(name, ctypes.c_uint64) for name in ("offset", "scale", "bias")],
        ("offset_of_all", ctypes.c_int32),
        *[(name, ctypes.c_float) for name in ("scale_of_all", "bias_of_all", "beta", "gain", "zero", "low", "high")],
    )


class QuantizedGemm(ctypes.Structure):
    """As pk_quantized_gemm_t."""

    _fields_ = (("gemm", GemmProblem), ("scales", Scales))


class QuantizedConv(ctypes.Structure):
    """As pk_quantized_conv_t."""

    _fields_ = (("conv", ConvProblem), ("scales", Scales))


def conv_problem(problem: Conv, **addresses: int) -> ConvProblem:
    """Return a convolution as kernels are given it."""
    made = ConvProblem(batch=problem.batch, channels=problem.channels, filters=problem.filters, **addresses)
    made.height = made.width = problem.size
    made.out_height = made.out_width = problem.out_size
    for name, number in (("window", problem.window), ("padding", problem.padding), ("stride", problem.stride)):
        getattr(made, name)[:] = (number, number)
    made.dilation[:] = (1, 1)
    if problem.groups > 1:
        sizes = problem.channels, problem.filters, problem.groups
        made.groups, made.part = problem.groups, part_channels(*sizes, group_width(*sizes))
    return made


def stem_problem(problem: Stem, **addresses: int) -> ConvProblem:
    """Return a convolution of few channels as kernels by rows are given it."""
    made = conv_problem(problem, **addresses)
    made.channels, made.width = problem.fold * problem.pixel, problem.padded_width
    made.height = -(-problem.size // problem.fold)
    made.window[:], made.stride[0] = problem.padded_window, problem.stride // problem.fold
    made.padding[:] = ((problem.padding + problem.above) // problem.fold, 0)
    return made


class Launch(ctypes.Structure):
    """As pk_cuda_launch_t."""

    _fields_ = (("grid", _Extent), ("block", _Extent), ("shared_bytes", ctypes.c_uint32), ("flags", ctypes.c_uint32))


class LaunchAttribute(ctypes.Structure):
    """As CUlaunchAttribute, of a number."""

    _fields_ = (*[(name, ctypes.c_int32) for name in ("id", "pad", "value")], ("rest", ctypes.c_char * 60))


class LaunchConfig(ctypes.Structure):
    """As CUlaunchConfig."""

    _fields_ = (
        *(("grid", _Extent), ("block", _Extent), ("shared_bytes", ctypes.c_uint32), ("stream", ctypes.c_void_p)),
        *(("attributes", ctypes.POINTER(LaunchAttribute)), ("num_attributes", ctypes.c_uint32)),
    )


class _Entry(ctypes.Structure):
    """As entry_t of kernels.so."""

    _fields_ = (
        *(("name", ctypes.c_char_p), ("fill", ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4))),
        *(("bytes", ctypes.POINTER(ctypes.c_uint32)), ("shared_bytes", ctypes.POINTER(ctypes.c_uint32))),
    )


class CudaError(RuntimeError):
    """A function of the driver has failed."""


@dataclass(frozen=True)
class Filled:
    """A launch and its arguments, which are in ``memory``."""

    launch: Launch
    address: int
    memory: ctypes.Array[ctypes.c_char]


class Driver:
    """libcuda and the host's halves of a folder's kernels. Whoever makes it has a context that is current."""

    def __init__(self, folder: Path, num_sms: int) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._cuda.cuModuleLoadData.argtypes = [ctypes.c_void_p] * 2
        self._cuda.cuModuleGetFunction.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p]
        self._cuda.cuFuncSetAttribute.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
        self._cuda.cuLaunchKernel.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]
        self._cuda.cuLaunchKernelEx.argtypes = [ctypes.c_void_p] * 4
        self._folder = folder
        self._device = (ctypes.c_int32 * 2)(90, num_sms)  # pk_cuda_device_t
        self._library = ctypes.CDLL(str(folder.resolve() / "kernels.so"))
        for name, function in (("tiled", "Tiled"), ("im2col", "Im2col")):
            address = ctypes.cast(getattr(self._cuda, f"cuTensorMapEncode{function}"), ctypes.c_void_p)
            ctypes.c_void_p.in_dll(self._library, f"encode_{name}").value = address.value
        self._entries: dict[str, _Entry] = {}
        table = ctypes.addressof(ctypes.c_char.in_dll(self._library, "table"))
        while (entry := _Entry.from_address(table)).name is not None:
            self._entries[entry.name.decode()] = entry
            table += ctypes.sizeof(_Entry)
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._images: list[bytes] = []

    def fill(self, kernel: str, problem: ctypes.Structure) -> Filled | None:
        """Return how a kernel solves a problem, None if it does not take it."""
        entry, launch = self._entries[kernel], Launch()
        memory = ctypes.create_string_buffer(entry.bytes[0] + ALIGNMENT)
        address = -(-ctypes.addressof(memory) // ALIGNMENT) * ALIGNMENT
        refused = entry.fill(ctypes.byref(self._device), ctypes.byref(problem), address, ctypes.byref(launch))
        return None if refused else Filled(launch, address, memory)

    def launch(self, kernel: str, filled: Filled, stream: int, *, programmatic: bool) -> None:
        """Launch a kernel. ``programmatic``: it may start while the one before it ends, where it can itself wait.

        Raises CudaError.
        """
        function, launch = self._function(kernel), filled.launch
        arguments = (ctypes.c_void_p * 1)(filled.address)
        if not (programmatic and launch.flags & PROGRAMMATIC):
            extents = (*launch.grid, *launch.block, launch.shared_bytes)
            return self._call("cuLaunchKernel", kernel, function, *extents, stream, arguments, None)
        attribute = LaunchAttribute(PROGRAMMATIC_STREAM_SERIALIZATION, 0, 1)
        config = LaunchConfig(launch.grid, launch.block, launch.shared_bytes, stream, ctypes.pointer(attribute), 1)
        return self._call("cuLaunchKernelEx", kernel, ctypes.byref(config), function, arguments, None)

    def _function(self, kernel: str) -> ctypes.c_void_p:
        """Return a kernel's function; its module is loaded at the first call and stays."""
        if kernel not in self._functions:
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            image = (self._folder / f"{kernel}.fatbin").read_bytes()
            self._images.append(image)
            self._call("cuModuleLoadData", kernel, ctypes.byref(module), image)
            self._call("cuModuleGetFunction", kernel, ctypes.byref(function), module, kernel.encode())
            shared_bytes = self._entries[kernel].shared_bytes[0]
            self._call("cuFuncSetAttribute", kernel, function, MAX_DYNAMIC_SHARED_BYTES, shared_bytes)
            self._functions[kernel] = function
        return self._functions[kernel]

    def _call(self, function: str, kernel: str, *arguments: object) -> None:
        result = getattr(self._cuda, function)(*arguments)
        if result:
            name = ctypes.c_char_p()
            self._cuda.cuGetErrorName(result, ctypes.byref(name))
            raise CudaError(f"{function} of {kernel}: {(name.value or b'unknown error').decode()} ({result})")
