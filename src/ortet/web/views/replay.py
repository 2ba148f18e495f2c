"""The replay page: the state of a session after each of its events."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator
from threading import Lock
from typing import Any

import msgspec
from starlette.responses import Response

from ortet._util.codec import decode
from ortet.errors import Invalid
from ortet.history.records import JournalHead
from ortet.hub.hub import Hub, hub_of
from ortet.ids import Oid
from ortet.journal.conversation.superseded import is_superseded
from ortet.journal.conversation.text import clip, message_text, text_of
from ortet.journal.event_log import EMPTY_JOURNAL, EventLog
from ortet.journal.events import Event
from ortet.journal.kinds.registry import fold
from ortet.journal.state.records import CoreState, Fact, Message, NoteRecord, message_of
from ortet.journal.state.state import SessionState
from ortet.sessions.reader import SessionReader
from ortet.web.request import PageRequest
from ortet.web.views.journal import event_wording

# Finds the commits of a session by their position in the journal.
#
# A replay starts from the state of the nearest commit instead of the first event.

_MAX_CACHED_SESSIONS = 8
"""Maximum number of cached sessions. 10 000 commits of one take about 5 MB."""


class CommitJournalIndex:
    """The journal positions of commits, cached for one server. Only new commits are read."""

    def __init__(self) -> None:
        self._commits: OrderedDict[tuple[str, str], list[tuple[Oid, JournalHead]]] = OrderedDict()
        self._lock = Lock()

    def commits_before(
        self, view: SessionReader, tenant: str, seq: int
    ) -> Iterator[tuple[Oid, JournalHead]]:
        """Yield commits on the session's timeline that end at or before an event, newest first."""
        line = self._branch_commits(view, tenant)
        earlier = [one for one in line if 0 < one[1].seq <= seq]
        # After a restore of the state alone, a commit may end before its parent does.
        for oid, journal in sorted(earlier, key=lambda one: -one[1].seq):
            if passes_through(view.internals.event_log, hub_of(view), journal):
                yield oid, journal

    def _branch_commits(self, view: SessionReader, tenant: str) -> list[tuple[Oid, JournalHead]]:
        """Return the commits of the branch along first parents, oldest first."""
        head = view.internals.store.catalog.head(f"branch:{view.internals.row.branch}")
        if head is None:
            return []
        with self._lock:
            known = self._commits.get((tenant, view.id), [])
            self._commits[tenant, view.id] = known
            self._commits.move_to_end((tenant, view.id))
            while len(self._commits) > _MAX_CACHED_SESSIONS:
                self._commits.popitem(last=False)
            index = {oid: n for n, (oid, _) in enumerate(known)}
            fresh: list[tuple[Oid, JournalHead]] = []
            keep = 0
            for oid in view.internals.store.history.first_parents(head.oid):
                if oid in index:
                    keep = index[oid] + 1
                    break
                fresh.append((oid, journal_at(hub_of(view), oid)))
            known[keep:] = reversed(fresh)
            return list(known)


def journal_at(hub: Hub, commit: Oid) -> JournalHead:
    """Return the position in the journal at which a commit was made."""
    state = hub.history.state(commit)
    return (
        decode(JournalHead, hub.objects.get(Oid(state.journal))) if state.journal else EMPTY_JOURNAL
    )


def passes_through(log: EventLog, hub: Hub, journal: JournalHead) -> bool:
    """Return True if the log contains the end of a journal.

    Events that a restore left are not in it.
    """
    row = next(iter(log.rows(journal.seq - 1, journal.seq)), None) if journal.seq else None
    return row is not None and hub.internals.services.chain.tip(row).hash == journal.hash


_MAX_MESSAGES = 20
_MAX_FACTS = 60
_EVENTS_PER_READ = 256
_MAX_DATA_CHARACTERS = 20_000
"""Maximum length of an event's data."""


