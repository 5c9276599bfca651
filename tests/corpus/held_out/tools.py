"""Models of Keras, PaddlePaddle, Ultralytics and scikit-learn other than those that packager was tuned on."""

from __future__ import annotations

from typing import Any

from ..case import Bounds, Sizes
from ..classic import _case as rows_case
from ..classic import _of, _pipeline, _sklearn
from ..keras_models import BATCH, IMAGE, TEXT
from ..keras_models import _case as keras_case
from ..toolkits import _paddle_case, _ultralytics

AT: tuple[Sizes, ...] = ({"n": 1}, {"n": 3})
TEXT_AT: tuple[Sizes, ...] = ({"n": 1, "t": 5}, {"n": 3, "t": 16})


def _application(name: str, **options: Any) -> Any:
    def make(keras: Any) -> Any:
        return getattr(keras.applications, name)(input_shape=(32, 32, 3), weights=None, classes=5, **options)

    return make


def _bigru(keras: Any) -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((None,)),
            layers.Embedding(100, 16),
            layers.Bidirectional(layers.GRU(12, return_sequences=True, reset_after=False)),
            layers.SimpleRNN(8, return_sequences=True),
            layers.Conv1D(8, 3, padding="causal", dilation_rate=2),
            layers.GlobalMaxPooling1D(),
            layers.Dense(3),
        ]
    )


def _unrolled(keras: Any) -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((10, 6)),
            layers.LSTM(12, return_sequences=True, unroll=True),
            layers.GRU(8, unroll=True),
            layers.Dense(3),
        ]
    )


def _shuffle(paddle: Any) -> Any:
    return paddle.vision.models.shufflenet_v2_x0_25(num_classes=5)


def _dense(paddle: Any) -> Any:
    return paddle.vision.models.DenseNet(layers=121, num_classes=5)


def _squeeze(paddle: Any) -> Any:
    return paddle.vision.models.squeezenet1_1(num_classes=5)


def _detector(paddle: Any) -> Any:
    """Return the shape of PaddleOCR's detector: a pyramid with transposed convolutions."""
    nn = paddle.nn

    class Detector(nn.Layer):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Sequential(nn.Conv2D(3, 8, 3, 2, 1), nn.BatchNorm2D(8), nn.Hardswish())
            self.two = nn.Sequential(nn.Conv2D(8, 16, 3, 2, 1), nn.BatchNorm2D(16), nn.ReLU())
            self.wide = nn.Conv2DTranspose(16, 16, 2, 2)
            self.lateral, self.join = nn.Conv2D(8, 16, 1), nn.Conv2D(16, 8, 3, padding=1)
            self.up = nn.Sequential(nn.Conv2DTranspose(8, 8, 2, 2), nn.BatchNorm2D(8), nn.ReLU(), nn.Conv2D(8, 1, 1))

        def forward(self, image: Any) -> Any:
            one = self.one(image)
            two = self.two(one)
            joined = self.lateral(one) + self.wide(two)
            return nn.functional.sigmoid(self.up(self.join(joined)))

    return Detector()


def _gru(paddle: Any) -> Any:
    nn = paddle.nn

    class Tagger(nn.Layer):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.rnn, self.last = nn.Embedding(100, 16), nn.GRU(16, 12, 2), nn.Linear(12, 5)

        def forward(self, ids: Any) -> Any:
            return self.last(self.rnn(self.embedding(ids))[0])

    return Tagger()


PICTURES: dict[str, Bounds] = {"n": (1, 4)}
TOOLS = [
    keras_case("keras_resnet50v2", _application("ResNet50V2"), IMAGE, BATCH, *AT),
    keras_case("keras_densenet", _application("DenseNet121"), IMAGE, BATCH, *AT),
    keras_case("keras_efficientnetv2", _application("EfficientNetV2B0"), IMAGE, BATCH, *AT),
    keras_case("keras_mobilenetv3", _application("MobileNetV3Small"), IMAGE, BATCH, *AT),
    keras_case("keras_bigru", _bigru, ("n", "t"), TEXT, *TEXT_AT),
    keras_case("keras_unrolled", _unrolled, ("n", 10, 6), BATCH, *AT),
    _paddle_case("paddle_shufflenet", _shuffle, ("n", 3, 64, 64), PICTURES, *AT),
    _paddle_case("paddle_densenet", _dense, ("n", 3, 64, 64), PICTURES, *AT),
    _paddle_case("paddle_squeezenet", _squeeze, ("n", 3, 64, 64), PICTURES, *AT),
    _paddle_case(
        "paddle_detector",
        _detector,
        ("n", 3, "h", "w"),
        {"n": (1, 2), "h": (32, 96), "w": (32, 96)},
        {"n": 1, "h": 32, "w": 64},
        {"n": 2, "h": 96, "w": 32},
    ),
    _paddle_case("paddle_gru", _gru, ("n", "t"), TEXT, *TEXT_AT),
    _ultralytics("yolo11n", "yolo11n", {}, {}),
    _ultralytics("yolov10n", "yolov10n", {}, {}),
    _ultralytics("yolo12n", "yolo12n", {}, {}),
    _ultralytics("yolov9t", "yolov9t", {}, {}),
    _ultralytics("yolo11n-seg", "yolo11n-seg", {}, {}),
    _ultralytics("rtdetr-l", "rtdetr-l", {}, {}),
    *(
        rows_case("skl2onnx", name, _sklearn(make, target), "skl2onnx")
        for name, make, target in (
            ("gaussian_process", _of("gaussian_process", "GaussianProcessRegressor"), "score"),
            ("quadratic", _of("discriminant_analysis", "QuadraticDiscriminantAnalysis"), "label"),
            (
                "huber",
                _pipeline(_of("preprocessing", "RobustScaler"), _of("linear_model", "HuberRegressor")),
                "score",
            ),
            ("projection", _pipeline(_of("random_projection", "GaussianRandomProjection", n_components=3)), "score"),
            ("calibrated", _of("calibration", "CalibratedClassifierCV", cv=2), "label"),
        )
    ),
]
