"""Compare a bundle with transformers: greedy tokens, and tokens per second. Needs torch."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from run import generate
from transformers import LlamaForCausalLM, StaticCache

import packager


def generate_in_torch(model: LlamaForCausalLM, prompt: list[int], steps: int, length: int) -> list[int]:
    """Like ``run.generate``, with the torch model and transformers' static cache."""
    cache = StaticCache(config=model.config, max_cache_len=length)
    tokens = list(prompt)
    device = model.device
    with torch.no_grad():
        for position in range(len(prompt) + steps - 1):
            token = torch.tensor([[tokens[position]]], device=device)
            place = torch.tensor([position], device=device)
            logits = model(input_ids=token, past_key_values=cache, cache_position=place, use_cache=True).logits
            if position >= len(prompt) - 1:
                tokens.append(int(logits[0, -1].argmax()))
    return tokens


def main() -> None:
    """Parse the command line, generate with both and compare; exits with 1 if a token differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("model", type=Path, help="the folder that make_model.py has written")
    parser.add_argument("--prompt", default="Shall I compare thee ")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    described = json.loads(arguments.model.with_suffix(".json").read_text())
    prompt = [described["alphabet"].index(character) for character in arguments.prompt]
    with packager.load(arguments.bundle) as bundle, bundle.session() as session:
        on_gpu = bundle.manifest.requirements.cuda is not None
        model = LlamaForCausalLM.from_pretrained(arguments.model).eval().to("cuda" if on_gpu else "cpu")
        if not on_gpu:
            torch.set_num_threads(1)
        known = torch.tensor([prompt], device=model.device)
        wanted = model.generate(known, max_new_tokens=arguments.steps, do_sample=False, pad_token_id=0)[0].tolist()
        times: dict[str, list[float]] = {"packager": [], "torch": []}
        for _ in range(arguments.rounds):
            for name, seconds in times.items():
                start = time.perf_counter()
                if name == "packager":
                    tokens = generate(session, prompt, arguments.steps)
                else:
                    generate_in_torch(model, prompt, arguments.steps, described["length"])
                seconds.append(time.perf_counter() - start)
    ours, theirs = (len(tokens[1:]) / min(times[name]) for name in ("packager", "torch"))
    print(f"{arguments.steps} tokens after the prompt: {'equal' if tokens == wanted else 'different'}")
    print(f"tokens per second: packager {ours:.0f}, torch {theirs:.0f}, ratio {ours / theirs:.2f}")
    sys.exit(tokens != wanted)


if __name__ == "__main__":
    main()