class ReplayMoment(msgspec.Struct, frozen=True):
    """The session state after one event. Facts are newest first."""

    event: Event | None
    text: str
    data: str
    messages: list[Message]
    earlier: int  # number of older messages
    goal: str
    plan: list[str]
    step: int
    notes: list[NoteRecord]
    facts: list[Fact]
    hidden: int  # number of facts not shown
    spent: list[tuple[str, float]]


def replay_page(commit_index: CommitJournalIndex, page_request: PageRequest) -> Response:
    """Render the replay.

    `?at=N` selects the event, by default the last; `part` only its content.
    """
    with page_request.view() as view:
        tip = view.internals.event_log.tip().seq
        seq = _requested_seq(page_request, tip)
        commit = next(commit_index.commits_before(view, page_request.caller.tenant, seq), None)
        oid, base = commit if commit is not None else (None, EMPTY_JOURNAL)
        return page_request.render(
            "moment.html" if "part" in page_request.query else "replay.html",
            tab="replay",
            row=view.internals.row,
            at=seq,
            tip=tip,
            moment=build_moment(view, seq, base),
            commit=view.internals.store.history.info(oid) if oid is not None else None,
            behind=seq - base.seq,
            said=text_of,
        )


def build_moment(view: SessionReader, seq: int, base: JournalHead) -> ReplayMoment:
    """Return the state after event `seq`. `base` is the journal of a commit at or before it."""
    event = next(iter(view.internals.event_log.events(seq - 1, seq)), None) if seq else None
    mind = state_at(view, seq, base)
    messages = _messages(view, seq, mind.core)
    facts = sorted(mind.facts, key=lambda one: -one.seq)
    return ReplayMoment(
        event=event,
        text=clip(_text(event), _MAX_DATA_CHARACTERS) if event is not None else "",
        data=_data(event) if event is not None else "",
        messages=messages[-_MAX_MESSAGES:],
        earlier=max(0, len(messages) - _MAX_MESSAGES),
        goal=mind.core.goal,
        plan=list(mind.core.plan),
        step=mind.core.step,
        notes=list(mind.notes),
        facts=facts[:_MAX_FACTS],
        hidden=max(0, len(facts) - _MAX_FACTS),
        spent=sorted(mind.core.spent.items()),
    )


def state_at(view: SessionReader, seq: int, base: JournalHead) -> SessionState:
    """Return the state that results from the events up to `seq`."""
    sessions = hub_of(view).internals.session_manager
    mind = SessionState.load(sessions.services.maps, view.internals.store.objects, base.fold)
    for event in view.internals.event_log.events(base.seq, seq):
        fold(mind, [event])
    return mind


def _messages(view: SessionReader, seq: int, core: CoreState) -> list[Message]:
    """Return the newest messages in context, in order. It may have more than are shown."""
    messages: list[Message] = []
    upto = seq
    while upto > core.since and len(messages) <= _MAX_MESSAGES:
        start = max(upto - _EVENTS_PER_READ, core.since)
        events = [one for one in view.internals.event_log.events(start, upto) if _is_message(one)]
        messages[:0] = [message_of(one) for one in events if not is_superseded(core.aside, one.seq)]
        upto = start
    return messages


def _is_message(event: Event) -> bool:
    return event.kind == "message" and not event.erased


def _text(event: Event) -> str:
    if event.erased:
        return "erased"
    if event.kind != "message":
        return event_wording(event)
    return message_text(event.data.get("content"), event.data.get("extra"))


def _data(event: Event) -> str:
    plain: Any = msgspec.to_builtins(event.data, enc_hook=str)
    return clip(json.dumps(plain, indent=2, ensure_ascii=False), _MAX_DATA_CHARACTERS)


def _requested_seq(page_request: PageRequest, tip: int) -> int:
    text = page_request.query.get("at", str(tip))
    if not (text.isascii() and text.isdigit() and len(text) < 17):
        raise Invalid("bad_request", "at is the number of an event: correct the address")
    return min(int(text), tip)
