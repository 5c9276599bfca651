"""Cases of the GPU zoo: a model, a batch, and how it is compiled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.gpu.entries import GPU_ENTRIES
from benchmarks.gpu.torch_models import repeat_weights, settle_norms
from benchmarks.harness.gpu import matches
from benchmarks.zoo.entry import Entry
from benchmarks.zoo.held_out import HELD_OUT
from benchmarks.zoo.models import SEED, ZOO, instance
from benchmarks.zoo.unseen.architectures import ARCHITECTURES
from benchmarks.zoo.unseen.attentions import ATTENTIONS
from benchmarks.zoo.unseen.blocks import BLOCKS
from benchmarks.zoo.unseen.convolutions import CONVOLUTIONS
from benchmarks.zoo.unseen.iterations import ITERATIONS
from benchmarks.zoo.unseen.matching import MATCHING
from benchmarks.zoo.unseen.mixtures import MIXTURES
from benchmarks.zoo.unseen.sequences import SEQUENCES
from benchmarks.zoo.unseen.sizes import SIZES
from benchmarks.zoo.unseen.transformers_models import TRANSFORMERS

# Too wide for what measures CPUs.
WIDE = (
    *TRANSFORMERS,
    *ARCHITECTURES,
    *ATTENTIONS,
    *BLOCKS,
    *CONVOLUTIONS,
    *MATCHING,
    *SEQUENCES,
    *ITERATIONS,
    *MIXTURES,
    *SIZES,
    *GPU_ENTRIES,
)
ENTRIES: dict[str, Entry] = ZOO | HELD_OUT | {entry.name: entry for entry in WIDE}
BATCHES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("resnext50", "regnety_400mf", "mobilenet_v2", "efficientnet_b0", "convnext_tiny"), (1, 16)),
    **dict.fromkeys(("densenet", "vit_b16", "swin_tiny", "mixer_s16", "segformer_b0", "yolo_n"), (1, 16)),
    **dict.fromkeys(
        ("unet", "vae_decoder", "diffusion_unet", "esrgan", "dcgan", "stylegan2", "r3d", "hifigan"), (1, 8)
    ),
    **dict.fromkeys(("whisper_encoder", "wav2vec2", "conformer", "conv_tasnet"), (1, 8)),
    **dict.fromkeys(("bert_base", "modernbert", "t5_encoder", "gpt2_small", "llama_prompt", "qwen3_prompt"), (1, 8)),
    **dict.fromkeys(("dlrm", "deepfm", "ft_transformer", "lstm_batch", "pointnet", "patchtst"), (1, 8)),
    **dict.fromkeys((entry.name for entry in GPU_ENTRIES if entry.name.startswith("llama_layer")), (1,)),
    **dict.fromkeys((entry.name for entry in SIZES), (1, 3)),
    "diffusion_down": (1,),
    "resnet50": (1, 32),
}
OTHERS = (1, 8)  # of models that BATCHES lacks
MOST = 32  # the largest batch of what takes any
CUTLASS = "cutlass -candidates=1"  # what runs without `tune`


@dataclass(frozen=True)
class Form:
    """What a model is compiled from and to: Targets beside ``cuda``, the precision, and the file.

    ``halves``: the file itself is in that precision, inputs and weights. ``batches``: it takes any batch up to MOST.
    """

    targets: tuple[str, ...] = ()
    precision: str = "fp16"
    suffix: str = ".onnx"
    halves: bool = False
    batches: bool = False


FORMS = {
    "cuda": Form(),
    "cutlass": Form((CUTLASS,)),
    "cutlass_bf16": Form((CUTLASS,), "bf16"),
    "cutlass_pt2": Form((CUTLASS,), suffix=".pt2"),
    "cutlass_half": Form((CUTLASS,), suffix=".pt2", halves=True),
    "cutlass_half_bf16": Form((CUTLASS,), "bf16", suffix=".pt2", halves=True),
    "cutlass_half_onnx": Form((CUTLASS,), halves=True),
    "cutlass_batches": Form((CUTLASS,), batches=True),
    "cublas": Form(("cublas",)),
    "cudnn": Form(("cudnn",)),
    "libraries": Form(("cublas", "cudnn")),
    "mixed": Form((CUTLASS, "cublas", "cudnn")),
    "tensorrt": Form(("tensorrt -engines=pending", CUTLASS)),  # for `packager finalize`, before `run`
    "tensorrt_fp16": Form(("tensorrt -engines=pending -precision=fp16", CUTLASS)),
    "trial": Form((CUTLASS, "cublas", "cudnn -operators=conv1d,conv2d,conv3d,conv_transpose,depthwise")),
}


@dataclass(frozen=True)
class Case:
    """A model for a batch in a form."""

    model: str
    batch: int
    form: str

    @property
    def stem(self) -> str:
        """The name of its files: ``bert_base-8-cutlass``."""
        return f"{self.model}-{self.batch}-{self.form}"


def cases(only: str) -> Iterator[Case]:
    """Yield the cases that the patterns of MODEL-BATCH/FORM take."""
    for model in ENTRIES:
        for batch in BATCHES.get(model, OTHERS):
            for form in FORMS:
                if matches(f"{model}-{batch}/{form}", only or "*/cutlass"):
                    yield Case(model, batch, form)


def module_of(entry: Entry, batch: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Return a model and inputs of so many times its own batch, always the same."""
    module, single = instance(entry)
    repeat_weights(module)
    torch.manual_seed(SEED)
    several = [single, *(entry.inputs() for _ in range(batch - 1))]
    settle_norms(module.eval(), single)
    return module, {name: torch.cat([one[name] for one in several]) for name in single}


def in_precision(inputs: Mapping[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return inputs whose floats have a precision."""
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in inputs.items()}
