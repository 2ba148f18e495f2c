"""Merge of two sessions into one commit, and resolution of the other side for merge and adopt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from ortet._util.codec import encode
from ortet._util.failpoints import failpoint
from ortet.backends.base import Append, EventRow, Timeline
from ortet.errors import Invalid
from ortet.history.commits import CommitInfo
from ortet.history.merge.text_merge import Favor
from ortet.history.merge.tree_merge import FileConflict
from ortet.history.records import Image, JournalHead, State
from ortet.history.refs import Ref, is_ref_name, ref_text
from ortet.ids import Oid, from_hex, to_hex
from ortet.journal.events import Draft, Tip
from ortet.journal.kinds.registry import fold
from ortet.journal.segments import seal
from ortet.journal.state.merge import Contradiction, MergeAdditions, merge_states
from ortet.journal.state.records import Artifact, Decision, Fact
from ortet.journal.state.state import SessionState
from ortet.machines.base import Report
from ortet.objects.base import Kind
from ortet.sessions.actions.artifacts import StoredContent
from ortet.sessions.context import SessionServices
from ortet.sessions.history.load import journal_of, ledgers_after_move, put_journal
from ortet.sessions.history.navigation import Navigation
from ortet.sessions.memory.shared_scopes import AGENT
from ortet.sessions.writing.pipeline import exclusive_verb
from ortet.store.commit import put_commit
from ortet.store.pin_commit import pin_commit
from ortet.store.sweep_retry import retry_on_sweep
from ortet.workspaces import merge as merging
from ortet.workspaces.results import ALL_PARTS, RestoreResult

if TYPE_CHECKING:
    from ortet.sessions.table import SessionRow
    from ortet.store.context import StoreContext

_MAX_EPISODE_CHARS = 300


class SessionMergeResult(msgspec.Struct, frozen=True):
    """The result of a merge of two sessions.

    Attributes:
        commit: The merge commit, or the head if there was nothing to merge.
        facts: Facts that were taken over.
        lessons: Lessons that were taken over.
        decisions: Decisions that were taken over.
        artifacts: Artifacts that were taken over.
        contradictions: Pairs of facts that contradict each other. Both are kept.
        conflicts: File conflicts that `favor` settled.
        files: Report of the changed files.
        up_to_date: True if there was nothing to merge.
    """

    commit: CommitInfo
    facts: list[Fact] = []
    lessons: list[Fact] = []
    decisions: list[Decision] = []
    artifacts: list[Artifact] = []
    contradictions: list[Contradiction] = []
    conflicts: list[FileConflict] = []
    files: Report = Report()
    up_to_date: bool = False


class StoredInternals(Protocol):
    """The parts of a session that say which store it is in."""

    @property
    def store(self) -> StoreContext: ...


class CommittingInternals(Protocol):
    """The parts of an open session that a merge calls."""

    @property
    def is_open(self) -> bool: ...

    def has_workspace(self) -> bool: ...


@runtime_checkable
class IdentifiedSession(Protocol):
    """A session, open or opened for reading."""

    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def internals(self) -> StoredInternals: ...


@runtime_checkable
class CommittingSession(Protocol):
    """An open session that is committed before it is merged into another one."""

    @property
    def internals(self) -> CommittingInternals: ...

    def commit(self, message: str = "") -> CommitInfo: ...


class CommittingSessions(Protocol):
    """Opens the other side of a merge."""

    services: SessionServices

    def find_open(self, id_: str) -> CommittingSession | None: ...

    def leased_session(self, row: SessionRow) -> AbstractContextManager[CommittingSession]: ...


MergeInput = IdentifiedSession | Ref
"""What a session can be merged with: another session, a branch, a tag or a commit."""


class MergeSource(NamedTuple):
    """The other side of a merge: a commit, and its session if there is one."""

    label: str
    commit: Oid
    row: SessionRow | None
    has_files: bool


class _StoredMerge(NamedTuple):
    """A stored merge commit that no branch refers to yet, with its timeline and events."""

    commit: Oid
    timeline: Timeline
    events: Append
    union: MergeAdditions
    conflicts: list[FileConflict]
    ledgers: list[str]


@exclusive_verb
@retry_on_sweep
def merge(
    ours: Navigation,
    sessions: CommittingSessions,
    source: MergeInput,
    *,
    message: str,
    favor: Favor | None,
) -> SessionMergeResult:
    """Merge a session; see `Session.merge`.

    Head, timeline and events change in one transaction, or not at all.
    """
    merging.check_favor(favor)
    other = resolve_merge_source(ours, sessions, source)
    store, files = ours.store, ours.files.workspace()
    with files.files.exclusive_access() if files is not None else nullcontext(), store.writing():
        before = f"before merging {other.label}"
        mine = (
            files.files.commit_pending(before)
            if files is not None
            else from_hex(ours.commit(before).oid)
        )
        if store.history.is_ancestor(other.commit, mine):
            return SessionMergeResult(commit=store.history.info(mine), up_to_date=True)
        if other.row is None:
            pin_commit(store, other.commit, reachable_from=mine)
        made = _make(ours, mine, other, message=message, favor=favor)
        failpoint("merge.made")
        with ours.participant.with_timeline(made.timeline, made.events, made.ledgers):
            if files is not None:
                report = files.files.restore_commit(made.commit, "merge")
            else:
                report = Report()
                ours.restore_state(made.commit, "merge", move_branch=True)
    found = made.union
    return SessionMergeResult(
        commit=store.history.info(made.commit),
        facts=found.facts,
        lessons=found.lessons,
        decisions=found.decisions,
        artifacts=found.artifacts,
        contradictions=found.contradictions,
        conflicts=made.conflicts,
        files=report,
    )


def resolve_merge_source(
    ours: Navigation, sessions: CommittingSessions, source: MergeInput
) -> MergeSource:
    """Return the commit that `source` means. A session's uncommitted work is committed first."""
    store = ours.store
    if isinstance(source, IdentifiedSession):
        if source.internals.store.root.resolve() != store.root.resolve():
            raise Invalid(
                "other_store",
                f"{source.name!r} is in another store, {source.internals.store.root}: export it "
                "there, import it here, then give the commit",
            )
        row: SessionRow | None = sessions.services.table.get(source.id)
    elif isinstance(source, str | CommitInfo):
        label = ref_text(source)
        row = sessions.services.table.find_by_branch(label) if is_ref_name(label) else None
    else:
        raise Invalid("bad_ref", f"cannot take {source!r}: give a session, a branch or a commit")
    if row is None:
        commit = store.refs.resolve(label, default_branch=ours.context.row.branch)
        return MergeSource(label, commit, None, bool(store.history.state(commit).machine))
    if row.id == ours.context.id:
        raise Invalid("bad_ref", f"{row.name!r} is this session: give another, or a commit")
    with _open_or_leased(sessions, row, source) as session:
        commit = from_hex(session.commit("before being joined").oid)
        return MergeSource(row.name, commit, row, session.internals.has_workspace())


