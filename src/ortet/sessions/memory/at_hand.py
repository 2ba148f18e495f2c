"""Working memory of an agent: goal, plan, notes, questions, effects and last messages.

It is a module of its own because it is loaded only when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ortet.memory.working import WorkingMemory, WorkingNote, cache_key, read_through
from ortet.sessions.recollect import last_messages, unsettled_of

if TYPE_CHECKING:
    from ortet.sessions.reader import SessionReader


def working_of(view: SessionReader, messages: int) -> WorkingMemory:
    """Return the working memory; see `SessionReader.working`."""
    seq = view.state.core.events
    # an erasure changes the epoch, so that an entry cached before it is not used after it
    epoch = view.hub.objects.sweep_lock.epoch()  # read now: another process may have erased data
    key = f"{cache_key(view.row.timeline, seq, messages)}/{epoch}"
    made = read_through(
        view.hub.cache, key, lambda: _build_working_memory(view, messages), now=view._now()
    )
    # never cached: another session of the family may have settled an effect
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
