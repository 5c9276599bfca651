"""Models of Keras, PaddlePaddle, Ultralytics, scikit-learn and CatBoost other than those that packager was tuned on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..case import Bounds, Case, Sizes
from ..classic import SIZES as ROWS
from ..classic import _case as rows_case
from ..classic import _data, _of, _pipeline, _sklearn
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


def _gated(keras: Any) -> Any:
    layers = keras.layers
    x = image = keras.Input((32, 32, 3))
    x = layers.Conv2D(12, 3, strides=2, padding="same")(x)
    for _ in range(2):
        y = layers.GroupNormalization(4)(x)
        y = layers.Conv2D(24, 3, padding="same", groups=3)(y)
        a, b = layers.Lambda(lambda t: keras.ops.split(t, 2, axis=-1))(y)
        x = x + a * keras.activations.sigmoid(b)
        weight = layers.GlobalAveragePooling2D(keepdims=True)(x)
        x = x * layers.Dense(12, activation="hard_sigmoid")(weight)
    x = layers.UpSampling2D(2, interpolation="nearest")(x)
    x = layers.Cropping2D(3)(layers.ZeroPadding2D((1, 2))(x))
    return keras.Model(image, layers.Conv2D(2, 1, activation="gelu")(x))


def _shuffle(paddle: Any) -> Any:
    return paddle.vision.models.shufflenet_v2_x0_25(num_classes=5)


def _dense(paddle: Any) -> Any:
    return paddle.vision.models.DenseNet(layers=121, num_classes=5)


def _google(paddle: Any) -> Any:
    return paddle.vision.models.GoogLeNet(num_classes=5)


def _detector(paddle: Any) -> Any:
    """Return the shape of PaddleOCR's detector: a pyramid with upsampling by nearest, and transposed convolutions."""
    nn = paddle.nn

    class Detector(nn.Layer):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Sequential(nn.Conv2D(3, 8, 3, 2, 1), nn.BatchNorm2D(8), nn.Hardswish())
            self.two = nn.Sequential(nn.Conv2D(8, 16, 3, 2, 1), nn.BatchNorm2D(16), nn.ReLU())
            self.lateral, self.join = nn.Conv2D(8, 16, 1), nn.Conv2D(16, 8, 3, padding=1)
            self.up = nn.Sequential(nn.Conv2DTranspose(8, 8, 2, 2), nn.BatchNorm2D(8), nn.ReLU(), nn.Conv2D(8, 1, 1))

        def forward(self, image: Any) -> Any:
            one = self.one(image)
            two = self.two(one)
            joined = self.lateral(one) + nn.functional.interpolate(two, scale_factor=2.0, mode="nearest")
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


def _catboost(classes: bool) -> Any:
    def write(path: Path) -> None:
        import catboost
        import onnx

        x, label, score = _data()
        kind = catboost.CatBoostClassifier if classes else catboost.CatBoostRegressor
        model = kind(iterations=8, depth=3, verbose=False, allow_writing_files=False)
        model.fit(x, label if classes else score)
        model.save_model(str(path), format="onnx")
        proto = onnx.load(path)
        proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
        onnx.save(proto, path)

    return write


PICTURES: dict[str, Bounds] = {"n": (1, 4)}
TOOLS = [
    keras_case("keras_resnet50v2", _application("ResNet50V2"), IMAGE, BATCH, *AT),
    keras_case("keras_densenet", _application("DenseNet121"), IMAGE, BATCH, *AT),
    keras_case("keras_convnext", _application("ConvNeXtTiny"), IMAGE, BATCH, *AT),
    keras_case("keras_efficientnetv2", _application("EfficientNetV2B0"), IMAGE, BATCH, *AT),
    keras_case("keras_mobilenetv3", _application("MobileNetV3Small"), IMAGE, BATCH, *AT),
    keras_case("keras_gated", _gated, IMAGE, BATCH, *AT),
    keras_case("keras_bigru", _bigru, ("n", "t"), TEXT, *TEXT_AT),
    keras_case("keras_unrolled", _unrolled, ("n", 10, 6), BATCH, *AT),
    _paddle_case("paddle_shufflenet", _shuffle, ("n", 3, 64, 64), PICTURES, *AT),
    _paddle_case("paddle_densenet", _dense, ("n", 3, 64, 64), PICTURES, *AT),
    _paddle_case("paddle_googlenet", _google, ("n", 3, 64, 64), PICTURES, *AT),
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
            ("hist_boosting", _of("ensemble", "HistGradientBoostingClassifier", max_iter=5), "label"),
            ("gaussian_process", _of("gaussian_process", "GaussianProcessRegressor"), "score"),
            ("quadratic", _of("discriminant_analysis", "QuadraticDiscriminantAnalysis"), "label"),
            ("mixture", _of("mixture", "GaussianMixture", n_components=2, random_state=0), "score"),
            ("centroid", _of("neighbors", "NearestCentroid"), "label"),
            (
                "huber",
                _pipeline(_of("preprocessing", "RobustScaler"), _of("linear_model", "HuberRegressor")),
                "score",
            ),
            ("projection", _pipeline(_of("random_projection", "GaussianRandomProjection", n_components=3)), "score"),
            ("calibrated", _of("calibration", "CalibratedClassifierCV", cv=2), "label"),
        )
    ),
    Case("catboost", "catboost_classifier", _catboost(True), {"n": (1, 16)}, ROWS, ("catboost",), tolerance=1e-3),
    Case("catboost", "catboost_regressor", _catboost(False), {"n": (1, 16)}, ROWS, ("catboost",), tolerance=1e-3),
]
