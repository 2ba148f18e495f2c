"""What an agent has at hand, made of its mind and its last messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ortet.memory.working import WorkingMemory, WorkingNote, cache_key, read_through
from ortet.sessions.recollect import last_messages, unsettled_of

if TYPE_CHECKING:
    from ortet.sessions.reader import SessionReader


def working_of(view: SessionReader, messages: int) -> WorkingMemory:
    """See View.working."""
    seq = view.state.core.events
    # what was erased is another epoch: who kept it before does not give it away after
    epoch = view.hub.objects.sweep_lock.epoch()  # as it is now: another process may have erased
    key = f"{cache_key(view.row.timeline, seq, messages)}/{epoch}"
    made = read_through(
        view.hub.cache, key, lambda: _build_working_memory(view, messages), now=view._now()
    )
    # what became of effects is not in this timeline alone: a sibling may have settled one
    effects = [msgspec.to_builtins(effect) for effect in unsettled_of(view)]
    return msgspec.structs.replace(made, status=view.status, effects=effects)


def _build_working_memory(view: SessionReader, messages: int) -> WorkingMemory:
    core = view.state.core
    return WorkingMemory(
        timeline=view.row.timeline,
        seq=core.events,
        goal=core.goal,
        plan=core.plan,
        step=core.step,
        notes=[WorkingNote(note.key, note.value, note.expires) for note in view.state.notes],
        questions=[msgspec.to_builtins(one) for one in view.questions()],
        messages=[msgspec.to_builtins(one) for one in last_messages(view, messages)],
    )
