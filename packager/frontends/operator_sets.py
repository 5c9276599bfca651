"""The ONNX operator sets that packager compiles by itself."""

from __future__ import annotations

STANDARD_DOMAINS = ("", "ai.onnx")
# Operators outside the standard domain that TVM's importer knows, by domain.
CONTRIB_DOMAINS = {"com.microsoft": {"FastGelu", "BiasGelu", "SkipLayerNormalization", "EmbedLayerNormalization"}}
