"""Networks of Ultralytics and PaddlePaddle, by the exporters of each."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .case import Bounds, Case, Sizes

IMAGE: dict[str, Bounds] = {"batch": (1, 4), "height": (64, 128), "width": (64, 128)}
IMAGE_SIZES: tuple[Sizes, ...] = (
    {"batch": 1, "height": 64, "width": 64},
    {"batch": 3, "height": 96, "width": 128},
)


def _yolo(name: str, **options: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            # Nothing is downloaded: a name of a .yaml file is a model with random weights.
            os.environ |= {"YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false", "YOLO_CONFIG_DIR": folder}
            import torch
            import ultralytics

            torch.manual_seed(0)
            before = Path.cwd()
            os.chdir(folder)
            try:
                kind = ultralytics.RTDETR if name.startswith("rtdetr") else ultralytics.YOLO
                made = kind(f"{name}.yaml").export(format="onnx", imgsz=64, simplify=False, opset=17, **options)
                shutil.move(made, path)
            finally:
                os.chdir(before)

    return write


def _ultralytics(name: str, file: str, dims: dict[str, Bounds], *sizes: Sizes, **options: Any) -> Case:
    return Case("ultralytics", name, _yolo(file, **options), dims, sizes, ("ultralytics",), tolerance=5e-4)


def _paddle(make: Callable[[Any], Any], shape: tuple[str | int, ...], dtype: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        import onnx
        import paddle

        paddle.seed(0)
        model = make(paddle)
        model.eval()
        spec = paddle.static.InputSpec([extent if isinstance(extent, int) else None for extent in shape], dtype, "x")
        paddle.onnx.export(model, str(path.with_suffix("")), input_spec=[spec], opset_version=16)
        proto = onnx.load(path)
        for axis, extent in enumerate(shape):  # Paddle names the dims DynamicDimension.0 and so on
            if isinstance(extent, str):
                proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = extent
        onnx.save(proto, path)

    return write


def _paddle_resnet(paddle: Any) -> Any:
    models = paddle.vision.models
    return models.ResNet(models.resnet.BasicBlock, 18, num_classes=5)


def _paddle_mobilenet(paddle: Any) -> Any:
    return paddle.vision.models.mobilenet_v3_small(scale=0.35, num_classes=5)


def _paddle_recognizer(paddle: Any) -> Any:
    """Return the shape of PaddleOCR's recognizer: convolutions, an LSTM over columns, scores per column."""
    nn = paddle.nn

    class Recognizer(nn.Layer):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2D(3, 8, 3, 2, 1),
                nn.BatchNorm2D(8),
                nn.Hardswish(),
                nn.Conv2D(8, 16, 3, (2, 1), 1),
                nn.ReLU(),
                nn.MaxPool2D((8, 1)),
            )
            self.rnn = nn.LSTM(16, 12, direction="bidirect")
            self.last = nn.Linear(24, 10)

        def forward(self, image: Any) -> Any:
            columns = self.body(image).squeeze(2).transpose([0, 2, 1])
            return nn.functional.softmax(self.last(self.rnn(columns)[0]), 2)

    return Recognizer()


def _paddle_encoder(paddle: Any) -> Any:
    nn = paddle.nn
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0)
    return nn.Sequential(nn.Embedding(100, 32), nn.TransformerEncoder(layer, 2), nn.Linear(32, 5))


def _paddle_case(
    name: str,
    make: Callable[[Any], Any],
    shape: tuple[str | int, ...],
    dims: dict[str, Bounds],
    *sizes: Sizes,
) -> Case:
    dtype = "int64" if len(shape) == 2 else "float32"
    return Case("paddle2onnx", name, _paddle(make, shape, dtype), dims, sizes, ("paddle", "paddle2onnx"))


TOOLKITS = [
    *(
        _ultralytics(f"{name}_sized", name, IMAGE, *IMAGE_SIZES, dynamic=True)
        for name in ("yolov5n", "yolov8n", "yolov8n-seg", "yolov8n-pose", "yolo11n")
    ),
    _ultralytics("yolov8n-cls", "yolov8n-cls", {}, {}),
    _ultralytics("yolov8n-obb", "yolov8n-obb", {}, {}),
    _ultralytics("yolov8n_nms", "yolov8n", {}, {}, nms=True),
    _paddle_case("paddle_resnet18", _paddle_resnet, ("n", 3, 64, 64), {"n": (1, 4)}, {"n": 1}, {"n": 3}),
    _paddle_case("paddle_mobilenet", _paddle_mobilenet, ("n", 3, 64, 64), {"n": (1, 4)}, {"n": 1}, {"n": 3}),
    _paddle_case(
        "paddle_recognizer",
        _paddle_recognizer,
        ("n", 3, 32, "w"),
        {"n": (1, 4), "w": (32, 320)},
        {"n": 1, "w": 32},
        {"n": 3, "w": 100},
    ),
    _paddle_case(
        "paddle_encoder", _paddle_encoder, ("n", "t"), {"n": (1, 4), "t": (1, 16)}, {"n": 1, "t": 5}, {"n": 3, "t": 16}
    ),
]
