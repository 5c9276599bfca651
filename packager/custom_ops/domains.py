"""ONNX operator sets that packager compiles without a library."""

from __future__ import annotations

STANDARD_DOMAINS = ("", "ai.onnx")
# Operators outside the standard domain that TVM's importer knows, by domain.
# And those that packager imports by itself.
CONTRIB_DOMAINS = {
    "com.microsoft": {"FastGelu", "BiasGelu", "SkipLayerNormalization", "EmbedLayerNormalization"},
    "ai.onnx.ml": {
        *("TreeEnsemble", "TreeEnsembleRegressor", "TreeEnsembleClassifier"),
        *("LinearRegressor", "LinearClassifier", "SVMRegressor", "SVMClassifier"),
        *("Scaler", "Normalizer", "Imputer", "Binarizer", "OneHotEncoder", "LabelEncoder"),
        *("ArrayFeatureExtractor", "FeatureVectorizer"),
    },
}
