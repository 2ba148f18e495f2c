"""Protects a commit that nothing refers to yet from a concurrent sweep on another host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from ortet._util.failpoints import failpoint
from ortet.errors import NotFound, OrtetError
from ortet.history.references import references_after_erasure
from ortet.history.refs import RunPinned
from ortet.ids import Oid, to_hex
from ortet.objects.base import Kind, ObjectRef
from ortet.objects.gc.reachability import ReachableSet
from ortet.store.sweep_retry import run_with_sweep_retry

if TYPE_CHECKING:
    from ortet.store.context import StoreContext


def pin_commit(
    store: StoreContext, commit: Oid, *, reachable_from: Oid | None = None, branch: str = ""
) -> None:
    """Ensure that `commit` and all objects that it needs exist, before a head or row refers to it.

    Must be called within `store.writing()`. Objects that are only in packs about to be deleted are
    stored again. If a head already reaches the commit, no object is checked. A local store needs no
    check at all, because a write blocks its sweeps.

    Args:
        store: The open store.
        commit: The commit to protect.
        reachable_from: A head that no other process moves meanwhile. Its ancestors are safe.
        branch: A branch whose reflog may hold the commit.

    Raises:
        NotFound: "commit_swept" if some object is already deleted.
    """
    if not store.objects.is_remote or _is_reachable(store, commit, reachable_from, branch):
        return
    known = (
        frozenset(store.history.ancestors(reachable_from))
        if reachable_from is not None
        else frozenset[Oid]()
    )
    kinds = {commit: Kind.COMMIT}
    marks = ReachableSet(
        store.objects, _record_kinds(references_after_erasure(store.objects), kinds, known)
    )

    def raise_swept(link: ObjectRef, parent: Oid | None, error: OrtetError) -> None:
        del link, parent
        raise _commit_swept(commit, error) from error

    marks.add([ObjectRef(commit, Kind.COMMIT)], on_broken=raise_swept)
    endangered = [oid for oid in kinds if not store.objects.has(oid)]
    for oid in endangered:
        try:
            store.objects.put(kinds[oid], store.objects.get(oid))
        except NotFound as error:
            raise _commit_swept(commit, error) from error
    if endangered:
        store.objects.flush()
    failpoint("relied")


def ref_writer(store: StoreContext) -> RunPinned:
    """Return a function that pins a commit and then creates a branch or tag there, with retry."""

    def pin_and_write(commit: Oid, write_ref: Callable[[], object]) -> None:
        def attempt() -> None:
            with store.writing():
                pin_commit(store, commit)
                write_ref()

        run_with_sweep_retry(store, attempt)

    return pin_and_write


def _is_reachable(
    store: StoreContext, commit: Oid, reachable_from: Oid | None, branch: str
) -> bool:
    """Return True if a quick check shows that a head or reflog reaches the commit."""
    if reachable_from is not None and (
        commit == reachable_from or store.history.is_ancestor(commit, reachable_from)
    ):
        return True
    if any(head.oid == commit for head in store.catalog.heads("branch:")):
        return True
    if not branch:
        return False
    from ortet.history.refs import load_reflog_expiry

    expiry = load_reflog_expiry(store.catalog)
    return any(
        commit in (op.old, op.new) for op in store.refs.reflog(branch) if not expiry.covers(op)
    )


def _record_kinds(
    walk: Callable[[Kind, bytes], Iterable[ObjectRef]], kinds: dict[Oid, Kind], skip: frozenset[Oid]
) -> Callable[[Kind, bytes], Iterator[ObjectRef]]:
    """Wrap `walk`: skip the commits in `skip`, and record the kind of every object found."""

    def walk_and_record(kind: Kind, data: bytes) -> Iterator[ObjectRef]:
        for link in walk(kind, data):
            if link.kind is not Kind.COMMIT or link.oid not in skip:
                kinds.setdefault(link.oid, link.kind)
                yield link

    return walk_and_record


def _commit_swept(commit: Oid, error: OrtetError) -> OrtetError:
    """Return NotFound("commit_swept") if objects are missing, and any other error unchanged.

    Another error is, for example, a host that has not uploaded its objects yet.
    """
    if not isinstance(error, NotFound):
        return error
    return NotFound(
        "commit_swept",
        f"commit {to_hex(commit)[:12]}, or an object that it needs, was swept: no branch, tag or "
        "reflog led to it any more; `ortet log` lists the commits that exist",
        oid=to_hex(commit),
    )
