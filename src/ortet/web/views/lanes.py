"""Where each commit of the tree goes: a branch keeps its lane down to where it began.

Other than in `graph/lanes`, which saves columns of a terminal: here a lane is a line that one can
follow. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple


class LanePosition(NamedTuple):
    """Of one commit. `to`: the lanes in which its parents are waited for; `joins`: other lanes that
    end here, because they waited for this commit."""

    lane: int
    to: list[int]
    joins: list[int]


def lay_out(
    commits: Iterable[tuple[str, Sequence[str]]], trunk: Sequence[str] = ()
) -> Iterator[LanePosition]:
    """For (oid, parents), children before parents. Each of `trunk` has a lane kept for it on the
    left, in order, which its first parents go on in."""
    waiting: dict[str, list[int]] = {oid: [lane] for lane, oid in enumerate(dict.fromkeys(trunk))}
    free: list[int] = []
    size = len(waiting)
    for oid, parents in commits:
        lanes = sorted(waiting.pop(oid, ()))
        if lanes:
            lane, joins = lanes[0], lanes[1:]
        else:
            lane, size = (heappop(free), size) if free else (size, size + 1)
            joins = []
        for gone in joins:
            heappush(free, gone)
        to: list[int] = []
        for n, parent in enumerate(dict.fromkeys(parents)):
            known = waiting.setdefault(parent, [])
            if n == 0:
                at = lane
                known.append(at)
            elif known:
                at = min(known)
            else:
                at, size = (heappop(free), size) if free else (size, size + 1)
                known.append(at)
            to.append(at)
        if not to:
            heappush(free, lane)
        yield LanePosition(lane, to, joins)
