"""Generate text greedily with a bundle of make_model.py's decoder. Needs only numpy and packager."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

import packager


def generate(session: packager.Session, prompt: list[int], steps: int) -> list[int]:
    """Return the prompt's tokens and ``steps`` more: each run takes a token and returns the logits of the next.

    The KV-cache is a state of the session; ``reset`` clears it.
    """
    session.reset()
    tokens = list(prompt)
    for position in range(len(prompt) + steps - 1):
        inputs = {"input_ids": np.array([[tokens[position]]]), "cache_position": np.array([position])}
        logits = session.run(inputs)["output"]
        if position >= len(prompt) - 1:
            tokens.append(int(logits[0, -1].argmax()))
    return tokens


def main() -> None:
    """Parse the command line, generate and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("alphabet", type=Path, help="the .json file of make_model.py")
    parser.add_argument("--prompt", default="Shall I compare thee ")
    parser.add_argument("--steps", type=int, default=64)
    arguments = parser.parse_args()
    described = json.loads(arguments.alphabet.read_text())
    alphabet = described["alphabet"]
    strange = sorted(set(arguments.prompt) - set(alphabet))
    if strange or not arguments.prompt or len(arguments.prompt) + arguments.steps > described["length"] + 1:
        parser.error(
            f"the model does not know the characters {strange}"
            if strange
            else f"prompt and steps are 1 to {described['length']} characters"
        )
    with packager.load(arguments.bundle) as bundle, bundle.session() as session:
        prompt = [alphabet.index(character) for character in arguments.prompt]
        generate(session, prompt, arguments.steps)  # warm-up
        start = time.perf_counter()
        tokens = generate(session, prompt, arguments.steps)
        seconds = time.perf_counter() - start
    print("".join(alphabet[token] for token in tokens))
    print(f"{(len(tokens) - 1) / seconds:.0f} tokens per second")


if __name__ == "__main__":
    main()
