"""Commits, the events that led to them, and differences between commits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Annotated

import msgspec

from ortet.history.commits import CommitInfo
from ortet.history.diff.tree_diff import TreeChange
from ortet.hub.hub import Hub, hub_of
from ortet.ids import Oid, to_hex
from ortet.journal.state.records import Decision, Episode, Fact
from ortet.server.auth.tokens import Caller
from ortet.server.operations.registry import operation
from ortet.server.pagination import Page, Paged, decode_cursor, encode_cursor
from ortet.server.schemas import ChangeInfo, OperationRequest, Ref, change_of
from ortet.sessions.history.compare import (
    CommitComparison,
    PlanSnapshot,
    ReasoningStep,
    SideMessages,
    compare,
    compare_now,
    explain_commit,
    files_now,
)
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session

_MAX_PATCH_CHARACTERS = 1 << 20
"""Maximum length of all patches in an answer. Further files have no patch."""

Files = Annotated[int, msgspec.Meta(ge=0, le=10_000, description="So many files at most.")]
MaxItems = Annotated[int, msgspec.Meta(ge=0, le=1000, description="So many at most.")]


class NamedCommit(CommitInfo, frozen=True):
    """A commit, with the branches and tags that point to it. A tag is written tag:NAME."""

    refs: list[str]


class FileChanges(msgspec.Struct, frozen=True):
    """Changes of files: the number of each kind, and the first changes by path."""

    counts: dict[str, int]
    total: int
    changes: list[ChangeInfo]


class CommitPage(msgspec.Struct, frozen=True):
    """A commit, and the events between its first parent and the commit. `sessions`: the sessions of
    branches that point to the commit. `first` and `last`: the numbers of the first and last event.
    `reasons`: the newest events that give reasons, in order. `more`: there are further reasons.
    """

    commit: NamedCommit
    sessions: list[str]
    first: int
    last: int
    kinds: dict[str, int]
    reasons: list[ReasoningStep]
    more: bool
    learned: list[Fact]
    given_up: list[Fact]
    files: FileChanges


class ListCommits(Paged, frozen=True):
    """`ref`: the commit to start at. `first_parent`: follow only first parents, not merged
    commits.
    """

    ref: Ref = "HEAD"
    first_parent: bool = False


@operation("GET", "/sessions/{session}/commits")
def list_commits(view: SessionReader, ask: ListCommits, caller: Caller) -> Page[NamedCommit]:
    """List the commits of a session's branch, or of another `ref`, the newest first."""
    head = view.head
    if head is None and ask.ref in ("HEAD", "@"):
        return Page([])
    return log_page(hub_of(view), ask, caller, branch=view.internals.row.branch)


class ListAll(ListCommits, frozen=True):
    """`ref`: a branch, a tag or a commit id. It may be missing if the store has only one branch."""


@operation("GET", "/commits", filtered=True)
def list_all_commits(hub: Hub, ask: ListAll, caller: Caller) -> Page[NamedCommit]:
    """List the commits that lead to a `ref`, the newest first."""
    return log_page(hub, ask, caller)


def log_page(
    hub: Hub, ask: ListCommits, caller: Caller, *, branch: str | None = None
) -> Page[NamedCommit]:
    """Return a page of commits.

    The cursor holds the first commit, so a moved head does not matter.
    """
    if ask.after is None:
        start, last = hub.refs.resolve(ask.ref, default_branch=branch), None
    else:
        begun, last = decode_cursor(ask.after, 2)
        start = hub.refs.resolve(begun)
    commits = iter(hub.history.log(start, first_parent=ask.first_parent))
    if last is not None:
        while (passed := next(commits, None)) is not None and passed.oid != last:
            pass
    page = list(islice(commits, ask.limit + 1))
    names = names_of(hub, caller)
    items = [with_names(one, names) for one in page[: ask.limit]]
    more = len(page) > ask.limit
    return Page(items, encode_cursor(to_hex(start), items[-1].oid) if more else None)


class ShowCommit(OperationRequest, frozen=True):
    """`reasons` and `files`: the maximum number of each. `patch`: include changed lines."""

    commit: Ref
    reasons: MaxItems = 200
    files: Files = 200
    patch: bool = False


@operation("GET", "/commits/{commit}", filtered=True)
def show_commit(hub: Hub, ask: ShowCommit, caller: Caller) -> CommitPage:
    """Show a commit: its message, the reasons for it, the facts learned and the files changed."""
    return commit_page(hub, hub.refs.resolve(ask.commit), ask, caller)


@operation("GET", "/sessions/{session}/commits/{commit}")
def show_own_commit(view: SessionReader, ask: ShowCommit, caller: Caller) -> CommitPage:
    """Show a commit of a session, with the events that led to it. HEAD is the head of the
    session.
    """
    return commit_page(hub_of(view), resolve_ref(view, ask.commit), ask, caller)


def commit_page(hub: Hub, oid: Oid, ask: ShowCommit, caller: Caller) -> CommitPage:
    details = explain_commit(hub.internals.services, oid, limit=max(ask.reasons, 1))
    commit = with_names(details.commit, names_of(hub, caller))
    working = (hub.internals.session_manager.table.find_by_branch(name) for name in commit.refs)
    return CommitPage(
        commit=commit,
        sessions=[row.id for row in working if row is not None],
        first=details.first,
        last=details.last,
        kinds=details.kinds,
        reasons=details.reasons[: ask.reasons],
        more=details.more,
        learned=details.learned,
        given_up=details.given_up,
        files=file_changes(hub, details.files, limit=ask.files, patch=ask.patch),
    )


