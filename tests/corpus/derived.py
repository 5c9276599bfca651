"""Files that tools make of other files: onnxruntime's quantizers and optimizers, onnxconverter-common, onnxslim."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime import quantization
from onnxruntime.quantization.shape_inference import quant_pre_process

from .case import Case
from .feeds import feed, shape_at

Convert = Callable[[Case, Path, Path], None]
INT8 = 0.1  # roundings of activations in another order
FP16 = 2e-2


class Samples(quantization.CalibrationDataReader):  # type: ignore[misc]
    """Random inputs at the first and last sizes of a case."""

    def __init__(self, case: Case, path: Path) -> None:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        fixed = {name: bounds for name, bounds in case.dims.items() if isinstance(bounds, int)}
        self.feeds = iter(
            {
                spec.name: feed(
                    spec.name, spec.type, shape_at(spec.shape, {**fixed, **sizes}), {**fixed, **sizes}, seed
                )
                for spec in session.get_inputs()
            }
            for seed, sizes in enumerate([case.sizes[-1]] * 4)
        )

    def get_next(self) -> Mapping[str, np.ndarray[Any, Any]] | None:
        return next(self.feeds, None)


def _static(quant_format: quantization.QuantFormat, **options: Any) -> Convert:
    def convert(case: Case, source: Path, path: Path) -> None:
        prepared = source.with_suffix(".prepared.onnx")
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        # A mask of -3e38 has no scale: of transformers people quantize the products alone.
        quantization.quantize_static(
            prepared,
            path,
            Samples(case, prepared),
            quant_format=quant_format,
            op_types_to_quantize=["MatMul", "Gemm"] if case.model in TEXT else None,
            **options,
        )

    return convert


def _dynamic(_: Case, source: Path, path: Path) -> None:
    quantization.quantize_dynamic(source, path, weight_type=quantization.QuantType.QInt8)


def _blockwise(_: Case, source: Path, path: Path) -> None:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(onnx.load(source), block_size=32, is_symmetric=True)
    quantizer.process()
    quantizer.model.save_model_to_file(str(path))


def _saved(level: str) -> Convert:
    def convert(_: Case, source: Path, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
        options.optimized_model_filepath = str(path)
        onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    return convert


def _fused(kind: str, half: bool = False) -> Convert:
    def convert(_: Case, source: Path, path: Path) -> None:
        from onnxruntime.transformers import optimizer

        logging.getLogger("onnxruntime.transformers").setLevel(logging.ERROR)
        model = optimizer.optimize_model(str(source), kind, num_heads=4, hidden_size=64, opt_level=0)
        if half:
            model.convert_float_to_float16(keep_io_types=True)
        model.save_model_to_file(str(path))

    return convert


def _half(**options: Any) -> Convert:
    def convert(_: Case, source: Path, path: Path) -> None:
        from onnxconverter_common import float16

        onnx.save(float16.convert_float_to_float16(onnx.load(source), **options), path)

    return convert


def _slim(_: Case, source: Path, path: Path) -> None:
    import onnxslim

    onnxslim.slim(str(source), str(path))


def _shaped(_: Case, source: Path, path: Path) -> None:
    from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference

    onnx.save(SymbolicShapeInference.infer_shapes(onnx.load(source), auto_merge=True), path)


STATIC = ("resnet", "mobilenetv2", "yolo", "bert", "unet")
TEXT = ("bert", "gpt2", "llama")
# exporter -> what converts, the models, the tolerance, and what it needs.
TOOLS: dict[str, tuple[Convert, tuple[str, ...], float, tuple[str, ...]]] = {
    "ort_qdq": (_static(quantization.QuantFormat.QDQ), STATIC, INT8, ()),
    "ort_qdq_s8_channel": (
        _static(
            quantization.QuantFormat.QDQ,
            activation_type=quantization.QuantType.QInt8,
            per_channel=True,
            extra_options={"ActivationSymmetric": True},
        ),
        ("resnet", "yolo", "vit"),
        INT8,
        (),
    ),
    "ort_qoperator": (_static(quantization.QuantFormat.QOperator), STATIC, INT8, ()),
    "ort_dynamic_int8": (_dynamic, ("bert", "gpt2", "t5_encoder", "bilstm", "vit", "resnet"), INT8, ()),
    "ort_matmul_nbits": (_blockwise, ("llama", "bert"), 1e-2, ()),
    "ort_basic": (_saved("BASIC"), ("bert", "yolo", "resnet", "whisper_encoder"), 1e-4, ()),
    "ort_extended": (_saved("EXTENDED"), ("bert", "gpt2", "llama", "yolo", "resnet", "vit"), 1e-4, ()),
    "ort_all": (_saved("ALL"), ("bert", "resnet", "yolo"), 1e-4, ()),
    "ort_transformers": (_fused("bert"), ("bert", "roberta", "vit", "distilbert"), 1e-4, ()),
    "ort_transformers_gpt2": (_fused("gpt2"), ("gpt2", "llama"), 1e-4, ()),
    "ort_transformers_fp16": (_fused("bert", half=True), ("bert",), FP16, ()),
    "ort_shape_inference": (_shaped, ("bert", "yolo"), 1e-4, ("sympy",)),
    "fp16": (_half(), ("resnet", "bert", "vit", "unet"), FP16, ("onnxconverter_common",)),
    "fp16_float_io": (_half(keep_io_types=True), ("resnet", "bert", "vit"), FP16, ("onnxconverter_common",)),
    "onnxslim": (_slim, ("bert", "yolo", "t5"), 1e-4, ("onnxslim",)),
}


def derived(sources: Mapping[str, Case]) -> list[Case]:
    """Return a case for each model of each tool, made of the TorchScript file of that model."""

    def case(tool: str, model: str) -> Case:
        convert, _, tolerance, needs = TOOLS[tool]
        source = sources[f"{model}.torchscript"]

        def make(path: Path) -> None:
            with tempfile.TemporaryDirectory() as folder:
                made = Path(folder, "source.onnx")
                source.make(made)
                convert(source, made, path)

        return Case(
            tool,
            model,
            make,
            source.dims,
            source.sizes,
            needs,
            tolerance,
            source.random,
            0.02 if tolerance == INT8 else 0.0,
        )

    return [case(tool, model) for tool, (_, models, _, _) in TOOLS.items() for model in models]
