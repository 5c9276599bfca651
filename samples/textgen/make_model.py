"""Train a small Llama on five of Shakespeare's sonnets, and export its decoding step with the KV-cache as buffers.

Writes MODEL.pt2 (torch.export: one token in, logits out, the cache is updated in place), MODEL.json (the tokens'
characters) and MODEL/ (the transformers model, for comparison).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

TEXT = Path(__file__).with_name("sonnets.txt")
LENGTH = 128  # of the cache, and of the training excerpts
BATCH = 8


def train(steps: int, *, width: int, layers: int, seed: int) -> tuple[LlamaForCausalLM, str]:
    """Train for ``steps`` batches; return the model and its alphabet: token i is character i."""
    torch.manual_seed(seed)
    text = TEXT.read_text()
    alphabet = "".join(sorted(set(text)))
    tokens = torch.tensor([alphabet.index(character) for character in text])
    config = LlamaConfig(
        vocab_size=len(alphabet),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for step in range(steps):
        starts = torch.randint(len(tokens) - LENGTH, (BATCH,))
        excerpts = torch.stack([tokens[start : start + LENGTH] for start in starts.tolist()])
        loss = model(input_ids=excerpts, labels=excerpts).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    return model.eval(), alphabet


def export(model: LlamaForCausalLM) -> torch.export.ExportedProgram:
    """Export one decoding step: input_ids int64[1, 1], cache_position int64[1] -> logits float32[1, 1, n]."""
    model.generation_config = GenerationConfig(use_cache=True, cache_implementation="static")
    step = TorchExportableModuleWithStaticCache(model, batch_size=1, max_cache_len=LENGTH)
    arguments = {"input_ids": torch.zeros(1, 1, dtype=torch.int64), "cache_position": torch.zeros(1, dtype=torch.int64)}
    with torch.no_grad():
        return torch.export.export(step, (), arguments, strict=True)


def main() -> None:
    """Parse the command line, train and export."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("decoder.pt2"))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    model, alphabet = train(arguments.steps, width=arguments.width, layers=arguments.layers, seed=arguments.seed)
    model.save_pretrained(arguments.output.with_suffix(""))
    arguments.output.with_suffix(".json").write_text(json.dumps({"alphabet": alphabet, "length": LENGTH}) + "\n")
    torch.export.save(export(model), arguments.output)
    print(arguments.output)


if __name__ == "__main__":
    main()
