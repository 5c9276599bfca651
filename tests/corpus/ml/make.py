"""Makes the models of this folder with scikit-learn, xgboost and lightgbm, by skl2onnx and onnxmltools.

    pip install skl2onnx onnxmltools xgboost-cpu lightgbm && python tests/corpus/ml/make.py

The files are committed, so that tests need none of these packages. They have four features, or three of integers; of
those of xgboost, of lightgbm and of the imputer some are missing (NaN).
"""

from __future__ import annotations

from pathlib import Path

import lightgbm
import numpy as np
import onnx
import xgboost
from onnxmltools.convert import convert_lightgbm, convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType
from skl2onnx import to_onnx
from sklearn import (
    compose,
    decomposition,
    ensemble,
    impute,
    linear_model,
    naive_bayes,
    neural_network,
    pipeline,
    svm,
    tree,
)
from sklearn import preprocessing as prep

HERE, FEATURES, ROWS = Path(__file__).parent, 4, 200
rng = np.random.default_rng(0)
x = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
holes = np.where(rng.random(x.shape) < 0.1, np.float32(np.nan), x)
integers = rng.integers(0, 4, size=(ROWS, 3))
two = (x[:, 0] + x[:, 1] * x[:, 2] > 0).astype(int)
three = np.digitize(x[:, 0] + 0.5 * x[:, 3], [-0.7, 0.7])
number = (2 * x[:, 0] + np.sin(x[:, 1])).astype(np.float32)
named_two, named_three = np.array(["ham", "spam"])[two], np.array(["a", "b", "c"])[three]

SCIKIT = {
    "tree_classifier": (tree.DecisionTreeClassifier(max_depth=4), three),
    "tree_regressor_of_two": (tree.DecisionTreeRegressor(max_depth=4), np.stack([number, -number], 1)),
    "forest_of_numbers_5_and_7": (ensemble.RandomForestClassifier(4, max_depth=4), np.array([5, 7])[two]),
    "forest_of_names": (ensemble.RandomForestClassifier(4, max_depth=3), named_three),
    "extra_trees_regressor": (ensemble.ExtraTreesRegressor(4, max_depth=4), number),
    "boosting_regressor": (ensemble.GradientBoostingRegressor(n_estimators=8, max_depth=2), number),
    "boosting_of_two": (ensemble.GradientBoostingClassifier(n_estimators=8, max_depth=2), two),
    "boosting_of_three": (ensemble.GradientBoostingClassifier(n_estimators=4, max_depth=2), three),
    "isolation_forest": (ensemble.IsolationForest(n_estimators=4, max_samples=16), None),
    "ada_boost": (ensemble.AdaBoostClassifier(n_estimators=3), two),
    "bagging": (ensemble.BaggingClassifier(tree.DecisionTreeClassifier(max_depth=2), n_estimators=3), named_three),
    "svc": (svm.SVC(C=0.5), two),
    "svc_probability": (svm.SVC(probability=True, kernel="poly"), named_three),
    "nu_svc": (svm.NuSVC(kernel="sigmoid", gamma=0.1, nu=0.1), three),
    "svr": (svm.SVR(epsilon=0.5), number),
    "one_class_svm": (svm.OneClassSVM(nu=0.1), None),
    "linear_svc": (svm.LinearSVC(), three),
    "logistic_of_two": (linear_model.LogisticRegression(), named_two),
    "logistic_of_three": (linear_model.LogisticRegression(), named_three),
    "ridge": (linear_model.Ridge(), np.stack([number, number**2], 1)),
    "sgd": (linear_model.SGDClassifier(loss="log_loss"), three),
    "mlp": (neural_network.MLPClassifier((6,), max_iter=50), named_two),
    "naive_bayes": (naive_bayes.GaussianNB(), named_three),
    "standard_scaler": (prep.StandardScaler(), None),
    "normalizer": (prep.Normalizer(), None),
    "bins": (prep.KBinsDiscretizer(4, encode="onehot-dense"), None),
    "quantiles": (prep.QuantileTransformer(n_quantiles=10), None),
    "power": (prep.PowerTransformer(), None),
    "pca": (decomposition.PCA(3), None),
    "imputer": (impute.SimpleImputer(), None),
    "columns": (
        pipeline.make_pipeline(
            compose.ColumnTransformer(
                [
                    ("scaled", prep.StandardScaler(), [0, 1]),
                    ("filled", pipeline.make_pipeline(impute.SimpleImputer(), prep.MinMaxScaler()), [2, 3]),
                ]
            ),
            linear_model.LogisticRegression(),
        ),
        named_three,
    ),
    "one_hot": (prep.OneHotEncoder(sparse_output=False, handle_unknown="ignore"), None),
    "ordinal": (prep.OrdinalEncoder(), None),
}
OTHERS = {
    "xgboost_regressor": (xgboost.XGBRegressor(n_estimators=6, max_depth=3), number),
    "xgboost_of_two": (xgboost.XGBClassifier(n_estimators=6, max_depth=3), two),
    "xgboost_of_three": (xgboost.XGBClassifier(n_estimators=3, max_depth=3), three),
    "lightgbm_regressor": (lightgbm.LGBMRegressor(n_estimators=6, num_leaves=7, verbose=-1), number),
    "lightgbm_of_two": (lightgbm.LGBMClassifier(n_estimators=6, num_leaves=7, verbose=-1), two),
    "lightgbm_of_names": (lightgbm.LGBMClassifier(n_estimators=3, num_leaves=7, verbose=-1), named_three),
}


def write(name: str, model: onnx.ModelProto) -> None:
    """Write a model whose rows are named."""
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    onnx.save(model, HERE / f"{name}.onnx")


def main() -> None:
    """Train and write all models."""
    for name, (model, target) in SCIKIT.items():
        data = {"one_hot": integers, "ordinal": integers, "imputer": holes}.get(name, x)
        model.fit(data) if target is None else model.fit(data, target)
        write(name, to_onnx(model, data[:1], target_opset={"": 18, "ai.onnx.ml": 3}))
    for name, (model, target) in OTHERS.items():
        model.fit(holes, target)
        convert = convert_xgboost if name.startswith("xgboost") else convert_lightgbm
        write(name, convert(model, initial_types=[("X", FloatTensorType([None, FEATURES]))]))


if __name__ == "__main__":
    main()
