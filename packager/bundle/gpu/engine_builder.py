"""Builds an engine: a script for a Python that has TensorRT's module, and need not have packager.

``engine_builder.py MODULE [GPU]`` prints what there is, as JSON; ``engine_builder.py MODULE JOB.json`` builds an engine
of the ONNX model that the job names. What goes wrong is said on standard error. Runs in Python 3.6 and later.
"""

import ctypes
import importlib
import json
import sys
from pathlib import Path
from typing import Any

MODULES = {"tensorrt": "tensorrt", "tensorrt_rtx": "tensorrt_rtx_bindings"}
# Layers that versions before 10 are told what to compute in.
SUMMING = ["NORMALIZATION", "POOLING", "REDUCE", "SOFTMAX"]
WEIGHING = ["CONVOLUTION", "DECONVOLUTION", "MATRIX_MULTIPLY"]
ELEMENTWISE = ["ACTIVATION", "ELEMENTWISE", "SCALE", "UNARY"]
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and -MINOR


def version_of(trt: Any) -> "list[int]":
    """Return the library's version as four numbers."""
    numbers = [int("".join(c for c in part if c.isdigit()) or 0) for part in trt.__version__.split(".")]
    return [*numbers, 0, 0, 0, 0][:4]


def folders_of(trt: Any) -> "list[str]":
    """Return the folders that the module has its libraries from."""
    libraries = [sys.modules.get(name) for name in ("tensorrt_libs", "tensorrt_rtx_libs")]
    return [str(Path(one.__file__).absolute().parent) for one in [*libraries, trt] if one is not None]


def gpu(index: int) -> "tuple[int, str]":
    """Return the architecture (90) and the name of a GPU; 0 and nothing if there is none.

    Without a driver the library may crash: this is asked first.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0, ""
    count, device = ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or count.value <= index:
        return 0, ""
    numbers = [ctypes.c_int(), ctypes.c_int()]
    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDeviceGetName(name, 256, device)
    for number, attribute in zip(numbers, (_MAJOR, _MINOR)):  # noqa: B905  (zip takes no strict before Python 3.10)
        driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
    return numbers[0].value * 10 + numbers[1].value, name.value.decode()


def use_gpu(index: int) -> None:
    """Have this process use another GPU than the first: the CUDA runtime takes the current context's."""
    driver = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    driver.cuDeviceGet(ctypes.byref(device), index)
    if driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) or driver.cuCtxSetCurrent(context):
        sys.exit(f"GPU {index} cannot be used")


def make_logger(trt: Any) -> Any:
    """Return a logger that prints errors."""
    return trt.Logger(trt.Logger.ERROR)


def is_typed(trt: Any) -> bool:
    """Whether networks have the types of their tensors: from version 10 on."""
    return hasattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")


def make_network(trt: Any, builder: Any, settings: "dict[str, Any]") -> Any:
    """Return an empty network."""
    if is_typed(trt) and settings["precision"] == "typed":
        return builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    explicit = getattr(trt.NetworkDefinitionCreationFlag, "EXPLICIT_BATCH", None)
    return builder.create_network(0 if explicit is None else 1 << int(explicit))


def parse(trt: Any, network: Any, logger: Any, path: str) -> None:
    """Read an ONNX model into a network; leaves the program if that fails."""
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(path):
        # Names of nodes tell packager what it is; not all versions have them in their text.
        errors = [_with_name(parser.get_error(index)) for index in range(parser.num_errors)]
        sys.exit("it cannot read the graph: " + "; ".join(errors[:3]))


def _with_name(error: Any) -> str:
    name = error.node_name() if hasattr(error, "node_name") else ""
    return str(error) if not name or name in str(error) else str(error) + " (" + name + ")"


