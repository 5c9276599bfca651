"""Models of scikit-learn, XGBoost and LightGBM by skl2onnx and onnxmltools; the number of rows is dynamic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from .case import Case

ROWS, FEATURES = 80, 6


def _data() -> tuple[Any, Any, Any]:
    random = np.random.default_rng(0)
    x = random.standard_normal((ROWS, FEATURES)).astype(np.float32)
    score = x[:, 0] + 0.5 * x[:, 1] * x[:, 2] + 0.1 * random.standard_normal(ROWS)
    return x, np.digitize(score, [-0.4, 0.5]), score.astype(np.float32)


def _estimator(module: str, name: str, **options: Any) -> Any:
    import importlib

    return getattr(importlib.import_module(f"sklearn.{module}"), name)(**options)


def _sklearn(make: Callable[[], Any], target: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        from skl2onnx import convert_sklearn
        from skl2onnx.common.data_types import FloatTensorType

        x, label, score = _data()
        options: dict[str, Any] = {}
        model = make().fit(x, {"label": label, "score": score}[target])
        if hasattr(model, "predict_proba"):
            options = {"options": {id(model): {"zipmap": False}}}
        model = convert_sklearn(
            model,
            initial_types=[("x", FloatTensorType([None, FEATURES]))],
            target_opset={"": 17, "ai.onnx.ml": 3},
            **options,
        )
        # What skl2onnx leaves without a name cannot be given bounds.
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
        onnx.save(model, path)

    return write


def _boosted(kind: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        import onnxmltools
        from onnxmltools.convert.common.data_types import FloatTensorType

        x, label, score = _data()
        types = [("x", FloatTensorType(["n", FEATURES]))]
        if kind.startswith("xgboost"):
            import xgboost

            regressor = xgboost.XGBRegressor(n_estimators=8, max_depth=3)
            classifier = xgboost.XGBClassifier(n_estimators=8, max_depth=3)
            model = regressor.fit(x, score) if kind.endswith("regressor") else classifier.fit(x, label)
            onnx.save(onnxmltools.convert_xgboost(model, initial_types=types), path)
            return
        import lightgbm

        options = {"n_estimators": 8, "min_child_samples": 4, "verbose": -1}
        if kind.endswith("regressor"):
            model = lightgbm.LGBMRegressor(**options).fit(x, score)
            onnx.save(onnxmltools.convert_lightgbm(model, initial_types=types), path)
            return
        model = lightgbm.LGBMClassifier(**options).fit(x, label)
        onnx.save(onnxmltools.convert_lightgbm(model, initial_types=types, zipmap=False), path)

    return write


def _pipeline(*steps: Callable[[], Any]) -> Callable[[], Any]:
    def make() -> Any:
        from sklearn.pipeline import make_pipeline

        return make_pipeline(*(step() for step in steps))

    return make


def _of(module: str, name: str, **options: Any) -> Callable[[], Any]:
    return lambda: _estimator(module, name, **options)


SCALER = _of("preprocessing", "StandardScaler")
SKLEARN: dict[str, tuple[Callable[[], Any], str]] = {
    "logistic": (_of("linear_model", "LogisticRegression"), "label"),
    "linear": (_of("linear_model", "LinearRegression"), "score"),
    "mlp": (_of("neural_network", "MLPClassifier", hidden_layer_sizes=(8,), max_iter=50), "label"),
    "forest": (_of("ensemble", "RandomForestClassifier", n_estimators=8, max_depth=4, random_state=0), "label"),
    "forest_regressor": (_of("ensemble", "RandomForestRegressor", n_estimators=8, random_state=0), "score"),
    "svm": (_of("svm", "SVC", probability=True, random_state=0), "label"),
    "svr": (_of("svm", "SVR"), "score"),
    "neighbors": (_of("neighbors", "KNeighborsClassifier", n_neighbors=3), "label"),
    "bayes": (_of("naive_bayes", "GaussianNB"), "label"),
    "kmeans": (_of("cluster", "KMeans", n_clusters=3, n_init=1, random_state=0), "label"),
    "isolation": (_of("ensemble", "IsolationForest", n_estimators=8, random_state=0), "label"),
    "pipeline": (
        _pipeline(SCALER, _of("decomposition", "PCA", n_components=3), _of("linear_model", "LogisticRegression")),
        "label",
    ),
    "scaled": (_pipeline(SCALER, _of("preprocessing", "PolynomialFeatures"), _of("linear_model", "Ridge")), "score"),
    "normalizer": (_pipeline(_of("preprocessing", "Normalizer"), _of("preprocessing", "MinMaxScaler")), "score"),
    "imputer": (_pipeline(_of("impute", "SimpleImputer"), _of("preprocessing", "Binarizer")), "score"),
}
SIZES = ({"n": 1}, {"n": 7}, {"n": 16})


def _case(exporter: str, model: str, make: Callable[[Path], None], *needs: str) -> Case:
    return Case(exporter, model, make, {"n": (1, 16)}, SIZES, needs, tolerance=1e-3)


CLASSIC = [
    *(_case("skl2onnx", name, _sklearn(*spec), "skl2onnx") for name, spec in SKLEARN.items()),
    *(
        _case("onnxmltools", name, _boosted(name), "onnxmltools", name.split("_")[0])
        for name in ("xgboost_classifier", "xgboost_regressor", "lightgbm_classifier", "lightgbm_regressor")
    ),
]
