"""What a session makes of its journal for those who go on with it: a shorter conversation, and a
briefing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from ortet.errors import Conflict, NotFound
from ortet.journal.briefing import Briefing, brief
from ortet.journal.compact import (
    Loss,
    Summarise,
    choose,
    losses,
    recovered,
    said,
    summarised,
    summary_message,
)
from ortet.journal.context import Context, gather, newest_first
from ortet.journal.folding import message_of
from ortet.journal.known import Failure, Known
from ortet.journal.pairs import settled
from ortet.journal.text import Counter
from ortet.journal.things import Artifact, Effect, Message
from ortet.session.deeds import Deed, deeds_of

if TYPE_CHECKING:
    from ortet.session.view import View

_LAST = 10
"""Messages a briefing may show."""
_OPEN = ("begun", "unsettled")


def last_loss(view: View) -> Loss | None:
    """The compaction that stands for all that went out of context."""
    return next(losses(view.mind.core.summary, view.events), None)


def compaction(view: View, keep_last: int, summarise: Summarise) -> Loss | None:
    """The record of leaving out all but the last messages; None when that is nothing."""
    core = view.mind.core
    gone = choose(said(view.events(core.since)), keep_last)
    if not gone:
        return None
    loss = summarised(gone, last_loss(view), summarise, view.hub.objects.hasher)
    if view.mind.core.summary != core.summary:
        raise Conflict(
            "compacted", "the conversation was compacted meanwhile: look at it, then repeat"
        )
    return loss


def context_of(view: View, tokens: int, count: Counter) -> Context:
    core, loss = view.mind.core, last_loss(view)
    rules: list[Message] = []
    for seq in loss.rules if loss else ():
        rules += [message_of(event) for event in view.events(seq - 1, seq) if not event.erased]
    return gather(
        newest_first(view.events, core.since, core.events),
        rules=rules,
        summary=summary_message(loss) if loss and loss.summary else None,
        tokens=tokens,
        count=count,
    )


def briefing_of(view: View, tokens: int, count: Counter) -> Briefing:
    mind, loss = view.mind, last_loss(view)
    core = mind.core
    deeds = {deed.effect.id: deed for deed in deeds_of(view.hub.catalog, view.row.family)}
    effects = sorted((_now(effect, deeds) for effect in mind.effects), key=lambda e: e.begun)
    here = {effect.id for effect in effects}
    away = [d.effect for d in deeds.values() if d.session == view.id and d.effect.id not in here]
    facts = sorted(mind.facts, key=lambda fact: fact.seq)
    newest = islice(newest_first(view.events, core.since, core.events), _LAST)
    known = Known(
        name=view.name,
        status=view.status,
        goal=core.goal,
        plan=core.plan,
        step=core.step,
        done=[effect for effect in effects if effect.state == "done"],
        failed=[Failure(e, _error(e, deeds)) for e in effects if e.state == "failed"],
        lessons=[fact for fact in facts if fact.lesson],
        facts=[fact for fact in facts if not fact.lesson],
        decisions=sorted(mind.decisions, key=lambda decision: decision.seq),
        questions=sorted(view.questions(), key=lambda question: question.seq),
        artifacts=_latest(mind.artifacts),
        unsettled=[effect for effect in [*away, *effects] if effect.state in _OPEN],
        limits=view.limits(),
        left=view.budget_left(),
        spent=view.spent(),
        notes=view.notes(),
        summary=loss.summary if loss else "",
        messages=settled(list(newest)[::-1]),
    )
    return brief(known, tokens, count)


def _now(effect: Effect, deeds: Mapping[str, Deed]) -> Effect:
    """As the family knows it: a deed that was settled elsewhere is settled."""
    deed = deeds.get(effect.id)
    return effect if deed is None else msgspec.structs.replace(effect, state=deed.effect.state)


def _error(effect: Effect, deeds: Mapping[str, Deed]) -> str:
    deed = deeds.get(effect.id)
    return deed.error if deed else ""


def _latest(artifacts: Iterable[Artifact]) -> list[Artifact]:
    """The last version of each, in the order they were made."""
    found = {artifact.name: artifact for artifact in artifacts}
    return sorted(found.values(), key=lambda artifact: artifact.seq)


def dropped_of(view: View, compaction: int) -> list[Message]:
    found: list[list[Message]] = []
    for loss in losses(view.mind.core.summary, view.events):
        if compaction in (0, loss.seq):
            events = view.events(loss.first - 1, loss.last)
            found.append(recovered(loss, events, view.hub.objects.hasher))
    if compaction and not found:
        raise NotFound(
            "no_compaction",
            f"event {compaction} is no compaction of this session: s.compactions() lists them",
        )
    return [message for span in reversed(found) for message in span]
