"""Splits the lines of a transcript into conversations.

A user who goes back and asks something else leaves an abandoned branch behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from ortet.integrations.transcripts.lines import TranscriptLine
from ortet.journal.events import Draft
from ortet.sessions.writing.bulk_import import PastSpend

NO_PARENT = -1
"""Parent of a line that starts a conversation."""


class LineNode(msgspec.Struct, frozen=True):
    """A line and its place in the tree.

    `parent` is the number of an earlier node. The branch with the last node that `weighs` is the
    one that continues. A node without `said` never starts a branch. `mark` is equal for all parts
    of one model answer. `calls` are made and `results` given in this line. `side` is the id of a
    subagent, or "".
    """

    line: TranscriptLine
    key: str
    parent: int
    weighs: bool = True
    said: bool = True
    mark: str = ""
    calls: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    side: str = ""
    paid: PastSpend | None = None


class ImportedLine(msgspec.Struct, frozen=True):
    """A translated line.

    `summary` replaces all earlier messages. `prompt` starts a turn.
    """

    drafts: list[Draft]
    summary: str = ""
    prompt: str = ""
    unknown: bool = False


class LineChain(msgspec.Struct, frozen=True):
    """The lines of one conversation, in order.

    The chain continues after node `after` of the chain `parent`. The first chain is the one that
    was continued last.
    """

    nodes: list[int]
    parent: int = NO_PARENT
    after: int = NO_PARENT


def chains(nodes: Sequence[LineNode]) -> list[LineChain]:
    """Return the conversations, each after the one it branches from."""
    favourite = _latest_children(nodes)
    conversations = [LineChain([])]
    place: list[int] = []
    spine: list[bool] = []
    marks: list[set[str]] = [set()]
    for at, node in enumerate(nodes):
        home = place[node.parent] if node.parent >= 0 else 0
        on_spine = node.parent < 0 or spine[node.parent]
        goes_on = on_spine and favourite.get(node.parent) == at
        if not goes_on and not _is_same_turn(node, marks[home]):
            conversations.append(LineChain([], home, node.parent))
            marks.append(set())
            home, goes_on = len(conversations) - 1, True
        place.append(home)
        spine.append(goes_on)
        conversations[home].nodes.append(at)
        marks[home].update(node.calls, [node.mark] if node.mark else [])
    return [_with_results(chain, conversations, spine) for chain in conversations]


def _latest_children(nodes: Sequence[LineNode]) -> dict[int, int]:
    """Return, for each node, the child that leads to the latest line."""
    weight = [at if node.weighs else NO_PARENT for at, node in enumerate(nodes)]
    best: dict[int, int] = {}
    for at in range(len(nodes) - 1, -1, -1):
        parent = nodes[at].parent
        if parent >= 0:
            weight[parent] = max(weight[parent], weight[at])
        if parent not in best or weight[at] >= weight[best[parent]]:
            best[parent] = at
    return best


def _is_same_turn(node: LineNode, marks: set[str]) -> bool:
    """Return True if the node is not a real branch.

    Parts of one answer, and results of parallel calls, are siblings in the tree.
    """
    return not node.said or node.mark in marks or not marks.isdisjoint(node.results)


def _with_results(
    chain: LineChain, conversations: Sequence[LineChain], spine: Sequence[bool]
) -> LineChain:
    """Move the branch point behind siblings, so that no call is separated from its result."""
    if chain.after < 0:
        return chain
    after = chain.after
    for at in conversations[chain.parent].nodes:
        if at > chain.after:
            if spine[at]:
                break
            after = at
    return msgspec.structs.replace(chain, after=after)


def parse_time_ns(value: Any) -> int:
    """Parse a transcript's time to nanoseconds since 1970; 0 if it is not a time."""
    try:
        when = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return 0
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    try:
        seconds = int(when.timestamp())
    except (OverflowError, ValueError):
        return 0
    return max(0, seconds * 10**9 + when.microsecond * 1000)