def make_config(trt: Any, builder: Any, network: Any, job: "dict[str, Any]") -> Any:
    """Return how to build."""
    settings = job["settings"]
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, settings["workspace_mb"] << 20)
    if hasattr(config, "builder_optimization_level"):
        config.builder_optimization_level = settings["optimization_level"]
    flags = trt.BuilderFlag
    (config.set_flag if settings["allow_tf32"] else config.clear_flag)(flags.TF32)
    if settings["refit"]:
        config.set_flag(flags.REFIT)
    if job["library"] == "tensorrt_lean":
        config.set_flag(flags.VERSION_COMPATIBLE)
        config.set_flag(flags.EXCLUDE_LEAN_RUNTIME)
    kinds = getattr(trt, "TacticSource", None)
    if hasattr(kinds, "CUBLAS"):  # versions that would call cuBLAS and cuDNN at run time
        own = ("EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS")
        config.set_tactic_sources(sum(1 << int(getattr(kinds, name)) for name in own if hasattr(kinds, name)))
    if settings["precision"] == "fp16":
        if not hasattr(flags, "FP16"):
            sys.exit(f"version {trt.__version__} takes types from the model alone: leave -precision=fp16 out")
        keep_types(trt, network, config, settings)
    elif not is_typed(trt):
        keep_types(trt, network, config, settings)
    if job["archs"]:
        config.num_compute_capabilities = len(job["archs"])
        for index, arch in enumerate(job["archs"]):
            name = f"SM{arch}"
            if not hasattr(trt.ComputeCapability, name):
                sys.exit(f"version {trt.__version__} builds no engines for sm_{arch}")
            config.set_compute_capability(getattr(trt.ComputeCapability, name), index)
    return config


def add_profile(trt: Any, builder: Any, config: Any, sizes: "dict[str, list[list[int]]]") -> None:
    """Say between which extents each input with symbolic ones is, and for which the engine is to be fastest."""
    if not sizes:
        return
    profile = builder.create_optimization_profile()
    for name, extents in sizes.items():
        profile.set_shape(name, *extents)
    shared = getattr(getattr(trt, "PreviewFeature", None), "PROFILE_SHARING_0806", None)
    if shared is not None:  # from version 10 on all sessions may use a profile, in 8.6 where it is asked for
        config.set_preview_feature(shared, True)
    if config.add_optimization_profile(profile) < 0:
        sys.exit("it takes no engine for inputs of these sizes: " + json.dumps(sizes))


def keep_types(trt: Any, network: Any, config: Any, settings: "dict[str, Any]") -> None:
    """Have a network of before version 10 compute in float32 what the model does, and the rest in half.

    Its kernels for products of halves may add up in half. Halves are exact in TF32, so ``typed`` products are of
    float32, rounded to that: sums are then in float32. What is elementwise and between halves is left to the library:
    it makes one kernel of a product and what follows, in the widest type of both. Of ``fp16`` only sums of layers stay
    in float32; the library computes all of a transformer so, once its softmax or normalizations are, products by TF32.
    """
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    typed = settings["precision"] == "typed"
    if typed and not any(trt.float16 in types_of(layer) for layer in layers):
        return
    config.set_flag(trt.BuilderFlag.FP16)
    kinds = kinds_of(trt, SUMMING + WEIGHING + ELEMENTWISE if typed else SUMMING)
    free = layers_between_halves(trt, network, layers) if typed else set()
    single = [
        layer
        for index, layer in enumerate(layers)
        if layer.type in kinds and index not in free and set(types_of(layer)) == {trt.float32}
    ]
    products = [layer for layer in layers if typed and layer.type in kinds_of(trt, WEIGHING)]
    halves = [layer for layer in products if set(types_of(layer)) == {trt.float16}]
    if len(halves) == len(products) or not typed:
        config.set_flag(trt.BuilderFlag.TF32)
    for layer in single + halves:
        layer.precision = trt.float32
    if single or halves:
        config.set_flag(trt.BuilderFlag.PREFER_PRECISION_CONSTRAINTS)


def kinds_of(trt: Any, names: "list[str]") -> "list[Any]":
    """Return those kinds of layers that this version has."""
    return [getattr(trt.LayerType, name) for name in names if hasattr(trt.LayerType, name)]


def types_of(layer: Any) -> "list[Any]":
    """Return the types of a layer's results."""
    return [layer.get_output_type(number) for number in range(layer.num_outputs)]


