"""What an agent has at hand, made of its mind and its last messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ortet.memory.working import Scratch, Working, key_of, read_through
from ortet.sessions.recollect import last_messages, unsettled_of

if TYPE_CHECKING:
    from ortet.sessions.reader import View


def working_of(view: View, messages: int) -> Working:
    """See View.working."""
    seq = view.mind.core.events
    # what was erased is another epoch: who kept it before does not give it away after
    epoch = view.hub.objects.gate.epoch()  # as it is now: another process may have erased
    key = f"{key_of(view.row.timeline, seq, messages)}/{epoch}"
    made = read_through(view.hub.cache, key, lambda: _made(view, messages), now=view._now())
    # what became of effects is not in this timeline alone: a sibling may have settled one
    effects = [msgspec.to_builtins(effect) for effect in unsettled_of(view)]
    return msgspec.structs.replace(made, status=view.status, effects=effects)


def _made(view: View, messages: int) -> Working:
    core = view.mind.core
    return Working(
        timeline=view.row.timeline,
        seq=core.events,
        goal=core.goal,
        plan=core.plan,
        step=core.step,
        notes=[Scratch(note.key, note.value, note.expires) for note in view.mind.notes],
        questions=[msgspec.to_builtins(one) for one in view.questions()],
        messages=[msgspec.to_builtins(one) for one in last_messages(view, messages)],
    )
