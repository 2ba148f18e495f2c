"""Lane layout of the commit graph: a branch keeps its lane down to where it began.

`history.graph_layout` saves columns for a terminal; here each lane is a line that can be followed.
A module of its own, because it is a pure algorithm without I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple


class LanePosition(NamedTuple):
    """The position of one commit.

    `to` are the lanes of its parents. `joins` are other lanes that end here, because they lead to
    this commit.
    """

    lane: int
    to: list[int]
    joins: list[int]


def lay_out(
    commits: Iterable[tuple[str, Sequence[str]]], trunk: Sequence[str] = ()
) -> Iterator[LanePosition]:
    """Yield the position of each commit.

    Args:
        commits: (oid, parents) pairs, children before parents.
        trunk: Commits that get the leftmost lanes, in order. Their first parents stay in the same
            lane.
    """
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
