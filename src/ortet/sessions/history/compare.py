"""Explanation of a commit, and comparison of two commits or of a commit with the present.

A comparison covers files, facts, plan and messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain, islice
from sys import maxsize
from typing import TYPE_CHECKING

import msgspec

from ortet.history.commits import CommitInfo
from ortet.history.diff.tree_diff import TreeChange, diff_images, diff_trees
from ortet.history.records import Image, JournalHead
from ortet.ids import Oid, from_hex
from ortet.journal.conversation.superseded import is_superseded, subtract_ranges
from ortet.journal.conversation.text import clip
from ortet.journal.event_log import EMPTY_JOURNAL
from ortet.journal.events import Event
from ortet.journal.kinds.registry import kind_of
from ortet.journal.replay.divergence import DivergedEvents, events_between, find_divergence
from ortet.journal.state.records import CoreState, Fact, Message, fact_of, message_of
from ortet.journal.state.state import SessionState
from ortet.sessions.history.load import journal_of
from ortet.sessions.memory.report import (
    MemoryDiff,
    memory_at_commit,
    memory_between,
    memory_of_session,
)

if TYPE_CHECKING:
    from ortet.sessions.context import SessionServices
    from ortet.sessions.reader import SessionReader
    from ortet.sessions.session import Session
    from ortet.store.context import StoreContext

_MAX_EVENTS = 20_000
"""Highest number of events searched for one commit, newest first."""
_MAX_REASON_CHARS = 4000
"""Highest number of characters of one reason."""


class ReasoningStep(msgspec.Struct, frozen=True):
    """One step of the reasoning.

    `kind` is goal, plan, step, thought, decision, action, question, answer or approval. For an
    action, `text` is its name, with the command if there is one, and `state` says how it ended; ""
    if it did not end.
    """

    seq: int
    time: int
    kind: str
    actor: str
    text: str
    why: str = ""
    instead_of: list[str] = []
    state: str = ""


class CommitExplanation(msgspec.Struct, frozen=True):
    """The events, reasons and changes that led from the first parent of a commit to the commit.

    Its events are `first` to `last`; `kinds` counts them by kind. `reasons` are in order; if `more`
    is True, only the newest are included.
    """

    commit: CommitInfo
    first: int
    last: int
    kinds: dict[str, int]
    reasons: list[ReasoningStep]
    more: bool
    learned: list[Fact]
    given_up: list[Fact]
    files: list[TreeChange]


class PlanSnapshot(msgspec.Struct, frozen=True):
    """Goal and plan at a commit. `step` is the number of the current step, from 0."""

    goal: str
    plan: list[str]
    step: int


class SideMessages(msgspec.Struct, frozen=True):
    """Messages that only one side has: their number, and the newest in order."""

    count: int
    messages: list[Message]


class CommitComparison(msgspec.Struct, frozen=True):
    """The differences from one state to another.

    `left` are messages only of the old side, `come` only of the new side. A message that one side
    has superseded counts as missing there.
    """

    files: list[TreeChange]
    memory: MemoryDiff
    before: PlanSnapshot
    after: PlanSnapshot
    left: SideMessages
    come: SideMessages


def explain_commit(
    sessions: SessionServices, commit: Oid, *, limit: int = 200
) -> CommitExplanation:
    """Explain what led to a commit, with at most `limit` reasons."""
    store = sessions.store
    info = store.history.info(commit)
    parents = store.history.read(commit).parents
    parent = Oid(parents[0]) if parents else None
    old = _journal(sessions, parent) if parent is not None else EMPTY_JOURNAL
    new = _journal(sessions, commit)
    stretch = find_divergence(store.objects, old, new)[1]
    newest = stretch.newest(store.objects, sessions.chain)
    events = list(islice(newest, _MAX_EVENTS))[::-1]
    reasons = _reasons(events)
    learned, given_up = _facts(sessions, commit, events)
    return CommitExplanation(
        commit=info,
        first=stretch.after + 1,
        last=stretch.upto,
        kinds=dict(Counter(event.kind for event in events)),
        reasons=reasons[-limit:],
        more=len(reasons) > limit or len(events) < stretch.length,
        learned=learned,
        given_up=given_up,
        files=files_between(store, parent, commit),
    )


def files_between(store: StoreContext, old: Oid | None, new: Oid) -> list[TreeChange]:
    """Return the file changes between two commits. A commit may have no files."""
    return between_images(store, None if old is None else _image(store, old), _image(store, new))


def between_images(store: StoreContext, old: Image | None, new: Image | None) -> list[TreeChange]:
    if new is not None:
        return diff_images(store.trees, old, new)
    return diff_trees(store.trees, old.root, None) if old is not None else []


def compare(sessions: SessionServices, old: Oid, new: Oid, *, limit: int = 200) -> CommitComparison:
    """Compare two commits, of one or two sessions, with at most `limit` messages a side."""
    store = sessions.store
    journals = _journal(sessions, old), _journal(sessions, new)
    left, come = find_divergence(store.objects, *journals)
    before, after = (_core_at(sessions, journal) for journal in journals)
    return CommitComparison(
        files=files_between(store, old, new),
        memory=memory_between(memory_at_commit(sessions, old), memory_at_commit(sessions, new)),
        before=_plan_of(before),
        after=_plan_of(after),
        left=_side_messages(sessions, left, limit, journal=journals[0], of=before, other=after),
        come=_side_messages(sessions, come, limit, journal=journals[0], of=after, other=before),
    )


def compare_now(
    view: SessionReader, old: Oid, files: Image | None, *, limit: int = 200
) -> CommitComparison:
    """Compare a commit with the present state of a session and these files."""
    store, sessions = view.internals.store, view.internals.services
    journal, base = _journal(sessions, old), view.internals.event_log.base
    left, come = find_divergence(store.objects, journal, base)
    core, before = view.internals.state.core, _core_at(sessions, journal)
    said = [
        message_of(event)
        for event in view.internals.event_log.events(base.seq)
        if _is_visible_message(event, core)
    ]
    sealed = _side_messages(sessions, come, limit, journal=journal, of=core, other=before)
    return CommitComparison(
        files=between_images(store, _image(store, old), files),
        memory=memory_between(memory_at_commit(sessions, old), memory_of_session(view)),
        before=_plan_of(before),
        after=_plan_of(core),
        left=_side_messages(sessions, left, limit, journal=journal, of=before, other=core),
        come=SideMessages(sealed.count + len(said), [*sealed.messages, *said][-limit:]),
    )


def files_now(session: Session) -> Image | None:
    """Return the present files, committed or not. This starts the machine of the session."""
    files = session.internals.files.workspace()
    if files is not None:
        return files.files.current_image()
    head = session.head
    return _image(session.internals.store, from_hex(head.oid)) if head is not None else None


# private


def _journal(sessions: SessionServices, commit: Oid) -> JournalHead:
    return journal_of(sessions, sessions.store.history.state(commit))


def _image(store: StoreContext, commit: Oid) -> Image | None:
    machine = store.history.state(commit).machine
    return store.read_image(Oid(machine)) if machine else None


def _core_at(sessions: SessionServices, journal: JournalHead) -> CoreState:
    return SessionState.load(sessions.maps, sessions.store.objects, journal.fold).core


def _plan_of(core: CoreState) -> PlanSnapshot:
    return PlanSnapshot(core.goal, core.plan, core.step)


def _side_messages(
    sessions: SessionServices,
    apart: DivergedEvents,
    limit: int,
    *,
    journal: JournalHead,
    of: CoreState,
    other: CoreState,
) -> SideMessages:
    """Return the messages that only one side has.

    These are the messages since the divergence, and earlier ones that the other side has
    superseded.

    Args:
        journal: the journal of either side.
        of: the state of this side.
        other: the state of the other side.
    """
    objects, events = sessions.store.objects, sessions.chain
    count, found = 0, list[Message]()
    newest = apart.newest(objects, events)
    if hidden := subtract_ranges(
        subtract_ranges(other.aside, of.aside), [(apart.after + 1, maxsize)]
    ):
        shared = events_between(objects, journal, hidden[0][0] - 1, hidden[-1][1]).newest(
            objects, events
        )
        newest = chain(newest, (event for event in shared if is_superseded(hidden, event.seq)))
    for event in newest:
        if _is_visible_message(event, of):
            count += 1
            if len(found) < limit:
                found.append(message_of(event))
    return SideMessages(count, found[::-1])


def _is_visible_message(event: Event, core: CoreState) -> bool:
    return event.kind == "message" and not event.erased and not is_superseded(core.aside, event.seq)


def _facts(
    sessions: SessionServices, commit: Oid, events: Iterable[Event]
) -> tuple[list[Fact], list[Fact]]:
    """Return the facts that these events added, and those that they retracted, in order."""
    learned, ended = dict[str, Fact](), dict[str, None]()
    for event in events:
        if event.kind in ("fact", "lesson") and not event.erased:
            if event.data.get("gone"):
                gone = event.data["id"]
            else:
                fact = fact_of(event)
                learned[fact.id], gone = fact, fact.supersedes
            if gone:
                learned.pop(gone, None)
                ended[gone] = None
    known = memory_at_commit(sessions, commit).all if ended else {}
    return list(learned.values()), [known[id_] for id_ in ended if id_ in known]


def _reasons(events: Iterable[Event]) -> list[ReasoningStep]:
    found: list[ReasoningStep] = []
    acting: dict[str, int] = {}
    for event in events:
        if event.erased:
            continue
        if event.kind == "ended":
            at = acting.get(event.data["id"])
            if at is not None:
                state = str(event.data.get("state", "done"))
                found[at] = msgspec.structs.replace(found[at], state=state)
            continue
        reason = kind_of(event.kind).reason
        if reason is None:
            continue
        if event.kind == "begun":
            acting[event.data["id"]] = len(found)
        why = event.data.get("why", "")
        found.append(
            ReasoningStep(
                seq=event.seq,
                time=event.time,
                kind=reason.label,
                actor=event.actor,
                text=clip(reason.text(event.data), _MAX_REASON_CHARS),
                why=clip(why, _MAX_REASON_CHARS) if isinstance(why, str) else "",
                instead_of=list(map(str, event.data.get("instead_of", ()))),
            )
        )
    return found
