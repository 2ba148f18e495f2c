"""Commits that are named by their ids, in a store that other hosts sweep: perhaps nothing else
leads to them, and a sweep takes them away at this moment."""

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
    from ortet.hub.hub import Hub


def pin_commit(
    hub: Hub, commit: Oid, *, reachable_from: Oid | None = None, branch: str = ""
) -> None:
    """Within hub.writing(), before a head or a row leads to `commit`: all that it needs is there,
    and stays. What only packs hold that a sweep is about to delete is put again, durably;
    NotFound("commit_swept") when some of it is gone already.

    Nobody needs to look when a head leads to it: `of`, one that nobody else moves meanwhile, or
    what the reflog of `branch` holds. A store on this host keeps sweeps out while one writes.
    """
    if not hub.objects.is_remote or _is_reachable(hub, commit, reachable_from, branch):
        return
    known = (
        frozenset(hub.history.ancestors(reachable_from))
        if reachable_from is not None
        else frozenset[Oid]()
    )
    kinds = {commit: Kind.COMMIT}
    marks = ReachableSet(
        hub.objects, _record_kinds(references_after_erasure(hub.objects), kinds, known)
    )

    def gone(link: ObjectRef, parent: Oid | None, error: OrtetError) -> None:
        del link, parent
        raise _commit_swept(commit, error) from error

    marks.add([ObjectRef(commit, Kind.COMMIT)], on_broken=gone)
    again = [oid for oid in kinds if not hub.objects.has(oid)]
    for oid in again:
        try:
            hub.objects.put(kinds[oid], hub.objects.get(oid))
        except NotFound as error:
            raise _commit_swept(commit, error) from error
    if again:
        hub.objects.flush()
    failpoint("relied")


def ref_writer(hub: Hub) -> RunPinned:
    """How a branch or tag is put at a commit that its caller has found by any of its names."""

    def named(commit: Oid, call: Callable[[], object]) -> None:
        def act() -> None:
            with hub.writing():
                pin_commit(hub, commit)
                call()

        run_with_sweep_retry(hub, act)

    return named


def _is_reachable(hub: Hub, commit: Oid, reachable_from: Oid | None, branch: str) -> bool:
    """By what is quickly looked at."""
    if reachable_from is not None and (
        commit == reachable_from or hub.history.is_ancestor(commit, reachable_from)
    ):
        return True
    if any(head.oid == commit for head in hub.catalog.heads("branch:")):
        return True
    if not branch:
        return False
    from ortet.hub.care import load_reflog_expiry

    gone = load_reflog_expiry(hub)
    return any(commit in (op.old, op.new) for op in hub.refs.reflog(branch) if not gone.covers(op))


def _record_kinds(
    walk: Callable[[Kind, bytes], Iterable[ObjectRef]], kinds: dict[Oid, Kind], skip: frozenset[Oid]
) -> Callable[[Kind, bytes], Iterator[ObjectRef]]:
    """The same walk, not into commits that are known to be whole; what it finds is noted."""

    def noting(kind: Kind, data: bytes) -> Iterator[ObjectRef]:
        for link in walk(kind, data):
            if link.kind is not Kind.COMMIT or link.oid not in skip:
                kinds.setdefault(link.oid, link.kind)
                yield link

    return noting


def _commit_swept(commit: Oid, error: OrtetError) -> OrtetError:
    """Other trouble, such as a host that has not uploaded yet, is told as it is."""
    if not isinstance(error, NotFound):
        return error
    return NotFound(
        "commit_swept",
        f"commit {to_hex(commit)[:12]} was swept away, or some of what it needs: no branch, tag or "
        "reflog led to it any more; `ortet log` shows what there is",
        oid=to_hex(commit),
    )
