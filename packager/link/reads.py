"""Reads of run-time extents on a GPU: which are done together, and their text."""

from __future__ import annotations

from collections.abc import Sequence

from packager.ir.call_plan import Check, Iteration, ReadExtent, Switch


def reads_together(steps: Sequence[object], place: int) -> tuple[list[ReadExtent], int]:
    """Return the reads from ``place`` on between which nothing is called, and the place behind the last of them.

    Where a branch decides whether or where an extent is read, that is known before: the read is the first of others.
    What the host knows is not read.
    """
    group: list[ReadExtent] = []
    end = place
    for number in range(place, len(steps)):
        step = steps[number]
        if isinstance(step, Check):
            continue
        if not isinstance(step, ReadExtent) or (group and (step.branch or isinstance(step.source, Switch))):
            break
        if isinstance(step.source, Iteration | int | str):
            end = number + 1
            continue
        group.append(step)
        end = number + 1
        if step.branch:
            break
    return group, end


def fetch_text(sources: Sequence[str], targets: Sequence[str], failure: int) -> str:
    """Return the text that copies int64 scalars from the device to the host, which waits once for all of them."""
    return (
        f"{{ const void *const sources[] = {{{', '.join(sources)}}};"
        f" int64_t *const targets[] = {{{', '.join(targets)}}};"
        f" if (pk_cuda_extents(call->cuda, {len(sources)}, sources, targets)) return {failure}; }}"
    )
