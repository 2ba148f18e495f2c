"""Commits that are named by their ids, in a store that other hosts sweep: perhaps nothing else
leads to them, and a sweep takes them away at this moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from ortet._util.failpoints import reach
from ortet.errors import NotFound, OrtetError
from ortet.history.references import follow
from ortet.history.refs import Naming
from ortet.ids import Oid, to_hex
from ortet.objects.base import Kind, Link
from ortet.objects.gc.reachability import Marks
from ortet.store.sweep_retry import repeated

if TYPE_CHECKING:
    from ortet.hub.hub import Hub


def rely_on(hub: Hub, commit: Oid, *, of: Oid | None = None, branch: str = "") -> None:
    """Within hub.writing(), before a head or a row leads to `commit`: all that it needs is there,
    and stays. What only packs hold that a sweep is about to delete is put again, durably;
    NotFound("commit_swept") when some of it is gone already.

    Nobody needs to look when a head leads to it: `of`, one that nobody else moves meanwhile, or
    what the reflog of `branch` holds. A store on this host keeps sweeps out while one writes.
    """
    if not hub.objects.remote or _is_led_to(hub, commit, of, branch):
        return
    known = frozenset(hub.history.ancestors(of)) if of is not None else frozenset[Oid]()
    kinds = {commit: Kind.COMMIT}
    marks = Marks(hub.objects, _noting(follow(hub.objects), kinds, known))

    def gone(link: Link, parent: Oid | None, error: OrtetError) -> None:
        del link, parent
        raise _swept(commit, error) from error

    marks.add([Link(commit, Kind.COMMIT)], trouble=gone)
    again = [oid for oid in kinds if not hub.objects.has(oid)]
    for oid in again:
        try:
            hub.objects.put(kinds[oid], hub.objects.get(oid))
        except NotFound as error:
            raise _swept(commit, error) from error
    if again:
        hub.objects.flush()
    reach("relied")


def naming(hub: Hub) -> Naming:
    """How a branch or tag is put at a commit that its caller has found by any of its names."""

    def named(commit: Oid, call: Callable[[], object]) -> None:
        def act() -> None:
            with hub.writing():
                rely_on(hub, commit)
                call()

        repeated(hub, act)

    return named


def _is_led_to(hub: Hub, commit: Oid, of: Oid | None, branch: str) -> bool:
    """By what is quickly looked at."""
    if of is not None and (commit == of or hub.history.is_ancestor(commit, of)):
        return True
    if any(head.oid == commit for head in hub.catalog.heads("branch:")):
        return True
    if not branch:
        return False
    from ortet.hub.care import expired

    gone = expired(hub)
    return any(commit in (op.old, op.new) for op in hub.refs.reflog(branch) if not gone.covers(op))


def _noting(
    walk: Callable[[Kind, bytes], Iterable[Link]], kinds: dict[Oid, Kind], known: frozenset[Oid]
) -> Callable[[Kind, bytes], Iterator[Link]]:
    """The same walk, not into commits that are known to be whole; what it finds is noted."""

    def noting(kind: Kind, data: bytes) -> Iterator[Link]:
        for link in walk(kind, data):
            if link.kind is not Kind.COMMIT or link.oid not in known:
                kinds.setdefault(link.oid, link.kind)
                yield link

    return noting


def _swept(commit: Oid, error: OrtetError) -> OrtetError:
    """Other trouble, such as a host that has not uploaded yet, is told as it is."""
    if not isinstance(error, NotFound):
        return error
    return NotFound(
        "commit_swept",
        f"commit {to_hex(commit)[:12]} was swept away, or some of what it needs: no branch, tag or "
        "reflog led to it any more; `ortet log` shows what there is",
        oid=to_hex(commit),
    )
