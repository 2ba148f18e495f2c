"""Bisect: a binary search for the first bad commit. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ortet.errors import Invalid

ParentsOf = Callable[[str], Sequence[str]]
"""Returns the parents of a commit, first parent first."""


class BisectState(msgspec.Struct, frozen=True):
    """Everything a search knows. It can be stored and continued in another process."""

    bad: str
    good: list[str]
    skipped: list[str] = []
    tested: int = 0


class BisectResult(msgspec.Struct, frozen=True):
    """The first bad commit.

    If skipped commits hide it, `first_bad` is None and `suspects` has all candidates.
    """

    first_bad: str | None
    suspects: list[str]


class Bisect:
    """A search between good commits and a bad commit that descends from them.

    The search follows first parents: n commits take log2(n) tests. If the first bad commit there is
    a merge, the search continues in the merged branches.
    """

    def __init__(self, parents_of: ParentsOf, state: BisectState) -> None:
        if not state.good:
            raise Invalid("no_good", "bisect needs a commit that was good: name an older one")
        self._parents_of = parents_of
        self._good: set[str] = set()
        self.state = state
        for oid in state.good:
            self._mark_good_with_ancestors(oid)

    def next(self) -> str | None:
        """Return the commit to test now, or None if the search has ended."""
        line = self.candidates()
        # line[0] is bad and everything before the end of the line is good. The middle halves the
        # rest.
        middle = len(line) // 2
        order = sorted(range(1, len(line)), key=lambda index: abs(index - middle))
        skipped = set(self.state.skipped)
        for oid in [line[index] for index in order] or self._merged_candidates():
            if oid not in skipped:
                return oid
        return None

    def good(self, oid: str) -> None:
        """Record that a commit is good. All its ancestors then count as good."""
        self._mark_good_with_ancestors(oid)
        self._update_state(good=[*self.state.good, oid])

    def bad(self, oid: str) -> None:
        """Record that a commit is bad. The search continues before it."""
        if oid in self._good:
            raise Invalid(
                "contradiction",
                f"{oid[:12]} is or comes before a good commit, so it cannot be bad: start again",
            )
        self._update_state(bad=oid)

    def skip(self, oid: str) -> None:
        """Record that a commit cannot be tested."""
        self._update_state(skipped=[*self.state.skipped, oid])

    def result(self) -> BisectResult | None:
        """Return the result, or None while there is a commit to test."""
        if self.next() is not None:
            return None
        line = self.candidates()
        suspects = line if len(line) > 1 else [*line, *self._merged_candidates()]
        return BisectResult(suspects[0] if len(suspects) == 1 else None, suspects)

    def candidates(self) -> list[str]:
        """Return the bad commit and its first parents that are not known to be good."""
        line, next_oids = [self.state.bad], self._parents_of(self.state.bad)[:1]
        while next_oids and next_oids[0] not in self._good:
            line.append(next_oids[0])
            next_oids = self._parents_of(next_oids[0])[:1]
        return line

    def _merged_candidates(self) -> list[str]:
        """Return the merged parents of the bad commit that are not known to be good."""
        return [oid for oid in self._parents_of(self.state.bad)[1:] if oid not in self._good]

    def _mark_good_with_ancestors(self, oid: str) -> None:
        ancestors, stack = {oid}, [oid]
        while stack:
            for parent in self._parents_of(stack.pop()):
                if parent not in ancestors and parent not in self._good:
                    ancestors.add(parent)
                    stack.append(parent)
        if self.state.bad in ancestors:
            raise Invalid(
                "contradiction",
                f"{oid[:12]} has the bad commit {self.state.bad[:12]} in its history, so it cannot "
                "be good: start again, perhaps with good and bad exchanged",
            )
        self._good |= ancestors

    def _update_state(self, **news: Any) -> None:
        self.state = msgspec.structs.replace(self.state, tested=self.state.tested + 1, **news)
