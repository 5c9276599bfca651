"""Estimators of scikit-learn and rankers of boosted trees that no other file of the corpus has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx

from ...case import Case
from ...classic import FEATURES, _case, _data, _of, _pipeline, _sklearn
from ..second.tools import LOGISTIC, SCALER, Make, _named

RIDGE = _of("linear_model", "Ridge")


def _union() -> Any:
    from sklearn.pipeline import FeatureUnion

    parts = [("pca", _of("decomposition", "PCA", n_components=2)()), ("scaled", SCALER())]
    return _pipeline(lambda: FeatureUnion(parts), LOGISTIC)()


SKLEARN: dict[str, tuple[Make, str]] = {
    "quadratic_discriminant": (_of("discriminant_analysis", "QuadraticDiscriminantAnalysis"), "label"),
    "passive_aggressive": (_of("linear_model", "SGDClassifier", loss="modified_huber", random_state=0), "label"),
    "bayesian_ridge": (_of("linear_model", "BayesianRidge"), "score"),
    "pursuit": (_of("linear_model", "OrthogonalMatchingPursuit"), "score"),
    "quantile_regressor": (_of("linear_model", "QuantileRegressor", alpha=0.01), "score"),
    "poisson": (_of("linear_model", "TweedieRegressor", power=0, link="identity"), "score"),
    "consensus": (_of("linear_model", "RANSACRegressor", random_state=0), "score"),
    "boosted_forest": (_of("ensemble", "AdaBoostRegressor", n_estimators=4, random_state=0), "score"),
    "extra_trees_classifier": (_of("ensemble", "ExtraTreesClassifier", n_estimators=5, random_state=0), "label"),
    "stacking_regressor": (_named("ensemble", "StackingRegressor", RIDGE, _of("svm", "SVR"), cv=2), "score"),
    "union": (_union, "label"),
    "best": (_pipeline(_of("feature_selection", "SelectKBest", k=3), LOGISTIC), "label"),
    "splines": (_pipeline(_of("preprocessing", "RobustScaler"), _of("svm", "NuSVR")), "score"),
    "incremental": (_pipeline(_of("decomposition", "IncrementalPCA", n_components=3), LOGISTIC), "label"),
    "random_trees": (_of("ensemble", "IsolationForest", n_estimators=5, random_state=0), "label"),
    "partial_squares": (_of("cross_decomposition", "PLSRegression", n_components=2), "score"),
    "complement": (_pipeline(_of("preprocessing", "MinMaxScaler"), _of("naive_bayes", "ComplementNB")), "label"),
}


def _ranker(path: Path) -> None:
    import lightgbm
    from onnxmltools import convert_lightgbm
    from onnxmltools.convert.common.data_types import FloatTensorType

    x, label, _ = _data()
    made = lightgbm.LGBMRanker(n_estimators=5, max_depth=3, min_child_samples=2, verbose=-1)
    made.fit(x, label, group=[20] * (len(x) // 20))
    types = [("x", FloatTensorType(["n", FEATURES]))]
    onnx.save(convert_lightgbm(made.booster_, initial_types=types, zipmap=False), path)


TOOLS: list[Case] = [
    *(_case("skl2onnx", name, _sklearn(make, target), "skl2onnx") for name, (make, target) in SKLEARN.items()),
    _case("onnxmltools", "lightgbm_ranker", _ranker, "onnxmltools", "lightgbm"),
]
