"""Fused attention: blocks of queries times all keys, softmax, times the values; scores never leave a block.

Keys and values of a head are packed in panels first. The scores of a block are a buffer of ``CHUNK`` keys; with more
keys, the accumulators are rescaled to the maximum of the next chunk (online softmax).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from packager.backends.ccompiler.core.expressions import CTYPES, as_result, element, literal
from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.machine import Machine
from packager.backends.ccompiler.core.operations import Operation, Use
from packager.backends.ccompiler.core.shapes import Extent, c_text, ceil_div, equal, plain, product
from packager.backends.ccompiler.core.stages import Stage
from packager.graph.attention.heads import Heads
from packager.graph.attention.match import Attention

BLOCK = 24  # queries: a multiple of the rows of every machine's tile
CHUNK = 256  # keys of a block's buffer where their number is not known
LONGEST = 320  # keys that one buffer may hold
DEEP = 256  # depths of queries and values together from which buffers hold fewer keys: all lie on the stack
PANEL, HALF = 32, 16  # columns of packed keys and values; of the last panel, where that is enough
# Rows and columns of the tiles that keep their sums in registers.
TILES = {"avx512": ((8, 1), (32, 16)), "avx2": ((6, 1), (16,)), "aarch64": ((4, 1), (16,)), "sse2": ((2, 1), (16,))}


def add_attention(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the functions of a stage to its group: one packs keys and values, one computes. Raises CannotRender."""
    attention: Attention = anchor.attributes
    q, k, v = anchor.uses[:3]
    dtype = CTYPES[q.tensor.dtype]
    batch, queries, keys = (plain(extent) for extent in (attention.batch, attention.queries, attention.keys))
    heads, depth = attention.heads, attention.depth
    sharing = attention.k.group  # that read the same keys and values
    packed = heads // sharing
    padded = product((ceil_div(keys, HALF), HALF))
    value_width = -(-attention.value_depth // HALF) * HALF
    panels = (
        group.workspace(product((batch, packed, depth, padded))),
        group.workspace(product((batch, packed, value_width, keys))),
    )
    shared = {
        "stored": dtype.stored,
        "kind": "f16" if q.tensor.dtype == "float16" else "f32",
        "depth": depth,
        "value_depth": attention.value_depth,
        "value_width": value_width,
        "keys": c_text(keys),
        "padded": c_text(padded),
    }
    draft = group.function("attention_pack")
    draft.finish(
        "ops/attention_pack",
        product((batch, packed)),
        {
            **shared,
            "heads": packed,
            "k": draft.tensor(k.tensor, False),
            "v": draft.tensor(v.tensor, False),
            "k_at": _place(attention.k, packed, keys, "0"),
            "v_at": _place(attention.v, packed, keys, "0"),
            "k_row": attention.k.row,
            "v_row": attention.v.row,
            "key_panels": draft.workspace(panels[0], "float", True),
            "value_panels": draft.workspace(panels[1], "float", True),
        },
    )
    draft = group.function("attention")
    blocks = ceil_div(queries, BLOCK)
    chunk = _chunk(keys, depth + value_width > DEEP)
    rows_first = attention.out.head > 0
    values = {
        **shared,
        "heads": heads,
        "group": sharing,
        "safe": attention.safe,
        **_masks(attention, anchor.uses[3:], draft.tensor),
        "q": draft.tensor(q.tensor, False),
        "q_at": _place(attention.q, heads, queries, "top"),
        "element": element(f"x[r * {attention.q.row} + d]", q.tensor.dtype),
        "scale": literal(attention.scale, "float32"),
        "softcap": literal(attention.softcap, "float32") if attention.softcap else "",
        "inverse_softcap": literal(1.0 / (attention.softcap or 1.0), "float32"),
        "key_panels": draft.workspace(panels[0], "float", False),
        "value_panels": draft.workspace(panels[1], "float", False),
        "program": draft.program(stage, as_result(f"(sums[r * {value_width} + j] * scale)", anchor.result.dtype)),
        "queries": c_text(queries),
        "block": BLOCK,
        "blocks": c_text(blocks),
        "chunk": chunk,
        "chunked": not isinstance(keys, int) or keys > chunk or attention.sinks is not None,
        "causal": attention.causal,
        "row": f"{'batch' if rows_first else f'(batch * {heads} + head)'} * {c_text(queries)} + top + r",
        "start": f"head * {attention.out.head}" if rows_first else "0",
    }
    draft.finish("ops/attention", product((batch, heads, blocks)), values)


def tile_values(machine: Machine, sources: Sequence[str]) -> dict[str, Any]:
    """Return the values of the template of tiles for a machine and the functions that call them."""
    rows, columns = TILES[machine.name]
    kinds = [kind for kind in ("f32", "f16") if any(f"pk_attend_keys_{kind}(" in source for source in sources)]
    lanes = machine.vector_bytes // 4
    return {"rows": rows, "columns": columns, "kinds": kinds, "lanes": lanes, "bytes": machine.vector_bytes}


def _chunk(keys: Extent, deep: bool) -> int:
    """Return the keys per buffer of a block: all of them, or even chunks."""
    chunk, longest = (CHUNK // 2, CHUNK // 2) if deep else (CHUNK, LONGEST)
    if not isinstance(keys, int):
        return chunk
    parts = 1 if keys <= longest else -(-keys // chunk)
    return -(-keys // (parts * PANEL)) * PANEL


def _place(heads: Heads, count: int, rows: Extent, first: str) -> str:
    """Return the offset of row ``first`` of a head, one of ``count`` in its tensor."""
    terms = [str(heads.offset)] * bool(heads.offset)
    if heads.head_major:
        return " + ".join([*terms, f"((batch * {count} + head) * {c_text(rows)} + {first}) * {heads.row}"])
    terms += [f"(batch * {c_text(rows)} + {first}) * {heads.row}", f"head * {heads.head}"]
    return " + ".join(terms)


def _masks(attention: Attention, uses: Sequence[Use], tensor: Any) -> dict[str, Any]:
    """Return the values of the template for masks and sinks; ``uses`` are those that are present."""
    values: dict[str, Any] = {"mask": "", "keep": "", "sinks": ""}
    for use, name in zip(uses, [n for n in values if getattr(attention, n) is not None], strict=True):
        values[name] = tensor(use.tensor, False)
        if name == "sinks":
            of_head = "0" if equal(use.shape[1], 1) else f"head * {c_text(use.shape[2])}"
            values["sink"] = element(f"{values[name]}[{of_head}]", use.tensor.dtype)
            continue
        at, index = _mask_place(use)
        values |= {f"{name}_at": at, f"{name}_index": index}
        if name == "mask":
            values["mask_type"] = CTYPES[use.tensor.dtype].stored
            values["mask_element"] = element(f"mask[{index}]", use.tensor.dtype)
    values["inverted"], values["fill"] = attention.inverted, literal(attention.fill, "float32")
    return values


def _mask_place(use: Use) -> tuple[str, str]:
    """Return the offset of a row of a mask, and the index of a key in it."""
    extents = (*(1,) * (4 - len(use.shape)), *use.shape)
    along = not equal(extents[3], 1)
    terms = ["from"] * along
    for axis, name in enumerate(("batch", "head", "(top + r)")):
        if not equal(extents[axis], 1):
            terms.append(f"{name} * {c_text(product(extents[axis + 1 :]))}")
    return " + ".join(terms) or "0", "j" if along else "0"
