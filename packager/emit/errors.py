"""What the rules of the writer raise."""

from __future__ import annotations


class CannotWriteError(Exception):
    """ONNX has no such operator, or not in this use; the message completes "the operator is not written: "."""
