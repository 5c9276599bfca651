"""scikit-learn, boosted trees, Keras, PaddlePaddle and onnxruntime's quantizers, used in other ways."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ...case import Bounds, Case, Sizes
from ...classic import FEATURES, SIZES, _case, _data, _of, _pipeline, _sklearn
from ...derived import INT8, Samples
from ...exporting import cases
from ...keras_models import BATCH
from ...keras_models import _case as keras_case
from ...nets import NETS
from ...text import TEXT as ENCODERS
from ...vision import VISION

Make = Callable[[], Any]
TREE = _of("tree", "DecisionTreeClassifier", max_depth=4, random_state=0)
LOGISTIC, BAYES = _of("linear_model", "LogisticRegression"), _of("naive_bayes", "GaussianNB")
SCALER = _of("preprocessing", "StandardScaler")


def _with(module: str, name: str, *, inner: dict[str, Make], **options: Any) -> Make:
    """Return an estimator that is made of others, by the name of the argument."""
    return _of(module, name, **options, **{key: make() for key, make in inner.items()})


def _named(module: str, name: str, *makes: Make, **options: Any) -> Make:
    return _of(module, name, estimators=[(f"e{i}", make()) for i, make in enumerate(makes)], **options)


def _columns() -> Any:
    from sklearn.compose import ColumnTransformer

    steps = [
        ("scaled", SCALER(), [0, 1]),
        ("bins", _of("preprocessing", "KBinsDiscretizer", n_bins=4, encode="onehot-dense")(), [2]),
        ("squares", _of("preprocessing", "PolynomialFeatures", degree=2, include_bias=False)(), [3, 4]),
        ("same", "passthrough", [5]),
    ]
    return _pipeline(lambda: ColumnTransformer(steps), LOGISTIC)()


SKLEARN: dict[str, tuple[Make, str]] = {
    "columns": (_columns, "label"),
    "voting_regressor": (
        _named("ensemble", "VotingRegressor", _of("linear_model", "Ridge"), _of("svm", "SVR")),
        "score",
    ),
    "stacking": (_named("ensemble", "StackingClassifier", TREE, LOGISTIC, cv=2), "label"),
    "bagging": (
        _with("ensemble", "BaggingClassifier", inner={"estimator": TREE}, n_estimators=4, random_state=0),
        "label",
    ),
    "ada_boost": (_of("ensemble", "AdaBoostClassifier", n_estimators=6, random_state=0), "label"),
    "one_vs_rest": (_with("multiclass", "OneVsRestClassifier", inner={"estimator": LOGISTIC}), "label"),
    "sigmoid_calibrated": (_with("calibration", "CalibratedClassifierCV", inner={"estimator": TREE}, cv=2), "label"),
    "isotonic_calibrated": (
        _with("calibration", "CalibratedClassifierCV", inner={"estimator": TREE}, cv=2, method="isotonic"),
        "label",
    ),
    "neighbors_regressor": (_of("neighbors", "KNeighborsRegressor", n_neighbors=4, weights="distance"), "score"),
    "bernoulli_bayes": (_of("naive_bayes", "BernoulliNB"), "label"),
    "truncated": (
        _pipeline(_of("decomposition", "TruncatedSVD", n_components=3), _of("linear_model", "Lasso", alpha=0.01)),
        "score",
    ),
    "kernel_pca": (
        _pipeline(_of("decomposition", "KernelPCA", n_components=3, kernel="rbf"), _of("linear_model", "Ridge")),
        "score",
    ),
    "selected": (
        _pipeline(
            _of("feature_selection", "VarianceThreshold", threshold=0.9), SCALER, _of("linear_model", "RidgeClassifier")
        ),
        "label",
    ),
    "quantile_scaled": (_pipeline(_of("preprocessing", "QuantileTransformer", n_quantiles=10), LOGISTIC), "label"),
    "power_scaled": (_pipeline(_of("preprocessing", "PowerTransformer"), LOGISTIC), "label"),
    "mini_batch_kmeans": (_of("cluster", "MiniBatchKMeans", n_clusters=3, n_init=1, random_state=0), "label"),
    "factors": (_of("linear_model", "TweedieRegressor", power=0), "score"),
    "lda": (_of("discriminant_analysis", "LinearDiscriminantAnalysis"), "label"),
    "local_outliers": (_of("neighbors", "LocalOutlierFactor", novelty=True, n_neighbors=4), "label"),
    "mlp_regressor": (
        _of("neural_network", "MLPRegressor", hidden_layer_sizes=(8, 8), activation="tanh", max_iter=50),
        "score",
    ),
}


def _boosted(kind: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        x, label, score = _data()
        if kind.startswith("catboost"):
            import catboost

            options = {"iterations": 6, "depth": 3, "verbose": False, "allow_writing_files": False}
            made = (
                catboost.CatBoostRegressor(**options)
                if kind.endswith("regressor")
                else catboost.CatBoostClassifier(**options)
            )
            made.fit(x, score if kind.endswith("regressor") else label).save_model(str(path), format="onnx")
            model = onnx.load(path)
            model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
            onnx.save(model, path)
            return
        import onnxmltools
        from onnxmltools.convert.common.data_types import FloatTensorType

        types = [("x", FloatTensorType(["n", FEATURES]))]
        if kind.startswith("xgboost"):
            import xgboost

            model = xgboost.XGBRFClassifier(n_estimators=6, max_depth=3).fit(x, label)
            onnx.save(onnxmltools.convert_xgboost(model, initial_types=types), path)
            return
        import lightgbm

        x = x.copy()
        x[::5, 1] = np.nan
        booster = lightgbm.LGBMRegressor(n_estimators=6, min_child_samples=4, verbose=-1, objective="tweedie").fit(
            x, np.abs(score)
        )
        onnx.save(onnxmltools.convert_lightgbm(booster, initial_types=types, split=2), path)

    return write


def _keras_series(keras: Any) -> Any:
    layers = keras.layers
    x = series = keras.Input((None, 6))
    x = layers.Conv1D(12, 3, padding="causal", activation="relu")(x)
    x = layers.SeparableConv1D(12, 3, padding="same")(x)
    x = layers.Bidirectional(layers.LSTM(8, return_sequences=True))(x)
    x = layers.Attention()([x, x])
    x = layers.Bidirectional(layers.GRU(6))(x)
    return keras.Model(series, layers.Dense(3, activation="softmax")(x))


def _keras_masked(keras: Any) -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((None,)),
            layers.Embedding(100, 8, mask_zero=True),
            layers.GRU(8, return_sequences=True),
            layers.LSTM(6),
            layers.Dense(2),
        ]
    )


def _keras_additive(keras: Any) -> Any:
    layers = keras.layers
    ids = keras.Input((None,))
    x = layers.Embedding(100, 8)(ids)
    x = layers.AdditiveAttention()([x, layers.Dense(8)(x)])
    x = layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True)
    return keras.Model(ids, layers.Dense(3)(layers.GlobalMaxPooling1D()(layers.LayerNormalization()(x))))


def _keras_volume(keras: Any) -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 16, 16, 2)),
            layers.Conv3D(6, 3, padding="same", activation="relu"),
            layers.MaxPooling3D((1, 2, 2)),
            layers.Conv3DTranspose(4, 2, strides=2),
            layers.GroupNormalization(2),
            layers.GlobalAveragePooling3D(),
            layers.Dense(3),
        ]
    )


def _keras_mixed(keras: Any) -> Any:
    layers = keras.layers
    x = image = keras.Input((32, 32, 3))
    x = layers.Rescaling(1 / 255.0)(x)
    x = layers.ZeroPadding2D(((0, 1), (0, 1)))(x)
    x = layers.DepthwiseConv2D(3, depth_multiplier=2, strides=2, activation="relu6")(x)
    x = layers.Cropping2D(1)(x)
    x = layers.AveragePooling2D(3, 2, padding="same")(layers.PReLU(shared_axes=[1, 2])(x))
    x = layers.SpatialDropout2D(0.3)(layers.UnitNormalization()(x))
    x = layers.Permute((3, 1, 2))(x)
    return keras.Model(image, layers.Dense(4)(layers.Flatten()(x)))


def _keras_lstm2d(keras: Any) -> Any:
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((5, 8, 8, 2)), layers.ConvLSTM2D(3, 3, padding="same"), layers.Flatten(), layers.Dense(2)]
    )


SERIES_DIMS: dict[str, Bounds] = {"n": (1, 4), "t": (2, 16)}
SERIES_AT: tuple[Sizes, ...] = ({"n": 1, "t": 2}, {"n": 3, "t": 7}, {"n": 4, "t": 16})
IMAGES_AT: tuple[Sizes, ...] = ({"n": 1}, {"n": 2}, {"n": 4})

_SOURCES = {case.name: case for case in cases([*NETS, *VISION, *ENCODERS])}


def _quantized(model: str, tool: str, *, apart: float = 0.02, **options: Any) -> Case:
    """Return a quantized file of a TorchScript file of the corpus."""
    source = _SOURCES[f"{model}.torchscript"]

    def make(path: Path) -> None:
        from onnxruntime import quantization
        from onnxruntime.quantization.shape_inference import quant_pre_process

        given = dict(options)
        with tempfile.TemporaryDirectory() as folder:
            made, prepared = Path(folder, "source.onnx"), Path(folder, "prepared.onnx")
            source.make(made)
            if given.pop("dynamic", False):
                quantization.quantize_dynamic(made, path, **given)
                return
            quant_pre_process(str(made), str(prepared), skip_symbolic_shape=True)
            quantization.quantize_static(prepared, path, Samples(source, prepared), **given)

    return Case(tool, model, make, source.dims, source.sizes, (), INT8, source.random, apart)


def _quantizations() -> list[Case]:
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType

    symmetric = {"extra_options": {"ActivationSymmetric": True, "WeightSymmetric": True}}
    qdq: dict[str, Any] = {"quant_format": QuantFormat.QDQ}
    return [
        _quantized("deeplab", "qdq_u8_channel", **qdq, per_channel=True),
        _quantized(
            "mobilenetv2", "qdq_s8s8", **qdq, activation_type=QuantType.QInt8, weight_type=QuantType.QInt8, **symmetric
        ),
        _quantized("efficientnet", "qdq_entropy", **qdq, calibrate_method=CalibrationMethod.Entropy),
        _quantized("regnet", "qoperator_channel", quant_format=QuantFormat.QOperator, per_channel=True),
        _quantized(
            "unet", "qoperator_s8", quant_format=QuantFormat.QOperator, activation_type=QuantType.QInt8, **symmetric
        ),
        _quantized("yolo", "qdq_reduced", **qdq, reduce_range=True),
        _quantized("resnet", "qdq_u16", **qdq, activation_type=QuantType.QUInt16, weight_type=QuantType.QInt8),
        _quantized("vit", "dynamic_u8_channel", dynamic=True, weight_type=QuantType.QUInt8, per_channel=True),
        _quantized("roberta", "dynamic_reduced", dynamic=True, reduce_range=True),
        _quantized("convnext", "dynamic_s8", dynamic=True, weight_type=QuantType.QInt8),
    ]


TOOLS = [
    *(_case("skl2onnx", name, _sklearn(*spec), "skl2onnx") for name, spec in SKLEARN.items()),
    *(
        Case(
            "onnxmltools",
            name,
            _boosted(name),
            {"n": (1, 16)},
            SIZES,
            ("onnxmltools", name.split("_")[0]),
            tolerance=1e-3,
        )
        for name in ("xgboost_forest", "lightgbm_missing")
    ),
    *(
        Case("catboost", name, _boosted(name), {"n": (1, 16)}, SIZES, ("catboost", "pandas"), tolerance=1e-3)
        for name in ("catboost_classifier", "catboost_regressor")
    ),
    keras_case("keras_series", _keras_series, ("n", "t", 6), SERIES_DIMS, *SERIES_AT),
    keras_case("keras_masked", _keras_masked, ("n", "t"), SERIES_DIMS, *SERIES_AT),
    keras_case("keras_additive", _keras_additive, ("n", "t"), SERIES_DIMS, *SERIES_AT),
    keras_case("keras_volume", _keras_volume, ("n", 8, 16, 16, 2), BATCH, *IMAGES_AT),
    keras_case("keras_mixed", _keras_mixed, ("n", 32, 32, 3), BATCH, *IMAGES_AT),
    keras_case("keras_convlstm", _keras_lstm2d, ("n", 5, 8, 8, 2), BATCH, *IMAGES_AT),
    *_quantizations(),
]
