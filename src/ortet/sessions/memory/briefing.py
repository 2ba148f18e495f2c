"""The briefing of a session: its mental state for the next worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

import msgspec

from ortet.journal.conversation.context import newest_first
from ortet.journal.conversation.text import TokenCounter
from ortet.journal.conversation.tool_calls import without_obsolete_results
from ortet.journal.environment import environment_lines
from ortet.journal.reports.briefing import Briefing, make_briefing
from ortet.journal.reports.briefing_items import BriefingItems, FailedAction, PendingApproval
from ortet.journal.state.records import Artifact, Effect
from ortet.sessions.actions.accounting import Accounting
from ortet.sessions.actions.approvals import approvals_of
from ortet.sessions.actions.ledger import EffectRow
from ortet.sessions.context import SessionContext
from ortet.sessions.environment.environments import recorded_environments
from ortet.sessions.environment.external_state import collaborations_of, windows_of
from ortet.sessions.memory.facts import believed_facts
from ortet.sessions.recollect import (
    known_effects,
    last_compaction,
    live_notes,
    open_questions,
    unseen_effects,
    unsettled_of,
)
from ortet.sessions.writing.pipeline import VerbPipeline

_BRIEFING_MESSAGES = 10
"""Highest number of messages in a briefing."""


def briefing_of(
    view: SessionContext, pipeline: VerbPipeline | None, tokens: int, count: TokenCounter
) -> Briefing:
    """Return the briefing; see `SessionMemory.briefing`."""
    mind, past = view.state, last_compaction(view)
    core, accounting = mind.core, Accounting(view, pipeline)
    known_rows = {effect_row.effect.id: effect_row for effect_row in known_effects(view)}
    effects = sorted(
        (_current_effect(effect, known_rows) for effect in mind.effects), key=lambda e: e.begun
    )
    facts = believed_facts(view)
    newest = newest_first(view.events, core.since, core.events, superseded=core.aside)
    known = BriefingItems(
        name=view.name,
        status=view.status,
        state=mind,
        done=[effect for effect in effects if effect.state == "done"],
        failed=[FailedAction(e, _error(e, known_rows)) for e in effects if e.state == "failed"],
        lessons=[fact for fact in facts if fact.lesson],
        facts=[fact for fact in facts if not fact.lesson],
        questions=sorted(open_questions(mind), key=lambda question: question.seq),
        artifacts=_latest(mind.artifacts),
        unsettled=unsettled_of(view),
        elsewhere=unseen_effects(view),
        approvals=[
            PendingApproval(a.id, a.what, a.why)
            for a in approvals_of(view.store.catalog, view.id, mind)
            if a.state == "asked"
        ],
        limits=accounting.limits(),
        left=accounting.budget_left(),
        spent=accounting.spent(),
        notes=live_notes(mind, view.now()),
        summary=past.summary if past else "",
        messages=without_obsolete_results(list(islice(newest, _BRIEFING_MESSAGES))[::-1]),
        collaborations=sorted(collaborations_of(view), key=lambda one: one.seq),
        windows=[window for window in windows_of(view) if not window.full],
        tokens=list(mind.tokens),
        environment=environment_lines(*recorded_environments(view)),
    )
    return make_briefing(known, tokens, count)


def _current_effect(effect: Effect, effects: Mapping[str, EffectRow]) -> Effect:
    """Return the effect with the state that the family's row has."""
    effect_row = effects.get(effect.id)
    if effect_row is None:
        return effect
    known = effect_row.effect
    return msgspec.structs.replace(effect, state=known.state, command=known.command)


def _error(effect: Effect, effects: Mapping[str, EffectRow]) -> str:
    effect_row = effects.get(effect.id)
    return effect_row.error if effect_row else ""


def _latest(artifacts: Iterable[Artifact]) -> list[Artifact]:
    """Return the last version of each artifact, in the order they were made."""
    found = {artifact.name: artifact for artifact in artifacts}
    return sorted(found.values(), key=lambda artifact: artifact.seq)