def layers_between_halves(trt: Any, network: Any, layers: "list[Any]") -> "set[int]":
    """Return the elementwise layers of float32 that only such, from casts of halves to casts to halves, are beside."""
    elementwise, casts = kinds_of(trt, ELEMENTWISE), kinds_of(trt, ["CAST", "IDENTITY"])
    moves, fixed = kinds_of(trt, ["SHUFFLE", "SLICE", "CONCATENATION"]), kinds_of(trt, ["CONSTANT"])
    made = {}  # the layers that float32 tensors are from
    for index, layer in enumerate(layers):
        for number in range(layer.num_outputs):
            made[layer.get_output(number).name] = index
    outside = {network.get_output(index).name for index in range(network.num_outputs)}
    parts = list(range(len(layers)))  # a layer of the same part, itself for one of each

    def part_of(index: int) -> int:
        while parts[index] != index:
            index = parts[index]
        return index

    bound = set()  # parts that something else is beside
    for index, layer in enumerate(layers):
        of_halves = layer.type in casts or layer.type in fixed
        if not of_halves and layer.type not in elementwise and layer.type not in moves:
            bound.add(index)
        bound.update(index for number in range(layer.num_outputs) if layer.get_output(number).name in outside)
        for number in range(layer.num_inputs):
            tensor = layer.get_input(number)
            if tensor is None or tensor.dtype != trt.float32:
                continue
            source = made.get(tensor.name)
            if source is None or (layers[source].type in casts and layers[source].get_input(0).dtype != trt.float16):
                bound.add(index)  # an input of the model's
            elif layers[source].type not in casts and layers[source].type not in fixed and layer.type not in casts:
                parts[part_of(index)] = part_of(source)
    wide = {part_of(index) for index in bound}
    return {index for index, layer in enumerate(layers) if layer.type in elementwise and part_of(index) not in wide}


def start_timing_cache(config: Any, path: str) -> None:
    """Have the builder know what a file says of earlier times."""
    try:
        known = Path(path).read_bytes()
    except FileNotFoundError:
        known = b""
    config.set_timing_cache(config.create_timing_cache(known), True)


def save_timing_cache(config: Any, path: str) -> None:
    """Write what the builder has measured."""
    cache = config.get_timing_cache()
    if cache is not None:
        Path(path).write_bytes(cache.serialize())


def build(trt: Any, job: "dict[str, Any]") -> "dict[str, Any]":
    """Build what a job says, and return what the engine is."""
    arch, name = gpu(job["device"])
    if not arch and not job["archs"]:
        sys.exit("there is no GPU, which TensorRT needs to build engines")
    if arch and not job["archs"]:
        use_gpu(job["device"])
    logger = make_logger(trt)
    builder = trt.Builder(logger)
    network = make_network(trt, builder, job["settings"])
    parse(trt, network, logger, job["model"])
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    if not is_typed(trt) and job["settings"].get("int64"):
        sys.exit("version " + trt.__version__ + " has no 64-bit integers: leave -int64 out")
    config = make_config(trt, builder, network, job)
    add_profile(trt, builder, config, job["settings"].get("profile", {}))
    timings = job["timing_cache"] and not job["archs"]
    if timings:
        start_timing_cache(config, job["timing_cache"])
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        sys.exit("it cannot build the engine")
    if timings:
        save_timing_cache(config, job["timing_cache"])
    Path(job["engine"]).write_bytes(memoryview(plan))
    memory = 0
    if not job["archs"]:
        engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
        memory = int(getattr(engine, "device_memory_size_v2", 0) or engine.device_memory_size)
    tensors = [[one.name, str(one.dtype).rpartition(".")[2].lower(), list(one.shape)] for one in inputs + outputs]
    one = job["archs"][0] if len(job["archs"]) == 1 else 0
    return {
        "version": version_of(trt),
        "arch": one if job["archs"] else arch,
        "gpu": name,
        "memory": memory,
        "tensors": tensors,
    }


def main() -> None:
    """Say what there is, or build."""
    try:
        trt = importlib.import_module(MODULES[sys.argv[1]])
    except (ImportError, OSError) as error:
        sys.exit(str(error))
    if len(sys.argv) < 3 or sys.argv[2].isdigit():
        arch, name = gpu(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
        print(json.dumps({"version": version_of(trt), "arch": arch, "gpu": name, "folders": folders_of(trt)}))
        return
    job = json.loads(Path(sys.argv[2]).read_text())
    Path(job["facts"]).write_text(json.dumps(build(trt, job)))


if __name__ == "__main__":
    main()
