"""Which commit broke it: a search over history that halves what is left with every answer. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ortet.errors import Invalid

ParentsOf = Callable[[str], Sequence[str]]
"""A commit -> its parents, the first one first."""


class BisectState(msgspec.Struct, frozen=True):
    """Everything a search has learnt; store it, and go on from it in another process."""

    bad: str
    good: list[str]
    skipped: list[str] = []
    tested: int = 0


class BisectResult(msgspec.Struct, frozen=True):
    """The first bad commit; when skipped ones stood in the way, all it can be, `first_bad` None."""

    first_bad: str | None
    suspects: list[str]


class Bisect:
    """A search between good commits and a bad one that descends from them.

    It goes along first parents, so on a line of n commits it takes log2 n tests; when a merge turns
    out to be the first bad one there, it goes on in the branches that were merged.
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
        """The commit to test now; None when the answer is there."""
        line = self.candidates()
        # line[0] is bad and before its end all is good, so the middle halves what is left
        middle = len(line) // 2
        order = sorted(range(1, len(line)), key=lambda index: abs(index - middle))
        skipped = set(self.state.skipped)
        for oid in [line[index] for index in order] or self._merged_candidates():
            if oid not in skipped:
                return oid
        return None

    def good(self, oid: str) -> None:
        """The commit passed, so all before it counts as good too."""
        self._mark_good_with_ancestors(oid)
        self._update_state(good=[*self.state.good, oid])

    def bad(self, oid: str) -> None:
        """The commit failed: the search goes on before it."""
        if oid in self._good:
            raise Invalid(
                "contradiction",
                f"{oid[:12]} is or comes before a good commit, so it cannot be bad: start again",
            )
        self._update_state(bad=oid)

    def skip(self, oid: str) -> None:
        """The commit cannot be tested."""
        self._update_state(skipped=[*self.state.skipped, oid])

    def result(self) -> BisectResult | None:
        """None while there is something to test."""
        if self.next() is not None:
            return None
        line = self.candidates()
        suspects = line if len(line) > 1 else [*line, *self._merged_candidates()]
        return BisectResult(suspects[0] if len(suspects) == 1 else None, suspects)

    def candidates(self) -> list[str]:
        """The bad commit and its first parents not known to be good: one of them did it."""
        line, at = [self.state.bad], self._parents_of(self.state.bad)[:1]
        while at and at[0] not in self._good:
            line.append(at[0])
            at = self._parents_of(at[0])[:1]
        return line

    def _merged_candidates(self) -> list[str]:
        """What the bad commit merged and is not known to be good."""
        return [oid for oid in self._parents_of(self.state.bad)[1:] if oid not in self._good]

    def _mark_good_with_ancestors(self, oid: str) -> None:
        """Count a commit and all before it as good."""
        found, stack = {oid}, [oid]
        while stack:
            for parent in self._parents_of(stack.pop()):
                if parent not in found and parent not in self._good:
                    found.add(parent)
                    stack.append(parent)
        if self.state.bad in found:
            raise Invalid(
                "contradiction",
                f"{oid[:12]} has the bad commit {self.state.bad[:12]} in its history, so it cannot "
                "be good: start again, perhaps with good and bad exchanged",
            )
        self._good |= found

    def _update_state(self, **news: Any) -> None:
        self.state = msgspec.structs.replace(self.state, tested=self.state.tested + 1, **news)