@contextmanager
def _open_or_leased(
    sessions: CommittingSessions, row: SessionRow, source: object
) -> Iterator[CommittingSession]:
    """Yield the session: the open handle if this process has one, else one under its lease."""
    opened = source if isinstance(source, CommittingSession) else sessions.find_open(row.id)
    if opened is not None and opened.internals.is_open:
        yield opened
    else:
        with sessions.leased_session(row) as session:
            yield session


def _make(
    ours: Navigation,
    mine: Oid,
    other: MergeSource,
    *,
    message: str,
    favor: Favor | None,
) -> _StoredMerge:
    """Store the merge commit, with its events on a new timeline."""
    sessions = ours.context.services
    store, history = sessions.store, sessions.store.history
    base = history.merge_base(mine, other.commit)
    states = [history.state(oid) if oid else State() for oid in (base, mine, other.commit)]
    image, conflicts = _files(
        sessions, states, other, favor=favor, generated=ours.files.generated_directory
    )
    journals = [journal_of(sessions, state) for state in states]
    past, theirs = (
        SessionState.load(sessions.maps, store.objects, journals[n].fold) for n in (0, 2)
    )
    ledger = ours.pipeline.writer
    ledger.flush()
    line, tip = ledger.event_log, ledger.tip
    found = merge_states(past, ledger.state, theirs)
    timeline = Timeline(sessions.new_id(), line.timeline, tip.seq)
    told = {
        "name": other.label,
        "session": other.row.id if other.row else "",
        "timeline": other.row.timeline if other.row else "",
        "commit": to_hex(other.commit),
        "first": journals[0].seq + 1,
        "last": journals[2].seq,
        "episode": _episode(theirs, found),
        **found.event_data(),
    }
    mind = SessionState.load(sessions.maps, store.objects, line.base.fold)
    fold(mind, line.events(line.base.seq, tip.seq))
    rows: list[EventRow] = []
    segment = line.seal(tip)
    for draft in _drafts(sessions, told, found):
        row, event = sessions.chain.make(tip, draft, store.clock.now_ns())
        fold(mind, [event])
        rows.append(row)
        tip = Tip(event.seq, event.hash, event.time)
    segment = seal(store.objects, timeline.id, rows, segment)
    journal = put_journal(
        sessions, JournalHead(segment, tip.seq, tip.hash, mind.save(store.objects))
    )
    state = store.objects.put(Kind.STATE, encode(State(journal, states[1].memory, image)))
    commit = put_commit(
        store.objects,
        history,
        state=state,
        parents=[mine, other.commit],
        message=message or f"merge {other.label}",
        clock=store.clock,
        author=store.author,
    )
    their_row = other.row or ours.context.row
    ledgers = ledgers_after_move(sessions, their_row, states[2].journal)
    return _StoredMerge(commit, timeline, Append(timeline.id, rows), found, conflicts, ledgers)


