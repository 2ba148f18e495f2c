"""Reads the state of a conversation: messages, compactions, questions, notes and open effects.

The functions take a context, so that a reader and an open session share them.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from ortet._util.validation import COUNT, require
from ortet.errors import Conflict, NotFound
from ortet.journal.conversation.compaction import (
    Compaction,
    Summarise,
    compactions,
    digest_of,
    make_compaction,
    message_events,
    recover_messages,
    select_for_compaction,
    summary_message,
)
from ortet.journal.conversation.context import ModelContext, build_context, newest_first
from ortet.journal.conversation.superseded import is_superseded
from ortet.journal.conversation.text import TokenCounter
from ortet.journal.conversation.tool_calls import (
    without_obsolete_results_newest_first,
)
from ortet.journal.state.records import Effect, Message, Question, message_of
from ortet.sessions.actions.ledger import OPEN_STATES, EffectRow, effect_rows, ledgers_of

if TYPE_CHECKING:
    from ortet.journal.state.state import SessionState
    from ortet.sessions.context import SessionContext


def last_compaction(view: SessionContext) -> Compaction | None:
    """Return the last compaction, which covers all messages left out of context, or None."""
    return next(compactions(view.state.core.summary, view.events), None)


def plan_compaction(
    view: SessionContext, keep_last: int, summarise: Summarise
) -> Compaction | None:
    """Return the record that leaves all but the last messages out of context, or None.

    Raises:
        Conflict: "compacted" if the conversation was compacted concurrently.
    """
    core = view.state.core
    events = message_events(view.events(core.since))
    gone = select_for_compaction(
        [one for one in events if not is_superseded(core.aside, one.seq)], keep_last
    )
    if not gone:
        return None
    hasher = view.store.objects.hasher
    past = make_compaction(gone, last_compaction(view), summarise, hasher)
    if core.aside:  # superseded messages in between are left out too, though the summary lacks them
        whole = [one for one in events if past.first <= one.seq <= past.last]
        digest = digest_of(whole, hasher)
        past = msgspec.structs.replace(past, count=len(whole), digest=digest)
    if view.state.core.summary != core.summary:
        raise Conflict(
            "compacted", "the conversation was compacted meanwhile: look at it, then repeat"
        )
    return past


def system_messages(view: SessionContext) -> list[Message]:
    """Return system messages that compactions left out. They stay valid."""
    past, aside = last_compaction(view), view.state.core.aside
    found: list[Message] = []
    for seq in past.rules if past else ():
        if not is_superseded(aside, seq):
            found += [message_of(event) for event in view.events(seq - 1, seq) if not event.erased]
    return found


def known_effects(view: SessionContext) -> list[EffectRow]:
    """Return all effects of the family of a session, in the order they began."""
    catalog = view.store.catalog
    return effect_rows(catalog, ledgers_of(catalog, view.row))


def unsettled_of(view: SessionContext) -> list[Effect]:
    """Return the effects whose outcome is not known, including those that a restore left behind.

    Pure actions are not included: they have no effect but their result. Neither are effects in the
    workspace that a restore has undone.
    """
    here = {effect.id for effect in view.state.effects}
    return [
        one.effect
        for one in known_effects(view)
        if one.effect.state in OPEN_STATES
        and one.effect.replay != "pure"
        and (one.effect.id in here or (_is_outside(one) and one.session in (view.id, "")))
    ]


def unseen_effects(view: SessionContext) -> list[Effect]:
    """Return what the family did outside and this timeline does not know, oldest first.

    A restore, or a fork, leaves such effects behind. They stay done.
    """
    here = {effect.id for effect in view.state.effects}
    return [
        one.effect
        for one in known_effects(view)
        if one.effect.state == "done"
        and one.effect.replay != "pure"
        and one.effect.id not in here
        and _is_outside(one)
    ]


def _is_outside(row: EffectRow) -> bool:
    return row.effect.where != "workspace"


def context_of(view: SessionContext, tokens: int, count: TokenCounter) -> ModelContext:
    core, past = view.state.core, last_compaction(view)
    return build_context(
        newest_first(view.events, core.since, core.events, superseded=core.aside),
        rules=system_messages(view),
        summary=summary_message(past) if past and past.summary else None,
        tokens=tokens,
        count=count,
    )


def last_messages(view: SessionContext, count: int) -> list[Message]:
    require(COUNT._replace(kind="bad_count"), last=count)
    core = view.state.core
    newest = newest_first(
        view.events, core.since, core.events, superseded=core.aside, page=8 + 2 * count
    )
    return list(islice(without_obsolete_results_newest_first(newest), count))[::-1]


def open_questions(state: SessionState) -> list[Question]:
    """Return the questions that have no answer."""
    return [question for question in state.questions if not question.answered]


def live_notes(state: SessionState, now: int) -> dict[str, Any]:
    """Return the notes that have not expired."""
    live = (note for note in state.notes if not note.expires or note.expires > now)
    return {note.key: note.value for note in live}


def dropped_of(view: SessionContext, compaction: int) -> list[Message]:
    found: list[list[Message]] = []
    for past in compactions(view.state.core.summary, view.events):
        if compaction in (0, past.seq):
            events = view.events(past.first - 1, past.last)
            found.append(recover_messages(past, events, view.store.objects.hasher))
    if compaction and not found:
        raise NotFound(
            "no_compaction",
            f"event {compaction} is no compaction of this session: "
            "s.conversation.compactions() lists them",
        )
    aside = view.state.core.aside
    return [one for span in reversed(found) for one in span if not is_superseded(aside, one.seq)]