class Difference(msgspec.Struct, frozen=True):
    """The difference between the commit `old` and the commit `new`. If `new` is null, the
    difference between `old` and the present state. `left`: messages only on the way to `old`.
    `come`: messages only on the way to `new`.
    """

    old: str
    new: str | None
    files: FileChanges
    learned: list[Fact]
    given_up: list[Fact]
    episodes: list[Episode]
    decisions: list[Decision]
    before: PlanSnapshot
    after: PlanSnapshot
    left: SideMessages
    come: SideMessages


class DiffWith(OperationRequest, frozen=True):
    """`patch`: include changed lines, up to a few thousand. `messages`: the maximum number of
    messages of each side.
    """

    old: Ref
    new: Ref
    files: Files = 1000
    patch: bool = False
    messages: MaxItems = 200


@operation("GET", "/diff", filtered=True)
def diff(hub: Hub, ask: DiffWith, caller: Caller) -> Difference:
    """Compare two commits: files, facts, plan and messages."""
    del caller  # the hub resolves only commits that the caller may see
    old, new = hub.refs.resolve(ask.old), hub.refs.resolve(ask.new)
    comparison = compare(hub.internals.services, old, new, limit=max(ask.messages, 1))
    return _difference(hub, old, new, comparison, ask)


class DiffOwn(DiffWith, frozen=True):
    """HEAD is the head of the session. Without fields, the newest commit is compared with its
    parent.
    """

    old: Ref = "HEAD^"
    new: Ref = "HEAD"


@operation("GET", "/sessions/{session}/diff")
def diff_own(view: SessionReader, ask: DiffOwn) -> Difference:
    """Compare two commits of a session. HEAD is the head of the session."""
    old, new = resolve_ref(view, ask.old), resolve_ref(view, ask.new)
    comparison = compare(view.internals.services, old, new, limit=max(ask.messages, 1))
    return _difference(hub_of(view), old, new, comparison, ask)


class DiffPresent(OperationRequest, frozen=True):
    old: Ref = "HEAD"
    files: Files = 1000
    patch: bool = False
    messages: MaxItems = 200


@operation("GET", "/sessions/{session}/present", needs="write")
def diff_present(session: Session, ask: DiffPresent) -> Difference:
    """Compare a commit with the present state of a session, including uncommitted changes. The
    machine of the session is started to read its files.
    """
    old, machine = resolve_ref(session, ask.old), files_now(session)
    comparison = compare_now(session, old, machine, limit=max(ask.messages, 1))
    return _difference(hub_of(session), old, None, comparison, ask)


def _difference(
    hub: Hub, old: Oid, new: Oid | None, compared: CommitComparison, ask: DiffWith | DiffPresent
) -> Difference:
    memory = compared.memory
    return Difference(
        old=to_hex(old),
        new=to_hex(new) if new is not None else None,
        files=file_changes(hub, compared.files, limit=ask.files, patch=ask.patch),
        learned=memory.learned,
        given_up=memory.given_up,
        episodes=memory.episodes,
        decisions=memory.decisions,
        before=compared.before,
        after=compared.after,
        left=SideMessages(compared.left.count, compared.left.messages[: ask.messages]),
        come=SideMessages(compared.come.count, compared.come.messages[: ask.messages]),
    )


def file_changes(
    hub: Hub, changes: Sequence[TreeChange], *, limit: int, patch: bool = False
) -> FileChanges:
    """Return the first `limit` changes, with patches up to the maximum length."""
    listed, characters_left = list[ChangeInfo](), _MAX_PATCH_CHARACTERS
    for change in changes[:limit]:
        info = change_of(change, hub.objects, patch=patch and characters_left > 0)
        text = info.patch or ""
        if len(text) > characters_left:
            info, text = msgspec.structs.replace(info, patch=None), ""
            characters_left = 0
        characters_left -= len(text)
        listed.append(info)
    return FileChanges(dict(Counter(change.kind for change in changes)), len(changes), listed)


def resolve_ref(view: SessionReader, ref: str) -> Oid:
    """Return the commit of a reference. HEAD is that of the session."""
    return view.internals.store.refs.resolve(ref, default_branch=view.internals.row.branch)


def names_of(hub: Hub, caller: Caller) -> dict[str, list[str]]:
    """Return the branches and tags of each commit that the caller may see."""
    sees, theirs = hub.refs.is_visible, set[str]()
    if caller.agents:
        theirs = {row.branch for row in hub.sessions() if caller.sees(row.agent)}
    names: dict[str, list[str]] = {}
    for head in hub.refs.branches():
        if not caller.agents or head.name in theirs:
            names.setdefault(to_hex(head.oid), []).append(head.name)
    for head in hub.refs.tags():
        if sees is None or sees(head.oid):
            names.setdefault(to_hex(head.oid), []).append(f"tag:{head.name}")
    return names


def with_names(info: CommitInfo, names: dict[str, list[str]]) -> NamedCommit:
    return NamedCommit(**msgspec.structs.asdict(info), refs=names.get(info.oid, []))
