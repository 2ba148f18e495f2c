"""Two sessions brought together: merge makes one commit of both, adopt takes the other's state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ortet._util.codec import decode, encode
from ortet._util.failpoints import reach
from ortet.backends.base import Append, EventRow, Timeline
from ortet.errors import Invalid
from ortet.history.commits import CommitInfo
from ortet.history.merge.text_merge import Favor
from ortet.history.merge.tree_merge import FileConflict
from ortet.history.records import Image, Journal, State
from ortet.history.refs import Ref, is_name, text_of
from ortet.ids import Oid, from_hex, to_hex
from ortet.journal.event_log import NOTHING
from ortet.journal.events import Draft, Tip
from ortet.journal.segments import seal
from ortet.journal.state.merge import Contradiction, Union, union
from ortet.journal.state.records import Artifact, Decision, Fact
from ortet.journal.state.reducers import fold
from ortet.journal.state.state import Mind
from ortet.machines.base import Report
from ortet.objects.base import Kind
from ortet.sessions.actions.artifacts import Content
from ortet.sessions.history.navigation import Moving
from ortet.sessions.history.participants import put
from ortet.sessions.memory.shared_scopes import AGENT
from ortet.sessions.reader import View
from ortet.store.commit import put_commit
from ortet.store.pin_commit import rely_on
from ortet.store.sweep_retry import anew
from ortet.workspaces import merge as merging

if TYPE_CHECKING:
    from ortet.sessions.manager import Sessions
    from ortet.sessions.table import SessionRow

_SAID = 300


class Merged(msgspec.Struct, frozen=True):
    """What a merge brought. `conflicts` are file conflicts that `favor` settled; `contradictions`
    are left to whoever goes on: both facts are known now. `up_to_date`: all was here already."""

    commit: CommitInfo
    facts: list[Fact] = []
    lessons: list[Fact] = []
    decisions: list[Decision] = []
    artifacts: list[Artifact] = []
    contradictions: list[Contradiction] = []
    conflicts: list[FileConflict] = []
    files: Report = Report()
    up_to_date: bool = False


class Other(NamedTuple):
    """The other side: a commit, and whose it is."""

    label: str
    commit: Oid
    row: SessionRow | None
    has_files: bool


class _Made(NamedTuple):
    """A merge commit that is stored and that no branch has yet, and what leads there."""

    commit: Oid
    timeline: Timeline
    events: Append
    union: Union
    conflicts: list[FileConflict]


@anew
def merge(
    ours: Moving, sessions: Sessions, given: View | Ref, *, message: str, favor: Favor | None
) -> Merged:
    """See Session.merge. Head, timeline and events change in one transaction, or not at all."""
    merging.check_favor(favor)
    other = other_of(ours, sessions, given)
    hub, files = ours.hub, ours._workspace()
    with files.moving() if files is not None else nullcontext(), hub.writing():
        before = f"before merging {other.label}"
        mine = files.keep(before) if files is not None else from_hex(ours.commit(before).oid)
        if hub.history.is_ancestor(other.commit, mine):
            return Merged(commit=hub.history.info(mine), up_to_date=True)
        if other.row is None:
            rely_on(hub, other.commit, of=mine)
        made = _make(ours, sessions, mine, other, message=message, favor=favor)
        reach("merge.made")
        with ours._host.ahead(made.timeline, made.events):
            if files is not None:
                report = files.go(made.commit, "merge")
            else:
                report = Report()
                ours._go_mind(made.commit, "merge", whole=True)
    found = made.union
    return Merged(
        commit=hub.history.info(made.commit),
        facts=found.facts,
        lessons=found.lessons,
        decisions=found.decisions,
        artifacts=found.artifacts,
        contradictions=found.contradictions,
        conflicts=made.conflicts,
        files=report,
    )


def other_of(ours: Moving, sessions: Sessions, given: View | Ref) -> Other:
    """Who is meant; what it has not committed yet is committed first."""
    hub = ours.hub
    if isinstance(given, View):
        if given.hub.root.resolve() != hub.root.resolve():
            raise Invalid(
                "other_store",
                f"{given.name!r} is in another store, {given.hub.root}: export it there, import "
                "it here, then give the commit",
            )
        row: SessionRow | None = sessions.roll.get(given.id)
    elif isinstance(given, str | CommitInfo):
        label = text_of(given)
        row = sessions.roll.of_branch(label) if is_name(label) else None
    else:
        raise Invalid("bad_ref", f"cannot take {given!r}: give a session, a branch or a commit")
    if row is None:
        commit = hub.refs.resolve(label, default_branch=ours.row.branch)
        return Other(label, commit, None, bool(hub.history.state(commit).machine))
    if row.id == ours.id:
        raise Invalid("bad_ref", f"{row.name!r} is this session: give another, or a commit")
    with _at_hand(sessions, row, given) as session:
        commit = from_hex(session.commit("before being joined").oid)
        return Other(row.name, commit, row, session._workspace() is not None)


@contextmanager
def _at_hand(sessions: Sessions, row: SessionRow, given: object) -> Iterator[Moving]:
    """The session as it is open, in this hub or another of this process; else under its lease."""
    opened = given if isinstance(given, Moving) else sessions.opened(row.id)
    if opened is not None and not opened.holding.ended:
        yield opened
    else:
        with sessions.borrowed(row) as session:
            yield session


def _make(
    ours: Moving,
    sessions: Sessions,
    mine: Oid,
    other: Other,
    *,
    message: str,
    favor: Favor | None,
) -> _Made:
    """The merge commit, with the events that tell of it on a timeline of their own."""
    hub, history = sessions.hub, sessions.hub.history
    base = history.merge_base(mine, other.commit)
    states = [history.state(oid) if oid else State() for oid in (base, mine, other.commit)]
    image, conflicts = _files(sessions, states, other, favor=favor, generated=ours.generated)
    journals = [journal_of(sessions, state) for state in states]
    past, theirs = (Mind.load(sessions.maps, hub.objects, journals[n].fold) for n in (0, 2))
    ledger = ours._ledger
    ledger.flush()
    line, tip = ledger.line, ledger.tip
    found = union(past, ledger.mind, theirs)
    timeline = Timeline(sessions.new_id(), line.timeline, tip.seq)
    told = {
        "name": other.label,
        "session": other.row.id if other.row else "",
        "timeline": other.row.timeline if other.row else "",
        "commit": to_hex(other.commit),
        "first": journals[0].seq + 1,
        "last": journals[2].seq,
        "episode": _episode(theirs, found),
        **found.counted(),
    }
    mind = Mind.load(sessions.maps, hub.objects, line.base.fold)
    fold(mind, line.events(line.base.seq, tip.seq))
    rows: list[EventRow] = []
    segment = line.seal(tip)
    for draft in _drafts(sessions, told, found):
        row, event = sessions.chain.make(tip, draft, hub.clock.now_ns())
        fold(mind, [event])
        rows.append(row)
        tip = Tip(event.seq, event.hash, event.time)
    segment = seal(hub.objects, timeline.id, rows, segment)
    journal = put(sessions, Journal(segment, tip.seq, tip.hash, mind.save(hub.objects)))
    state = hub.objects.put(Kind.STATE, encode(State(journal, states[1].memory, image)))
    commit = put_commit(
        hub.objects,
        history,
        state=state,
        parents=[mine, other.commit],
        message=message or f"merge {other.label}",
        clock=hub.clock,
        author=hub.author,
    )
    return _Made(commit, timeline, Append(timeline.id, rows), found, conflicts)


def _drafts(sessions: Sessions, told: dict[str, Any], found: Union) -> Iterator[Draft]:
    author = sessions.hub.author
    yield Draft("merge", told, author)
    there = {"timeline": told["timeline"], "seq": told["last"], "session": told["session"]}
    episode = {
        "id": sessions.new_id(),
        "summary": told["episode"] or f"merged {told['name']}",
        "first": told["first"],
        "last": told["last"],
        "cause": "merged",
        "session": told["name"],
        "source": there,
        "scope": AGENT,
    }
    yield Draft("episode", episode, author)
    for kind, data in found.told(told["name"]):
        yield Draft(kind, data, author)
    for made in found.artifacts:
        data = {**msgspec.to_builtins(made), "merged": told["name"]}
        yield Draft("artifact", data, author, Content(made.oid, made.size).refs)


def _files(
    sessions: Sessions, states: list[State], other: Other, *, favor: Favor | None, generated: str
) -> tuple[bytes, list[FileConflict]]:
    """The image of the merge; a side without files changes none. Files in `generated` are ours."""
    base, ours, theirs = (state.machine for state in states)
    if not theirs or not other.has_files or theirs == ours:
        return ours, []
    if not ours:
        return theirs, []
    hub = sessions.hub
    images = (hub.read_image(Oid(base)) if base else None, *_read(sessions, ours, theirs))
    merged = merging.Sides(*images).merged(hub, favor)
    conflicts = merging.apart_from(generated, merged.conflicts)
    merging.refuse(conflicts, other.label)
    return hub.objects.put(Kind.IMAGE, encode(merged.image)), conflicts


def _read(sessions: Sessions, ours: bytes, theirs: bytes) -> tuple[Image, Image]:
    return sessions.hub.read_image(Oid(ours)), sessions.hub.read_image(Oid(theirs))


def journal_of(sessions: Sessions, state: State) -> Journal:
    """What a commit holds of a mind."""
    if not state.journal:
        return NOTHING
    return decode(Journal, sessions.hub.objects.get(Oid(state.journal)))


def _episode(theirs: Mind, found: Union) -> str:
    """What the other did, in a few words: what was said there stays readable on its timeline."""
    core = theirs.core
    steps = f"step {core.step} of {len(core.plan)}" if core.plan else ""
    made = [f"learned: {fact.text}" for fact in (*found.facts, *found.lessons)]
    made += [f"decided: {decision.text}" for decision in found.decisions]
    made += [f"made: {one.name}" for one in found.artifacts]
    return "; ".join(part for part in (core.goal, steps, *made[:20]) if part)[:_SAID]
