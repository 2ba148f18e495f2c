"""Names of commits: branches, tags, and the reflog of their moves."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ortet.backends.base import Head, Op
from ortet.errors import Conflict, NotFound
from ortet.history.refs import RefKind
from ortet.hub import branches
from ortet.hub.hub import Hub
from ortet.ids import Oid, to_hex
from ortet.server.auth.tokens import Caller
from ortet.server.operations.registry import operation
from ortet.server.pagination import Page, Paged, paginate
from ortet.server.schemas import OperationRequest, Ref
from ortet.sessions.reader import SessionReader

RefName = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class RefInfo(msgspec.Struct, frozen=True):
    """A branch or tag, the commit that it points to, and the commit's time in ns and message."""

    name: str
    oid: str
    time: int
    message: str


class BranchInfo(RefInfo, frozen=True):
    """`session`: the session of the branch, if there is one. `engine`, `files` and `directory`:
    those of its workspace, or null if the branch has no workspace.
    """

    session: str | None
    engine: str | None
    files: str | None
    directory: str | None


class ListRefs(Paged, frozen=True):
    """`prefix`: only names that begin with this text."""

    prefix: str = ""


@operation("GET", "/branches", filtered=True)
def list_branches(hub: Hub, ask: ListRefs, caller: Caller) -> Page[BranchInfo]:
    """List the branches by name, each with its newest commit."""
    rows = {row.branch: row for row in hub.sessions() if caller.sees(row.agent)}
    heads = [
        head
        for head in hub.refs.branches()
        if head.name.startswith(ask.prefix) and (not caller.agents or head.name in rows)
    ]

    def branch_info(head: Head) -> BranchInfo:
        place, row = hub.workspaces.table.get(head.name), rows.get(head.name)
        return BranchInfo(
            **msgspec.structs.asdict(_ref(hub, head)),
            session=row.id if row is not None else None,
            engine=place.engine if place is not None else None,
            files=place.files if place is not None else None,
            directory=str(place.directory) if place is not None else None,
        )

    return paginate(heads, ask, lambda head: head.name).map_items(branch_info)


class MakeRef(OperationRequest, frozen=True):
    """`name`: the new name. `ref`: the commit that it points to."""

    name: RefName
    ref: Ref


@operation("POST", "/branches", status=201)
def make_branch(hub: Hub, ask: MakeRef) -> RefInfo:
    """Make a branch that belongs to no session."""
    return _create_ref(hub, ask, "branch")


class OneRef(OperationRequest, frozen=True):
    name: RefName


class Deleted(msgspec.Struct, frozen=True):
    """The commit that the deleted name pointed to. The reflog still names the commit."""

    name: str
    oid: str


@operation("DELETE", "/branches/{name}", needs="admin")
def delete_branch(hub: Hub, ask: OneRef) -> Deleted:
    """Delete a branch that belongs to no workspace and no session."""
    return Deleted(ask.name, to_hex(branches.delete(hub.internals.session_manager, ask.name)))


@operation("GET", "/tags", filtered=True)
def list_tags(hub: Hub, ask: ListRefs, caller: Caller) -> Page[RefInfo]:
    """List the tags by name, each with its commit. All sessions share the tags."""
    del caller  # the hub resolves only commits that the caller may see
    heads = [
        head
        for head in hub.refs.tags()
        if head.name.startswith(ask.prefix) and _is_visible(hub, head.oid)
    ]
    return paginate(heads, ask, lambda head: head.name).map_items(lambda head: _ref(hub, head))


@operation("POST", "/tags", status=201, filtered=True)
def make_tag(hub: Hub, ask: MakeRef, caller: Caller) -> RefInfo:
    """Make a tag. A tag names a commit and does not move."""
    del caller
    return _create_ref(hub, ask, "tag")


@operation("DELETE", "/tags/{name}", filtered=True)
def delete_tag(hub: Hub, ask: OneRef, caller: Caller) -> Deleted:
    """Delete a tag."""
    del caller
    head = hub.refs.get(ask.name, kind="tag")
    if head is None or not _is_visible(hub, head.oid):
        raise NotFound("no_ref", f"no tag is called {ask.name!r}: list them to see what there is")
    oid = hub.refs.delete(ask.name, kind="tag", expect=head.oid, actor=hub.store.author)
    return Deleted(ask.name, to_hex(oid))


class Moved(msgspec.Struct, frozen=True):
    """A move of a branch from the commit `was` to the commit `oid`. `was`: null if the branch did
    not exist. `ref`: a reference to the commit.
    """

    ref: str
    oid: str | None
    was: str | None
    verb: str
    time: int
    actor: str
    detail: str


@operation("GET", "/sessions/{session}/reflog")
def session_reflog(view: SessionReader, ask: Paged) -> Page[Moved]:
    """List the moves of a session's branch, the newest first. HEAD@{n} refers to each."""
    ops = list(enumerate(view.internals.store.refs.reflog(view.internals.row.branch)))
    return paginate(ops, ask, lambda one: one[1].seq).map_items(
        lambda one: _move_info("HEAD", *one)
    )


class Reflog(Paged, frozen=True, kw_only=True):
    """`name`: a branch or tag, also one that was deleted."""

    name: RefName


@operation("GET", "/reflog")
def reflog(hub: Hub, ask: Reflog) -> Page[Moved]:
    """List the moves of a branch or tag, the newest first."""
    moves = hub.refs.reflog(ask.name) or hub.refs.reflog(ask.name, kind="tag")
    if not moves:
        hub.refs.resolve(ask.name)  # raises an error that lists the alternatives
    ops = list(enumerate(moves))
    return paginate(ops, ask, lambda one: one[1].seq).map_items(
        lambda one: _move_info(ask.name, *one)
    )


# Internal helpers


def _is_visible(hub: Hub, oid: Oid) -> bool:
    return hub.refs.is_visible is None or hub.refs.is_visible(oid)


def _ref(hub: Hub, head: Head) -> RefInfo:
    return _info(hub, head.name, head.oid)


def _info(hub: Hub, name: str, oid: Oid) -> RefInfo:
    commit = hub.history.read(oid)
    return RefInfo(name, to_hex(oid), commit.time, commit.message)


def _create_ref(hub: Hub, ask: MakeRef, kind: RefKind) -> RefInfo:
    oid = hub.refs.resolve(ask.ref)
    try:
        hub.refs.create(ask.name, oid, kind=kind, actor=hub.store.author)
    except Conflict as error:
        # Leave out the details: the caller may not be allowed to see the other commit.
        raise Conflict("name_taken", error.message) from None
    return _info(hub, ask.name, oid)


def _move_info(name: str, number: int, op: Op) -> Moved:
    return Moved(
        ref=f"{name}@{{{number}}}",
        oid=to_hex(op.new) if op.new is not None else None,
        was=to_hex(op.old) if op.old is not None else None,
        verb=op.verb,
        time=op.time,
        actor=op.actor,
        detail=op.detail,
    )
