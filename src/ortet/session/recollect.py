"""What a session makes of its journal for those who go on with it: a shorter conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortet.errors import Conflict, NotFound
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
from ortet.journal.text import Counter
from ortet.journal.things import Message

if TYPE_CHECKING:
    from ortet.session.view import View


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
