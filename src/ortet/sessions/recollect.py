"""Reports from a journal for the next worker: compaction, model context and briefing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING

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
    without_obsolete_results,
    without_obsolete_results_newest_first,
)
from ortet.journal.environment import environment_lines
from ortet.journal.reports.briefing import Briefing, make_briefing
from ortet.journal.reports.briefing_items import BriefingItems, FailedAction, PendingApproval
from ortet.journal.state.records import Artifact, Effect, Message, message_of
from ortet.sessions.actions.effects import EffectRow, effect_rows
from ortet.sessions.environment.environments import recorded_environments

if TYPE_CHECKING:
    from ortet.sessions.reader import SessionReader

_BRIEFING_MESSAGES = 10
"""Highest number of messages in a briefing."""
_UNSETTLED_STATES = ("begun", "unsettled")


def last_compaction(view: SessionReader) -> Compaction | None:
    """Return the last compaction, which covers all messages left out of context, or None."""
    return next(compactions(view.state.core.summary, view.events), None)


def plan_compaction(view: SessionReader, keep_last: int, summarise: Summarise) -> Compaction | None:
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


def system_messages(view: SessionReader) -> list[Message]:
    """Return system messages that compactions left out. They stay valid."""
    past, aside = last_compaction(view), view.state.core.aside
    found: list[Message] = []
    for seq in past.rules if past else ():
        if not is_superseded(aside, seq):
            found += [message_of(event) for event in view.events(seq - 1, seq) if not event.erased]
    return found


def unsettled_of(view: SessionReader) -> list[Effect]:
    """Return the effects whose outcome is not known, including those that a restore left behind.

    Pure actions are not included: they have no effect but their result.
    """
    deeds = effect_rows(view.store.catalog, view.row.family)
    here = {effect.id for effect in view.state.effects}
    mine = (deed.effect for deed in deeds if deed.session == view.id or deed.effect.id in here)
    return [
        effect for effect in mine if effect.state in _UNSETTLED_STATES and effect.replay != "pure"
    ]


def context_of(view: SessionReader, tokens: int, count: TokenCounter) -> ModelContext:
    core, past = view.state.core, last_compaction(view)
    return build_context(
        newest_first(view.events, core.since, core.events, superseded=core.aside),
        rules=system_messages(view),
        summary=summary_message(past) if past and past.summary else None,
        tokens=tokens,
        count=count,
    )


def last_messages(view: SessionReader, count: int) -> list[Message]:
    require(COUNT._replace(kind="bad_count"), last=count)
    core = view.state.core
    newest = newest_first(
        view.events, core.since, core.events, superseded=core.aside, page=8 + 2 * count
    )
    return list(islice(without_obsolete_results_newest_first(newest), count))[::-1]


def briefing_of(view: SessionReader, tokens: int, count: TokenCounter) -> Briefing:
    mind, past = view.state, last_compaction(view)
    core = mind.core
    deeds = {deed.effect.id: deed for deed in effect_rows(view.store.catalog, view.row.family)}
    effects = sorted(
        (_current_effect(effect, deeds) for effect in mind.effects), key=lambda e: e.begun
    )
    facts = view.facts()
    newest = newest_first(view.events, core.since, core.events, superseded=core.aside)
    known = BriefingItems(
        name=view.name,
        status=view.status,
        state=mind,
        done=[effect for effect in effects if effect.state == "done"],
        failed=[FailedAction(e, _error(e, deeds)) for e in effects if e.state == "failed"],
        lessons=[fact for fact in facts if fact.lesson],
        facts=[fact for fact in facts if not fact.lesson],
        questions=sorted(view.questions(), key=lambda question: question.seq),
        artifacts=_latest(mind.artifacts),
        unsettled=unsettled_of(view),
        approvals=[
            PendingApproval(a.id, a.what, a.why) for a in view.approvals() if a.state == "asked"
        ],
        limits=view.limits(),
        left=view.budget_left(),
        spent=view.spent(),
        notes=view.notes(),
        summary=past.summary if past else "",
        messages=without_obsolete_results(list(islice(newest, _BRIEFING_MESSAGES))[::-1]),
        collaborations=sorted(view.collaborations(), key=lambda one: one.seq),
        windows=[window for window in view.windows() if not window.full],
        tokens=view.tokens(),
        environment=environment_lines(*recorded_environments(view)),
    )
    return make_briefing(known, tokens, count)


def _current_effect(effect: Effect, effects: Mapping[str, EffectRow]) -> Effect:
    """Return the effect with the state that the family's row has."""
    deed = effects.get(effect.id)
    if deed is None:
        return effect
    known = deed.effect
    return msgspec.structs.replace(effect, state=known.state, command=known.command)


def _error(effect: Effect, effects: Mapping[str, EffectRow]) -> str:
    deed = effects.get(effect.id)
    return deed.error if deed else ""


def _latest(artifacts: Iterable[Artifact]) -> list[Artifact]:
    """Return the last version of each artifact, in the order they were made."""
    found = {artifact.name: artifact for artifact in artifacts}
    return sorted(found.values(), key=lambda artifact: artifact.seq)


def dropped_of(view: SessionReader, compaction: int) -> list[Message]:
    found: list[list[Message]] = []
    for past in compactions(view.state.core.summary, view.events):
        if compaction in (0, past.seq):
            events = view.events(past.first - 1, past.last)
            found.append(recover_messages(past, events, view.store.objects.hasher))
    if compaction and not found:
        raise NotFound(
            "no_compaction",
            f"event {compaction} is no compaction of this session: s.compactions() lists them",
        )
    aside = view.state.core.aside
    return [one for span in reversed(found) for one in span if not is_superseded(aside, one.seq)]
