"""What a session knows and has been through, with what it shares: the reading half of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortet.errors import NotFound
from ortet.given import TEXT, check_text, may_be
from ortet.journal.line import Line
from ortet.journal.mind import Mind
from ortet.journal.things import Episode, Fact
from ortet.session.believing import episodes_of, fact_in, facts_of, shared_by
from ortet.session.lifecycle import SessionRow
from ortet.session.scopes import Known, check_scope
from ortet.session.when import Moment, ns_of

if TYPE_CHECKING:
    from ortet.session.hub import Hub


class Knowing:
    """The part of View that reads facts and episodes."""

    _hub: Hub
    _row: SessionRow
    _line: Line
    _mind: Mind

    def shared(self) -> list[Known]:
        """The memories that it shares, as far as it knows them."""
        return shared_by(self._hub._minds(), self._row, self._mind)

    def facts(
        self,
        *,
        scope: str | None = None,
        about: str | None = None,
        at: Moment | None = None,
        on: Moment | None = None,
    ) -> list[Fact]:
        """What is believed, of every scope it can see or of one, the oldest first.

        `at`: what was believed then, ended since or not. `on`: what holds at that moment, by the
        `since` and `until` of each.
        """
        may_be(TEXT, scope=scope, about=about)
        believed, valid = ns_of("at", at), ns_of("on", on)
        word = check_scope(scope) if scope is not None else None
        found = facts_of(self._mind, self.shared(), past=bool(believed)).values()
        return sorted(
            (
                fact
                for fact in found
                if (word is None or fact.scope == word)
                and (about is None or fact.about == about)
                and (not believed or _believed(fact, believed))
                and (not valid or holds(fact.since, fact.until, valid))
            ),
            key=lambda fact: (fact.time, fact.id),
        )

    def fact(self, id_: str) -> Fact:
        """One by its id, believed or given up; NotFound when it never was."""
        check_text(id=id_)
        shared = self.shared()
        found = fact_in(self._mind, shared, id_)
        if found is None:
            found = facts_of(self._mind, shared, past=True).get(id_)
        if found is None:
            raise NotFound("no_fact", f"{id_!r} is no fact that is known: s.facts() lists them")
        return found

    def fact_history(self, id_: str) -> list[Fact]:
        """A fact with all that it superseded and that superseded it, the oldest first."""
        known = facts_of(self._mind, self.shared(), past=True)
        first = self.fact(id_)
        chain = [*_back(known, first), first]
        after = first
        seen = {fact.id for fact in chain}
        while after.ended_by and after.ended_by in known and after.ended_by not in seen:
            after = known[after.ended_by]
            seen.add(after.id)
            chain.append(after)
        return chain

    def episodes(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        outcome: str | None = None,
        session: str | None = None,
    ) -> list[Episode]:
        """What happened, here and, where it was published, in other sessions; the oldest first."""
        may_be(TEXT, outcome=outcome, session=session)
        after, before = ns_of("since", since), ns_of("until", until)
        found = episodes_of(self._mind, self.shared()).values()
        return sorted(
            (
                one
                for one in found
                if one.time >= after
                and (not before or (one.began or one.time) < before)
                and (outcome is None or one.outcome == outcome)
                and (session is None or one.session == session)
            ),
            key=lambda one: (one.time, one.id),
        )


def holds(since: int, until: int, moment: int) -> bool:
    """Whether something is valid at a moment; 0 is no limit."""
    return (not since or since <= moment) and (not until or moment < until)


def _believed(fact: Fact, at: int) -> bool:
    return fact.time <= at and (not fact.ended or fact.ended > at)


def _back(known: dict[str, Fact], fact: Fact) -> list[Fact]:
    found: list[Fact] = []
    seen = {fact.id}
    while fact.supersedes in known and fact.supersedes not in seen:
        fact = known[fact.supersedes]
        seen.add(fact.id)
        found.append(fact)
    return found[::-1]