def _drafts(
    sessions: SessionServices, merge_data: dict[str, Any], result: MergeAdditions
) -> Iterator[Draft]:
    author = sessions.store.author
    yield Draft("merge", merge_data, author)
    there = {
        "timeline": merge_data["timeline"],
        "seq": merge_data["last"],
        "session": merge_data["session"],
    }
    episode = {
        "id": sessions.new_id(),
        "summary": merge_data["episode"] or f"merged {merge_data['name']}",
        "first": merge_data["first"],
        "last": merge_data["last"],
        "cause": "merged",
        "session": merge_data["name"],
        "source": there,
        "scope": AGENT,
    }
    yield Draft("episode", episode, author)
    for kind, data in result.to_events(merge_data["name"]):
        yield Draft(kind, data, author)
    for made in result.artifacts:
        data = {**msgspec.to_builtins(made), "merged": merge_data["name"]}
        yield Draft("artifact", data, author, StoredContent(made.oid, made.size).refs)


def _files(
    sessions: SessionServices,
    states: list[State],
    other: MergeSource,
    *,
    favor: Favor | None,
    generated: str,
) -> tuple[bytes, list[FileConflict]]:
    """Return the merged image.

    A side without files changes none. Files in `generated` stay ours.
    """
    base, ours, theirs = (state.machine for state in states)
    if not theirs or not other.has_files or theirs == ours:
        return ours, []
    if not ours:
        return theirs, []
    store = sessions.store
    images = (store.read_image(Oid(base)) if base else None, *_read(sessions, ours, theirs))
    merged = merging.MergeSides(*images).merge(store, favor)
    conflicts = merging.without_generated(generated, merged.conflicts)
    merging.raise_on_conflicts(conflicts, other.label)
    return store.objects.put(Kind.IMAGE, encode(merged.image)), conflicts


def _read(sessions: SessionServices, ours: bytes, theirs: bytes) -> tuple[Image, Image]:
    return sessions.store.read_image(Oid(ours)), sessions.store.read_image(Oid(theirs))


def _episode(theirs: SessionState, result: MergeAdditions) -> str:
    """Return a short summary of the other side. Its messages stay readable on its timeline."""
    core = theirs.core
    steps = f"step {core.step} of {len(core.plan)}" if core.plan else ""
    made = [f"learned: {fact.text}" for fact in (*result.facts, *result.lessons)]
    made += [f"decided: {decision.text}" for decision in result.decisions]
    made += [f"made: {one.name}" for one in result.artifacts]
    return "; ".join(part for part in (core.goal, steps, *made[:20]) if part)[:_MAX_EPISODE_CHARS]


@exclusive_verb
def adopt(ours: Navigation, sessions: CommittingSessions, source: MergeInput) -> RestoreResult:
    """Replace state and files by those of another session; see `Session.adopt`."""
    ours.pipeline.check_open()
    ours.pipeline.ensure_live("adopt")
    found = resolve_merge_source(ours, sessions, source)
    mind_only = ours.files.workspace() is not None and not found.has_files
    with ours.following_shared_memory():
        parts = frozenset({"mind"}) if mind_only else ALL_PARTS
        report = ours.restore_commit(
            found.commit, "adopt", parts, may_be_unreferenced=found.row is None
        )
        if mind_only:
            ours.commit(f"adopted {found.label}")
    return report
